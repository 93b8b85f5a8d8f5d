"""Make the tables of the distillation study's students."""

from pathlib import Path

from effstate.jobs import job, make_student_tables, pipeline_of

snakemake = globals()["snakemake"]

with job(Path(snakemake.log[0])):
    outputs = {name: Path(path) for name, path in snakemake.output.items()}
    make_student_tables(pipeline_of(snakemake), outputs)
