"""Draw one figure from the tables."""

from pathlib import Path

from effstate.jobs import draw_figure, job, pipeline_of

snakemake = globals()["snakemake"]

with job(Path(snakemake.log[0])):
    pipeline = pipeline_of(snakemake)
    tables = [Path(path) for path in snakemake.input.get("tables", [])]
    draw_figure(pipeline, snakemake.params.figure, tables, Path(snakemake.output[0]).with_suffix(""))
