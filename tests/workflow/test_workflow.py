"""The workflow for real, at a tiny scale: figures, reruns, growth, damage, interruption, bad input."""

from __future__ import annotations

import copy
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from effstate.analysis.claims import CLAIMS
from effstate.artifacts import read_json
from effstate.figures.registry import FIGURES, SECTIONS
from effstate.hyperparameters import printed_tables
from effstate.jobs import REPORTED
from effstate.pipeline import Pipeline
from effstate.requests import run_of

from ..chromium import chromium, needs_chromium
from ..conftest import TINY, make_project

SNAKEMAKE = [sys.executable, "-m", "snakemake"]


def environment(**changes: str) -> dict[str, str]:
    folder = str(Path(sys.executable).parent)
    path = f"{folder}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1", **changes}


def snakemake(project: Path, *arguments: str, **changes: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*SNAKEMAKE, *arguments, "--cores", "2"],
        cwd=project,
        env=environment(**changes),
        capture_output=True,
        text=True,
        timeout=600,
    )


def terminated(project: Path, pattern: str, *targets: str, files: int = 1) -> None:
    """Run the workflow, and terminate it once there are so many ``files`` of the pattern."""
    process = subprocess.Popen(
        [*SNAKEMAKE, *targets, "--cores", "2"],
        cwd=project,
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    deadline = time.monotonic() + 300
    while len(list(project.glob(pattern))) < files:
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGTERM)
    process.wait(120)


def jobs(done: subprocess.CompletedProcess[str]) -> dict[str, int]:
    """The job table that Snakemake prints, by rule."""
    text = done.stdout + done.stderr
    _, _, table = text.partition("Job stats:")
    table = table.partition("total")[0]
    return {m[1]: int(m[2]) for m in re.finditer(r"^(\w+) +(\d+)$", table, re.MULTILINE)}


