"""From trained, evaluated and traced language models to tidy tables (figures 9b and 42)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from effstate.artifacts import Artifact, Request, RunStore, read_json
from effstate.lm.config import LmRunConfig, LmStudyConfig
from effstate.lm.evaluation import Evaluation, read_evaluation
from effstate.lm.recall import mean_by_shard, recall_tables
from effstate.lm.trace import TOKENS, TOTALS
from effstate.measuring.report import separator_dips
from effstate.training.trainer import RESULT

RECALL_SHARDS = 20
"""Parts of the held-out contexts: the units over which a claim about recall is judged."""

_MODEL = ("featurizer", "seed")
_PERPLEXITY = ("curve", "log_perplexity", "low", "high", "tokens", "corpus", "tokenizer", "split")
COLUMNS: dict[str, tuple[str, ...]] = {
    "runs": (
        "run", *_MODEL, "state", "parameters", "steps", "tokens", "validation_loss",
        "log_perplexity", "unigram_log_perplexity", "recall_log_perplexity", "sequences", "window",
        "max_training_count", "corpus", "tokenizer", "split",
    ),
    "losses": (*_MODEL, "step", "tokens", "loss", "train_loss"),
    "curves": (*_MODEL, "text", "separator", "tolerance", "index", "total_ess", "token", "mark"),
    "dips": (*_MODEL, "text", "separator", "place", "tolerance", "dip"),
    "layers": (*_MODEL, "layer", "text", "separator", "place", "tolerance", "dip"),
    "recall": (*_MODEL, "shard", "recall_log_perplexity", "log_perplexity", "tokens"),
    "distances": (*_MODEL, *_PERPLEXITY, "distance", "window", "max_training_count"),
    "smoothed": (*_MODEL, *_PERPLEXITY, "distance", "window", "max_training_count", "bandwidth"),
}  # fmt: skip


def collect_language(
    store: RunStore,
    config: LmStudyConfig,
    models: Sequence[tuple[LmRunConfig, tuple[Request, Request, Request]]],
    on_run: Callable[[], None] = lambda: None,
) -> dict[str, pd.DataFrame]:
    """The study's tables, by the names of :data:`COLUMNS`; ``models``: run, and its
    training, evaluation and trace.

    ``curves`` has total ESS over channels, summed over layers; ``dips`` are of it, those of
    ``layers`` of each layer's. Log perplexities are in nats. Raises ArtifactError if a finished artifact
    is damaged.
    """
    found: dict[str, list[pd.DataFrame]] = {name: [] for name in COLUMNS}
    for run, (train, evaluation, trace) in models:
        trained = store.artifact(train)
        model = {"featurizer": run.model.featurizer, "seed": run.seed}
        row: dict[str, Any] = {"run": train.name, **model, "state": trained.state}
        if trained.finished:
            row |= _trained(trained)
            losses = pd.DataFrame(read_json(trained.checked(RESULT))["evaluations"])
            found["losses"].append(losses.assign(**model))
        evaluated, traced = store.artifact(evaluation), store.artifact(trace)
        if evaluated.state == "done":
            numbers, tables = _evaluated(read_evaluation(evaluated), config)
            row |= numbers
            for name, table in tables.items():
                found[name].append(table.assign(**model))
        if traced.state == "done":
            for name, table in _traced(traced).items():
                found[name].append(table.assign(**model))
        found["runs"].append(pd.DataFrame([row]))
        on_run()
    return {
        name: pd.concat(found[name], ignore_index=True).reindex(columns=[*columns])
        if found[name]
        else pd.DataFrame(columns=[*columns])
        for name, columns in COLUMNS.items()
    }


def _trained(artifact: Artifact) -> dict[str, Any]:
    provenance = artifact.provenance()
    assert provenance is not None
    facts = provenance["facts"]
    evaluations = read_json(artifact.checked(RESULT))["evaluations"]
    loss = evaluations[-1]["loss"] if evaluations else None
    return {name: facts[name] for name in ("parameters", "steps", "tokens")} | {"validation_loss": loss}


def _evaluated(
    evaluation: Evaluation, config: LmStudyConfig
) -> tuple[dict[str, Any], dict[str, pd.DataFrame]]:
    """What a run's row gets, and the tables of one evaluation."""
    result, recall = evaluation.result, config.recall
    distances = evaluation.recall_distances(recall.max_training_count)
    parameters = {name: result[name] for name in ("corpus", "tokenizer", "split")}
    tables = recall_tables(evaluation.log_probabilities, distances, recall, parameters)
    totals = tables.totals.set_index("curve")["log_perplexity"]
    row = parameters | {
        "log_perplexity": result["log_perplexity"],
        "unigram_log_perplexity": result["unigram_log_perplexity"],
        "recall_log_perplexity": totals["recall"],
        "sequences": result["sequences"],
        "window": recall.window,
        "max_training_count": recall.max_training_count,
    }
    shards = mean_by_shard(evaluation.log_probabilities, distances, RECALL_SHARDS)
    return row, {"recall": shards, "distances": tables.distances, "smoothed": tables.curves}


def _traced(artifact: Artifact) -> dict[str, pd.DataFrame]:
    totals = pd.read_parquet(artifact.checked(TOTALS))
    tokens = pd.read_parquet(artifact.checked(TOKENS))
    prompt = ["text", "separator"]
    summed = totals.groupby([*prompt, "tolerance", "index"], as_index=False)["total_ess"].sum()
    marked = {
        key: rows.loc[rows["mark"] == "separator", "index"].tolist()
        for key, rows in tokens.groupby(prompt)
    }
    layers = [_dips(rows, marked).assign(layer=layer) for layer, rows in totals.groupby("layer")]
    return {
        "curves": summed.merge(tokens, on=[*prompt, "index"]),
        "dips": _dips(summed, marked),
        "layers": pd.concat(layers, ignore_index=True),
    }


def _dips(totals: pd.DataFrame, marked: dict[tuple[int, str], list[int]]) -> pd.DataFrame:
    """Dips at separators and in the middle between them, a row per place (METHOD section 5)."""
    parts = []
    for (text, separator, tolerance), rows in totals.groupby(["text", "separator", "tolerance"]):
        values = rows.sort_values("index")["total_ess"].to_numpy(float)
        dips = separator_dips(values, marked[text, separator])
        both = np.concatenate([dips["dip"], dips["control"]])
        places = np.repeat(["separator", "control"], len(dips))
        part = pd.DataFrame({"dip": both, "place": places})
        parts.append(part.assign(text=text, separator=separator, tolerance=tolerance))
    return pd.concat(parts, ignore_index=True)
