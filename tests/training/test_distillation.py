"""Distillation: what a student is made of, the losses it falls by, resuming, and its tables."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import torch

from effstate.analysis.students import collect_students
from effstate.artifacts import Artifact, Request, read_json, read_tensors
from effstate.cohorts import Interrupted
from effstate.config import (
    ConfigError,
    DistillationConfig,
    MatchingConfig,
    ModelConfig,
    RunConfig,
)
from effstate.ess import tolerance_ess
from effstate.models import build_model
from effstate.requests import student_requests, train_request
from effstate.training.data import load_data
from effstate.training.distillation import (
    ESS,
    STUDENT,
    build_student,
    compare,
    distil,
    layer_input,
    operator_of,
    relative_distance,
)
from effstate.training.trainer import RESUME, load_model, train

from .test_trainer import EXECUTION, prepared, tiny_run


def teacher_run(k_expansion: int = 2, epochs: int = 2) -> RunConfig:
    run = tiny_run("gla", epochs=epochs, evaluate_every=epochs)
    return run.model_copy(update={"model": ModelConfig(width=8, heads=2, k_expansion=k_expansion)})


def distillation(sizes: list[int], **matching: object) -> DistillationConfig:
    chosen = {"batch_size": 2, "steps_operator": 4, "steps_activation": 4, "samples": 4, **matching}
    return DistillationConfig(student_k_expansions=sizes, matching=MatchingConfig(**chosen))


def trained_teacher(folder: Path, run: RunConfig) -> tuple[Artifact, Artifact]:
    teacher, data = prepared(folder, run)
    train(teacher, data, EXECUTION)
    return teacher, data


def make(teacher: Artifact, data: Artifact, request: Request, **hooks: object) -> Artifact:
    artifact = teacher.store.artifact(request)
    artifact.begin()
    distil(artifact, teacher, data, EXECUTION, **hooks)
    return artifact


def test_every_layer_checkpoint_and_size_has_its_student() -> None:
    run = teacher_run(k_expansion=4)
    requests = list(student_requests(run, distillation([1, 2])))
    assert len({r.digest for r in requests}) == len(requests) == 2 * 2 * 2
    assert {r.inputs for r in requests} == {(train_request(run),)}
    found = {(r.config.epoch, r.config.layer, r.config.k_expansion) for r in requests}
    assert found == {(e, layer, k) for e in (0, 2) for layer in (0, 1) for k in (1, 2)}


@pytest.mark.parametrize("size", [0, 3])
def test_a_student_of_an_impossible_size_is_one_sentence(size: int) -> None:
    with pytest.raises(ConfigError, match=rf"student_k_expansions: {size} .*take 1 .. 2"):
        list(student_requests(teacher_run(), distillation([size])))


def test_a_teacher_without_a_size_is_one_sentence() -> None:
    with pytest.raises(ConfigError, match="has a layer 'sa', whose state no k_expansion changes"):
        list(student_requests(tiny_run("sa"), distillation([1])))


def test_the_operator_is_the_dense_one_and_the_input_the_layers_own() -> None:
    model = build_model(ModelConfig(width=8, heads=2), 16, 12, seed=0).double()
    tokens = torch.randint(0, 16, (3, 12), generator=torch.Generator().manual_seed(0))
    for layer, features in enumerate(model.features(tokens)):
        u = layer_input(model, tokens, layer)
        mine = model.mixers[layer].features(u)
        torch.testing.assert_close(mine.operator(), features.operator())
        torch.testing.assert_close(operator_of(mine, 12), features.operator())


def test_the_relative_distance_is_an_average_over_samples() -> None:
    wanted = torch.tensor([[3.0, 4.0], [1.0, 0.0]])
    found = torch.tensor([[3.0, 4.0], [0.0, 2.0]])
    assert float(relative_distance(found, wanted)) == pytest.approx((0 + 5) / 2)


def test_a_student_leaves_exactly_these_files_and_honest_numbers(tmp_path: Path) -> None:
    run = teacher_run()
    teacher, data = trained_teacher(tmp_path, run)
    config = distillation([1])
    request = next(r for r in student_requests(run, config) if r.config.epoch == 2)
    steps: list[int] = []
    artifact = make(teacher, data, request, on_step=lambda step, total: steps.append(step))
    assert steps == list(range(1, 9))
    names = sorted(p.name for p in artifact.folder.iterdir())
    assert names == sorted([ESS, "log.jsonl", "provenance.json", "request.json", "result.json", STUDENT])
    tensors, _ = read_tensors(artifact.checked(ESS))
    assert tensors["teacher"].shape == tensors["student"].shape == (2, 4, 2, 15)
    tokens = load_data(data)["validation"].head(4).inputs.long()
    operators = load_model(teacher, 2).double().features(tokens)[0].operator()
    torch.testing.assert_close(tensors["teacher"][1].long(), tolerance_ess(operators, 1e-3))
    result = read_json(artifact.checked("result.json"))
    evaluated = read_json(teacher.checked("result.json"))
    assert result["accuracy"]["teacher"] == evaluated["test"]["accuracy"]
    tables = collect_students(teacher.store, config, [run])
    students = tables["students"].set_index("student")
    assert list(students["state"]).count("done") == 1 and len(students) == 4
    row = students.loc[request.name]
    assert (row["tss"], row["teacher_tss"]) == (4, 8)
    assert row["ess_mid_entropy"] == pytest.approx(float(tensors["student"][0, :, :, 7].min()))
    assert row["teacher_ess_tol_1e-3"] == pytest.approx(float(tensors["teacher"][1].mean()))
    curves = tables["curves"]
    assert list(curves.groupby("role")["index"].apply(list)) == [list(range(1, 16))] * 2
    shown = curves[curves["role"] == "student"].set_index("index")["ess_entropy"]
    assert shown[3] == pytest.approx(float(tensors["student"][0, :, :, 2].mean()))


def test_a_student_of_equal_size_copies_its_teachers_operator(tmp_path: Path) -> None:
    run = teacher_run(epochs=1)
    teacher, data = trained_teacher(tmp_path, run)
    steps = {"steps_operator": 1500, "steps_activation": 1, "learning_rate": 0.003}
    config = distillation([2], **steps, batch_size=8, dropout=0.0)
    request = next(r for r in student_requests(run, config) if r.config.epoch == 1)
    rows = load_data(data)["validation"].head(4)
    fresh = build_student(run, request.config)
    before, _ = compare(load_model(teacher, 1), fresh, rows, 0, 1e-3)
    result = read_json(make(teacher, data, request).checked("result.json"))
    assert result["operator_loss"] < 0.01 < 1 < before["operator_loss"]


@pytest.mark.parametrize("stop_at", [2, 4, 6])
def test_an_interrupted_student_ends_with_the_same_bytes(tmp_path: Path, stop_at: int) -> None:
    run = teacher_run()
    teacher, data = trained_teacher(tmp_path, run)
    request = list(student_requests(run, distillation([1])))[-1]
    whole = make(teacher, data, request)
    expected = whole.output_digest()
    whole.path("provenance.json").unlink()
    for name in (STUDENT, ESS, "result.json"):
        whole.path(name).unlink()

    def stop(step: int, total: int) -> None:
        if step == stop_at:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Interrupted, match="signal 15"):
        make(teacher, data, request, on_step=stop)
    assert whole.path(RESUME).exists() and not whole.finished
    resumed: list[int] = []
    artifact = make(teacher, data, request, on_step=lambda step, total: resumed.append(step))
    assert resumed == list(range(stop_at + 1, 9))
    assert artifact.output_digest() == expected


def test_a_teacher_that_diverged_has_no_student(tmp_path: Path) -> None:
    run = teacher_run()
    teacher, data = trained_teacher(tmp_path, run)
    result = read_json(teacher.path("result.json"))
    request = next(iter(student_requests(run, distillation([1]))))
    gone = request.config.model_copy(update={"epoch": 1})
    assert gone.epoch not in [entry["epoch"] for entry in result["evaluations"]]
    artifact = make(teacher, data, Request("distill", "gone", gone, request.inputs))
    assert artifact.state == "diverged"
    assert "no epoch 1" in read_json(artifact.checked("result.json"))["reason"]
