"""Language models through the workflow at a tiny scale: corpus to figures, and nothing done twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from ..conftest import EVERY_STUDY, make_project
from .test_workflow import snakemake

SCALE: dict[str, Any] = {k: EVERY_STUDY[k] for k in ("name", "description", "lm")}


def test_figures_of_tiny_language_models(tmp_path: Path) -> None:
    project = make_project(tmp_path, SCALE)
    done = snakemake(project, "fig9", "fig42", "figB6")
    assert done.returncode == 0, done.stderr
    numbers = {p.stem: pd.read_csv(p) for p in project.glob("results/figures/tiny/*.csv")}
    recall = numbers["fig9"]
    assert set(recall.loc[recall["panel"] == "b", "featurizer"].dropna()) == {"gla", "sa"}
    assert set(numbers["fig42"]["tolerance"].dropna()) == {1e-3, 1e-2, 1e-1, 1.0}
    assert numbers["figB6"]["y"].notna().all()

    runs = pd.read_parquet(project / "results/tables/tiny/lm_runs.parquet")
    assert runs["state"].tolist() == ["done", "done"]
    assert runs["unigram_log_perplexity"].nunique() == 1
    dips = pd.read_parquet(project / "results/tables/tiny/lm_dips.parquet")
    assert set(dips["separator"]) == {"eos", "."}
    assert set(dips["place"]) == {"separator", "control"}

    # Another smoothing is another table, and no model is trained or evaluated for it.
    scale = {**SCALE, "lm": {**SCALE["lm"], "recall": {**SCALE["lm"]["recall"], "bandwidth": 0.5}}}
    make_project(tmp_path / "second", scale)
    (project / "config/scales/tiny.yaml").write_text(
        (tmp_path / "second/config/scales/tiny.yaml").read_text()
    )
    dry = snakemake(project, "fig42", "-n")
    assert dry.returncode == 0, dry.stderr
    assert "collect_language" in dry.stdout
    assert not {"lmtrain", "lmeval", "lmtrace", "corpus"} & set(dry.stdout.split())
