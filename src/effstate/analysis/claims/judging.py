"""From tables to the judgements of every registered claim."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import NamedTuple

import numpy as np
import pandas as pd

from effstate.analysis.claims.base import CLAIMS, Claim, Evidence, Outcome, Part
from effstate.analysis.tables import TableError
from effstate.scales import ScaleConfig


class Judgements(NamedTuple):
    """``claims``: one row a claim in the order of the paper; ``parts``: one row a comparison.

    Columns of claims: claim, sentence, figures, study, outcome, statistic, low, high, relation,
    threshold, n, note; the numbers are those of the part that decides. Columns of parts: claim and
    the fields of :class:`~effstate.analysis.claims.base.Part`.
    """

    claims: pd.DataFrame
    parts: pd.DataFrame


def judge(
    tables: Mapping[str, pd.DataFrame],
    scale: ScaleConfig,
    claims: Mapping[str, Claim] = CLAIMS,
) -> Judgements:
    """Judge claims, all of them by default, on a scale's tables (``mqar_runs``, ...)."""
    rows, parts = [], []
    for claim in claims.values():
        found, note = _parts_of(claim, tables, scale)
        rows.append(_row(claim, found, note))
        parts += [{"claim": claim.id} | asdict(part) for part in found]
    columns = ["claim", *(field.name for field in fields(Part))]
    return Judgements(pd.DataFrame(rows), pd.DataFrame(parts, columns=columns))


def _parts_of(
    claim: Claim, tables: Mapping[str, pd.DataFrame], scale: ScaleConfig
) -> tuple[list[Part], str]:
    """A claim's parts and what was left out; no part, and the reason, where it cannot be run."""
    needed = [f"{claim.study}_{name}" for name in claim.tables]
    empty = [name for name in needed if name not in tables or tables[name].empty]
    if empty and claim.study not in scale.studies():
        return [], f"the scale {scale.name} does not run {claim.study}"
    if empty:
        return [], f"there is no row in {' and '.join(empty)}"
    evidence = Evidence(claim.study, tables, scale)
    try:
        found = list(claim.parts(evidence))
    except TableError as error:
        return [], f"{' and '.join(needed)}: {error}"
    return found, evidence.skipped_note()


def _overall(parts: Sequence[Part]) -> tuple[Outcome, Part | None]:
    """The claim's outcome, and the part that decides it: of those with it, the one worst off."""
    run = [part for part in parts if part.outcome != "not run"]
    outcomes = {part.outcome for part in parts}
    outcome: Outcome = "inconclusive"
    if not run:
        outcome = "not run"
    elif "not reproduced" in outcomes:
        outcome = "not reproduced"
    elif outcomes == {"reproduced"}:
        outcome = "reproduced"
    deciding = [part for part in run if part.outcome == outcome] or run or [*parts]
    return outcome, min(deciding, key=lambda part: part.margin, default=None)


def _counts(parts: Sequence[Part]) -> str:
    """``2 of 4 parts reproduced, 1 not run``."""
    counts = Counter(part.outcome for part in parts)
    absent = f", {counts['not run']} not run" if counts["not run"] else ""
    return f"{counts['reproduced']} of {len(parts)} parts reproduced{absent}"


def _row(claim: Claim, parts: Sequence[Part], note: str) -> dict[str, object]:
    outcome, shown = _overall(parts)
    notes = [note]
    if shown is not None:
        many = [shown.part, _counts(parts)] if len(parts) > 1 and outcome != "not run" else []
        notes = [*many, shown.note, note]
    numbers = dict.fromkeys(("statistic", "low", "high", "threshold"), np.nan) | {"relation": "", "n": 0}
    if shown is not None and outcome != "not run":
        numbers = {name: getattr(shown, name) for name in numbers}
    return {
        "claim": claim.id,
        "sentence": claim.sentence,
        "figures": ", ".join(claim.figures),
        "study": claim.study,
        "outcome": outcome,
        **{k: numbers[k] for k in ("statistic", "low", "high", "relation", "threshold", "n")},
        "note": "; ".join(filter(None, notes)),
    }
