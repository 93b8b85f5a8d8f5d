"""The chain of every sweep study: data -> train -> trace -> tables. A job is a cohort of runs."""

from effstate.artifacts import STAGE_VERSIONS
from effstate.jobs import finished_digests


def finished_manifests(stage, study=None):
    """All manifests of a study's stage; none when tables are made from whatever is there."""

    def manifests(wildcards):
        if PIPELINE.project.partial:
            return []
        return PIPELINE.manifests(study or wildcards.study, stage)

    return manifests


def finished_members(stage, study=None):
    """What decides the tables: the members asked for, or under `partial` those that exist."""

    def digests(wildcards):
        name = study or wildcards.study
        if PIPELINE.project.partial:
            return finished_digests(PIPELINE, name, stage)
        return [request.digest for request in PIPELINE.requests(name, stage)]

    return digests


rule data:
    output:
        f"{RESULTS}/cohorts/data/{{study}}/{{cohort}}.json",
    log:
        f"{RESULTS}/logs/data/{{study}}-{{cohort}}.log",
    benchmark:
        f"{RESULTS}/benchmarks/data/{{study}}-{{cohort}}.tsv"
    threads: PIPELINE.project.threads
    resources:
        **job_resources("data"),
    params:
        members=members("data"),
    script:
        "../scripts/cohort.py"


rule train:
    input:
        upstream("train"),
    output:
        f"{RESULTS}/cohorts/train/{{study}}/{{cohort}}.json",
    log:
        f"{RESULTS}/logs/train/{{study}}-{{cohort}}.log",
    benchmark:
        f"{RESULTS}/benchmarks/train/{{study}}-{{cohort}}.tsv"
    threads: PIPELINE.project.threads
    resources:
        **job_resources("train"),
    params:
        members=members("train"),
    script:
        "../scripts/cohort.py"


rule trace:
    input:
        upstream("trace"),
    output:
        f"{RESULTS}/cohorts/trace/{{study}}/{{cohort}}.json",
    log:
        f"{RESULTS}/logs/trace/{{study}}-{{cohort}}.log",
    benchmark:
        f"{RESULTS}/benchmarks/trace/{{study}}-{{cohort}}.tsv"
    threads: PIPELINE.project.threads
    resources:
        **job_resources("trace"),
    params:
        members=members("trace"),
    script:
        "../scripts/cohort.py"


rule distill:
    input:
        upstream("distill"),
    output:
        f"{RESULTS}/cohorts/distill/{{study}}/{{cohort}}.json",
    log:
        f"{RESULTS}/logs/distill/{{study}}-{{cohort}}.log",
    benchmark:
        f"{RESULTS}/benchmarks/distill/{{study}}-{{cohort}}.tsv"
    threads: PIPELINE.project.threads
    resources:
        **job_resources("distill"),
    params:
        members=members("distill"),
    script:
        "../scripts/cohort.py"


rule collect:
    input:
        finished_manifests("trace"),
    output:
        runs=f"{RESULTS}/tables/{SCALE}/{{study}}_runs.parquet",
        checkpoints=f"{RESULTS}/tables/{SCALE}/{{study}}_checkpoints.parquet",
        layers=f"{RESULTS}/tables/{SCALE}/{{study}}_layers.parquet",
    log:
        f"{RESULTS}/logs/collect/{SCALE}-{{study}}.log",
    wildcard_constraints:
        study="|".join(PIPELINE.sweeps) or "none",
    resources:
        **small_job(),
    params:
        runs=finished_members("trace"),
        grids=lambda wildcards: PIPELINE.sweep(wildcards.study).grids,
        version=STAGE_VERSIONS["collect"],
        total_over=lambda wildcards: PIPELINE.sweep(wildcards.study).total_over,
    script:
        "../scripts/collect.py"


rule collect_students:
    input:
        finished_manifests("distill", "distillation"),
    output:
        students=f"{RESULTS}/tables/{SCALE}/distillation_students.parquet",
        curves=f"{RESULTS}/tables/{SCALE}/distillation_curves.parquet",
    log:
        f"{RESULTS}/logs/collect/{SCALE}-distillation_students.log",
    resources:
        **small_job(),
    params:
        students=finished_members("distill", "distillation"),
        version=STAGE_VERSIONS["collect"],
    script:
        "../scripts/collect_students.py"
