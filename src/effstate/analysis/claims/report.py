"""Judgements as text: a table for the terminal, and a page in Markdown."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from effstate.analysis.claims.base import OUTCOMES
from effstate.markdown import markdown_table

WIDTH = 110


def _number(value: float) -> str:
    """Two decimals, three below 0.1, and powers of ten where those would be zeros."""
    if 0 < abs(value) < 5e-4:
        return f"{value:.1e}"
    decimals = 2 if abs(value) >= 0.1 else 3
    return f"{value:.{decimals}f}" if value else "0"


def found_text(row: dict[str, Any]) -> str:
    """``0.31 [0.12, 0.50] > 0``; a dash for what does not exist."""
    if not np.isfinite(row["threshold"]):
        return ""
    ends = [row["low"], row["high"]]
    interval = f" [{', '.join(map(_number, ends))}]" if np.isfinite(ends).all() else ""
    value = _number(row["statistic"]) if np.isfinite(row["statistic"]) else "–"
    return f"{value}{interval} {row['relation']} {row['threshold']:g}"


def counts_of(claims: pd.DataFrame) -> str:
    """``29 claims: 9 reproduced, 2 not reproduced, 12 inconclusive, 6 not run``."""
    counts = claims["outcome"].value_counts()
    return f"{len(claims)} claims: " + ", ".join(f"{counts.get(o, 0)} {o}" for o in OUTCOMES)


def claims_text(claims: pd.DataFrame) -> str:
    """The judgements for a terminal of 110 columns: counts, then one line a claim."""
    rows = claims.to_dict("records")
    wide = max((len(row["claim"]) for row in rows), default=0)
    found = max((len(found_text(row)) for row in rows), default=0)
    lines = [counts_of(claims)]
    for row in rows:
        numbers = f"{found_text(row):<{found}}  " if found_text(row) else ""
        line = f"{row['claim']:<{wide}}  {row['outcome']:<14}  {numbers}{row['note']}"
        lines.append(line if len(line) <= WIDTH else line[: WIDTH - 1] + "…")
    return "\n".join(line.rstrip() for line in lines)


def claims_markdown(claims: pd.DataFrame, parts: pd.DataFrame | None = None) -> str:
    """The judgements as a page of Markdown: the claims, and below them their parts if given."""
    shared = {"outcome": "outcome", "statistic [95% interval], claimed": "found", "n": "n"}
    last = {"note": "note"}
    head = {"claim": "claim", "what the paper says": "sentence", "figures": "figures"}
    tables = [("# Claims of the paper", head, claims)]
    if parts is not None:
        tables.append(("## Their parts", {"claim": "claim", "part": "part"}, parts))
    lines = []
    for title, first, frame in tables:
        rows = [row | {"found": found_text(row)} for row in frame.to_dict("records")]
        lines += [title, "", *markdown_table(first | shared | last, rows), ""]
    intervals = "Intervals are percentile bootstrap intervals over runs (teachers, texts)."
    lines[1:1] = ["", f"{counts_of(claims)}. {intervals}"]
    return "\n".join(lines)
