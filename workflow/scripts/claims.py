"""Judge the paper's claims on the tables of the studies that the scale runs."""

from pathlib import Path

from effstate.jobs import job, judge_claims, pipeline_of

snakemake = globals()["snakemake"]

with job(Path(snakemake.log[0])):
    tables = [Path(path) for path in snakemake.input.get("tables", [])]
    outputs = {name: Path(path) for name, path in snakemake.output.items()}
    judge_claims(pipeline_of(snakemake), tables, outputs)
