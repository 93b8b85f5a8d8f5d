"""Digests, cohorts and the run store."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from effstate.artifacts import Artifact, ArtifactError, Request, RunStore, write_text
from effstate.cohorts import Cohort, CohortError, group, run_cohort
from effstate.config import MQARConfig, RunConfig, SweepConfig, TraceConfig
from effstate.requests import data_request, trace_request, train_request
from effstate.studies import SweepStudy

from .conftest import ROOT


def run(seed: int = 0, kv: int = 4) -> RunConfig:
    return RunConfig(task=MQARConfig(kv=kv, seq_len=16, vocab_size=16), seed=seed)


def cohorts_of(requests: list[Request], size: int) -> list[Cohort]:
    """Cohorts as those of a sweep study."""
    return group("mqar", requests, size, SweepStudy("mqar", SweepConfig(), "a test").shape)


def make(artifact: Artifact) -> None:
    """A stage that writes its own digest."""
    write_text(artifact.path("out.txt"), artifact.request.digest)
    artifact.finish("done", ["out.txt"], seconds=0.0)


def test_a_digest_is_the_same_in_another_process() -> None:
    code = (
        "from effstate.config import *; from effstate.requests import *; "
        "print(train_request(RunConfig(task=MQARConfig(kv=4, seq_len=16, vocab_size=16))).digest)"
    )
    for hash_seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT / "src")},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.strip() == train_request(run()).digest


def test_a_digest_depends_on_everything_that_decides_the_result() -> None:
    digests = {
        train_request(run()).digest,
        train_request(run(seed=1)).digest,
        train_request(run(kv=2)).digest,
        data_request(run()).digest,
        trace_request(run(), TraceConfig()).digest,
        trace_request(run(), TraceConfig(samples=9)).digest,
        trace_request(run(seed=1), TraceConfig()).digest,
    }
    assert len(digests) == 7


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_cohorts_hold_every_request_once_and_stay_within_their_size(size: int) -> None:
    requests = [train_request(run(seed=s)) for s in range(40)]
    cohorts = cohorts_of(requests, size)
    assert sorted(r.digest for c in cohorts for r in c.requests) == sorted(r.digest for r in requests)
    assert max(len(c.requests) for c in cohorts) <= size


def test_one_more_run_leaves_most_cohorts_as_they_were() -> None:
    before = {c.name for c in cohorts_of([train_request(run(seed=s)) for s in range(40)], 3)}
    after = {c.name for c in cohorts_of([train_request(run(seed=s)) for s in range(41)], 3)}
    assert len(before - after) == 1 or before < after


def test_a_failed_member_loses_nothing_and_is_tried_again(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    (cohort,) = cohorts_of([train_request(run(seed=s)) for s in range(3)], 3)
    broken = cohort.requests[1].digest
    made: list[str] = []

    def work(artifact: Artifact) -> None:
        if artifact.request.digest == broken and not made.count("healed"):
            raise RuntimeError("out of luck")
        made.append(artifact.request.digest)
        make(artifact)

    with pytest.raises(CohortError, match=r"1 of 3 failed: .*out of luck"):
        run_cohort(cohort, store, work)
    states = [store.artifact(r).state for r in cohort.requests]
    assert states == ["done", "failed", "done"]
    assert not cohort.manifest(tmp_path).exists()
    manifest = run_cohort(cohort, store, work, partial=True)
    assert [m["state"] for m in manifest["members"]] == states
    made.append("healed")
    run_cohort(cohort, store, work)
    assert made.count(broken) == 1
    assert len(made) == 4  # three runs, each made once, and the mark


@pytest.mark.parametrize("damage", ["flip", "cut", "remove"])
def test_damage_is_named_with_its_remedy(damage: str, tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    artifact = store.artifact(train_request(run()))
    with store.claim(artifact):
        make(artifact)
    path = artifact.checked("out.txt")
    content = bytearray(path.read_bytes())
    if damage == "flip":
        content[3] ^= 1
        path.write_bytes(bytes(content))
    elif damage == "cut":
        path.write_bytes(bytes(content[:-1]))
    else:
        path.unlink()
    with pytest.raises(ArtifactError) as caught:
        artifact.checked("out.txt")
    assert str(path) in str(caught.value)
    assert f"effstate discard {artifact.request.name}" in str(caught.value)
    assert len(store.verify(artifact.folder)) == 1


def test_discard_takes_what_was_made_from_it_too(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    chain = trace_request(run(), TraceConfig())
    requests = [data_request(run()), train_request(run()), chain, data_request(run(seed=1))]
    for request in requests:
        with store.claim(store.artifact(request)) as artifact:
            make(artifact)
    for cohort in (c for r in requests for c in cohorts_of([r], 1)):
        run_cohort(cohort, store, make)
    store.discard(requests[1].name)
    assert [store.artifact(r).state for r in requests] == ["done", "missing", "missing", "done"]
    kept = sorted(p.parent.parent.name for p in (tmp_path / "cohorts").glob("*/*/*.json"))
    assert kept == ["data", "data"]
    with pytest.raises(ArtifactError, match="there is no artifact 'nothing'"):
        store.discard("nothing")
