"""What a job asks a SLURM cluster for, and what can be refused before anything is submitted.

Nothing here submits: Snakemake's SLURM executor does, with the resources that :func:`resources` gives.
"""

from __future__ import annotations

import math
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from effstate.artifacts import Request
from effstate.cohorts import Cohort
from effstate.config import ClusterConfig, ConfigError
from effstate.registry import nearest
from effstate.workload import Device, checkpoint_seconds, memory_bytes, seconds

if TYPE_CHECKING:
    from effstate.pipeline import Pipeline

GPU_STAGES = frozenset({"train", "trace", "distill", "weights", "lmtrain", "lmeval", "lmtrace"})
"""Stages whose jobs take a GPU where there is one."""

# Estimates come from nominal speeds: a job gets so many times as long, and never less than this.
TIME_MARGIN = 3.0
LEAST_MINUTES = 15
# Room for another look at memory than the estimate's.
MEMORY_MARGIN = 1.5
LEAST_MB = 2000
SMALL_JOB = {"runtime": LEAST_MINUTES, "mem_mb": 4000}
"""Of jobs that collect tables or draw."""

STOP_EARLY_SECONDS = 300
"""A language model's training gets SIGTERM so long before its time limit, to write its resume point."""


def device_of(cluster: ClusterConfig | None, stage: str) -> Device:
    """What a stage's jobs compute on: a GPU, or CPUs."""
    return "gpu" if cluster is not None and cluster.gpus and stage in GPU_STAGES else "cpu"


def job_seconds(cluster: ClusterConfig | None, requests: Sequence[Request]) -> float:
    """Estimated wall time of a job that makes the requests one after the other."""
    device = device_of(cluster, requests[0].stage)
    return sum(seconds(request, device) for request in requests)


def filling(cluster: ClusterConfig, requests: Sequence[Request]) -> int:
    """How many of the requests (of one stage and shape) one job makes within ``job_hours``."""
    mean = job_seconds(cluster, requests) / len(requests)
    return max(1, int(cluster.job_hours * 3600 / max(mean, 1e-3)))


def job_minutes(cluster: ClusterConfig | None, cohort: Cohort, attempt: int = 1) -> int:
    """Time limit of a cohort's job, in minutes; grows with the attempt up to ``max_hours``."""
    wanted = TIME_MARGIN * job_seconds(cluster, cohort.requests) / 60
    minutes = attempt * max(LEAST_MINUTES, math.ceil(wanted))
    return minutes if cluster is None else min(minutes, int(cluster.max_hours * 60))


def job_megabytes(cohort: Cohort, attempt: int = 1) -> int:
    """Memory of a cohort's job, that of its largest member; grows with the attempt."""
    largest = max(memory_bytes(request) for request in cohort.requests)
    return attempt * max(LEAST_MB, math.ceil(MEMORY_MARGIN * largest / 2**20))


def lm_attempts(pipeline: Pipeline) -> int:
    """Jobs in a row that the longest training of a language model may take, with a margin."""
    cluster = pipeline.project.cluster
    longest = [
        job_seconds(cluster, cohort.requests)
        for study in pipeline.studies
        if "lmtrain" in pipeline.stages(study)
        for cohort in pipeline.cohorts(study, "lmtrain").values()
    ]
    if cluster is None or not longest:
        return 1
    return 1 + math.ceil(TIME_MARGIN * max(longest) / (cluster.max_hours * 3600))


def where(cluster: ClusterConfig | None, stage: str | None) -> dict[str, Any]:
    """Partition, account and GPU of a stage's jobs, by the names of Snakemake's executor.

    ``stage=None``: a job that collects, draws or judges.
    """
    if cluster is None:
        return {}
    gpu = stage is not None and device_of(cluster, stage) == "gpu"
    partition = (gpu and cluster.gpu_partition) or cluster.partition
    found: dict[str, Any] = {}
    if partition:
        found["slurm_partition"] = partition
    if cluster.account:
        found["slurm_account"] = cluster.account
    if stage == "lmtrain":
        found["slurm_extra"] = f"'--signal=TERM@{STOP_EARLY_SECONDS}'"
    if gpu:
        found["gpu"] = cluster.gpus
        if cluster.gpu_type:
            found["gpu_model"] = cluster.gpu_type
    return found


