"""The trainer: its files, resuming to the last bit, divergence, and the numbers of a tiny run."""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import signal
import time
from pathlib import Path

import pytest
import torch

from effstate.analysis.trace import TRACE_FILE, kind_name, make_trace
from effstate.artifacts import Artifact, ArtifactError, RunStore, read_json, read_tensors
from effstate.cohorts import Interrupted
from effstate.config import ModelConfig, MQARConfig, RunConfig, TraceConfig, TrainingConfig
from effstate.requests import data_request, trace_request, train_request
from effstate.training.data import RowOrder, load_data, make_data
from effstate.training.trainer import (
    RESUME,
    Execution,
    build,
    checkpoint_name,
    evaluate,
    learning_rate,
    load_model,
    train,
)

EXECUTION = Execution(device="cpu", threads=1, compile="no")


def tiny_run(featurizer: str = "gla", **training: object) -> RunConfig:
    return RunConfig(
        task=MQARConfig(vocab_size=16, seq_len=16, kv=2, num_train=100, num_validation=16, num_test=32),
        model=ModelConfig(featurizer=featurizer, width=8, heads=2),
        training=TrainingConfig(
            **{
                "learning_rate": 0.01,
                "batch_size": 16,
                "epochs": 4,
                "steps_per_epoch": 4,
                "evaluate_every": 1,
                **training,
            }
        ),
    )


def prepared(folder: Path, run: RunConfig) -> tuple[Artifact, Artifact]:
    """(train, data) artifacts in a fresh store, data made."""
    store = RunStore(folder)
    data = store.artifact(data_request(run))
    with store.claim(data):
        make_data(data)
    artifact = store.artifact(train_request(run))
    artifact.begin()
    return artifact, data


def test_sixteen_steps_leave_exactly_these_files(tmp_path: Path) -> None:
    artifact, data = prepared(tmp_path, tiny_run())
    steps: list[int] = []
    train(artifact, data, EXECUTION, on_step=lambda step, total: steps.append(step))
    assert steps == list(range(1, 17))
    names = sorted(
        str(p.relative_to(artifact.folder)) for p in artifact.folder.rglob("*") if p.is_file()
    )
    checkpoints = [checkpoint_name(epoch) for epoch in range(5)]
    assert names == sorted([*checkpoints, "log.jsonl", "provenance.json", "request.json", "result.json"])
    provenance = read_json(artifact.path("provenance.json"))
    assert provenance["state"] == "done"
    assert sorted(provenance["outputs"]) == sorted([*checkpoints, "result.json"])
    events = [json.loads(line)["event"] for line in artifact.path("log.jsonl").open()]
    assert events.count("evaluated") == 5
    assert events[-1] == "done"


@pytest.mark.parametrize("featurizer", ["gla", "la", "wla", "sa"])
def test_training_lowers_the_loss(featurizer: str, tmp_path: Path) -> None:
    artifact, data = prepared(tmp_path, tiny_run(featurizer, epochs=20))
    train(artifact, data, EXECUTION)
    evaluations = read_json(artifact.path("result.json"))["evaluations"]
    assert evaluations[-1]["loss"] < evaluations[0]["loss"]


def _train_and_kill(folder: Path, run: RunConfig, at: int) -> None:
    """In a process of its own: SIGKILL oneself after step ``at``."""
    torch.set_num_threads(1)
    store = RunStore(folder)
    artifact = store.artifact(train_request(run))

    def on_step(step: int, steps: int) -> None:
        if step == at:
            os.kill(os.getpid(), signal.SIGKILL)

    train(artifact, store.artifact(data_request(run)), EXECUTION, on_step=on_step)


@pytest.mark.parametrize("featurizer", ["gla", "sa"])
@pytest.mark.parametrize("at", [5, 22], ids=["early", "late"])
def test_killed_and_resumed_is_equal_to_the_last_bit(featurizer: str, at: int, tmp_path: Path) -> None:
    run = tiny_run(featurizer, epochs=10)
    whole, data = prepared(tmp_path / "whole", run)
    train(whole, data, EXECUTION)
    parts, parts_data = prepared(tmp_path / "parts", run)
    process = multiprocessing.get_context("spawn").Process(
        target=_train_and_kill, args=(tmp_path / "parts", run, at)
    )
    process.start()
    process.join(120)
    assert process.exitcode == -signal.SIGKILL
    assert parts.path(RESUME).exists()
    assert parts.state == "interrupted"
    resumed: list[int] = []
    train(parts, parts_data, EXECUTION, on_step=lambda step, steps: resumed.append(step))
    assert resumed[0] == at // 4 * 4 + 1
    assert parts.output_digest() == whole.output_digest()


