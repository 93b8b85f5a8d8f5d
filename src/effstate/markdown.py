"""Tables in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


def markdown_table(header: Mapping[str, str], rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Lines of a table with a column per entry of ``header`` (title to the rows' key)."""
    cells = [[str(row[key]).replace("|", "\\|") for key in header.values()] for row in rows]
    lines = [[*header], ["---"] * len(header), *cells]
    return [f"| {' | '.join(line)} |" for line in lines]
