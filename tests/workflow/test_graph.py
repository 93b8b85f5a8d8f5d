"""What every figure waits for: its studies' runs, all of them and no others, in a dry run."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from effstate.figures.registry import FIGURES
from effstate.pipeline import Pipeline

from ..conftest import EVERY_STUDY, make_project
from .test_workflow import SNAKEMAKE, environment

SWEEP = ("3", "4", "5", "7", *map(str, range(11, 24)), "26", "29", "30", "B1", "B5")
EXPECTED = {
    **{f"fig{number}": {"mqar"} for number in SWEEP},
    "fig1": set(),
    "fig2": set(),
    "fig6": {"distillation"},
    "fig8": {"init"},
    "fig10": {"mqar", "regularisation"},
    "fig24": {"copying"},
    "fig25": {"compression"},
    "fig27": {"init"},
    "fig28": {"init"},
    "fig31": {"distillation"},
    "fig32": {"distillation"},
    "fig33": {"hybrids"},
    "fig34": {"hybrids"},
    "figB2": {"regularisation"},
    "figB4": {"mqar", "copying", "compression"},
    **{f"fig{number}": {"openweights"} for number in (*range(35, 42), *range(43, 47), "B3")},
    "fig9": {"openweights", "lm"},
    "fig42": {"lm"},
    "figB6": {"lm"},
}
"""Figure to its studies, from the paper; runs of no other study may be trained for it."""

_JOB = re.compile(r"^rule \w+:\n    input: (?P<input>.*)\n    output: (?P<output>.*)$", re.MULTILINE)


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> tuple[Pipeline, dict[str, set[str]]]:
    """The pipeline, and output file to the files that its job reads, from one dry run."""
    project = make_project(tmp_path_factory.mktemp("graph"), EVERY_STUDY)
    dry = subprocess.run(
        [*SNAKEMAKE, "figures", "-n", "--cores", "1"],
        cwd=project,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert dry.returncode == 0, dry.stderr
    reads = {
        made: set(job["input"].split(", "))
        for job in _JOB.finditer(dry.stdout + dry.stderr)
        for made in job["output"].split(", ")
    }
    return Pipeline.from_file(project / "config/config.yaml"), reads


def _before(target: str, reads: dict[str, set[str]]) -> set[str]:
    """Everything that is made before ``target``."""
    found, waiting = set(), [target]
    while waiting:
        for path in reads.get(waiting.pop(), set()) - found:
            found.add(path)
            waiting.append(path)
    return found


def test_every_figure_has_its_studies_written_here() -> None:
    assert set(EXPECTED) == set(FIGURES)


@pytest.mark.parametrize("figure", sorted(EXPECTED))
def test_a_figure_waits_for_the_runs_of_its_studies_and_no_others(
    figure: str, graph: tuple[Pipeline, dict[str, set[str]]]
) -> None:
    pipeline, reads = graph
    upstream = _before(f"results/figures/tiny/{figure}.png", reads)
    trained = {
        request.name
        for study in pipeline.sweeps
        for cohort in pipeline.cohorts(study, "train").values()
        if str(cohort.manifest(Path("results"))) in upstream
        for request in cohort.requests
    }
    expected = {
        request.name
        for study in EXPECTED[figure] & set(pipeline.sweeps)
        for request in pipeline.requests(study, "train")
    }
    assert trained == expected
    measured = {Path(p).parts[2] for p in upstream if p.startswith("results/cohorts/weights/openw")}
    assert bool(measured) == ("openweights" in EXPECTED[figure])
    language = {Path(p).parts[2] for p in upstream if p.startswith("results/cohorts/lmtrain/")}
    assert bool(language) == ("lm" in EXPECTED[figure])
    students = {Path(p).parts[2] for p in upstream if p.startswith("results/cohorts/distill/")}
    assert bool(students) == ("distillation" in EXPECTED[figure])
