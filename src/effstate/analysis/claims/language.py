"""Claims about language models: state modulation, recall, code and shots (sections 5.3, E.5, E.6).

They read tidy tables, a row a measurement; ``dip`` is 1 - (lowest total ESS around a place) /
(median of the sentence's inner tokens), ``tolerance`` that of the tolerance-ESS (a number).

- ``lm_dips``: featurizer, text, separator (``eos`` or ``.``), place (``separator`` or ``control``: a
  mid-sentence position), tolerance, dip.
- ``lm_recall``: featurizer, shard (of the held-out text), recall_log_perplexity,
  log_perplexity (of all tokens at the same positions): means over the shard's tokens, in nats.
- ``openweights_dips``: model, trained, kind (``attention`` or ``ssm``), billions (of parameters),
  text, separator, place, tolerance, dip.
- ``openweights_code``: program, trained, text, place (``closing brace`` or ``control``), tolerance, dip.
- ``openweights_shots``: model, trained, kind, question, shots, ess (mean total ESS over the question).

Models that are not ``trained`` stand in for others in figures; no claim is about them.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pandas as pd

from effstate.analysis.claims.base import Evidence, Part, claim, settle, upper
from effstate.analysis.claims.statistics import Estimate, bootstrap, difference, mean, of_means, paired

MEMORY = ("sa", "gla", "wla", "la")
"""From the featurizer that modulates its state most, and recalls best, to the one that does least."""


def _trained(evidence: Evidence, name: str, *columns: str) -> pd.DataFrame:
    """Rows of a table of open-weight models that are about trained ones."""
    table = evidence.finished(name, "trained", *columns)
    return table[table["trained"].astype(bool)]


def _at_largest_dip(rows: pd.DataFrame, place: str) -> pd.DataFrame:
    """The rows at the tolerance at which the mean dip at ``place`` is largest."""
    means = rows[rows["place"] == place].groupby("tolerance")["dip"].mean()
    return rows[rows["tolerance"] == means.idxmax()] if len(means) else rows.iloc[:0]


def _dips(rows: pd.DataFrame, place: str) -> np.ndarray:
    return rows.loc[rows["place"] == place, "dip"].to_numpy(float)


def _above_control(rows: pd.DataFrame, place: str, key: str) -> Estimate:
    """Mean dip at ``place`` minus the control's 95th percentile, at the tolerance of the largest."""
    rows = _at_largest_dip(rows, place)

    def excess(dips: np.ndarray, control: np.ndarray) -> np.ndarray:
        return dips.mean(axis=-1) - np.quantile(control, 0.95, axis=-1)

    return bootstrap(excess, _dips(rows, place), _dips(rows, "control"), key=key)


@claim(
    "modulation-order",
    "At an end-of-text token SA drops the most state, then GLA, then WLA, then LA.",
    figures=("42",),
    study="lm",
    tables=("dips",),
)
def modulation_order(evidence: Evidence) -> Iterator[Part]:
    """Dip at EOS minus that of the next featurizer, each at the tolerance where its dip is largest."""
    table = evidence.finished("dips", "featurizer", "separator", "place", "tolerance", "dip")
    eos = table[table["separator"] == "eos"]
    dips = {
        name: _dips(_at_largest_dip(eos[eos["featurizer"] == name], "separator"), "separator")
        for name in MEMORY
    }
    for more, less in pairwise(MEMORY):
        found = bootstrap(difference, dips[more], dips[less], key=more)
        yield settle(f"{upper(more)} - {upper(less)}", found, ">")


@claim(
    "recall-gap-mirrors-modulation",
    "Recalled tokens cost SA least, then GLA, WLA and LA, and spread them more than all tokens do.",
    figures=("9",),
    study="lm",
    tables=("recall",),
)
def recall_gap_mirrors_modulation(evidence: Evidence) -> Iterator[Part]:
    """Differences of recall log perplexity, and the spread SA to WLA against that of all tokens."""
    recalled, everything = "recall_log_perplexity", "log_perplexity"
    table = evidence.finished("recall", "featurizer", "shard", recalled, everything)
    recall = paired(table, recalled, MEMORY, "featurizer", ["shard"])
    for i, (less, more) in enumerate(pairwise(MEMORY)):
        found = bootstrap(mean, recall[i + 1] - recall[i], key=more)
        yield settle(f"{upper(more)} - {upper(less)}", found, ">")
    ends = "sa", "wla"
    rows = table.assign(gap=table[recalled] - table[everything])
    sa, wla = paired(rows, "gap", ends, "featurizer", ["shard"])
    found = bootstrap(mean, wla - sa, key="spread")
    yield settle("spread of recall - of all", found, ">")


