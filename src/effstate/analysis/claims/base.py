"""What a claim is, how it is registered, and what a judgement of it holds."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import pandas as pd

from effstate.analysis.claims.statistics import Estimate
from effstate.analysis.names import in_part
from effstate.analysis.tables import require
from effstate.scales import ScaleConfig

Outcome = Literal["reproduced", "not reproduced", "inconclusive", "not run"]
OUTCOMES: tuple[Outcome, ...] = ("reproduced", "not reproduced", "inconclusive", "not run")

Relation = Literal[">", ">=", "<"]
HOLDS: dict[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
}

NO_RUN = "no finished run"


@dataclass(frozen=True)
class Part:
    """One comparison of a claim: ``statistic`` claimed to stand in ``relation`` to ``threshold``.

    ``low`` and ``high`` are the ends of the statistic's 95% bootstrap interval, ``n`` the number of
    resampled units (runs, teachers, texts).
    """

    part: str
    outcome: Outcome
    statistic: float
    low: float
    high: float
    relation: str
    threshold: float
    n: int
    note: str = ""

    @property
    def margin(self) -> float:
        """How far the statistic lies on the claimed side of the threshold; infinite if unknown."""
        side = -1 if self.relation == "<" else 1
        margin = side * (self.statistic - self.threshold)
        return margin if np.isfinite(margin) else np.inf


def upper(featurizer: str) -> str:
    """A featurizer as a reader sees it: ``gla_s6`` is GLA-S6."""
    return featurizer.upper().replace("_", "-")


def part_of(rows: pd.DataFrame, part: str) -> pd.DataFrame:
    """The runs in the grids of one part of a study: see :func:`~effstate.analysis.names.in_part`."""
    return rows[np.array([in_part(grids, part) for grids in rows["grids"]], dtype=bool)]


def settle(
    part: str,
    found: Estimate,
    relation: Relation,
    threshold: float = 0.0,
    *,
    refutable: bool = True,
    note: str = "",
) -> Part:
    """Judge one comparison by its interval.

    Reproduced if the claim holds all over the interval, not reproduced if it holds nowhere in it,
    else inconclusive (the threshold lies inside, or there is no interval); not run without a unit.
    A part that is not ``refutable`` is inconclusive where it would be not reproduced.
    """
    notes = [note] if note else []
    ends = [found.low, found.high]
    held = [HOLDS[relation](round(end, 12), threshold) for end in ends]  # no rounding noise at 1
    outcome: Outcome = "inconclusive"
    if found.n == 0:
        outcome = "not run"
        notes.append(NO_RUN)
    elif not np.isfinite(found.value):
        notes.append("undefined: too few values, or they do not vary")
    elif not np.isfinite(ends).all():
        notes.append("no interval: a cell has one run")
    elif all(held):
        outcome = "reproduced"
    elif not any(held) and refutable:
        outcome = "not reproduced"
    numbers = found.value, found.low, found.high
    return Part(part, outcome, *numbers, relation, threshold, found.n, "; ".join(notes))


@dataclass
class Evidence:
    """The tables of one study, as a claim's function reads them; counts what is left out."""

    study: str
    tables: Mapping[str, pd.DataFrame]
    scale: ScaleConfig
    skipped: dict[object, str] = field(default_factory=dict)

    def finished(self, name: str, *columns: str) -> pd.DataFrame:
        """Rows of the table ``<study>_<name>`` whose run is done and has values in ``columns``.

        Runs (students) that are left out are counted in the note. Raises TableError if a column is
        missing.
        """
        table = self.tables[f"{self.study}_{name}"]
        require(table, *columns)
        state = table["state"] if "state" in table else pd.Series("done", index=table.index)
        usable = (state == "done") & table[[*columns]].notna().all(axis=1)
        why = state.where(state != "done", "without a value")
        unit = next((table[c] for c in ("student", "run") if c in table), table.index.to_series())
        self.skipped |= dict(zip(unit[~usable], why[~usable], strict=True))
        return table[usable]

    def skipped_note(self) -> str:
        """``left out: 2 diverged, 1 missing``; empty if nothing was."""
        counts = Counter(self.skipped.values())
        return "left out: " + ", ".join(f"{n} {why}" for why, n in counts.items()) if counts else ""


Judge = Callable[[Evidence], Iterable[Part]]


@dataclass(frozen=True)
class Claim:
    """A statement of the paper: where it stands, what it needs, and the function that judges it."""

    id: str
    sentence: str
    figures: tuple[str, ...]
    study: str
    tables: tuple[str, ...]
    parts: Judge


CLAIMS: dict[str, Claim] = {}
"""Claim id to claim, in the order of the paper."""


def claim(
    name: str,
    sentence: str,
    *,
    figures: tuple[str, ...],
    study: str,
    tables: tuple[str, ...] = ("runs",),
) -> Callable[[Judge], Judge]:
    """Register a function from :class:`Evidence` to parts as the claim ``name``.

    ``figures`` are the paper's numbers, ``tables`` the study's tables without which the claim is not
    run. Raises ValueError if the name is taken.
    """

    def register(function: Judge) -> Judge:
        if name in CLAIMS:
            raise ValueError(f"the claim '{name}' is registered twice; choose another id")
        CLAIMS[name] = Claim(name, sentence, figures, study, tables, function)
        return function

    return register
