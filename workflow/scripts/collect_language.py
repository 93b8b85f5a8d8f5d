"""Make the tables of the study of language models."""

from pathlib import Path

from effstate.jobs import job, make_language_tables, pipeline_of

snakemake = globals()["snakemake"]

with job(Path(snakemake.log[0])):
    outputs = {name: Path(path) for name, path in snakemake.output.items()}
    make_language_tables(pipeline_of(snakemake), outputs)
