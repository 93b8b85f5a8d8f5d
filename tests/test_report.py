"""The report's pages: every claim, setting, choice and lost run stands there, as text."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from effstate.analysis.claims import CLAIMS, judge
from effstate.artifacts import ArtifactError, write_json
from effstate.choices import CHOICES
from effstate.hyperparameters import printed_tables
from effstate.jobs import make_pages, make_report
from effstate.pipeline import Pipeline
from effstate.report import PAGES

from .chromium import chromium, needs_chromium
from .conftest import EVERY_STUDY, make_project


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    """Every study at the scale tiny: one run failed, one diverged, the others are missing."""
    folder = make_project(tmp_path_factory.mktemp("project"), EVERY_STUDY)
    changes = {"results": str(folder / "results")}
    pipeline = Pipeline.from_file(folder / "config/config.yaml", changes)
    failed, diverged = map(pipeline.store.artifact, pipeline.requests("mqar", "train")[:2])
    failed.begin()
    failed.fail("the <disk> is full")
    diverged.begin()
    write_json(diverged.path("result.json"), {"diverged": {"step": 7, "last_finite_loss": 2.5}})
    diverged.finish("diverged", ["result.json"], seconds=200.0)
    return pipeline


@pytest.fixture(scope="module")
def pages(pipeline: Pipeline) -> dict[str, str]:
    claims, parts = judge({}, pipeline.scale)
    judged = {"claims": claims, "claim_parts": parts}
    return {name: page(pipeline, judged) for name, page in PAGES.items()}


def test_pages_name_their_scale_and_load_nothing(pages: dict[str, str]) -> None:
    for page in pages.values():
        assert "Scale “tiny”: seconds; for tests." in page
        assert "http" not in page and "<script" not in page


def test_every_claim_table_and_choice_is_there(pages: dict[str, str]) -> None:
    assert all(f">{name}</td>" in pages["claims"] for name in CLAIMS)
    assert all(f"{name}: {table.title}" in pages["settings"] for name, table in printed_tables().items())
    assert all(f">{choice.name}</td>" in pages["choices"] for choice in CHOICES)


def test_choices_show_the_values_that_the_runs_have(pages: dict[str, str]) -> None:
    values = dict(_rows(pages["choices"]))
    assert values["filler tokens"][-1] == "random"
    assert values["meaning of total"][-1] == "heads"
    assert values["dropout of students"][-1] == "0.2"
    assert values["precision"][-1] == ""


def test_lost_runs_are_named_with_their_reason_and_times_are_those_of_provenance(
    pages: dict[str, str],
) -> None:
    page = pages["runs"]
    assert "the &lt;disk&gt; is full" in page
    assert "last finite loss 2.5, step 7" in page
    assert ["train", "1 of 4", "3.3 min", "3.3 min"] in [rest for _, rest in _rows(page)]


def _rows(page: str) -> list[tuple[str, list[str]]]:
    """First cell and the others of every row of a page."""
    rows = [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in page.split("<tr>")]
    return [(row[0], row[1:]) for row in rows if row]


def test_pages_are_written_from_the_judged_claims(pipeline: Pipeline, tmp_path: Path) -> None:
    judged = judge({}, pipeline.scale)
    paths = [tmp_path / f"{name}.parquet" for name in ("claims", "claim_parts")]
    for table, path in zip(judged, paths, strict=True):
        table.to_parquet(path)
    make_pages(pipeline, paths, {"claims": tmp_path / "claims.html"})
    assert [path.name for path in tmp_path.glob("*.html")] == ["claims.html"]


def test_a_report_of_nothing_says_what_to_run(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(pipeline.base)
    with pytest.raises(ArtifactError, match=r"tiny.html: not written; run `snakemake figures claims"):
        make_report(pipeline)


@needs_chromium
def test_pages_fit_a_phone(pages: dict[str, str], tmp_path: Path) -> None:
    with chromium(tmp_path / "profile") as browser:
        for name, text in pages.items():
            page = tmp_path / f"{name}.html"
            page.write_text(text)
            for width in (1280, 390):
                visit = browser.visit(page, width)
                assert not visit.problems
