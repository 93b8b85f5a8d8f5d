"""Open-weight models through the workflow at a tiny scale, and one that is missing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from ..conftest import EVERY_STUDY, make_project
from .test_workflow import snakemake

SCALE: dict[str, Any] = {k: EVERY_STUDY[k] for k in ("name", "description", "openweights")}


def test_figures_of_tiny_models_and_the_gap_of_a_skipped_one(tmp_path: Path) -> None:
    project = make_project(tmp_path, SCALE)
    done = snakemake(project, "fig9", "fig36", "fig38", "fig43", "fig46", "figB3")
    assert done.returncode == 0, done.stderr
    numbers = {p.stem: pd.read_csv(p) for p in project.glob("results/figures/tiny/*.csv")}
    for figure in ("fig9", "fig36", "fig43", "fig46", "figB3"):
        assert numbers[figure]["y"].notna().any(), figure
    assert set(numbers["fig38"]["note"]) == {"gated: skipped"}


def test_missing_models_are_named_before_any_is_measured(tmp_path: Path) -> None:
    models = SCALE["openweights"]["models"]
    asked = {**models, "gated": {**models["gated"], "skip": False}}
    project = make_project(tmp_path, {**SCALE, "openweights": {**SCALE["openweights"], "models": asked}})
    done = snakemake(project, "fig36")
    assert done.returncode != 0
    assert "openweights.models.gated: nowhere does not exist, or set skip: true" in done.stderr
    assert not list(project.glob("results/runs/weights/*"))
