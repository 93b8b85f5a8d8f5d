"""The HTML templates of this package."""

from __future__ import annotations

from jinja2 import Environment, PackageLoader, StrictUndefined


def environment() -> Environment:
    """Templates in which text is escaped and an unknown name is an error."""
    return Environment(
        loader=PackageLoader("effstate"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
