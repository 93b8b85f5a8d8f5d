"""One static page with every figure, its caption and the claims it bears on; opens from disk."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined

from effstate.analysis.claims import OUTCOMES
from effstate.analysis.claims.report import found_text
from effstate.figures.registry import FIGURES, FigureSpec

SECTIONS = {
    "1": "What is measured",
    "3": "What is measured",
    "4.1": "ESS and accuracy across models",
    "4.2": "ESS and accuracy during training",
    "5.1": "Initialisation",
    "5.2": "Distillation",
    "A": "Regularisation",
    "E.1": "The whole task-model space",
    "E.2": "Initialisation",
    "E.3": "State collapse",
    "E.4": "Distillation and hybrids",
    "beyond the paper": "Beyond the paper",
}
"""A section of the paper to the heading under which its figures stand."""


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
    name = spec.number if spec.number.startswith("B") else f"Figure {spec.number}"
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
        title = SECTIONS.get(spec.section, f"Section {spec.section}")
        grouped.setdefault(title, []).append(_figure(spec, folder, claims))
    counts = Counter(claim["outcome"] for claim in claims)
    environment = Environment(
        loader=PackageLoader("effstate"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    return environment.get_template("gallery.html.j2").render(
        scale=scale,
        description=description.rstrip("."),
        sections=[{"title": title, "figures": figures} for title, figures in grouped.items()],
        claims=claims,
        counts=[(outcome, counts[outcome]) for outcome in OUTCOMES if counts[outcome]],
        known=set(FIGURES),
    )
