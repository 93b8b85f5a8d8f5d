"""The penalty on decays: its reductions by hand, its gradient, and where it enters the loss."""

from __future__ import annotations

import pytest
import torch

from effstate.config import ModelConfig, TrainingConfig
from effstate.models import build_model
from effstate.models.regularisation import decay_distance
from effstate.operators import DecayFeatures, SoftmaxFeatures
from effstate.training.trainer import make_loss


def features(log_decay: torch.Tensor) -> DecayFeatures:
    x = torch.ones(2, 3, 5, 4, dtype=torch.float64)
    return DecayFeatures(x, x, log_decay)


def decays(*shape: int) -> torch.Tensor:
    draw = torch.Generator().manual_seed(0)
    return -torch.rand(*shape, dtype=torch.float64, generator=draw)


@pytest.mark.parametrize("reduction", ["rms", "mean", "sum"])
def test_reductions_are_the_norms_that_they_name(reduction: str) -> None:
    log_decay = decays(2, 3, 5, 4)
    difference = (log_decay.exp() - 1).flatten()
    per_position = (log_decay.exp() - 1).transpose(1, 2).reshape(10, 12).norm(dim=1)
    expected = {
        "rms": difference.norm() / difference.numel() ** 0.5 * 12**0.5,
        "mean": per_position.mean(),
        "sum": difference.norm(),
    }
    found = decay_distance(features(log_decay), reduction)
    assert float(found) == pytest.approx(float(expected[reduction]), rel=1e-6)


@pytest.mark.parametrize("reduction", ["rms", "mean"])
def test_one_decay_for_all_positions_counts_as_its_copies(reduction: str) -> None:
    one = decays(1, 3, 1, 4)
    copies = one.expand(2, 3, 5, 4)
    assert decay_distance(features(one), reduction) == pytest.approx(
        decay_distance(features(copies), reduction)
    )


@pytest.mark.parametrize("reduction", ["rms", "mean", "sum"])
def test_the_gradient_is_that_of_finite_differences(reduction: str) -> None:
    log_decay = decays(2, 3, 5, 4).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: decay_distance(features(x), reduction), log_decay)


def test_the_gradient_at_the_identity_is_zero() -> None:
    log_decay = torch.zeros(1, 3, 1, 4, dtype=torch.float64, requires_grad=True)
    decay_distance(features(log_decay), "rms").backward()
    assert log_decay.grad is not None
    assert log_decay.grad.abs().max() == 0


@pytest.mark.parametrize("mixer", ["la", "sa"])
def test_a_mixer_without_decays_has_no_distance(mixer: str) -> None:
    x = torch.ones(1, 1, 3, 2)
    without = DecayFeatures(x, x) if mixer == "la" else SoftmaxFeatures(x, x)
    with pytest.raises(ValueError, match=r"no .* to regularise"):
        decay_distance(without, "rms")


def test_an_unknown_reduction_is_refused() -> None:
    with pytest.raises(ValueError, match="known ones are"):
        decay_distance(features(decays(2, 3, 5, 4)), "norm")


@pytest.mark.parametrize("featurizer", ["gla", "wla", "gla_s6"])
@pytest.mark.parametrize("layers", [(1,), (0,), (0, 1)], ids="layers {}".format)
def test_the_loss_gains_lambda_times_the_penalty_of_the_named_layers(
    featurizer: str, layers: tuple[int, ...]
) -> None:
    model = build_model(ModelConfig(featurizer=featurizer, width=8, heads=2), 16, 12, seed=1)
    draw = torch.Generator().manual_seed(0)
    tokens = torch.randint(16, (3, 12), generator=draw)
    positions, targets = torch.tensor([[4, 9]] * 3), tokens[:, :2]
    plain = make_loss(model, TrainingConfig())(tokens, positions, targets)
    config = TrainingConfig(regularisation=0.5, regularised_layers=layers)
    penalised = make_loss(model, config)(tokens, positions, targets)
    each = [decay_distance(model.features(tokens)[layer], "rms") for layer in layers]
    gained = (penalised - plain).item()
    assert gained == pytest.approx(0.5 * sum(distance.item() for distance in each), rel=1e-4)
    model.zero_grad()
    penalised.backward()
    touched = [
        any(p.grad is not None and p.grad.abs().max() > 0 for p in mixer.parameters())
        for mixer in model.mixers
    ]
    assert touched == [True, True]
