"""Distil one layer of a trained run into a smaller one (section 5.2, table 6).

The student is a mixer of the teacher's kind with a smaller state. It sees what the teacher's layer
sees, and is matched first in its operator, then in its output; the rest of the teacher is left alone.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from effstate.artifacts import Artifact, derive_seed, read_json, write_json, write_tensors
from effstate.config import MatchingConfig, RunConfig
from effstate.ess import Profile
from effstate.models import Mixer, SequenceModel
from effstate.models.sequence import options_of
from effstate.operators import Features, profile_of
from effstate.registry import MIXERS
from effstate.requests import StudentConfig
from effstate.training.data import RowOrder, Split, load_data
from effstate.training.interruption import StopFlag
from effstate.training.trainer import (
    RESULT,
    RESUME,
    Execution,
    Progress,
    evaluate,
    load_model,
    load_resume,
    log_line,
    save_resume,
    watched,
)

STUDENT = "student.safetensors"
ESS = "ess.safetensors"
LOOK_EVERY = 50


def build_student(teacher: RunConfig, student: StudentConfig) -> Mixer:
    """A new mixer for the student's layer; its parameters follow from the configurations and seed."""
    config = teacher.model.model_copy(update={"k_expansion": student.k_expansion})
    name = config.mixers[student.layer]
    with torch.random.fork_rng(devices=[]):
        seed = derive_seed(teacher.seed, "student", student.epoch, student.layer, student.k_expansion)
        torch.default_generator.manual_seed(seed)
        return MIXERS[name](config, student.layer, **options_of(config, name))


def layer_input(model: SequenceModel, tokens: Tensor, layer: int) -> Tensor:
    """What the mixer of ``layer`` gets, (batch, L, width), for ``tokens`` (batch, L)."""
    x = model.embedding(tokens)
    for block in model.blocks[:layer]:
        x = block(x)
    return model.blocks[layer].mixer_norm(x)


def operator_of(features: Features, length: int) -> Tensor:
    """T, (batch | 1, heads, L, L), by the fast product with the identity: differentiable."""
    C = features.C  # type: ignore[attr-defined]
    identity = torch.eye(length, dtype=C.dtype, device=C.device)
    return features.apply(identity.expand(*C.shape[:2], -1, -1))


def relative_distance(found: Tensor, wanted: Tensor) -> Tensor:
    """||found - wanted||^2 / ||wanted||^2 of every sample, averaged: a scalar."""
    numbers = (found - wanted).square().flatten(1).sum(1), wanted.square().flatten(1).sum(1)
    return (numbers[0] / numbers[1]).mean()


def make_optimizer(student: Mixer, matching: MatchingConfig) -> torch.optim.AdamW:
    """AdamW at table 6's constant rate."""
    rate, decay = matching.learning_rate, matching.weight_decay
    return torch.optim.AdamW(student.parameters(), lr=rate, weight_decay=decay)


def distil(
    artifact: Artifact,
    teacher: Artifact,
    data: Artifact,
    execution: Execution,
    *,
    on_step: Callable[[int, int], None] = lambda step, steps: None,
    flag: StopFlag | None = None,
) -> None:
    """Train the requested student to its end, or on from its resume point; measure and seal it.

    ``on_step(step, steps)`` is called after every step. A teacher without the checkpoint, or a
    non-finite loss, seals the student as ``diverged``. SIGTERM or SIGINT writes a resume point and
    raises Interrupted. Raises ArtifactError if an input or the resume point is damaged.

    Outputs: the student's parameters; ``result.json`` with the final losses on validation rows and
    the accuracies of teacher and teacher with student on the test rows; ``teacher`` and ``student``
    ESS (kinds, samples, heads, L - 1) as tensors, the entropy-ESS first.
    """
    with watched(execution, flag) as stop:
        _distil(artifact, teacher, data, execution, on_step, stop)


