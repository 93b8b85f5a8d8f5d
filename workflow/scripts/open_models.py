"""Find out which open-weight models can be had, before any of them is measured."""

from pathlib import Path

from effstate.jobs import find_open_models, job, pipeline_of

snakemake = globals()["snakemake"]

with job(Path(snakemake.log[0])):
    find_open_models(pipeline_of(snakemake), Path(snakemake.output[0]))
