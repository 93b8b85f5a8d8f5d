"""Execute one notebook and write its page (not notebook.py: nbconvert tries to import `notebook`)."""

from pathlib import Path

from effstate.jobs import job, pipeline_of
from effstate.notebooks import make_notebook

snakemake = globals()["snakemake"]

with job(Path(snakemake.log[0])):
    pipeline = pipeline_of(snakemake)
    paths = [Path(path) for path in (snakemake.output.executed, snakemake.output.page)]
    make_notebook(Path(snakemake.input.notebook), pipeline.scale.name, pipeline.results, *paths)
