"""What a scale would cost, before anything runs; and what of it is there already. No torch."""

from __future__ import annotations

import statistics
from collections import Counter
from dataclasses import dataclass

from effstate.artifacts import Request
from effstate.jobs import states
from effstate.pipeline import Pipeline
from effstate.requests import run_of
from effstate.workload import (
    GPU_FLOPS_PER_SECOND,
    GPU_STEP_OVERHEAD,
    labels_per_row,
    seconds,
)


@dataclass(frozen=True)
class StudyPlan:
    """Numbers of one study at one scale."""

    study: str
    students: int
    runs: int
    to_train: int
    jobs: int
    steps: int
    dropped: dict[str, int]
    cpu_seconds: float
    gpu_seconds: float
    longest_seconds: float
    data_bytes: float
    measured: bool


def _measured_seconds(pipeline: Pipeline, requests: list[Request]) -> dict[str, float]:
    """Median wall time of finished runs by shape and steps."""
    times: dict[str, list[float]] = {}
    for request in requests:
        provenance = pipeline.store.artifact(request).provenance()
        if provenance is not None and provenance["state"] == "done":
            times.setdefault(_shape(request), []).append(provenance["seconds"])
    return {shape: statistics.median(values) for shape, values in times.items()}


def _shape(request: Request) -> str:
    run = run_of(request)
    return f"{run.model.slug}-{run.task.slug}-{run.training.steps}-{run.training.batch_size}"


def plan(pipeline: Pipeline) -> list[StudyPlan]:
    """The plan of every study of the scale."""
    plans = []
    for study, sweep in pipeline.sweeps.items():
        requests = pipeline.requests(study, "train")
        known = _measured_seconds(pipeline, requests)
        times = {r.digest: known.get(_shape(r), seconds(r, "cpu")) for r in requests}
        cohorts = pipeline.cohorts(study, "train").values()
        tasks = {r.digest: r.config.task for r in pipeline.requests(study, "data")}  # type: ignore[attr-defined]
        students = pipeline.requests(study, "distill") if "distill" in pipeline.stages(study) else []
        plans.append(
            StudyPlan(
                study=study,
                students=len(students),
                runs=len(requests),
                to_train=sum(not pipeline.store.artifact(r).finished for r in requests),
                jobs=sum(len(pipeline.cohorts(study, stage)) for stage in pipeline.stages(study))
                + (2 if students else 1),
                steps=sum(run_of(r).training.steps for r in requests),
                dropped=dict(sweep.dropped),
                cpu_seconds=sum(times.values()) + sum(seconds(r, "cpu") for r in students),
                gpu_seconds=sum(seconds(r, "gpu") for r in [*requests, *students]),
                longest_seconds=max(
                    (sum(times[r.digest] for r in cohort.requests) for cohort in cohorts),
                    default=0.0,
                ),
                data_bytes=sum(
                    (t.num_train + t.num_validation + t.num_test)
                    * (t.seq_len * (2 if t.vocab_size < 2**15 else 4) + 8 * labels_per_row(t))
                    for t in tasks.values()
                ),
                measured=bool(known),
            )
        )
    return plans


def duration(seconds: float) -> str:
    """``90`` is ``1.5 min``; the largest unit that keeps the number readable."""
    for unit, length in (("days", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 1.5 * length:
            return f"{seconds / length:,.1f} {unit}"
    return f"{seconds:.0f} s"


def plan_text(pipeline: Pipeline) -> str:
    """The plan as text: runs, jobs, what constraints dropped, steps and estimated time."""
    lines = [f"scale {pipeline.scale.name}: {pipeline.scale.description}"]
    for p in plan(pipeline):
        lines.append(
            f"{p.study}: {p.runs:,} runs ({p.to_train:,} not there yet) in {p.jobs:,} jobs, "
            f"{p.steps:,} training steps"
        )
        if p.students:
            lines.append(f"  {p.students:,} students: checkpoints x layers x student sizes")
        for constraint, count in p.dropped.items():
            lines.append(f"  dropped by {constraint}: {count:,} combinations")
        basis = "finished runs of the same shape where there are any" if p.measured else "assumed speed"
        lines.append(
            f"  all runs on one CPU thread: {duration(p.cpu_seconds)} (from {basis}), "
            f"longest job {duration(p.longest_seconds)}"
        )
        lines.append(
            f"  on one GPU: {p.gpu_seconds / 3600:,.1f} GPU-hours "
            f"(assuming {GPU_FLOPS_PER_SECOND / 1e12:.0f} TFLOP/s and "
            f"{1000 * GPU_STEP_OVERHEAD:.0f} ms a step); data sets {p.data_bytes / 1e9:,.2f} GB"
        )
    for name, study in pipeline.studies.items():
        if name not in pipeline.sweeps:
            runs = [r for stage in study.run_stages for r in pipeline.requests(name, stage)]
            missing = sum(not pipeline.store.artifact(r).finished for r in runs)
            jobs = sum(len(pipeline.cohorts(name, stage)) for stage in study.stages) + 1
            lines.append(f"{name}: {len(runs):,} runs ({missing:,} not there yet) in {jobs:,} jobs")
            lines += [f"  {line}" for line in study.plan_lines()]
    return "\n".join(lines)


def status_text(pipeline: Pipeline) -> str:
    """Done, running, diverged, failed, interrupted and missing runs; those that need a look by name."""
    lines = [f"scale {pipeline.scale.name}, runs in {pipeline.store.runs}"]
    rows = states(pipeline)
    for study in pipeline.studies:
        counts = Counter(row["state"] for row in rows if row["study"] == study)
        order = ("done", "running", "interrupted", "diverged", "failed", "missing")
        lines.append(f"{study}: " + ", ".join(f"{counts[state]} {state}" for state in order))
    for row in rows:
        if row["state"] in ("running", "interrupted", "diverged", "failed"):
            reason = f": {row['reason']}" if row["reason"] else ""
            lines.append(f"  {row['state']:11} {row['run']}{reason}")
    return "\n".join(lines)
