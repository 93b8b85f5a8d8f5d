"""The SLURM profile on a real cluster of one node: to figures, and through what goes wrong at night."""

from __future__ import annotations

import copy
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ..conftest import TINY, make_project
from ..workflow.test_workflow import SNAKEMAKE, environment, outputs, snakemake
from .single_node import SingleNode, running, why_not

REASON = why_not()
pytestmark = pytest.mark.skipif(REASON is not None, reason=f"no SLURM: {REASON}")

# The shipped profile waits for network file systems and spares a busy controller; here neither is there.
HASTE = {
    "--latency-wait": "5",
    "--slurm-init-seconds-before-status-checks": "1",
    "--seconds-between-status-checks": "1",
}
PROFILE = ["--workflow-profile", "profiles/slurm"]
CONFIG = ["--config", "cluster={gpus: 0}"]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SingleNode]:
    with running(tmp_path_factory.mktemp("slurm") / "node") as started:
        yield started


def command(*targets: str) -> list[str]:
    haste = [word for pair in HASTE.items() for word in pair]
    return [*SNAKEMAKE, *PROFILE, *targets, *haste, *CONFIG]


def submitted(project: Path, *targets: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*targets),
        cwd=project,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=500,
    )


def long_scale(steps_per_epoch: int) -> dict[str, Any]:
    """One run whose training takes a while, with a resume point every epoch."""
    scale = copy.deepcopy(TINY)
    scale["mqar"]["axes"] = {"model.featurizer": ["gla"], "task.kv": [2]}
    scale["mqar"]["baseline"]["training"] |= {"epochs": 20, "steps_per_epoch": steps_per_epoch}
    return scale


TRAINED = "results/tables/tiny/mqar_runs.parquet"


def test_a_tiny_scale_comes_to_figures_with_the_digests_of_a_local_run(
    node: SingleNode, tmp_path: Path
) -> None:
    here, there = make_project(tmp_path / "local"), make_project(tmp_path / "cluster")
    done = submitted(there, "fig5")
    assert done.returncode == 0, done.stderr
    assert (there / "results/figures/tiny/fig5.png").stat().st_size > 0
    assert "has been submitted with SLURM jobid" in done.stdout + done.stderr
    assert list(there.glob("results/logs/slurm/rule_train/*/*.log"))
    # Tables made locally from the runs of the cluster find every one of them.
    assert snakemake(here, TRAINED).returncode == 0
    made = outputs(there)
    assert made
    assert made == outputs(here)


@pytest.mark.parametrize("disturbance", ["scancel", "node failure"])
def test_a_disturbed_training_goes_on_to_the_bytes_of_a_local_run(
    disturbance: str, node: SingleNode, tmp_path: Path
) -> None:
    scale = long_scale(150)
    here, there = make_project(tmp_path / "local", scale), make_project(tmp_path / "cluster", scale)
    process = subprocess.Popen(
        command(TRAINED),
        cwd=there,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        deadline = time.monotonic() + 200
        while not list(there.glob("results/runs/train/*/resume.safetensors")):
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.05)
        if disturbance == "scancel":
            (job,) = [job for job, _, comment in node.jobs() if comment.startswith("rule_train")]
            subprocess.run(["scancel", job], check=True)
        else:
            node.kill_node()
            node.repair_node()
            node.start_requeued()
        said, _ = process.communicate(timeout=400)
    finally:
        process.kill()
    assert process.returncode == 0, said
    (log,) = there.glob("results/runs/train/*/log.jsonl")
    assert '"resumed"' in log.read_text()
    assert snakemake(here, TRAINED).returncode == 0
    assert outputs(there) == outputs(here)


@pytest.mark.parametrize(
    ("cluster", "sentence"),
    [
        ("{partition: mian}", "partition = 'mian': no such partition; the nearest known one is 'main'"),
        ("{job_hours: 48}", "job_hours = 48 is longer than max_hours = 24; take at most 24"),
        (
            "{gpus: 0, job_hours: 1.0e-9, max_hours: 1.0e-9}",
            "max_hours = 1e-09 is shorter than the",
        ),
        ("{partitoin: main}", "unknown key 'cluster.partitoin'; the nearest known one is 'partition'"),
    ],
)
def test_a_bad_cluster_is_refused_before_anything_is_submitted(
    cluster: str, sentence: str, node: SingleNode, tmp_path: Path
) -> None:
    project = make_project(tmp_path / "project")
    done = subprocess.run(
        [*SNAKEMAKE, *PROFILE, "fig5", "--config", f"cluster={cluster}"],
        cwd=project,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode != 0
    said = done.stdout + done.stderr
    assert sentence in said
    assert "Traceback" not in said
    assert "has been submitted" not in said
    assert not (project / "results/runs").exists()
