"""Pages of the report besides the figures: claims, settings beside the paper's, open choices, runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, get_args

import pandas as pd

from effstate.analysis.claims import OUTCOMES
from effstate.analysis.claims.report import counts_of, found_text
from effstate.artifacts import State
from effstate.choices import CHOICES, Choice
from effstate.hyperparameters import COLUMNS, distinct, printed_tables, resolve, shown
from effstate.jobs import states
from effstate.pages import environment
from effstate.pipeline import Pipeline
from effstate.planning import duration

MARKS = {outcome: outcome.replace(" ", "-") for outcome in OUTCOMES} | {"yes": "inconclusive"}
"""Cells that stand out, with their class in the style sheet."""


@dataclass(frozen=True)
class PageTable:
    """A table of a page; one without rows says so."""

    title: str
    header: tuple[str, ...]
    rows: list[list[Any]]


def _page(pipeline: Pipeline, title: str, introduction: str, *tables: PageTable) -> str:
    scale = f"Scale “{pipeline.scale.name}”: {pipeline.scale.description.rstrip('.')}."
    template = environment().get_template("tables.html.j2")
    return template.render(
        title=title, introduction=f"{introduction} {scale}", tables=tables, marks=MARKS
    )


def _judged(frame: pd.DataFrame, title: str, **columns: str) -> PageTable:
    """Judgements with their numbers; ``columns`` are the first ones, as key to title."""
    rows = [
        [*(row[key] for key in columns), row["outcome"], found_text(row), row["note"]]
        for row in frame.to_dict("records")
    ]
    header = (*columns.values(), "outcome", "statistic [95% interval], claimed", "note")
    return PageTable(title, header, rows)


def claims_page(pipeline: Pipeline, judged: Mapping[str, pd.DataFrame]) -> str:
    """The judged claims, and below them their parts; ``judged`` as the claims rule wrote them."""
    claims, parts = judged["claims"], judged["claim_parts"]
    columns = {"claim": "claim", "sentence": "what the paper says", "figures": "figures"}
    return _page(
        pipeline,
        "Claims of the paper",
        f"{counts_of(claims)}. A claim is decided by its interval, never by its statistic alone.",
        _judged(claims, "", **columns),
        _judged(parts, "Their parts", claim="claim", part="part"),
    )


def settings_page(pipeline: Pipeline, judged: Mapping[str, pd.DataFrame]) -> str:
    """Tables T1 to T9 of the paper beside what the scale resolves to."""
    tables = [
        PageTable(
            f"{name}: {table.title}",
            (*COLUMNS,),
            [[row[key] for key in COLUMNS.values()] for row in resolve(pipeline, table)],
        )
        for name, table in printed_tables().items()
    ]
    return _page(
        pipeline, "Hyperparameters", "The paper's tables 1 to 9 beside what was run here.", *tables
    )


def _value_of(pipeline: Pipeline, choice: Choice) -> str:
    """The values of a choice over every study that has its key; empty for a constant of the code."""
    if not choice.key:
        return ""
    values: list[Any] = []
    for name, study in pipeline.studies.items():
        for stage in study.run_stages:
            try:
                values += distinct(pipeline.requests(name, stage), choice.key)
            except AttributeError:
                continue
        values += [v for key, v in study.config if key == choice.key]
    return shown(list(dict.fromkeys(values)))


def choices_page(pipeline: Pipeline, judged: Mapping[str, pd.DataFrame]) -> str:
    """What the paper leaves open, what is taken, and the values that ran."""
    rows = [[c.name, c.question, c.ours, c.key, _value_of(pipeline, c)] for c in CHOICES]
    header = ("choice", "what is open", "what is taken", "key", "values here")
    return _page(
        pipeline,
        "Open choices",
        "Choices with a key can be varied in the configuration; the others are constants.",
        PageTable("", header, rows),
    )


def _times(pipeline: Pipeline) -> PageTable:
    """Wall times of the finished artifacts of every stage; data sets shared by studies count in each."""
    rows: list[list[Any]] = []
    for name, study in pipeline.studies.items():
        for stage in study.stages:
            found = [pipeline.store.artifact(r).provenance() for r in pipeline.requests(name, stage)]
            seconds = [provenance["seconds"] for provenance in found if provenance is not None]
            times = [duration(sum(seconds)), duration(max(seconds))] if seconds else ["", ""]
            rows.append([name, stage, f"{len(seconds)} of {len(found)}", *times])
    return PageTable("Run times", ("study", "stage", "finished", "in all", "longest"), rows)


def runs_page(pipeline: Pipeline, judged: Mapping[str, pd.DataFrame]) -> str:
    """States of all runs, those that failed or diverged by name, and run times."""
    found = states(pipeline)
    kinds = get_args(State)
    counts = Counter((row["study"], row["state"]) for row in found)
    table = [[study, *(counts[study, kind] for kind in kinds)] for study in pipeline.studies]
    lost = [[*row.values()] for row in found if row["state"] in ("failed", "diverged")]
    return _page(
        pipeline,
        "Runs",
        "A run that diverged is a result: figures leave its gap.",
        PageTable("States", ("study", *kinds), table),
        PageTable("Failed and diverged runs", ("study", "run", "state", "reason"), lost),
        _times(pipeline),
    )


Page = Callable[[Pipeline, Mapping[str, pd.DataFrame]], str]

PAGES: dict[str, Page] = {
    "claims": claims_page,
    "settings": settings_page,
    "choices": choices_page,
    "runs": runs_page,
}
"""Name of a page to the function from the pipeline and the judged claims to its HTML."""
