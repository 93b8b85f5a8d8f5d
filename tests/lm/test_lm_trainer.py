"""The language-model trainer: files, its loss against the definition, resuming to the last bit."""

import multiprocessing
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from lm_runs import EXECUTION, begun, interrupted, lm_run, losses, make_corpus, stop_itself

from effstate.artifacts import Artifact, ArtifactError, read_json
from effstate.config import ConfigError
from effstate.lm.checkpoints import load_model
from effstate.lm.config import LmRunConfig
from effstate.lm.corpus import TokenCorpus, TokenRows
from effstate.lm.resume import KEPT, resume_points
from effstate.lm.trainer import EXPORT, RESUME, train_language_model


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> TokenCorpus:
    return make_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def trained(corpus: TokenCorpus, tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    """Sixteen steps of GLA."""
    artifact = begun(tmp_path_factory.mktemp("trained"), lm_run(corpus))
    train_language_model(artifact, corpus, EXECUTION)
    return artifact


def test_sixteen_steps_leave_exactly_these_files(trained: Artifact) -> None:
    names = sorted(str(p.relative_to(trained.folder)) for p in trained.folder.rglob("*") if p.is_file())
    outputs = [f"export/{name}" for name in ("config.json", "model.safetensors", "tokenizer.json")]
    assert names == [*outputs, "log.jsonl", "provenance.json", "request.json", "result.json"]
    provenance = read_json(trained.path("provenance.json"))
    assert provenance["state"] == "done"
    assert sorted(provenance["outputs"]) == [*outputs, "result.json"]
    assert provenance["facts"]["tokens"] == 16 * 4 * 32
    evaluations = read_json(trained.path("result.json"))["evaluations"]
    assert [entry["step"] for entry in evaluations] == [0, 8, 16]
    assert len(losses(trained)) == 16
    assert evaluations[-1]["train_loss"] == pytest.approx(sum(losses(trained)[8:]) / 8)


@pytest.mark.parametrize("featurizer", ["la", "wla", "sa", "s6"])
def test_training_lowers_the_validation_loss(
    featurizer: str, corpus: TokenCorpus, tmp_path: Path
) -> None:
    artifact = begun(tmp_path, lm_run(corpus, {"featurizer": featurizer, "tie_embeddings": True}))
    train_language_model(artifact, corpus, EXECUTION)
    evaluations = read_json(artifact.path("result.json"))["evaluations"]
    assert evaluations[-1]["loss"] < evaluations[0]["loss"] - 0.5


def test_the_validation_loss_is_that_of_all_logits(trained: Artifact, corpus: TokenCorpus) -> None:
    rows = TokenRows(corpus, "validation", 32).read(range(6))
    logits = load_model(trained.path(EXPORT)).model(rows[:, :-1])
    expected = F.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
    evaluations = read_json(trained.path("result.json"))["evaluations"]
    assert evaluations[-1]["loss"] == pytest.approx(float(expected), abs=1e-6)


@pytest.mark.parametrize(
    "keys",
    [
        {"micro_batch_size": 1},
        {"micro_batch_size": 3},
        {"activation_checkpointing": True},
        {"parallel": "fsdp"},
    ],
    ids=["one row", "uneven parts", "checkpointing", "one process"],
)
def test_what_saves_memory_leaves_the_losses_alone(
    keys: dict[str, Any], trained: Artifact, corpus: TokenCorpus, tmp_path: Path
) -> None:
    artifact = begun(tmp_path, lm_run(corpus, **keys))
    train_language_model(artifact, corpus, EXECUTION)
    assert losses(artifact) == pytest.approx(losses(trained), abs=1e-4)


@pytest.mark.parametrize("featurizer", ["gla", "la", "sa", "s6"])
def test_bf16_stays_near_fp32(featurizer: str, corpus: TokenCorpus, tmp_path: Path) -> None:
    found = {}
    for precision in ("fp32", "bf16"):
        artifact = begun(tmp_path, lm_run(corpus, {"featurizer": featurizer}, precision=precision))
        train_language_model(artifact, corpus, EXECUTION)
        found[precision] = read_json(artifact.path("result.json"))["evaluations"][-1]["loss"]
        weights = load_model(artifact.path(EXPORT)).model.state_dict().values()
        assert {tensor.dtype for tensor in weights} == {torch.float32}
    assert found["bf16"] != found["fp32"]
    assert found["bf16"] == pytest.approx(found["fp32"], abs=0.05)


# --------------------------------------------------------------------------------- interruption


def _train_and_kill(folder: Path, run: LmRunConfig, corpus_folder: Path) -> None:
    """In a process of its own: SIGKILL oneself after step 12."""
    torch.set_num_threads(1)
    on_step = stop_itself(signal.SIGKILL, at=12)
    train_language_model(begun(folder, run), TokenCorpus(corpus_folder), EXECUTION, on_step=on_step)


@pytest.mark.parametrize("featurizer", ["gla", "sa"])
def test_killed_and_resumed_is_equal_to_the_last_bit(
    featurizer: str, corpus: TokenCorpus, tmp_path: Path
) -> None:
    run = lm_run(corpus, {"featurizer": featurizer}, steps=20, checkpoint_every=10)
    whole = begun(tmp_path / "whole", run)
    train_language_model(whole, corpus, EXECUTION)
    process = multiprocessing.get_context("spawn").Process(
        target=_train_and_kill, args=(tmp_path / "parts", run, corpus.folder)
    )
    process.start()
    process.join(120)
    assert process.exitcode == -signal.SIGKILL
    parts = begun(tmp_path / "parts", run)
    assert parts.state == "interrupted"
    resumed: list[int] = []
    train_language_model(parts, corpus, EXECUTION, on_step=lambda step, steps: resumed.append(step))
    assert resumed == list(range(11, 21))
    assert parts.output_digest() == whole.output_digest()


def test_sigterm_writes_a_resume_point_at_once(
    trained: Artifact, corpus: TokenCorpus, tmp_path: Path
) -> None:
    artifact = interrupted(tmp_path, lm_run(corpus), corpus, at=13)
    points = resume_points(artifact.path(RESUME))
    assert [point.name for point in points] == ["step-00000010", "step-00000013"]
    assert len(points) == KEPT
    train_language_model(artifact, corpus, EXECUTION)
    assert artifact.output_digest() == trained.output_digest()


def _cut_shard(point: Path) -> None:
    (shard,) = point.glob("*.safetensors")
    shard.write_bytes(shard.read_bytes()[:-9])


@pytest.mark.parametrize(
    "damage",
    [
        _cut_shard,
        lambda point: next(point.glob("*.safetensors")).unlink(),
        lambda point: next(point.glob("*.safetensors")).write_bytes(b"no"),
        lambda point: (point / "progress.json").unlink(),
        lambda point: (point / "progress.json").write_text('{"stp": 13}'),
    ],
    ids=["cut", "no shard", "no tensors", "no progress", "other progress"],
)
def test_a_damaged_resume_point_is_named_and_the_one_before_serves(
    damage: Callable[[Path], Any], trained: Artifact, corpus: TokenCorpus, tmp_path: Path
) -> None:
    artifact = interrupted(tmp_path, lm_run(corpus), corpus, at=13)
    point = resume_points(artifact.path(RESUME))[-1]
    damage(point)
    with pytest.raises(ArtifactError, match=f"{point.name}: not a complete resume point"):
        train_language_model(artifact, corpus, EXECUTION)
    shutil.rmtree(point)
    train_language_model(artifact, corpus, EXECUTION)
    assert artifact.output_digest() == trained.output_digest()


# ------------------------------------------------------------------------------ what goes wrong


def test_a_non_finite_loss_ends_the_run_as_diverged(corpus: TokenCorpus, tmp_path: Path) -> None:
    run = lm_run(corpus, learning_rate=1e30, grad_clip=1e30, warmup_fraction=0.0)
    artifact = begun(tmp_path, run)
    train_language_model(artifact, corpus, EXECUTION)
    result = read_json(artifact.path("result.json"))
    assert artifact.state == result["state"] == "diverged"
    assert 1 <= result["diverged"]["step"] <= 16
    assert not artifact.path(EXPORT).exists() and not artifact.path(RESUME).exists()


def test_out_of_memory_says_how_much_and_what_to_change(corpus: TokenCorpus, tmp_path: Path) -> None:
    artifact = begun(tmp_path, lm_run(corpus, {"mlp_ratio": 1e13}))
    with pytest.raises(ConfigError, match=r"out of memory.*GiB.*training\.micro_batch_size"):
        train_language_model(artifact, corpus, EXECUTION)
    assert not artifact.finished


def test_other_errors_are_not_taken_for_memory(corpus: TokenCorpus, tmp_path: Path) -> None:
    def fail(step: int, steps: int) -> None:
        raise RuntimeError("something else")

    with pytest.raises(RuntimeError, match="something else"):
        train_language_model(begun(tmp_path, lm_run(corpus)), corpus, EXECUTION, on_step=fail)
