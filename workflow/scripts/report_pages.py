"""Write the report's pages: claims, settings, open choices, runs."""

from pathlib import Path

from effstate.jobs import job, make_pages, pipeline_of

snakemake = globals()["snakemake"]

with job(Path(snakemake.log[0])):
    outputs = {name: Path(path) for name, path in snakemake.output.items()}
    make_pages(pipeline_of(snakemake), map(Path, snakemake.input.claims), outputs)