def outputs(project: Path) -> dict[str, str]:
    """Output digests of every manifest's members."""
    found = {}
    for path in project.glob("results/cohorts/*/*/*.json"):
        manifest = read_json(path)
        found |= {(manifest["stage"], m["name"]): m["outputs"] for m in manifest["members"]}
    return found


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project in which `snakemake figures` has run."""
    folder = make_project(tmp_path_factory.mktemp("project"))
    done = snakemake(folder, "figures")
    assert done.returncode == 0, done.stderr
    return folder


def test_every_figure_is_there_with_its_numbers(project: Path) -> None:
    for figure in FIGURES:
        for kind in ("png", "pdf", "csv"):
            path = project / f"results/figures/tiny/{figure}.{kind}"
            assert path.stat().st_size > 0, path


def test_tables_have_one_row_a_run_and_one_a_checkpoint(project: Path) -> None:
    runs = pd.read_parquet(project / "results/tables/tiny/mqar_runs.parquet")
    assert len(runs) == 4
    assert set(runs["state"]) == {"done"}
    for column in ("ess_entropy", "ess_tol_1e-1", "ess_tol_1e-3", "ess_tol_1e-5", "accuracy"):
        assert runs[column].notna().all(), column
    heads = runs["heads"]
    assert (runs["total_ess_entropy"] - runs["ess_entropy"] * heads).abs().max() < 1e-9
    assert (runs["ess_entropy"] <= runs["ceiling"] + 1e-6).all()
    checkpoints = pd.read_parquet(project / "results/tables/tiny/mqar_checkpoints.parquet")
    assert len(checkpoints) == 4 * 5
    assert sorted(checkpoints["epoch"].unique()) == [0, 1, 2, 3, 4]


def test_a_second_run_has_nothing_to_do(project: Path) -> None:
    done = snakemake(project, "figures", PYTHONHASHSEED="7")
    assert "Nothing to be done" in done.stdout + done.stderr


def test_every_job_left_a_log_and_the_heavy_ones_a_benchmark(project: Path) -> None:
    manifests = list(project.glob("results/cohorts/*/*/*.json"))
    for path in manifests:
        stage, name = path.parts[-3], f"mqar-{path.stem}"
        assert (project / f"results/logs/{stage}/{name}.log").exists()
        assert (project / f"results/benchmarks/{stage}/{name}.tsv").stat().st_size > 0


def test_editing_a_figure_redraws_it_and_trains_nothing(project: Path) -> None:
    from effstate.figures.registry import PACKAGE, sources

    # Files of the installed package are shared with other tests: a dry run is told they changed.
    module = os.path.relpath(PACKAGE / "figures/utilisation.py", project)
    assert "figures/utilisation.py" in sources(FIGURES["fig7"])
    done = snakemake(project, "figures", "-n", "--forcerun", "fig7")
    assert set(jobs(done)) == {"fig7", "figures"}
    listed = snakemake(project, "fig7", "-n", "-F", "--until", "fig7").stdout
    assert module in listed


@pytest.fixture(scope="module")
def judged(project: Path) -> Path:
    """The project with its claims, gallery and report, made as `make figures` makes them."""
    done = snakemake(project, *REPORTED)
    assert done.returncode == 0, done.stderr
    assert f"{len(CLAIMS)} claims: " in done.stdout and "results/gallery/tiny.html" in done.stdout
    assert all(re.search(rf"^{claim} ", done.stdout, re.MULTILINE) for claim in CLAIMS)
    written = subprocess.run(
        [sys.executable, "-m", "effstate", "report"],
        cwd=project,
        env=environment(),
        capture_output=True,
        text=True,
    )
    assert written.returncode == 0, written.stderr
    assert written.stdout.splitlines() == ["The report, all in one file: results/report/tiny.html"]
    return project


def test_every_claim_is_judged_and_every_table_resolved(judged: Path) -> None:
    claims = pd.read_parquet(judged / "results/claims/tiny/claims.parquet")
    assert list(claims["claim"]) == list(CLAIMS)
    # One run a cell: nothing has an interval, and the other studies were not run.
    assert set(claims.loc[claims["study"] != "mqar", "outcome"]) == {"not run"}
    for name in printed_tables():
        rows = pd.read_csv(judged / f"results/tables/tiny/{name}.csv")
        assert set(rows.loc[rows["studies"] != "mqar", "this scale"]) <= {"not run"}
        assert (judged / f"results/tables/tiny/{name}.md").read_text().startswith(f"# {name}: ")


def test_the_report_holds_every_figure_and_page_and_no_broken_caption(judged: Path) -> None:
    text = (judged / "results/report/tiny.html").read_text()
    for spec in FIGURES.values():
        assert f'"results/figures/tiny/{spec.id}.png"' in text
    for page in ("claims", "settings", "choices", "runs"):
        assert f'"results/report/tiny/{page}.html"' in text
    assert "system-message" not in text  # of docutils


@needs_chromium
def test_gallery_and_report_open_from_disk(judged: Path, tmp_path: Path) -> None:
    with chromium(tmp_path / "profile") as browser:
        for width in (1280, 390):
            for page in ("gallery", "report"):
                visit = browser.visit(judged / f"results/{page}/tiny.html", width)
                assert visit.problems == {}, page


@needs_chromium
def test_every_section_of_the_report_opens_and_lists_its_figures(judged: Path, tmp_path: Path) -> None:
    page = judged / "results/report/tiny.html"
    with chromium(tmp_path / "profile") as browser:
        for section in dict.fromkeys(spec.section for spec in FIGURES.values()):
            mine = [spec for spec in FIGURES.values() if spec.section == section]
            heading = SECTIONS[section]
            title = heading if mine[0].beyond else f"Section {section}: {heading}"
            visit = browser.visit(page, 1280)
            browser.evaluate(
                f"[...document.querySelectorAll('a')].find(a => a.innerText == {title!r}).click()"
            )
            shown = browser.evaluate("document.body.innerText")
            assert visit.problems == {}, section
            assert all(f"{spec.number}: {spec.title}" in shown for spec in mine), section


def test_a_changed_claim_makes_claims_gallery_and_report_anew_and_nothing_else(judged: Path) -> None:
    again = snakemake(judged, *REPORTED, "-n", "--forcerun", "claims")
    assert set(jobs(again)) == {"claims", "gallery", "report_pages"}
    # Nothing else reads the files in which claims are worded.
    listed = snakemake(judged, *REPORTED, "-n", "--forceall").stdout
    readers = re.findall(r"^rule (\w+):\n    input: .*analysis/claims/", listed, re.MULTILINE)
    assert readers == ["claims"]


def test_one_more_value_trains_exactly_the_new_runs(project: Path, tmp_path: Path) -> None:
    before = outputs(project)
    grown = copy.deepcopy(TINY)
    grown["mqar"]["axes"]["task.kv"] = [2, 3, 4]
    path = project / "config/scales/tiny.yaml"
    path.write_text(yaml.safe_dump(grown))
    try:
        done = snakemake(project, "fig5")
        assert done.returncode == 0, done.stderr
        after = outputs(project)
        assert {name: after[name] for name in before} == before
        pipeline = Pipeline.from_file(project / "config/config.yaml")
        added = {name for stage, name in set(after) - set(before) if stage == "train"}
        expected = {
            request.name
            for request in pipeline.requests("mqar", "train")
            if run_of(request).task.kv == 3  # type: ignore[attr-defined]
        }
        assert added == expected
        # Runs that were there keep the log of one training.
        for stage, name in before:
            if stage == "train":
                log = (project / f"results/runs/train/{name}/log.jsonl").read_text()
                assert log.count('"event": "done"') == 1
    finally:
        path.write_text(yaml.safe_dump(TINY))


def test_status_and_plan_say_what_is_there(project: Path) -> None:
    done = snakemake(project, "status", "plan")
    assert "mqar: 4 done, 0 running" in done.stdout
    assert "mqar: 4 runs (0 not there yet)" in done.stdout


def test_a_flipped_byte_is_named_with_its_remedy_and_mended(tmp_path: Path) -> None:
    folder = make_project(tmp_path)
    assert snakemake(folder, "results/tables/tiny/mqar_runs.parquet").returncode == 0
    whole = outputs(folder)
    path = next(folder.glob("results/runs/train/*/result.json"))
    path.write_bytes(path.read_bytes().replace(b"0", b"1", 1))
    (folder / "results/tables/tiny/mqar_runs.parquet").unlink()
    broken = snakemake(folder, "fig5")
    assert broken.returncode != 0
    text = broken.stdout + broken.stderr
    assert f"{path.relative_to(folder)}: its bytes are not the ones that were written" in text
    name = path.parent.name
    assert f"effstate discard {name}" in text
    subprocess.run(
        [sys.executable, "-m", "effstate", "discard", name],
        cwd=folder,
        env=environment(),
        check=True,
        capture_output=True,
    )
    assert snakemake(folder, "fig5").returncode == 0
    assert outputs(folder) == whole


def test_a_terminated_workflow_goes_on_to_the_same_bytes(project: Path, tmp_path: Path) -> None:
    slow = copy.deepcopy(TINY)
    slow["mqar"]["axes"] = {"model.featurizer": ["gla"], "task.kv": [2]}
    slow["mqar"]["baseline"]["training"] |= {"epochs": 6, "steps_per_epoch": 200}
    target = "results/tables/tiny/mqar_runs.parquet"
    whole = make_project(tmp_path / "whole", slow)
    assert snakemake(whole, target).returncode == 0
    parts = make_project(tmp_path / "parts", slow)
    terminated(parts, "results/runs/train/*/resume.safetensors", target)
    (log,) = parts.glob("results/runs/train/*/log.jsonl")
    assert '"event": "done"' not in log.read_text()
    again = snakemake(parts, target)
    assert again.returncode == 0, again.stderr
    assert '"event": "resumed"' in log.read_text()
    assert outputs(parts) == outputs(whole)


def test_a_diverged_run_leaves_a_gap_and_figures_are_drawn(tmp_path: Path) -> None:
    scale: dict[str, Any] = copy.deepcopy(TINY)
    scale["mqar"]["changes"] = [
        {
            "where": {"model.featurizer": "sa", "task.kv": 2},
            "set": {"training.learning_rate": 1.0e30, "training.grad_clip": 1.0e30},
        }
    ]
    folder = make_project(tmp_path, scale)
    done = snakemake(folder, "fig5")
    assert done.returncode == 0, done.stderr
    runs = pd.read_parquet(folder / "results/tables/tiny/mqar_runs.parquet")
    assert runs["state"].value_counts().to_dict() == {"done": 3, "diverged": 1}
    assert runs.loc[runs["state"] == "diverged", "accuracy"].isna().all()


def test_partial_figures_come_from_what_is_there(tmp_path: Path) -> None:
    folder = make_project(tmp_path)
    pipeline = Pipeline.from_file(folder / "config/config.yaml")
    cohort = next(c for n, c in pipeline.cohorts("mqar", "trace").items() if n.startswith("gla"))
    assert snakemake(folder, str(cohort.manifest(Path("results")))).returncode == 0
    done = snakemake(folder, "fig5", "--config", "partial=true")
    assert done.returncode == 0, done.stderr
    assert set(jobs(done)) == {"collect", "fig5"}
    runs = pd.read_parquet(folder / "results/tables/tiny/mqar_runs.parquet")
    assert set(runs["state"]) == {"done", "missing"}


BAD = {
    "unknown figure": (["fig55"], "there is no figure 'fig55'; the nearest known one is 'fig5'"),
    "unknown scale": (["figures", "--config", "scale=tinny"], "the scale 'tinny' does not exist"),
    "unknown key": (
        ["figures", "--config", "scalee=tiny"],
        "unknown key 'scalee'; the nearest known one is 'scale'",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_stops_before_any_job(case: str, tmp_path: Path) -> None:
    arguments, expected = BAD[case]
    folder = make_project(tmp_path)
    done = subprocess.run(
        [*SNAKEMAKE, arguments[0], "--cores", "1", *arguments[1:]],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
    )
    assert done.returncode != 0
    assert expected in done.stderr
    assert "Traceback" not in done.stderr
    assert not (folder / "results").exists()