# ------------------------------------------------------------------ before anything is submitted


def _output(*command: str) -> str | None:
    """What a SLURM command prints; None if it is not there or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def check_intervals(pipeline: Pipeline, source: str = "profiles/slurm/cluster.yaml") -> None:
    """ConfigError if a run could not reach its first resume point within a job's time limit."""
    cluster = pipeline.project.cluster
    if cluster is None:
        return
    for study in pipeline.studies:
        for stage in {"train", "lmtrain"} & set(pipeline.stages(study)):
            device = device_of(cluster, stage)
            for request in pipeline.requests(study, stage):
                hours = checkpoint_seconds(request, device) / 3600
                if hours > cluster.max_hours:
                    key = "checkpoint_every" if stage == "lmtrain" else "resume_every"
                    raise ConfigError(
                        f"{source}: max_hours = {cluster.max_hours:g} is shorter than the "
                        f"{hours:.2g} h between two resume points of {study}'s {request.slug}; take a "
                        f"longer limit or a smaller training.{key}"
                    )


def check_cluster(pipeline: Pipeline, source: str = "profiles/slurm/cluster.yaml") -> None:
    """ConfigError, one sentence, for what would fail only after submission.

    No SLURM on this host, an unknown partition, an account that is missing where one is required or
    that the user does not have. Without a cluster in the configuration nothing is checked.
    """
    cluster = pipeline.project.cluster
    if cluster is None:
        return
    check_intervals(pipeline, source)
    if shutil.which("sbatch") is None:
        raise ConfigError(
            f"{source}: this host has no SLURM (no `sbatch` on the PATH); run on a login node of the "
            "cluster, or leave the profile out to compute here"
        )
    listed = _output("sinfo", "--noheader", "--format=%R")
    if listed is None:
        raise ConfigError(f"{source}: SLURM does not answer on this host (`sinfo` failed)")
    partitions = sorted(set(listed.split()))
    for key in ("partition", "gpu_partition"):
        name = getattr(cluster, key)
        if name is not None and name not in partitions:
            raise ConfigError(
                f"{source}: {key} = '{name}': no such partition{nearest(name, partitions)}"
            )
    _check_account(cluster, source)


def _settings(text: str) -> Mapping[str, str]:
    """``Name = value`` lines, as `scontrol show config` prints them."""
    pairs = (line.partition("=") for line in text.splitlines() if "=" in line)
    return {name.strip(): value.strip() for name, _, value in pairs}


def _check_account(cluster: ClusterConfig, source: str) -> None:
    settings = _settings(_output("scontrol", "show", "config") or "")
    required = "associations" in settings.get("AccountingStorageEnforce", "").lower()
    command = ("sacctmgr", "--noheader", "--parsable2", "show", "associations", "where")
    user = _output("id", "--user", "--name") or ""
    listed = _output(*command, f"user={user.strip()}", "format=account") if user else None
    accounts = sorted({line.strip() for line in (listed or "").splitlines() if line.strip()})
    if cluster.account is None:
        if required and len(accounts) != 1:
            known = f"; yours are {', '.join(accounts)}" if accounts else ""
            raise ConfigError(f"{source}: account is missing, and this cluster requires one{known}")
    elif accounts and cluster.account not in accounts:
        hint = nearest(cluster.account, accounts)
        raise ConfigError(f"{source}: account = '{cluster.account}': not one of yours{hint}")


def status_command() -> str:
    """``sacct`` where it answers, else ``squeue``: without a database sacct is there and fails."""
    return "squeue" if _output("sacct", "--noheader", "--starttime=now") is None else "sacct"
