"""What the site takes from the code: the page of open choices, and docstrings."""

from __future__ import annotations

import re
from typing import Any

from effstate.choices import CHOICES, default_of
from effstate.markdown import markdown_table

MARKER = "<!-- choices -->"
ROLE = re.compile(r":(?:attr|class|data|func|meth|mod):<code>~?([^<]*)</code>")
HEADER = {
    "choice": "name",
    "what is open": "question",
    "what is taken": "ours",
    "key": "key",
    "default": "default",
}


def choices_table() -> str:
    """The open choices in Markdown; a choice without a key is a constant of the code."""
    rows = []
    for choice in CHOICES:
        default = default_of(choice)
        row = {"name": choice.name, "question": choice.question, "ours": choice.ours}
        row["key"] = f"`{choice.key}`" if choice.key else ""
        row["default"] = f"`{default}`" if choice.key else ""
        rows.append(row)
    return "\n".join(markdown_table(HEADER, rows))


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Called by mkdocs for every page."""
    return markdown.replace(MARKER, choices_table())


def on_page_content(html: str, **_: Any) -> str:
    """Called by mkdocs for every rendered page: roles of docstrings become plain code."""
    return ROLE.sub(r"<code>\1</code>", html)
