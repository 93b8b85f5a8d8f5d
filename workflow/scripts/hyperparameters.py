"""Write the hyperparameter tables as the scale resolves them, beside the paper's."""

from pathlib import Path

from effstate.jobs import job, make_hyperparameters, pipeline_of

snakemake = globals()["snakemake"]

with job(Path(snakemake.log[0])):
    make_hyperparameters(pipeline_of(snakemake), map(Path, snakemake.output))