def test_sigterm_writes_a_resume_point_within_an_epoch(tmp_path: Path) -> None:
    run = tiny_run()
    whole, data = prepared(tmp_path / "whole", run)
    train(whole, data, EXECUTION)
    parts, parts_data = prepared(tmp_path / "parts", run)

    def on_step(step: int, steps: int) -> None:
        if step == 6:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Interrupted, match="signal 15"):
        train(parts, parts_data, EXECUTION, on_step=on_step)
    assert parts.state == "interrupted"
    train(parts, parts_data, EXECUTION)
    assert parts.output_digest() == whole.output_digest()


def test_a_non_finite_loss_ends_the_run_as_diverged(tmp_path: Path) -> None:
    run = tiny_run(learning_rate=1e30, grad_clip=1e30, warmup_fraction=0.0)
    artifact, data = prepared(tmp_path, run)
    train(artifact, data, EXECUTION)
    result = read_json(artifact.path("result.json"))
    assert artifact.state == result["state"] == "diverged"
    assert 1 <= result["diverged"]["step"] <= 16
    assert "test" not in result


@pytest.mark.parametrize("damage", ["data", "resume"])
def test_damaged_input_is_named(damage: str, tmp_path: Path) -> None:
    artifact, data = prepared(tmp_path, tiny_run())
    path = data.path("rows.safetensors")
    if damage == "resume":
        path = artifact.path(RESUME)
        path.write_bytes(b"not a resume point")
    else:
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes(bytes(content))
    with pytest.raises(ArtifactError, match=path.name):
        train(artifact, data, EXECUTION)
    assert not artifact.finished


def test_a_checkpoint_folder_is_enough_to_evaluate_with(tmp_path: Path) -> None:
    run = tiny_run()
    artifact, data = prepared(tmp_path, run)
    train(artifact, data, EXECUTION)
    model = load_model(artifact, run.training.epochs)
    measured = evaluate(model, load_data(data)["test"], run.task.vocab_size, 16)
    assert measured == read_json(artifact.path("result.json"))["test"]


def test_the_untrained_checkpoint_is_the_built_model(tmp_path: Path) -> None:
    artifact, data = prepared(tmp_path, tiny_run())
    train(artifact, data, EXECUTION)
    stored, _ = read_tensors(artifact.path(checkpoint_name(0)))
    for name, tensor in build(tiny_run()).state_dict().items():
        assert torch.equal(stored[name], tensor), name


def test_every_pass_reads_every_row_once() -> None:
    order = RowOrder(seed=3, rows=10, batch_size=4)
    rows = torch.cat([order(step) for step in range(5)])
    assert sorted(rows[:10].tolist()) == list(range(10)) == sorted(rows[10:].tolist())
    assert rows[:10].tolist() != rows[10:].tolist()
    again = RowOrder(seed=3, rows=10, batch_size=4)
    assert torch.equal(again(3), order(3))


def test_the_schedule_warms_up_and_ends_at_zero() -> None:
    config = TrainingConfig(learning_rate=1.0, epochs=10, steps_per_epoch=10)
    rates = [learning_rate(config, step, config.steps) for step in range(100)]
    assert rates[:10] == pytest.approx([(s + 1) / 10 for s in range(10)])
    assert max(rates) == 1.0
    assert rates[-1] < 1e-3
    assert all(a >= b for a, b in itertools.pairwise(rates[10:]))


def test_a_trace_holds_every_checkpoint_layer_head_and_index(tmp_path: Path) -> None:
    run, trace = tiny_run(), TraceConfig(samples=2, tolerances=(0.1, 1e-3))
    artifact, data = prepared(tmp_path, run)
    train(artifact, data, EXECUTION)
    traced = artifact.store.artifact(trace_request(run, trace))
    traced.begin()
    started = time.monotonic()
    make_trace(traced, artifact, data, EXECUTION)
    assert time.monotonic() - started < 60
    tensors, _ = read_tensors(traced.checked(TRACE_FILE))
    assert tensors["epochs"].tolist() == [0, 1, 2, 3, 4]
    for layer in range(2):
        ess = tensors[f"layer{layer}.ess"]
        assert ess.shape == (5, 3, 2, 15)
        assert (ess >= 0).all() and (ess <= 4 + 1e-6).all()  # TSS is 4


@pytest.mark.parametrize(
    ("tolerance", "name"),
    [(0.1, "tol_1e-1"), (1e-5, "tol_1e-5"), (2.5e-3, "tol_2.5e-3"), (1, "tol_1e0")],
)
def test_names_of_tolerances(tolerance: float, name: str) -> None:
    assert kind_name(tolerance) == name
