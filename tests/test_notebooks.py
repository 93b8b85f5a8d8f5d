"""Notebooks: kept without output, run on a results folder, executed and rendered by their rule."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
import pytest

from effstate.artifacts import ArtifactError
from effstate.figures.registry import FIGURES
from effstate.notebooks import (
    NOTEBOOKS,
    MissingResultError,
    Results,
    execute,
    notebooks_of,
    target_of,
)
from effstate.registry import UnknownNameError

from .conftest import ROOT, make_project
from .synthetic_results import write_results

FILES = sorted((ROOT / "notebooks").glob("*.ipynb"))


def cells(notebook: str) -> list[dict[str, Any]]:
    return json.loads((ROOT / "notebooks" / f"{notebook}.ipynb").read_text())["cells"]


def code_of(notebook: str) -> list[tuple[bool, str]]:
    """Code cells: whether a cell holds the parameters, and its source."""
    return [
        ("parameters" in cell["metadata"].get("tags", []), "".join(cell["source"]))
        for cell in cells(notebook)
        if cell["cell_type"] == "code"
    ]


def run_here(notebook: str, monkeypatch: pytest.MonkeyPatch, **parameters: str) -> dict[str, Any]:
    """Run a notebook's cells in this process; the names that it has made."""
    monkeypatch.setattr(plt, "show", lambda: None)
    names: dict[str, Any] = {}
    for given, source in code_of(notebook):
        exec(compile(source, notebook, "exec"), names)
        if given:
            names |= parameters
    plt.close("all")
    return names


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("results")
    with plt.ioff():
        write_results(folder)
    return folder


def test_every_file_is_registered_in_its_order() -> None:
    assert [path.stem for path in FILES] == list(NOTEBOOKS)


@pytest.mark.parametrize("notebook", NOTEBOOKS)
def test_kept_without_output_and_with_parameters(notebook: str) -> None:
    for cell in cells(notebook):
        if cell["cell_type"] == "code":
            assert cell["outputs"] == [] and cell["execution_count"] is None
    (given,) = [source for parameters, source in code_of(notebook) if parameters]
    names: dict[str, Any] = {}
    exec(given, names)
    assert (names["scale"], names["results"]) == ("demo", "../results")


@pytest.mark.parametrize("notebook", [name for name, spec in NOTEBOOKS.items() if spec.reads])
def test_runs_and_reads_what_its_rule_gives(
    notebook: str, results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = run_here(notebook, monkeypatch, scale="tiny", results=str(results))
    assert names["found"].read == NOTEBOOKS[notebook].reads


def test_the_toy_notebook_needs_no_results(monkeypatch: pytest.MonkeyPatch) -> None:
    names = run_here("01_metric", monkeypatch, results="nowhere")
    assert names["found"]["delay by 5"]["tolerance-ESS"].max() == 5
    assert names["counted"].loc["entropy", "running mean"] == 1


def test_ones_own_model_needs_no_results_and_no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers")
    names = run_here("09_your_own_model", monkeypatch, results="nowhere")
    assert names["history"][-1]["loss"] < names["history"][0]["loss"]
    assert names["profile"].entropy.shape == (4, 4, 63)


def test_a_missing_result_names_the_target_that_makes_it(tmp_path: Path) -> None:
    found = Results("demo", tmp_path)
    for read, target in (
        (lambda: found.table("mqar_runs"), "fig3"),
        (lambda: found.table("copying_runs"), "fig24"),
        (lambda: found.numbers("fig8"), "fig8"),
        (lambda: found.claims("mqar"), "claims"),
    ):
        with pytest.raises(MissingResultError, match=rf"`snakemake {target} .*scale=demo`"):
            read()
    with pytest.raises(UnknownNameError, match="fig5"):
        found.numbers("figg5")
    with pytest.raises(UnknownNameError, match="mqar_runs"):
        target_of("mqr_runs")


def test_names_of_the_registry_exist() -> None:
    for spec in NOTEBOOKS.values():
        assert set(spec.figures) <= set(FIGURES)
        for table in spec.tables:
            assert target_of(table) in FIGURES
    assert notebooks_of([]) == ["01_metric", "09_your_own_model"]
    assert "03_initialisation" in notebooks_of(["init"])


def test_a_failing_cell_is_named_and_leaves_nothing(tmp_path: Path) -> None:
    import nbformat.v4 as notebooks

    broken = notebooks.new_notebook(cells=[notebooks.new_code_cell("1 / 0")])
    broken.metadata["kernelspec"] = {"name": "python3", "display_name": "p", "language": "python"}
    (tmp_path / "broken.ipynb").write_text(json.dumps(broken))
    with pytest.raises(ArtifactError, match=r"cell 1 failed: ZeroDivisionError"):
        execute(tmp_path / "broken.ipynb", tmp_path / "out/broken.ipynb", {})
    assert not [path for path in (tmp_path / "out").glob("*")]


def test_the_rule_executes_and_renders(tmp_path: Path) -> None:
    project = make_project(tmp_path)
    page = "results/notebooks/tiny/01_metric.html"
    done = subprocess.run(
        [sys.executable, "-m", "snakemake", page, "--cores", "1"],
        cwd=project,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    html = (project / page).read_text()
    assert "<title>effstate: The metric on toy operators</title>" in html
    assert "data:image/png;base64" in html
    assert not re.findall(r"""(?:src|href)=["']?(?:https?:)?//""", html)
    executed = json.loads((project / page).with_suffix(".ipynb").read_text())
    assert any(cell.get("outputs") for cell in executed["cells"])
    for kind in ("logs", "benchmarks"):
        assert list((project / "results" / kind / "notebooks").glob("tiny-01_metric.*"))
    planned = subprocess.run(
        [sys.executable, "-m", "snakemake", "notebooks", "-n", "--cores", "1"],
        cwd=project,
        capture_output=True,
        text=True,
    )
    assert planned.returncode == 0, planned.stderr
    assert "09_your_own_model.html" in planned.stdout and "03_init" not in planned.stdout


def test_synthetic_results_have_the_columns_of_claims(results: Path) -> None:
    assert isinstance(Results("tiny", results).claims("lm"), pd.DataFrame)
    assert len(Results("tiny", results).claims("lm")) == 2