def _distil(
    artifact: Artifact,
    teacher: Artifact,
    data: Artifact,
    execution: Execution,
    on_step: Callable[[int, int], None],
    flag: StopFlag,
) -> None:
    config, run = artifact.request.config, teacher.request.config
    assert isinstance(config, StudentConfig) and isinstance(run, RunConfig)
    matching, layer, started = config.matching, config.layer, time.monotonic()
    steps = matching.steps_operator + matching.steps_activation
    evaluations = read_json(teacher.checked(RESULT))["evaluations"]
    if config.epoch not in [entry["epoch"] for entry in evaluations]:
        write_json(artifact.path(RESULT), {"reason": f"the teacher has no epoch {config.epoch}"})
        artifact.finish("diverged", [RESULT], seconds=time.monotonic() - started)
        return
    device = execution.resolve_device()
    model = load_model(teacher, config.epoch).to(device).eval().requires_grad_(False)
    original = model.blocks[layer].mixer
    splits = load_data(data, device)
    order = RowOrder(run.seed, len(splits["train"]), matching.batch_size)
    student = build_student(run, config).to(device)
    torch.manual_seed(derive_seed(run.seed, "distil", config.epoch, layer, config.k_expansion))
    optimizer, progress = make_optimizer(student, matching), Progress()
    if artifact.path(RESUME).exists():
        progress = load_resume(artifact.path(RESUME), student, optimizer)
        log_line(artifact, event="resumed", step=progress.step)
    before = progress.seconds

    def loss_of(u: Tensor) -> Tensor:
        """The loss of the present phase on the layer's input u (batch, L, width)."""
        seen = functional.dropout(u, matching.dropout)
        if progress.step < matching.steps_operator:
            length = u.shape[1]
            wanted = operator_of(original.features(u), length)
            return relative_distance(operator_of(student.features(seen), length), wanted)
        return relative_distance(student(seen), original(u))

    state = "done"
    while progress.step < steps:
        if progress.step == matching.steps_operator:
            optimizer = make_optimizer(student, matching)  # the moments of the other loss say nothing
        rows = order(progress.step).to(device)
        loss = loss_of(layer_input(model, splits["train"].inputs[rows].long(), layer))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        progress.step += 1
        if progress.step % LOOK_EVERY == 0 or progress.step == steps:
            value = float(loss.detach())
            log_line(artifact, event="step", step=progress.step, loss=value)
            if not math.isfinite(value):
                state = "diverged"
                break
        on_step(progress.step, steps)
        if flag:
            progress.seconds = before + time.monotonic() - started
            save_resume(artifact.path(RESUME), student, optimizer, progress)
            log_line(artifact, event="interrupted", step=progress.step)
            flag.check()

    outputs = [RESULT]
    if state == "done":
        write_tensors(artifact.path(STUDENT), student.state_dict())
        accuracies = {}
        for role, mixer in (("teacher", original), ("student", student)):
            model.blocks[layer].mixer = mixer
            measured = evaluate(model, splits["test"], run.task.vocab_size, run.training.batch_size)
            accuracies[role] = measured["accuracy"]
        model.blocks[layer].mixer = original
        kept = splits["validation"].head(matching.samples)
        losses, ess = compare(model, student, kept, layer, matching.tolerance)
        write_tensors(artifact.path(ESS), ess)
        write_json(artifact.path(RESULT), {"accuracy": accuracies, **losses})
        outputs += [STUDENT, ESS]
    else:
        write_json(artifact.path(RESULT), {"reason": f"the loss was not finite at {progress.step}"})
    facts = {
        "device": str(device),
        "threads": torch.get_num_threads(),
        "dtype": "float32",
        "parameters": sum(p.numel() for p in student.parameters()),
        "steps": progress.step,
    }
    seconds = before + time.monotonic() - started
    log_line(artifact, event=state, step=progress.step, seconds=seconds)
    artifact.finish(state, outputs, seconds=seconds, facts=facts)  # type: ignore[arg-type]
    artifact.path(RESUME).unlink(missing_ok=True)


@torch.no_grad()
def compare(
    model: SequenceModel, student: Mixer, rows: Split, layer: int, tolerance: float
) -> tuple[dict[str, float], dict[str, Tensor]]:
    """Losses of a student, and the ESS of both layers on the same input, in float64 on the CPU.

    Returns ``operator_loss`` and ``activation_loss`` without dropout, and ``teacher`` and
    ``student``: (kinds, samples, heads, L - 1), entropy-ESS and tolerance-ESS. A
    norm per head after T leaves T's scale free while outputs are matched, so that the operator loss
    may end above where it was.
    """
    model, student = (copy.deepcopy(m).cpu().double().eval() for m in (model, student))
    u = layer_input(model, rows.inputs.cpu().long(), layer)
    original, length = model.blocks[layer].mixer, u.shape[1]
    target, wanted = original.mix(u)
    output, found = student.mix(u)
    operators = operator_of(found, length), operator_of(wanted, length)
    losses = {
        "operator_loss": float(relative_distance(*operators)),
        "activation_loss": float(relative_distance(output, target)),
    }

    def kinds(profile: Profile) -> Tensor:
        return torch.stack([profile.entropy, profile.tolerance[tolerance].double()]).float()

    profiles = {"teacher": wanted, "student": found}
    return losses, {role: kinds(profile_of(f, (tolerance,))) for role, f in profiles.items()}
