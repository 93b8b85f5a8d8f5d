"""Configuration, checked before any rule, and the helpers that all rules share."""

import re
import sys
from pathlib import Path

from snakemake.exceptions import WorkflowError

from effstate.cluster import (
    SMALL_JOB,
    check_cluster,
    check_intervals,
    job_megabytes,
    job_minutes,
    lm_attempts,
    where,
)
from effstate.config import ConfigError
from effstate.figures.registry import FIGURES
from effstate.pipeline import Pipeline
from effstate.registry import UnknownNameError, nearest


def resolved_pipeline():
    """The pipeline of this invocation; one sentence and no traceback if the configuration is bad."""
    try:
        return Pipeline.from_config(config, Path(workflow.basedir))
    except (ConfigError, UnknownNameError) as error:
        raise WorkflowError(str(error)) from None


PIPELINE = resolved_pipeline()
CLUSTER = PIPELINE.project.cluster
RESULTS = PIPELINE.project.results
SCALE = PIPELINE.scale.name
STUDIES = list(PIPELINE.studies)


wildcard_constraints:
    study="[a-z]+",
    cohort="[^/]+",


def check_targets():
    """Refuse a target that looks like a figure but is none, naming the nearest figure."""
    # Snakemake keeps its targets to itself until all rules are read; the command line has them.
    for name in sys.argv[1:]:
        if re.fullmatch(r"fig[A-Z]?\d+\w*", name) and name not in FIGURES:
            hint = nearest(name, ["figures", *FIGURES])
            raise WorkflowError(f"there is no figure '{name}'{hint}")


check_targets()


def check_submission():
    """Refuse what would fail on the cluster, before anything is submitted."""
    # `plan` and `status` are for the laptop too, and jobs on the nodes have been checked already.
    if not workflow.is_main_process or {"plan", "status"} & {*sys.argv}:
        return
    # Rules are read before Snakemake knows of a dry run, which needs no cluster; the command line does.
    dry = any(re.fullmatch(r"-[a-z]*n[a-z]*|--dry-?run", word) for word in sys.argv[1:])
    try:
        (check_intervals if dry else check_cluster)(PIPELINE)
    except ConfigError as error:
        raise WorkflowError(str(error)) from None


check_submission()


def job_resources(stage):
    """What a cohort's job asks a cluster for; time and memory grow with every attempt."""

    def cohort(wildcards):
        return PIPELINE.cohort(wildcards.study, stage, wildcards.cohort)

    return {
        "runtime": lambda wildcards, attempt: job_minutes(
            CLUSTER, cohort(wildcards), attempt
        ),
        "mem_mb": lambda wildcards, attempt: job_megabytes(cohort(wildcards), attempt),
        **where(CLUSTER, stage),
    }


def small_job():
    """What a job that collects or draws asks for."""
    return {
        **{name: grown(value) for name, value in SMALL_JOB.items()},
        **where(CLUSTER, None),
    }


def grown(value):
    """A resource that grows with every attempt."""
    return lambda wildcards, attempt: attempt * value


def upstream(stage):
    """Input function of a stage's cohort: the manifests of what its members read."""
    return lambda wildcards: PIPELINE.upstream(wildcards.study, stage, wildcards.cohort)


def members(stage):
    """Digests of a cohort's members: the only thing that decides what its job makes."""
    return lambda wildcards: [
        request.digest
        for request in PIPELINE.cohort(
            wildcards.study, stage, wildcards.cohort
        ).requests
    ]


def table_paths(study):
    """The tables of a study."""
    return [
        f"{RESULTS}/tables/{SCALE}/{study}_{table}.parquet"
        for table in PIPELINE.study(study).tables
    ]


def say_where_the_figures_are():
    """After a run: where the pictures lie, and the correlations that figure 5 draws."""
    from effstate.jobs import closing_words

    print(closing_words(PIPELINE))
