"""From finished runs and traces to the tidy tables of a study, one row a run or a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from effstate.analysis.tables import PROXIES
from effstate.analysis.trace import TRACE_FILE, kinds_of
from effstate.artifacts import RunStore, read_json, read_tensors
from effstate.config import ModelConfig, RunConfig
from effstate.ess import geometric_ceiling
from effstate.registry import MIXERS, TASKS
from effstate.requests import trace_request, train_request
from effstate.sweep import ExpandedSweep
from effstate.training.trainer import RESULT


def _state_sizes(model: ModelConfig, length: int) -> dict[str, float]:
    """TSS per channel and in total, and the geometric ceiling, averaged over the model's layers."""
    mixers = [MIXERS[name] for name in model.mixers]
    sizes = {
        "tss": [mixer.tss(model, length) for mixer in mixers],
        "total_tss": [mixer.total_tss(model, length) for mixer in mixers],
    }
    sizes["ceiling"] = [float(geometric_ceiling(tss, length)) for tss in sizes["tss"]]
    return {name: float(np.mean(values)) for name, values in sizes.items()}


def design_of(run: RunConfig, name: str, grids: str) -> dict[str, Any]:
    """The columns that say what a run is: axes, state sizes, ceiling, chance."""
    task, model, training = TASKS[run.task.name](), run.model, run.training
    length = run.task.seq_len
    return {
        "run": name,
        "grids": grids,
        "task": run.task.name,
        "featurizer": model.label,
        "width": model.width,
        "heads": model.heads,
        "num_layers": model.num_layers,
        "attention_layers": model.mixers.count("sa"),
        "k_expansion": model.k_expansion,
        "arange_alpha": model.arange_alpha,
        "regularisation": training.regularisation,
        "regularised_layers": ",".join(map(str, training.regularised_layers)),
        **_state_sizes(model, length),
        "seq_len": length,
        task.difficulty_name: task.difficulty(run.task),
        "seed": run.seed,
        "chance": task.chance(run.task),
    }


def _ess_columns(
    layers: Sequence[np.ndarray], kinds: Sequence[str], channels: int | None
) -> dict[str, float]:
    """Averages and totals of layers' ESS, each of shape (kinds, heads, index).

    ``channels`` counts each head's channels in the totals; None sums over heads. Layers may differ
    in their number of heads; each layer counts the same.
    """
    averages = [layer.mean(axis=(1, 2)) for layer in layers]
    many = [layer.shape[1] * (channels or 1) for layer in layers]
    totals = [average * count for average, count in zip(averages, many, strict=True)]
    columns: dict[str, float] = {}
    for prefix, values in (("", averages), ("total_", totals)):
        means = np.mean(values, axis=0)
        columns |= {f"{prefix}ess_{k}": float(v) for k, v in zip(kinds, means, strict=True)}
    return columns


def _final_measures(
    tensors: dict[str, Any], depth: Iterable[int], kinds: Sequence[str]
) -> dict[str, float]:
    """What a trace holds once per run: rival proxies, and the ESS of untrained layers on noise."""
    columns: dict[str, float] = {}
    for proxy in PROXIES:
        if f"layer0.{proxy}" in tensors:
            means = [float(tensors[f"layer{k}.{proxy}"].double().mean()) for k in depth]
            columns[proxy] = float(np.mean(means))
    if "layer0.noise_ess" in tensors:
        noise = [tensors[f"layer{k}.noise_ess"].double().numpy() for k in depth]
        found = _ess_columns(noise, kinds, None)
        columns |= {f"init_{name}": v for name, v in found.items() if not name.startswith("total_")}
    return columns


def collect(
    store: RunStore, sweep: ExpandedSweep, *, on_run: Callable[[], None] = lambda: None
) -> dict[str, pd.DataFrame]:
    """The tables ``runs`` (final models), ``checkpoints`` and ``layers`` of a study's runs.

    Runs that failed or are missing keep a row in ``runs`` with their state and no measures, as do
    diverged ones. Raises ArtifactError if an artifact is damaged.
    """
    trace = sweep.trace
    kinds = kinds_of(trace)
    final: list[dict[str, Any]] = []
    checkpoints: list[dict[str, Any]] = []
    layers: list[dict[str, Any]] = []
    for run, grids in zip(sweep.runs, sweep.grids, strict=True):
        trained = store.artifact(train_request(run))
        traced = store.artifact(trace_request(run, trace))
        design = design_of(run, trained.request.name, grids)
        state = trained.state
        if state == "done" and not traced.finished:
            state = "failed" if traced.state == "failed" else "missing"
        if state not in ("done", "diverged"):
            final.append({**design, "state": state})
            on_run()
            continue
        result = read_json(trained.checked(RESULT))
        channels = None if sweep.total_over == "heads" else run.model.width // run.model.heads
        tensors: dict[str, Any] = {}
        if traced.finished:
            tensors, _ = read_tensors(traced.checked(TRACE_FILE))
        depth = range(run.model.num_layers)
        layer_tss = [MIXERS[name].tss(run.model, run.task.seq_len) for name in run.model.mixers]
        rows: list[dict[str, Any]] = []
        for position, entry in enumerate(result["evaluations"]):
            row = {**design, "state": state, "epoch": entry["epoch"], "step": entry["step"]}
            row |= {key: entry[key] for key in ("accuracy", "macro_accuracy", "loss")}
            if tensors:
                ess = [tensors[f"layer{k}.ess"][position].double().numpy() for k in depth]
                row |= _ess_columns(ess, kinds, channels)
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
                            "mixer": run.model.mixers[k],
                            "layer_tss": layer_tss[k],
                            "layer_ceiling": float(geometric_ceiling(layer_tss[k], run.task.seq_len)),
                            "accuracy": entry["accuracy"],
                            **_ess_columns([of_layer], kinds, channels),
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
            summary |= _final_measures(tensors, depth, kinds)
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
