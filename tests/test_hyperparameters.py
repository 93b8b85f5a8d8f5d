"""Tables T1 to T9: what the scale resolves to beside what the paper prints, and what differs marked."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import pytest

from effstate.config import ConfigError
from effstate.hyperparameters import (
    COLUMNS,
    NO_KEY,
    NOT_RUN,
    PrintedTable,
    printed_tables,
    resolve,
    table_csv,
    table_markdown,
)
from effstate.pipeline import Pipeline

from .conftest import EVERY_STUDY, ROOT, TINY, make_project

TABLES = printed_tables()


def pipeline_at(folder: Path, scale: dict[str, Any]) -> Pipeline:
    return Pipeline.from_file(make_project(folder, scale) / "config/config.yaml")


def by_key(rows: list[dict[str, str]]) -> dict[tuple[str, str], tuple[str, str]]:
    return {(row["key"], row["studies"]): (row["ours"], row["differs"]) for row in rows}


def test_there_are_nine_tables() -> None:
    assert [*TABLES] == [f"T{n}" for n in range(1, 10)]


def test_the_paper_scale_differs_in_the_layers_that_we_penalise_besides_and_in_nothing_else() -> None:
    paper = Pipeline.from_file(ROOT / "config/config.yaml", {"scale": "paper"})
    rows = {name: resolve(paper, table) for name, table in TABLES.items()}
    differing = [(name, row["key"]) for name in rows for row in rows[name] if row["differs"]]
    assert differing == [("T5", "training.regularised_layers")]
    for name in [*TABLES][:8]:
        assert not any(row["ours"] == NOT_RUN for row in rows[name])


def test_every_key_is_one_of_its_stage(tmp_path: Path) -> None:
    pipeline = pipeline_at(tmp_path, EVERY_STUDY)
    for table in TABLES.values():
        assert not any(row["ours"] == NO_KEY for row in resolve(pipeline, table))


def test_values_are_those_of_the_runs_and_a_study_that_is_absent_is_not_run(tmp_path: Path) -> None:
    rows = by_key(resolve(pipeline_at(tmp_path, TINY), TABLES["T1"]))
    assert rows["task.kv", "mqar"] == ("2, 4", "yes")
    assert rows["model.num_layers", "mqar"] == ("2", "")
    assert rows["model.num_layers", "copying, compression"] == (NOT_RUN, "")
    assert rows["task.num_tokens_to_copy", "copying"] == (NOT_RUN, "")


def test_conditions_choose_runs_and_an_unknown_key_is_said_to_be_none(tmp_path: Path) -> None:
    parts = [
        {"studies": ["mqar"], "where": {"task.kv": [4]}, "values": {"task.kv": 4, "task.kvv": 4}},
        {"studies": ["mqar"], "where": {"task.kv": [5]}, "values": {"seed": 0}},
    ]
    table = PrintedTable.model_validate({"title": "Made up", "parts": parts})
    rows = by_key(resolve(pipeline_at(tmp_path, TINY), table))
    assert rows["task.kv", "mqar"] == ("4", "")
    assert rows["task.kvv", "mqar"] == (NO_KEY, "yes")
    assert rows["seed", "mqar"] == (NOT_RUN, "")


def test_csv_and_markdown_hold_every_row(tmp_path: Path) -> None:
    rows = resolve(pipeline_at(tmp_path, TINY), TABLES["T1"])
    read = list(csv.DictReader(io.StringIO(table_csv(rows))))
    assert [[*row.values()] for row in read] == [[r[k] for k in COLUMNS.values()] for r in rows]
    lines = table_markdown("T1", "Sweep", "tiny", rows).splitlines()
    assert sum(line.startswith("| ") for line in lines) == len(rows) + 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "T1: {title: a, parts: [], partz: []}",
            "unknown key 'partz'; the nearest known one is 'parts'",
        ),
        ("T1: [", "not a YAML file"),
    ],
)
def test_a_broken_data_file_is_named(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "printed.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=f"{path}.*{message}"):
        printed_tables(path)
