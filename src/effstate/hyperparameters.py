"""Tables T1 to T9: the paper's hyperparameters beside what a scale resolves to. No torch."""

from __future__ import annotations

import csv
import io
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from effstate.artifacts import Request
from effstate.config import Strict, parse, read_yaml
from effstate.markdown import markdown_table
from effstate.pipeline import Pipeline

PRINTED = Path(__file__).parent / "data/printed_hyperparameters.yaml"
COLUMNS = {
    "hyperparameter": "key",
    "studies": "studies",
    "paper": "paper",
    "this scale": "ours",
    "differs": "differs",
}
"""Title of a column to the key of its value in the rows of :func:`resolve`."""

NOT_RUN = "not run"
NO_KEY = "no such key"


def _listed(value: Any) -> Any:
    return value if isinstance(value, list) else [value]


Values = Annotated[list[Any], BeforeValidator(_listed)]


class PrintedPart(Strict):
    """Printed values of one stage of some studies, for the runs that ``where`` chooses."""

    studies: list[str]
    values: dict[str, Values]
    stage: str = "train"
    where: dict[str, list[Any]] = Field({}, description="dotted key to the values that are meant")


class PrintedTable(Strict):
    """One table of the paper."""

    title: str
    parts: list[PrintedPart]


def printed_tables(path: Path = PRINTED) -> dict[str, PrintedTable]:
    """The tables by name (T1 ... T9); raises ConfigError if the file holds something else."""
    data = read_yaml(path)
    return {name: parse(PrintedTable, table, f"{path}: {name}") for name, table in data.items()}


def distinct(requests: list[Request], key: str) -> list[Any]:
    """The values of a dotted key over requests, each once, sequences as lists.

    Raises AttributeError if a request has no such key.
    """
    found = [attrgetter(key)(request.config) for request in requests]
    values: list[Any] = [list(v) if isinstance(v, tuple) else v for v in found]
    return [value for place, value in enumerate(values) if value not in values[:place]]


def _chosen(pipeline: Pipeline, study: str, part: PrintedPart) -> list[Request]:
    """The requests of the part's stage that its conditions choose; none if the scale has none."""
    if study not in pipeline.studies or part.stage not in pipeline.stages(study):
        return []
    return [
        request
        for request in pipeline.requests(study, part.stage)
        if all(attrgetter(key)(request.config) in values for key, values in part.where.items())
    ]


def shown(values: list[Any]) -> str:
    """``8, 16, 32``; lists in brackets, large numbers without an exponent."""
    return ", ".join(
        f"{value:.12g}" if isinstance(value, int | float) and not isinstance(value, bool) else str(value)
        for value in values
    )


def _row(key: str, paper: list[Any], requests: list[Request]) -> dict[str, str]:
    """One hyperparameter of one study."""
    row = {"key": key, "paper": shown(paper), "ours": NOT_RUN, "differs": ""}
    if not requests:
        return row
    try:
        ours = distinct(requests, key)
    except AttributeError:
        return row | {"ours": NO_KEY, "differs": "yes"}
    same = all(value in paper for value in ours) and all(value in ours for value in paper)
    return row | {"ours": shown(ours), "differs": "" if same else "yes"}


def resolve(pipeline: Pipeline, table: PrintedTable) -> list[dict[str, str]]:
    """Rows with the keys of :data:`COLUMNS`; studies that resolve to the same share a row."""
    rows: dict[tuple[str, ...], list[str]] = {}
    for part in table.parts:
        requests = {study: _chosen(pipeline, study, part) for study in part.studies}
        for key, paper in part.values.items():
            for study in part.studies:
                row = _row(key, paper, requests[study])
                rows.setdefault(tuple(row.values()), []).append(study)
    names = ("key", "paper", "ours", "differs")
    return [
        dict(zip(names, values, strict=True)) | {"studies": ", ".join(studies)}
        for values, studies in rows.items()
    ]


def table_csv(rows: list[dict[str, str]]) -> str:
    """A table as CSV with the titles of :data:`COLUMNS`."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows([row[key] for key in COLUMNS.values()] for row in rows)
    return text.getvalue()


def table_markdown(name: str, title: str, scale: str, rows: list[dict[str, str]]) -> str:
    """A table as a page of Markdown."""
    head = [f"# {name}: {title}", "", f"The paper's values beside those of the scale `{scale}`.", ""]
    return "\n".join([*head, *markdown_table(COLUMNS, rows), ""])