@claim(
    "eos-dips-in-open-models",
    "Every open model drops state at its end-of-text token, beyond its moves inside sentences.",
    figures=("9", "35", "36", "37", "38", "39", "40", "41"),
    study="openweights",
    tables=("dips",),
)
def eos_dips_in_open_models(evidence: Evidence) -> Iterator[Part]:
    """Per model: mean dip at EOS minus the 95th percentile of its dips mid-sentence."""
    table = _trained(evidence, "dips", "model", "separator", "place", "tolerance", "dip")
    for model, rows in table[table["separator"] == "eos"].groupby("model"):
        yield settle(str(model), _above_control(rows, "separator", str(model)), ">")


@claim(
    "ssm-needs-eos-attention-does-not",
    "A state-space model's drop shrinks when a full stop replaces end-of-text; attention's less so.",
    figures=("9", "39", "40", "41"),
    study="openweights",
    tables=("dips",),
)
def ssm_needs_eos_attention_does_not(evidence: Evidence) -> Iterator[Part]:
    """(dip at EOS - dip at ".") / dip at EOS of the 7B state-space model, and minus each attention's.

    Models of 7 to 9 billion parameters take part, each at the tolerance of its largest dip at EOS.
    """
    columns = "model", "kind", "billions", "separator", "place", "tolerance", "dip"
    table = _trained(evidence, "dips", *columns)
    large = (table["billions"] >= 7) & (table["billions"] < 9)
    samples: dict[str, dict[str, list[np.ndarray]]] = {"ssm": {}, "attention": {}}
    table = table[large & (table["place"] == "separator") & table["kind"].isin(samples)]
    for (kind, model), rows in table.groupby(["kind", "model"]):
        eos = _at_largest_dip(rows[rows["separator"] == "eos"], "separator")
        stop = rows[(rows["separator"] == ".") & rows["tolerance"].isin(eos["tolerance"])]
        samples[kind][str(model)] = [_dips(eos, "separator"), _dips(stop, "separator")]
    share = of_means(lambda m: 1 - m[..., 1] / m[..., 0])
    gap = of_means(lambda m: m[..., 3] / m[..., 2] - m[..., 1] / m[..., 0])
    for model, own in samples["ssm"].items():
        yield settle(model, bootstrap(share, *own, key=model), ">", 0.3)
        for other, theirs in samples["attention"].items():
            found = bootstrap(gap, *own, *theirs, key=model + other)
            yield settle(f"{model} - {other}", found, ">")


@claim(
    "code-delimiters-dip",
    "In code, state drops at the braces that close a block.",
    figures=("43", "44"),
    study="openweights",
    tables=("code",),
)
def code_delimiters_dip(evidence: Evidence) -> Iterator[Part]:
    """Per program: mean dip at closing braces minus the 95th percentile of the dips elsewhere."""
    table = _trained(evidence, "code", "program", "place", "tolerance", "dip")
    for program, rows in table.groupby("program"):
        yield settle(str(program), _above_control(rows, "closing brace", str(program)), ">")


@claim(
    "one-shot-changes-attention-only",
    "The first example in a prompt changes attention's state over the question, more do little; "
    "a state-space model's hardly changes.",
    figures=("45", "46"),
    study="openweights",
    tables=("shots",),
)
def one_shot_changes_attention_only(evidence: Evidence) -> Iterator[Part]:
    """|Relative change| of ESS over the question from 0 to 1 shot, against 1 to 5 and the other kind."""
    table = _trained(evidence, "shots", "model", "kind", "question", "shots", "ess")

    def changes(m: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        zero, one, five = m
        return np.abs(one / zero - 1), np.abs(five / one - 1)

    def of(kind: str) -> np.ndarray:
        return paired(table[table["kind"] == kind], "ess", (0, 1, 5), "shots", ["model", "question"])

    attention, ssm = of("attention"), of("ssm")

    def more_than_later(s: np.ndarray) -> np.ndarray:
        first, later = changes(mean(s))
        return first - 3 * later

    def more_than_ssm(s: np.ndarray, other: np.ndarray) -> np.ndarray:
        return changes(mean(s))[0] - changes(mean(other))[0]

    found = bootstrap(more_than_later, attention, key="later")
    yield settle("attention, 0 to 1 - 3 x (1 to 5)", found, ">")
    found = bootstrap(more_than_ssm, attention, ssm, key="kinds")
    yield settle("attention - state-space, 0 to 1", found, ">")
