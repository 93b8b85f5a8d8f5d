"""Make one cohort of the data, train or trace stage."""

from pathlib import Path

from effstate.jobs import job, make_cohort
from effstate.pipeline import Pipeline

snakemake = globals()["snakemake"]

with job(Path(snakemake.log[0])):
    pipeline = Pipeline.from_config(snakemake.config, Path(snakemake.scriptdir).resolve().parents[1])
    wildcards = snakemake.wildcards
    make_cohort(pipeline, pipeline.cohort(wildcards.study, snakemake.rule, wildcards.cohort))
