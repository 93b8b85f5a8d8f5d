"""Make the tables of one study."""

from pathlib import Path

from effstate.jobs import job, make_tables
from effstate.pipeline import Pipeline

snakemake = globals()["snakemake"]

with job(Path(snakemake.log[0])):
    pipeline = Pipeline.from_config(snakemake.config, Path(snakemake.scriptdir).resolve().parents[1])
    outputs = {name: Path(path) for name, path in snakemake.output.items()}
    make_tables(pipeline, snakemake.wildcards.study, outputs)
