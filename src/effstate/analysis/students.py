"""From finished students to the tables of the distillation study (section 5.2, figures 6, 31, 32)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pandas as pd
from torch import Tensor

from effstate.analysis.collect import design_of
from effstate.analysis.trace import kind_name
from effstate.artifacts import Artifact, RunStore, read_json, read_tensors
from effstate.config import DistillationConfig, RunConfig
from effstate.registry import MIXERS
from effstate.requests import StudentConfig, student_requests, train_request
from effstate.training.distillation import ESS
from effstate.training.trainer import RESULT

_MEASURES = ("accuracy", "teacher_accuracy", "operator_loss", "activation_loss")
_CURVE_COLUMNS = ("run", "student", "featurizer", "seq_len", "kv", "seed", "layer", "role", "tss")


def _ess_columns(ess: Tensor, kinds: Iterable[str], prefix: str) -> dict[str, float]:
    """Summaries of a layer's ESS (kinds, samples, heads, L - 1).

    ``<prefix>ess_mid_<kind>``: the smallest over samples and channels at index L / 2 (METHOD
    section 5); ``<prefix>ess_<kind>``: the mean over samples, channels and index.
    """
    middle = (ess.shape[-1] + 1) // 2 - 1  # entry k is index k + 1
    columns: dict[str, float] = {}
    for kind, values in zip(kinds, ess.double(), strict=True):
        columns[f"{prefix}ess_mid_{kind}"] = float(values[..., middle].min())
        columns[f"{prefix}ess_{kind}"] = float(values.mean())
    return columns


def _curve(
    design: dict[str, Any], role: str, ess: Tensor, kinds: Iterable[str], **own: Any
) -> list[dict[str, Any]]:
    """A row per index: ESS averaged over samples and heads."""
    means = ess.double().mean(dim=(1, 2)).tolist()
    named = dict(zip(kinds, means, strict=True))
    shared = {c: design[c] for c in _CURVE_COLUMNS if c in design} | {"role": role} | own
    return [
        shared | {"index": i + 1} | {f"ess_{kind}": values[i] for kind, values in named.items()}
        for i in range(len(means[0]))
    ]


def _row(artifact: Artifact, run: RunConfig, design: dict[str, Any]) -> dict[str, Any]:
    """A student's design columns and state, without what it measured."""
    config = artifact.request.config
    assert isinstance(config, StudentConfig)
    model = run.model.model_copy(update={"k_expansion": config.k_expansion})
    mixer = MIXERS[model.mixers[config.layer]]
    return {
        **design,
        "student": artifact.request.name,
        "epoch": config.epoch,
        "layer": config.layer,
        "teacher_tss": mixer.tss(run.model, run.task.seq_len),
        "tss": mixer.tss(model, run.task.seq_len),
        "state": artifact.state,
    }


def collect_students(
    store: RunStore,
    distillation: DistillationConfig,
    runs: Iterable[RunConfig],
    on_student: Callable[[], None] = lambda: None,
) -> dict[str, pd.DataFrame]:
    """The tables ``students`` (one row a student) and ``curves`` of the last checkpoints' students.

    A curve has a row per index: ``role`` teacher or student, ``tss`` its own, ``accuracy`` on the
    test rows with it in place, ``ess_<kind>`` the mean over samples and heads. Raises ArtifactError
    if a finished student's outputs are damaged.
    """
    kinds = ("entropy", kind_name(distillation.matching.tolerance))
    students: list[dict[str, Any]] = []
    curves: list[dict[str, Any]] = []
    for run in runs:
        design = design_of(run, train_request(run).name, "")
        drawn: set[int] = set()  # layers whose teacher has its curve already
        for request in student_requests(run, distillation):
            artifact = store.artifact(request)
            row = _row(artifact, run, design)
            if row["state"] == "done":
                result = read_json(artifact.checked(RESULT))
                tensors, _ = read_tensors(artifact.checked(ESS))
                row |= {k: result[k] for k in ("operator_loss", "activation_loss")}
                row["accuracy"] = result["accuracy"]["student"]
                row["teacher_accuracy"] = result["accuracy"]["teacher"]
                row |= _ess_columns(tensors["student"], kinds, "")
                row |= _ess_columns(tensors["teacher"], kinds, "teacher_")
                if row["epoch"] == run.training.epochs:
                    shown = [("student", "tss", "accuracy")]
                    if row["layer"] not in drawn:
                        drawn.add(row["layer"])
                        shown.append(("teacher", "teacher_tss", "teacher_accuracy"))
                    for role, tss, accuracy in shown:
                        own = {"tss": row[tss], "accuracy": row[accuracy]}
                        curves += _curve(row, role, tensors[role], kinds, **own)
            students.append(row)
            on_student()
    measured = [f"{who}ess_{m}{k}" for k in kinds for who in ("", "teacher_") for m in ("", "mid_")]
    # Tables without a finished student still have every column, so that figures can say "no run".
    return {
        "students": _with_columns(students, [*_MEASURES, *measured]),
        "curves": _with_columns(
            curves, [*_CURVE_COLUMNS, "accuracy", "index", *(f"ess_{k}" for k in kinds)]
        ),
    }


def _with_columns(rows: list[dict[str, Any]], columns: list[str]) -> pd.DataFrame:
    table = pd.DataFrame(rows)
    return table.reindex(columns=[*table.columns, *(c for c in columns if c not in table)])
