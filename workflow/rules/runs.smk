"""The chain of every sweep study: data -> train -> trace -> tables. A job is a cohort of runs."""

from effstate.artifacts import STAGE_VERSIONS
from effstate.jobs import finished_digests


def traced_manifests(wildcards):
    """All trace manifests of a study; none when tables are made from whatever is there."""
    if PIPELINE.project.partial:
        return []
    return PIPELINE.manifests(wildcards.study, "trace")


def traced_runs(wildcards):
    """What decides the tables: the runs asked for, or under `partial` those that exist."""
    if PIPELINE.project.partial:
        return finished_digests(PIPELINE, wildcards.study)
    return [request.digest for request in PIPELINE.requests(wildcards.study, "trace")]


rule data:
    output:
        f"{RESULTS}/cohorts/data/{{study}}/{{cohort}}.json",
    log:
        f"{RESULTS}/logs/data/{{study}}-{{cohort}}.log",
    benchmark:
        f"{RESULTS}/benchmarks/data/{{study}}-{{cohort}}.tsv"
    threads: PIPELINE.project.threads
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
    params:
        members=members("trace"),
    script:
        "../scripts/cohort.py"


rule collect:
    input:
        traced_manifests,
    output:
        runs=f"{RESULTS}/tables/{SCALE}/{{study}}_runs.parquet",
        checkpoints=f"{RESULTS}/tables/{SCALE}/{{study}}_checkpoints.parquet",
        layers=f"{RESULTS}/tables/{SCALE}/{{study}}_layers.parquet",
    log:
        f"{RESULTS}/logs/collect/{SCALE}-{{study}}.log",
    params:
        runs=traced_runs,
        version=STAGE_VERSIONS["collect"],
        total_over=lambda wildcards: PIPELINE.sweep(wildcards.study).total_over,
    script:
        "../scripts/collect.py"
