"""Claims about decay over long sequences and the penalty against it (appendix A, section E.3)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pandas as pd

from effstate.analysis.claims.base import Evidence, Part, claim, settle, upper
from effstate.analysis.claims.statistics import (
    NOTHING,
    Estimate,
    bootstrap,
    difference,
    mean,
    paired,
    slope,
)
from effstate.analysis.claims.sweep import COUNTED
from effstate.analysis.correlation import spearman
from effstate.analysis.names import DIFFICULTY, RECURRENT
from effstate.analysis.tables import last_epoch, penalised, require

PENALISED = ("gla", "wla")
SECOND, FIRST, BOTH = "1", "0", "0,1"
"""Which mixers carry the penalty, as the column ``regularised_layers`` has it."""

Curve = dict[float, np.ndarray]
Statistic = Callable[[np.ndarray, np.ndarray], np.ndarray]


def _curve(runs: pd.DataFrame, featurizer: str, layers: str) -> Curve:
    """λ to the accuracies of its seeds, for one choice of penalised layers; λ = 0 is in every one."""
    mine = penalised(runs[runs["featurizer"] == featurizer], layers)
    groups = mine.groupby("regularisation")["accuracy"]
    return {strength: rows.to_numpy(float) for strength, rows in groups}


def _best(curve: Curve, smallest: float = 0.0) -> tuple[float, np.ndarray]:
    """The λ (above ``smallest``) with the highest mean accuracy, and its seeds; NaN without any."""
    means = {strength: seeds.mean() for strength, seeds in curve.items() if strength > smallest}
    if not means:
        return np.nan, np.array([])
    best = max(means, key=lambda strength: means[strength])
    return best, curve[best]


@claim(
    "regularisation-beats-la",
    "Pulling the second mixer's decay to the identity lifts GLA and WLA from below LA to above it.",
    figures=("10",),
    study="regularisation",
)
def regularisation_beats_la(evidence: Evidence) -> Iterator[Part]:
    """Accuracy minus LA's, at the best λ > 0 on the second layer and at λ = 0."""
    runs = evidence.finished("runs", "accuracy")
    la = _curve(runs, "la", SECOND).get(0.0, np.array([]))
    for featurizer in PENALISED:
        curve = _curve(runs, featurizer, SECOND)
        best, seeds = _best(curve)
        found, name = bootstrap(difference, seeds, la, key=featurizer), upper(featurizer)
        yield settle(f"{name} at the best λ", found, ">", note=f"λ = {best:g}")
        plain = bootstrap(difference, curve.get(0.0, np.array([])), la, key=featurizer)
        yield settle(f"{name} at λ = 0", plain, "<")


@claim(
    "second-layer-is-best",
    "The penalty helps most on the second mixer alone: more than on both, and than on the first.",
    figures=("10", "30"),
    study="regularisation",
)
def second_layer_is_best(evidence: Evidence) -> Iterator[Part]:
    """Best accuracy over λ > 0 on the second layer minus that on both and on the first."""
    runs = evidence.finished("runs", "accuracy")
    for featurizer in PENALISED:
        _, second = _best(_curve(runs, featurizer, SECOND))
        for other, name in ((BOTH, "both"), (FIRST, "first")):
            _, theirs = _best(_curve(runs, featurizer, other))
            found = bootstrap(difference, second, theirs, key=featurizer + other)
            yield settle(f"{upper(featurizer)}, second - {name}", found, ">")


@claim(
    "over-regularisation-hurts",
    "Too strong a penalty costs accuracy again.",
    figures=("10",),
    study="regularisation",
)
def over_regularisation_hurts(evidence: Evidence) -> Iterator[Part]:
    """Accuracy at the largest λ on the second layer minus that at the best smaller one, or without."""
    runs = evidence.finished("runs", "accuracy")
    for featurizer in PENALISED:
        curve = _curve(runs, featurizer, SECOND)
        largest = max(curve, default=0.0)
        last = curve.pop(largest, np.array([]))
        best, seeds = _best(curve, smallest=-1.0)
        found = bootstrap(difference, last, seeds, key=featurizer) if largest > 0 else NOTHING
        yield settle(upper(featurizer), found, "<", note=f"λ = {largest:g} - {best:g}")


@claim(
    "decay-shrinks-with-length",
    "Longer sequences leave GLA and WLA less ESS and a smaller product of decays; LA keeps its ESS.",
    figures=("10",),
    study="mqar",
    tables=("runs", "layers"),
)
def decay_shrinks_with_length(evidence: Evidence) -> Iterator[Part]:
    """Slope of tolerance-ESS/kv over log2 length, and rank correlation of the decays' norm with it.

    Both per cell (width, heads, difficulty, seed) that has every length, then averaged over cells,
    which are resampled. The norm is the mean over a run's layers at its last epoch; ranks, because
    products of many decays reach 0.
    """
    difficulty = DIFFICULTY[evidence.study]
    runs = evidence.finished("runs", COUNTED)
    layers = evidence.finished("layers", "epoch")
    require(layers, "decay_product_norm")  # NaN where a mixer has no decay
    norms = last_epoch(layers).groupby("run")["decay_product_norm"].mean()
    runs = runs[runs["featurizer"].isin(RECURRENT)]
    rows = runs.assign(ratio=runs[COUNTED] / runs[difficulty], norm=runs["run"].map(norms).astype(float))
    lengths = np.sort(rows["seq_len"].unique())
    why = "the runs have one length" if len(lengths) < 2 else ""

    def over_length(statistic: Statistic, value: str, featurizer: str) -> Estimate:
        mine = rows[rows["featurizer"] == featurizer].dropna(subset=[value])
        keys = ["width", "heads", difficulty, "seed"]
        series = paired(mine, value, lengths, "seq_len", keys).T
        if why or not series.size:
            return NOTHING
        found = statistic(np.log2(lengths), series)
        return bootstrap(mean, found[np.isfinite(found)], key=featurizer)

    for featurizer in RECURRENT:
        found = over_length(slope, "ratio", featurizer)
        relation = ">=" if featurizer == "la" else "<"
        yield settle(f"{upper(featurizer)}: slope of ESS/kv", found, relation, note=why)
        if featurizer != "la":
            found = over_length(spearman, "norm", featurizer)
            yield settle(f"{upper(featurizer)}: norm of the decays", found, "<", note=why)
