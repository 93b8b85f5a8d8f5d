"""What a scale would cost, before anything runs; and what of it is there already. No torch."""

from __future__ import annotations

import statistics
from collections import Counter
from dataclasses import dataclass

from effstate.artifacts import Request
from effstate.config import RunConfig, TaskConfig
from effstate.jobs import states
from effstate.models.cost import training_flops
from effstate.pipeline import Pipeline
from effstate.registry import TASKS
from effstate.requests import run_of

# Nominal speeds for estimates where the store holds no finished run of the same shape; they are
# assumptions to plan with, not measurements of the reader's machine.
CPU_STEP_OVERHEAD = 4e-3
CPU_FLOPS_PER_SECOND = 1e10
GPU_STEP_OVERHEAD = 5e-3
GPU_FLOPS_PER_SECOND = 2e13


def labels_per_row(task: TaskConfig) -> int:
    """Label positions in one row of a built-in task (all but one for an unknown one)."""
    for key in ("kv", "num_tokens_to_copy"):
        if hasattr(task, key):
            return int(getattr(task, key))
    return task.seq_len - 1


def run_flops(run: RunConfig) -> float:
    """Floating-point operations of the whole training."""
    per_step = training_flops(
        run.model,
        run.task.vocab_size,
        run.task.seq_len,
        run.training.batch_size,
        labels_per_row(run.task),
        TASKS[run.task.name].readout,
    )
    return per_step * run.training.steps


def _seconds(run: RunConfig, overhead: float, speed: float) -> float:
    return run.training.steps * overhead + run_flops(run) / speed


def _student_seconds(pipeline: Pipeline, overhead: float, speed: float) -> float:
    """All students of the distillation study: teacher and student layer on every step."""
    config = pipeline.scale.distillation
    assert config is not None
    matching, total = config.matching, 0.0
    for request in pipeline.requests("distillation", "distill"):
        run = run_of(request)
        length, layers = run.task.seq_len, run.model.num_layers
        # The operator phase applies a layer to all L unit vectors: L / head width as many channels.
        unit = length * run.model.heads / run.model.width
        layer = training_flops(run.model, 1, length, matching.batch_size, 1) / layers
        steps = matching.steps_operator + matching.steps_activation
        work = layer * (matching.steps_operator * max(unit, 1) + matching.steps_activation)
        total += steps * overhead + work / speed
    return total


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
        seconds = {
            r.digest: known.get(_shape(r), _seconds(run_of(r), CPU_STEP_OVERHEAD, CPU_FLOPS_PER_SECOND))
            for r in requests
        }
        cohorts = pipeline.cohorts(study, "train").values()
        tasks = {r.digest: r.config.task for r in pipeline.requests(study, "data")}  # type: ignore[attr-defined]
        students, student_seconds = 0, {"cpu": 0.0, "gpu": 0.0}
        if "distill" in pipeline.stages(study):
            students = len(pipeline.requests(study, "distill"))
            student_seconds = {
                "cpu": _student_seconds(pipeline, CPU_STEP_OVERHEAD, CPU_FLOPS_PER_SECOND),
                "gpu": _student_seconds(pipeline, GPU_STEP_OVERHEAD, GPU_FLOPS_PER_SECOND),
            }
        plans.append(
            StudyPlan(
                study=study,
                students=students,
                runs=len(requests),
                to_train=sum(not pipeline.store.artifact(r).finished for r in requests),
                jobs=sum(len(pipeline.cohorts(study, stage)) for stage in pipeline.stages(study))
                + (2 if students else 1),
                steps=sum(run_of(r).training.steps for r in requests),
                dropped=dict(sweep.dropped),
                cpu_seconds=sum(seconds.values()) + student_seconds["cpu"],
                gpu_seconds=student_seconds["gpu"]
                + sum(_seconds(run_of(r), GPU_STEP_OVERHEAD, GPU_FLOPS_PER_SECOND) for r in requests),
                longest_seconds=max(
                    (sum(seconds[r.digest] for r in cohort.requests) for cohort in cohorts),
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
