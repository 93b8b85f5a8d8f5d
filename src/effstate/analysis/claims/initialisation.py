"""Claims about the state of untrained layers and what it decides (sections 5.1 and E.2)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from effstate.analysis.claims.base import Evidence, Part, claim, part_of, settle, upper
from effstate.analysis.claims.statistics import NOTHING, bootstrap, cells, difference, of_means, ranks

INIT = "init_ess_entropy"
"""Entropy-ESS of the untrained layers on Gaussian noise."""


def _part(rows: pd.DataFrame, part: str, featurizer: str) -> pd.DataFrame:
    """A featurizer's runs in the grids of one part of the study."""
    return part_of(rows[rows["featurizer"] == featurizer], part)


@claim(
    "s6-init-does-not-scale",
    "Before training, the ESS of GLA grows with every step of its TSS; that of S6 does not.",
    figures=("8",),
    study="init",
)
def s6_init_does_not_scale(evidence: Evidence) -> Iterator[Part]:
    """Spearman correlation of TSS and mean ESS on noise, resampling seeds at each TSS."""
    runs = evidence.finished("runs", INIT)
    for featurizer, relation in (("gla", ">="), ("s6", "<")):
        sizes, samples = cells(_part(runs, "tss", featurizer), "tss", INIT)
        found = bootstrap(of_means(lambda m, sizes=sizes: ranks(sizes, m[0])), *samples, key=featurizer)
        yield settle(upper(featurizer), found, relation, 1)


@claim(
    "s6-cannot-learn-mqar",
    "S6 and GLA-S6 as they are initialised stay at chance in MQAR, whatever their state size.",
    figures=("27",),
    study="init",
)
def s6_cannot_learn_mqar(evidence: Evidence) -> Iterator[Part]:
    """The largest distance of mean accuracy from chance over all TSS."""
    runs = evidence.finished("runs", "accuracy", "chance")
    runs = runs.assign(above=runs["accuracy"] - runs["chance"])
    for featurizer in ("s6", "gla_s6"):
        _, samples = cells(_part(runs, "tss", featurizer), "tss", "above")
        found = bootstrap(of_means(lambda m: np.abs(m[0]).max(axis=-1)), *samples, key=featurizer)
        yield settle(upper(featurizer), found, "<", 0.02)


@claim(
    "gla-accuracy-tracks-init-ess",
    "Across state sizes of GLA, accuracy after training follows the ESS before it.",
    figures=("8", "28"),
    study="init",
)
def gla_accuracy_tracks_init_ess(evidence: Evidence) -> Iterator[Part]:
    """Spearman correlation over TSS of mean ESS on noise and mean accuracy, in both regimes."""
    runs = evidence.finished("runs", INIT, "accuracy")
    for figure, part in (("8", "tss"), ("28", "fig28")):
        _, samples = cells(_part(runs, part, "gla"), "tss", INIT, "accuracy")
        found = bootstrap(of_means(lambda m: ranks(m[0], m[1])), *samples, key=part)
        yield settle(f"figure {figure}", found, ">", 0.8)


@claim(
    "alpha-rescues-gla-s6",
    "A larger α than the default gives GLA-S6 more ESS before training, and then accuracy.",
    figures=("8",),
    study="init",
)
def alpha_rescues_gla_s6(evidence: Evidence) -> Iterator[Part]:
    """At the largest TSS: the best α above the default's minus the default, accuracy and ESS.

    The default is the α of the grid over TSS; the best α is chosen once, on all seeds.
    """
    runs = evidence.finished("runs", INIT, "accuracy")
    sizes, alphas = _part(runs, "tss", "gla_s6"), _part(runs, "alpha", "gla_s6")
    found, note = {"accuracy": NOTHING, INIT: NOTHING}, ""
    if len(sizes) and len(alphas):
        default = sizes["arange_alpha"].iloc[0]
        rows = pd.concat([sizes, alphas]).drop_duplicates("run")
        rows = rows[rows["tss"] == alphas["tss"].max()].set_index("arange_alpha")
        larger = rows.loc[rows.index > default, "accuracy"]
        if len(larger) and default in rows.index:
            best = larger.groupby(level=0).mean().idxmax()
            note = f"best α {best:g}, default {default:g}"
            for value in found:
                pair = [rows.loc[[alpha], value].to_numpy(float) for alpha in (best, default)]
                found[value] = bootstrap(difference, *pair, key=value)
    yield settle("accuracy", found["accuracy"], ">", 0.05, note=note)
    yield settle("ESS before training", found[INIT], ">", note=note)
