"""The four studies that use ESS, end to end at a tiny scale: terminated, resumed, complete."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from effstate.jobs import make_cohort
from effstate.pipeline import Pipeline

from ..conftest import EVERY_STUDY, make_project
from .test_workflow import outputs, snakemake, terminated

STUDIES = ("init", "regularisation", "distillation", "hybrids")
FIGURES = ("fig6", "fig8", "fig27", "fig28", "fig31", "fig32", "fig33", "fig34", "figB2")
SCALE = {k: v for k, v in EVERY_STUDY.items() if k in ("name", "description", *STUDIES)}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project whose workflow was terminated while it trained, and then run to its end."""
    folder = make_project(tmp_path_factory.mktemp("studies"), SCALE, cohort_size=12)
    terminated(folder, "results/runs/train/*/provenance.json", *FIGURES, files=3)
    assert not list(folder.glob("results/figures/tiny/*"))
    done = snakemake(folder, *FIGURES)
    assert done.returncode == 0, done.stderr
    return folder


def test_the_resumed_workflow_made_the_bytes_of_an_undisturbed_one(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = make_project(tmp_path, SCALE, cohort_size=12)
    monkeypatch.chdir(whole)
    pipeline = Pipeline.from_file(whole / "config/config.yaml")
    for study in pipeline.sweeps:
        for stage in pipeline.stages(study):
            for cohort in pipeline.cohorts(study, stage).values():
                make_cohort(pipeline, cohort)
    assert {stage for stage, _ in outputs(whole)} == {"data", "train", "trace", "distill"}
    assert outputs(project) == outputs(whole)


def test_every_figure_of_the_studies_shows_runs(project: Path) -> None:
    for figure in FIGURES:
        numbers = pd.read_csv(project / f"results/figures/tiny/{figure}.csv")
        assert numbers["y"].notna().any(), figure


def test_the_tables_hold_what_the_studies_are_about(project: Path) -> None:
    tables = {p.stem: pd.read_parquet(p) for p in project.glob("results/tables/tiny/*.parquet")}
    init = tables["init_runs"].set_index("run")
    assert init["init_ess_entropy"].notna().all()
    assert set("+".join(init["grids"]).split("+")) == {"tss_s6", "tss_gated", "alpha", "fig28"}
    assert set(tables["regularisation_runs"]["regularisation"]) == {0.0, 0.5}
    students = tables["distillation_students"]
    assert len(students) == 3 * 2 * 2 and (students["state"] == "done").all()
    hybrids = tables["hybrids_layers"]
    last = hybrids[hybrids["epoch"] == hybrids["epoch"].max()].sort_values("layer")
    mixers = last.groupby("featurizer")["mixer"].agg("".join)
    letters = {name: "".join("s" if c == "s" else "g" for c in name) for name in mixers.index}
    assert {n: m.replace("gla", "g").replace("sa", "s") for n, m in mixers.items()} == letters
