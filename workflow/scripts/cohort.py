"""Make one cohort of the data, train, trace, distill or weights stage."""

from pathlib import Path

from effstate.jobs import job, make_cohort, pipeline_of

snakemake = globals()["snakemake"]

with job(Path(snakemake.log[0])):
    pipeline = pipeline_of(snakemake)
    wildcards = snakemake.wildcards
    make_cohort(pipeline, pipeline.cohort(wildcards.study, snakemake.rule, wildcards.cohort))
