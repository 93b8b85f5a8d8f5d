"""Two processes under torchrun against one: losses, resume points, signals, the lock."""

import subprocess
import sys
from pathlib import Path

import pytest
from lm_runs import EXECUTION, begun, interrupted, lm_run, losses, make_corpus

from effstate import jobs
from effstate.artifacts import Artifact, ArtifactError, RunStore, read_json
from effstate.lm.corpus import TokenCorpus
from effstate.lm.requests import corpus_request, lm_train_request
from effstate.lm.resume import resume_points
from effstate.lm.trainer import RESUME, train_language_model

WORKER = Path(__file__).with_name("train_worker.py")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> TokenCorpus:
    return make_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def alone(corpus: TokenCorpus, tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    """The run on one process."""
    artifact = begun(tmp_path_factory.mktemp("alone"), lm_run(corpus))
    train_language_model(artifact, corpus, EXECUTION)
    return artifact


def torchrun(*arguments: object) -> subprocess.CompletedProcess[str]:
    """The worker in two processes."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    return subprocess.run(
        [*command, str(WORKER), *map(str, arguments)], capture_output=True, text=True, timeout=300
    )


def assert_same_results(artifact: Artifact, alone: Artifact) -> None:
    """Every step's loss and every validation loss within 1e-5."""
    assert losses(artifact) == pytest.approx(losses(alone), abs=1e-5)
    found, expected = (read_json(a.path("result.json"))["evaluations"] for a in (artifact, alone))
    assert [e["loss"] for e in found] == pytest.approx([e["loss"] for e in expected], abs=1e-5)


def test_shards_of_two_processes_are_resumed_by_one(
    corpus: TokenCorpus, alone: Artifact, tmp_path: Path
) -> None:
    done = torchrun(tmp_path, corpus.folder, "fsdp", 6)
    assert done.returncode != 0
    assert done.stderr.count("effstate: stopped by signal 15") == 2
    artifact = begun(tmp_path, lm_run(corpus, parallel="fsdp"))
    points = resume_points(artifact.path(RESUME))
    assert [point.name for point in points] == ["step-00000005", "step-00000006"]
    assert len(list(points[-1].glob("shard-*.safetensors"))) == 2
    train_language_model(artifact, corpus, EXECUTION)
    assert_same_results(artifact, alone)


def test_two_processes_resume_what_one_began(
    corpus: TokenCorpus, alone: Artifact, tmp_path: Path
) -> None:
    artifact = interrupted(tmp_path, lm_run(corpus, parallel="ddp"), corpus, at=6)
    in_store = artifact.store.artifact(corpus_request(corpus.config)).folder
    in_store.parent.mkdir()
    in_store.symlink_to(corpus.folder)
    done = torchrun(tmp_path, corpus.folder, "ddp")
    assert done.returncode == 0, done.stderr
    facts = read_json(artifact.path("provenance.json"))["facts"]
    assert (facts["processes"], facts["parallel"]) == (2, "ddp")
    assert_same_results(artifact, alone)


def test_a_run_that_another_job_makes_is_left_to_it(corpus: TokenCorpus, tmp_path: Path) -> None:
    store, request = RunStore(tmp_path), lm_train_request(lm_run(corpus))
    with (
        store.claim(store.artifact(request)),
        pytest.raises(ArtifactError, match="another job is making it"),
    ):
        jobs.train_together(store, request, EXECUTION)
