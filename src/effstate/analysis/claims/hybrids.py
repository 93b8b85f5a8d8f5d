"""Claims about hybrids of softmax attention and gated linear attention (section E.4)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pandas as pd

from effstate.analysis.claims.base import Evidence, Part, claim, part_of, settle
from effstate.analysis.claims.statistics import (
    NOTHING,
    bootstrap,
    cells,
    correlation_gaps,
    difference,
    of_means,
)
from effstate.analysis.names import attention_places

ESS = "ess_tol_1e-1"


def _four_mixers(evidence: Evidence) -> pd.DataFrame:
    """Finished hybrids of four mixers with ``max_sa``, ``mean_sa`` and ``max_gla``.

    They summarise ESS over a run's layers of the kind at its last epoch; NaN without such a layer.
    """
    layers = evidence.finished("layers", ESS)
    last = layers[layers["epoch"] == layers.groupby("run")["epoch"].transform("max")]
    kinds = {mixer: last[last["mixer"] == mixer].groupby("run")[ESS] for mixer in ("sa", "gla")}
    sa, gla = kinds["sa"], kinds["gla"]
    found = pd.DataFrame({"max_sa": sa.max(), "mean_sa": sa.mean(), "max_gla": gla.max()})
    return part_of(evidence.finished("runs", "accuracy"), "four").join(found, on="run")


@claim(
    "attention-first-collapses",
    "With one attention layer among four, putting it first gives the lowest accuracy and attention ESS.",
    figures=("33",),
    study="hybrids",
    tables=("runs", "layers"),
)
def attention_first_collapses(evidence: Evidence) -> Iterator[Part]:
    """Mean at place 0 minus the lowest mean at the other places, for accuracy and for SA's ESS."""
    runs = _four_mixers(evidence)
    places = runs["featurizer"].map(attention_places)
    single = runs[places.map(len) == 1].assign(place=places.map(lambda p: p[0] if p else -1))
    lowest: Callable[..., np.ndarray] = of_means(lambda m: m[0][..., 0] - m[0][..., 1:].min(axis=-1))
    for name, value in (("accuracy", "accuracy"), ("ESS of the attention layer", "max_sa")):
        order, samples = cells(single.dropna(subset=[value]), "place", value)
        compared = len(order) > 1 and order[0] == 0
        found = bootstrap(lowest, *samples, key=value) if compared else NOTHING
        yield settle(name, found, "<")


@claim(
    "max-sa-ess-is-best-proxy",
    "The largest ESS among attention layers goes with a hybrid's accuracy more than their mean does, "
    "and than the largest of its gated layers.",
    figures=("34",),
    study="hybrids",
    tables=("runs", "layers"),
)
def max_sa_ess_is_best_proxy(evidence: Evidence) -> Iterator[Part]:
    """r(accuracy, max SA ESS) minus r(accuracy, the other), over four-mixer hybrids that have both."""
    runs = _four_mixers(evidence).assign(group="four")
    for other, name in (("mean_sa", "mean SA ESS"), ("max_gla", "max GLA ESS")):
        gaps = correlation_gaps(runs, ("max_sa", other), "pearson", "group")
        yield settle(f"max SA ESS - {name}", gaps.get("four", NOTHING), ">")


@claim(
    "fixed-topology-can-fail",
    "Under a fixed placement policy, a third attention layer among eight can cost accuracy.",
    figures=("33",),
    study="hybrids",
)
def fixed_topology_can_fail(evidence: Evidence) -> Iterator[Part]:
    """Accuracy of the Jamba hybrid with three attention layers minus that with two."""
    jamba = part_of(evidence.finished("runs", "accuracy"), "jamba")
    three, two = (jamba.loc[jamba["attention_layers"] == n, "accuracy"].to_numpy(float) for n in (3, 2))
    yield settle("3 - 2 attention layers", bootstrap(difference, three, two, key="jamba"), "<")
