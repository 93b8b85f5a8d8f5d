"""The site: built with warnings as errors, in step with the code; its runnable blocks run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from html import unescape
from pathlib import Path

import pytest
import yaml

from effstate.choices import CHOICES, default_of

from .conftest import ROOT, TINY, make_project

DOCS = ROOT / "docs"
BLOCK = re.compile(
    r"^<!-- (run|file: (\S+)) -->\n```(bash|python)\n(.*?)^```$", re.DOTALL | re.MULTILINE
)


def pages(entries: list) -> list[str]:
    """The files of the navigation, in its order."""
    found = []
    for entry in entries:
        (value,) = entry.values()
        found += pages(value) if isinstance(value, list) else [value]
    return found


NAVIGATION = pages(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mkdocs")
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return folder


def test_every_page_is_in_the_navigation() -> None:
    assert sorted(NAVIGATION) == sorted(str(p.relative_to(DOCS)) for p in DOCS.rglob("*.md"))


def test_pages_load_nothing_from_elsewhere(site: Path) -> None:
    for page in NAVIGATION:
        html = (site / page).with_suffix(".html").read_text()
        loaded = re.findall(r"<(?:script|img|iframe)\b[^>]*\bsrc=\"([^\"]+)", html)
        loaded += re.findall(r"<link\b[^>]*\bhref=\"([^\"]+)", html)
        assert loaded
        assert not [url for url in loaded if re.match(r"(https?:)?//", url)], page


def test_open_choices_are_those_of_the_code(site: Path) -> None:
    html = unescape((site / "choices.html").read_text())
    (table,) = re.findall(r"<table>.*?</table>", html, re.DOTALL)
    rows = re.findall(r"<tr>\s*<td>(.*?)</tr>", table, re.DOTALL)
    assert len(rows) == len(CHOICES)
    for row, choice in zip(rows, CHOICES, strict=True):
        shown = re.sub(r"<[^>]+>", "", row)
        for part in (choice.name, choice.question, choice.key):
            assert part in shown
        assert not choice.key or str(default_of(choice)) in shown


def test_the_reference_holds_docstrings(site: Path) -> None:
    html = (site / "api/ess.html").read_text()
    assert "Singular values of H_i" in html
    assert 'id="effstate.ess.recurrent.Recurrence"' in html
    for page in (site / "api").glob("*.html"):
        assert not re.findall(r":(?:class|func|meth|mod|data|attr):", page.read_text()), page


def test_runnable_blocks_run(tmp_path: Path) -> None:
    """In the order of the navigation, in one project at the tiny scale."""
    one = {"axes": {"model.featurizer": ["gla"], "task.kv": [2]}}
    project = make_project(tmp_path, TINY | {"mqar": TINY["mqar"] | one})
    folder = Path(sys.executable).parent
    paths = os.pathsep.join([str(project), *filter(None, [os.environ.get("PYTHONPATH")])])
    env = {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": paths}
    ran = []
    for page in NAVIGATION:
        for _, name, language, block in BLOCK.findall((DOCS / page).read_text()):
            if name:
                (project / name).write_text(block)
                continue
            shell = ["bash", "-euo", "pipefail", "-c"] if language == "bash" else [sys.executable, "-c"]
            done = subprocess.run(
                [*shell, block], cwd=project, env=env, capture_output=True, text=True, timeout=300
            )
            assert done.returncode == 0, f"{page}:\n{block}\n{done.stdout}\n{done.stderr}"
            ran.append(page)
    assert len(set(ran)) >= 6
    numbers = (project / "results/figures/tiny/fig3.csv").read_text()
    assert "fading" in numbers


def test_every_marker_stands_before_a_block() -> None:
    for page in NAVIGATION:
        text = (DOCS / page).read_text()
        assert len(re.findall(r"^<!-- (?:run|file)", text, re.MULTILINE)) == len(BLOCK.findall(text))
