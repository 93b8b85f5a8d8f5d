"""One static page with every figure, its caption and the claims it bears on; opens from disk."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pandas as pd

from effstate.analysis.claims import OUTCOMES
from effstate.analysis.claims.report import found_text
from effstate.figures.registry import FIGURES, SECTIONS, FigureSpec
from effstate.pages import environment


def _claims(table: pd.DataFrame | None) -> list[dict[str, Any]]:
    """The rows of a table of claims as the page shows them."""
    rows = [] if table is None else table.to_dict("records")
    return [
        {
            "sentence": row["sentence"],
            "outcome": row["outcome"],
            "numbers": found_text(row),
            "note": row["note"],
            "figures": [f"fig{number}" for number in row["figures"].split(", ")],
        }
        for row in rows
    ]


def _figure(spec: FigureSpec, folder: str, claims: list[dict[str, Any]]) -> dict[str, Any]:
    name = spec.number if spec.beyond else f"Figure {spec.number}"
    return {
        "id": spec.id,
        "name": name,
        "title": spec.title,
        "caption": spec.caption,
        "path": f"{folder}/{spec.id}",
        "claims": [claim for claim in claims if spec.id in claim["figures"]],
    }


def gallery_page(scale: str, description: str, folder: str, judged: pd.DataFrame | None = None) -> str:
    """The page as HTML: no script, no request to anywhere, pictures by relative paths.

    Args:
        scale, description: what the figures were made at.
        folder: of the figures, relative to the page.
        judged: the table of claims, :attr:`effstate.analysis.claims.Judgements.claims`; None where
            none were judged.
    """
    claims = _claims(judged)
    grouped: dict[str, list[dict[str, Any]]] = {}
    for spec in FIGURES.values():
        grouped.setdefault(SECTIONS[spec.section], []).append(_figure(spec, folder, claims))
    counts = Counter(claim["outcome"] for claim in claims)
    return (
        environment()
        .get_template("gallery.html.j2")
        .render(
            scale=scale,
            description=description.rstrip("."),
            sections=[{"title": title, "figures": figures} for title, figures in grouped.items()],
            claims=claims,
            counts=[(outcome, counts[outcome]) for outcome in OUTCOMES if counts[outcome]],
            known=set(FIGURES),
        )
    )
