"""Make the tables of one study."""

from pathlib import Path

from effstate.jobs import job, make_tables, pipeline_of

snakemake = globals()["snakemake"]

with job(Path(snakemake.log[0])):
    pipeline = pipeline_of(snakemake)
    outputs = {name: Path(path) for name, path in snakemake.output.items()}
    make_tables(pipeline, snakemake.wildcards.study, outputs)
