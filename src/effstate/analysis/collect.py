"""From finished runs and traces to the tidy tables of a study, one row a run or a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from effstate.analysis.trace import TRACE_FILE, kinds_of
from effstate.artifacts import RunStore, read_json, read_tensors
from effstate.config import RunConfig, TraceConfig
from effstate.ess import geometric_ceiling
from effstate.registry import MIXERS, TASKS
from effstate.requests import trace_request, train_request
from effstate.training.trainer import RESULT


def _design(run: RunConfig, name: str) -> dict[str, Any]:
    """The columns that say what a run is: axes, state sizes, ceiling, chance."""
    task, model = TASKS[run.task.name](), run.model
    mixer = MIXERS[model.featurizer]
    length = run.task.seq_len
    tss = mixer.tss(model, length)
    return {
        "run": name,
        "task": run.task.name,
        "featurizer": model.featurizer,
        "width": model.width,
        "heads": model.heads,
        "tss": tss,
        "total_tss": mixer.total_tss(model, length),
        "seq_len": length,
        task.difficulty_name: task.difficulty(run.task),
        "seed": run.seed,
        "chance": task.chance(run.task),
        "ceiling": float(geometric_ceiling(tss, length)),
    }


def _ess_columns(ess: np.ndarray, kinds: Sequence[str], channels: int | None) -> dict[str, float]:
    """Averages and totals of ESS of shape (layers, kinds, heads, index).

    ``channels`` counts each head's channels in the totals; None sums over heads.
    """
    average = ess.mean(axis=(0, 2, 3))
    many = ess.shape[2] if channels is None else ess.shape[2] * channels
    columns = {f"ess_{kind}": float(value) for kind, value in zip(kinds, average, strict=True)}
    columns |= {f"total_{name}": value * many for name, value in columns.items()}
    return columns


def collect(
    store: RunStore,
    runs: Sequence[RunConfig],
    trace: TraceConfig,
    total_over: str,
    *,
    on_run: Callable[[], None] = lambda: None,
) -> dict[str, pd.DataFrame]:
    """The tables ``runs`` (final models), ``checkpoints`` and ``layers`` of a study's runs.

    Runs that failed or are missing keep a row in ``runs`` with their state and no measures, as do
    diverged ones. Raises ArtifactError if an artifact is damaged.
    """
    kinds = kinds_of(trace)
    final: list[dict[str, Any]] = []
    checkpoints: list[dict[str, Any]] = []
    layers: list[dict[str, Any]] = []
    for run in runs:
        trained = store.artifact(train_request(run))
        traced = store.artifact(trace_request(run, trace))
        design = _design(run, trained.request.name)
        state = trained.state
        if state == "done" and not traced.finished:
            state = "failed" if traced.state == "failed" else "missing"
        if state not in ("done", "diverged"):
            final.append({**design, "state": state})
            on_run()
            continue
        result = read_json(trained.checked(RESULT))
        channels = None if total_over == "heads" else run.model.width // run.model.heads
        tensors: dict[str, Any] = {}
        if traced.finished:
            tensors, _ = read_tensors(traced.checked(TRACE_FILE))
        rows: list[dict[str, Any]] = []
        for position, entry in enumerate(result["evaluations"]):
            row = {**design, "state": state, "epoch": entry["epoch"], "step": entry["step"]}
            row |= {key: entry[key] for key in ("accuracy", "macro_accuracy", "loss")}
            if tensors:
                ess = [
                    tensors[f"layer{k}.ess"][position].double().numpy()
                    for k in range(run.model.num_layers)
                ]
                row |= _ess_columns(np.stack(ess), kinds, channels)
                row["zero_blocks"] = sum(
                    int(tensors[f"layer{k}.zero_blocks"][position]) for k in range(len(ess))
                )
                for k, of_layer in enumerate(ess):
                    norm = tensors[f"layer{k}.decay_product_norm"][position].double().mean()
                    layers.append(
                        {
                            **design,
                            "state": state,
                            "epoch": entry["epoch"],
                            "layer": k,
                            "accuracy": entry["accuracy"],
                            **_ess_columns(of_layer[None], kinds, channels),
                            "decay_product_norm": float(norm),
                        }
                    )
            rows.append(row)
        checkpoints += rows
        summary = {**design, "state": state}
        if state == "done":
            last = {k: v for k, v in rows[-1].items() if k.startswith(("ess_", "total_ess_"))}
            summary |= last | result["test"]
            summary["zero_blocks"] = rows[-1]["zero_blocks"]
        else:
            summary["diverged_step"] = result["diverged"]["step"]
            summary["last_finite_loss"] = result["diverged"]["last_finite_loss"]
        final.append(summary)
        on_run()
    measures = ["accuracy", "macro_accuracy", "loss", "zero_blocks"]
    measures += [f"{total}ess_{kind}" for total in ("", "total_") for kind in kinds]
    tables = {
        "runs": pd.DataFrame(final),
        "checkpoints": pd.DataFrame(checkpoints),
        "layers": pd.DataFrame(layers),
    }
    for name, table in tables.items():
        # A table without a finished run still has every column, so that figures can say "no run".
        for column in [] if name == "layers" else measures:
            if column not in table:
                table[column] = np.nan
    return tables
