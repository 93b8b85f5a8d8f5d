"""Write the gallery: figures, captions and claims on one page."""

from pathlib import Path

from effstate.jobs import job, make_gallery, pipeline_of

snakemake = globals()["snakemake"]

with job(Path(snakemake.log[0])):
    make_gallery(pipeline_of(snakemake), Path(snakemake.input.claims), Path(snakemake.output[0]))
