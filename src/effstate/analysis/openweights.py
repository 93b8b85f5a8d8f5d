"""From traces of open-weight models to tidy tables (figures 9a, 35-41, 43-46)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd

from effstate.artifacts import Artifact, Request, RunStore, read_json
from effstate.measuring.report import separator_dips
from effstate.openweights.config import OpenWeightsConfig, RandomSource, WeightsConfig
from effstate.openweights.trace import RESULT, TOKENS, TOTALS

COLUMNS: dict[str, tuple[str, ...]] = {
    "runs": ("run", "model", "suite", "figures", "trained", "kind", "billions", "layers", "state"),
    "curves": (
        "model", "suite", "prompt", "separator", "shots", "index", "tolerance",
        "mean_total_ess", "sum_total_ess", "token", "mark",
    ),
    "dips": ("model", "trained", "kind", "billions", "text", "separator", "place", "tolerance", "dip"),
    "code": ("model", "trained", "program", "text", "place", "tolerance", "dip"),
    "shots": ("model", "trained", "kind", "question", "shots", "ess"),
    "causal": ("model", "trained", "kind", "text", "separator", "place", "tolerance", "dip"),
    "accuracies": ("model", "shots", "accuracy"),
}  # fmt: skip


def collect_weights(
    store: RunStore,
    config: OpenWeightsConfig,
    requests: dict[tuple[str, str], Request],
    on_run: Callable[[], None] = lambda: None,
) -> dict[str, pd.DataFrame]:
    """The study's tables, by the names of :data:`COLUMNS`; ``requests`` by (model, suite).

    A model that is skipped has a row of ``runs`` with the state ``skipped``. ``curves`` has a row per
    prompt, tolerance and index i = 1 .. L-1, with the token there. Raises ArtifactError if a finished
    artifact is damaged.
    """
    found: dict[str, list[pd.DataFrame]] = {name: [] for name in COLUMNS}
    for (model, suite), figures in config.asked().items():
        row = {"model": model, "suite": suite, "figures": "+".join(figures)}
        request = requests.get((model, suite))
        if request is None:
            found["runs"].append(pd.DataFrame([row | {"run": model, "state": "skipped"}]))
            continue
        artifact = store.artifact(request)
        trained = not isinstance(config.models[model].source, RandomSource)
        row |= {"run": request.name, "trained": trained, "state": artifact.state}
        if artifact.state == "done":
            result = read_json(artifact.checked(RESULT))
            row |= {
                "kind": "attention" if result["mixers"] == ["attention"] else "ssm",
                "billions": result["parameters"] / 1e9,
                "layers": len(result["layers"]),
            }
            for name, table in _tables(artifact, row, result).items():
                found[name].append(table)
        found["runs"].append(pd.DataFrame([row]))
        on_run()
    return {
        name: pd.concat(found[name], ignore_index=True).reindex(columns=[*columns])
        if found[name]
        else pd.DataFrame(columns=[*columns])
        for name, columns in COLUMNS.items()
    }


def _tables(artifact: Artifact, run: dict[str, Any], result: dict[str, Any]) -> dict[str, pd.DataFrame]:
    config = artifact.request.config
    assert isinstance(config, WeightsConfig)
    totals = pd.read_parquet(artifact.checked(TOTALS))
    tokens = pd.read_parquet(artifact.checked(TOKENS))
    prompt = ["prompt", "separator", "shots"]
    merged = totals.merge(tokens[[*prompt, "index", "token", "mark"]], on=[*prompt, "index"])
    curves, causal = (merged[merged["kind"] == kind] for kind in ("tolerance", "causal"))
    of_model = {name: run[name] for name in ("model", "trained", "kind", "billions")}
    found = {"curves": curves.assign(suite=run["suite"], model=run["model"])}
    if run["suite"] == "sentences":
        found["dips"] = _dips(curves, prompt, "separator").assign(**of_model)
        found["causal"] = _dips(causal, prompt, "separator").assign(**of_model)
    elif run["suite"] == "code":
        dips = _dips(curves, prompt, "closing brace").rename(columns={"prompt": "program"})
        found["code"] = dips.assign(**of_model)
    else:
        inside = curves[curves["mark"] == "question"]
        means = inside.groupby(["prompt", "shots"])["sum_total_ess"].mean().rename("ess").reset_index()
        found["shots"] = means.rename(columns={"prompt": "question"}).assign(**of_model)
        accuracy = [(int(shots), value) for shots, value in result["accuracy"].items()]
        table = pd.DataFrame(sorted(accuracy), columns=["shots", "accuracy"])
        found["accuracies"] = table.assign(model=run["model"])
    return found


def _dips(curves: pd.DataFrame, prompt: list[str], place: str) -> pd.DataFrame:
    """Dips at marked tokens and in the middle between them, long: a row per place (METHOD section 5)."""
    parts = []
    for (name, separator, _, tolerance), rows in curves.groupby([*prompt, "tolerance"]):
        rows = rows.sort_values("index")
        marked = rows.loc[rows["mark"] == place, "index"].tolist()
        dips = separator_dips(rows["mean_total_ess"].to_numpy(float), marked)
        for column, label in (("dip", place), ("control", "control")):
            part = pd.DataFrame({"text": range(len(dips)), "dip": dips[column], "place": label})
            parts.append(part.assign(prompt=name, separator=separator, tolerance=tolerance))
    return pd.concat(parts, ignore_index=True)
