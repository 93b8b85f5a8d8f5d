"""S6 and GLA-S6: their definitions, their start, torch.compile, and what they cost."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from pydantic import ValidationError
from scipy import stats
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from effstate import ess
from effstate.config import ModelConfig
from effstate.models import build_model, training_flops
from effstate.models.selective import GLAS6, S6
from effstate.operators import DecayFeatures, SelectiveFeatures
from effstate.registry import MIXERS

SMALL = ModelConfig(featurizer="s6", width=6, heads=2, d_state=3)


def mixer(config: ModelConfig) -> S6 | GLAS6:
    """The first mixer of a model in float64."""
    found = build_model(config, 10, 16, seed=0).double().mixers[0]
    assert isinstance(found, S6 | GLAS6)
    return found


def noise(length: int, width: int, seed: int = 0) -> Tensor:
    """Gaussian inputs (2, L, width) in float64."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(2, length, width, generator=generator, dtype=torch.float64)


@torch.no_grad()
def test_s6_is_its_definition() -> None:
    s6, u = mixer(SMALL), noise(7, 6)
    s6.log_rates += 0.3  # type: ignore[operator]
    x, z = s6.value_projection(u), s6.gate_projection(u)
    W_C, W_B, W_1 = s6.selection.weight.split([3, 3, 1])
    expected = torch.zeros(2, 7, 12, dtype=torch.float64)
    for row, channel in itertools.product(range(2), range(12)):
        state = torch.zeros(3, dtype=torch.float64)
        for i in range(7):
            here = x[row, i]
            expansion = s6.step_expansion
            step = F.softplus(expansion.weight[channel] @ (W_1 @ here) + expansion.bias[channel])
            decay = torch.exp(-s6.log_rates.exp() * step)
            state = decay * state + step * (W_B @ here) * here[channel]
            y = (W_C @ here) @ state + s6.skip[channel] * here[channel]
            expected[row, i, channel] = y * F.silu(z[row, i, channel])
    torch.testing.assert_close(s6(u), expected @ s6.output_projection.weight.T)


def test_channels_share_one_c_and_one_b() -> None:
    features = mixer(SMALL).features(noise(9, 6))
    assert isinstance(features, SelectiveFeatures)
    assert features.C.shape == features.B.shape == (2, 1, 9, 3)
    assert features.steps.shape == (2, 12, 9)


def test_s6_starts_as_published_in_a_built_model() -> None:
    config = ModelConfig(featurizer="s6", width=96, heads=4, d_state=7, num_layers=3)
    model = build_model(config, 10, 16, seed=0)
    steps = []
    for s6 in model.mixers:
        assert isinstance(s6, S6)
        steps.append(F.softplus(s6.step_expansion.bias.double()))
        torch.testing.assert_close(s6.log_rates.exp(), torch.arange(1.0, 8))
        assert torch.equal(s6.skip, torch.ones(192))
        assert s6.step_expansion.weight.shape == (192, 6)
        assert s6.step_expansion.weight.abs().max() <= 6**-0.5
    drawn = torch.cat(steps).detach().log10()
    assert -3.0001 < drawn.min() < -2.98
    assert -1.02 < drawn.max() < -0.9999
    assert stats.kstest(drawn.numpy(), "uniform", args=(-3, 2)).pvalue > 0.01
    assert not torch.equal(steps[0], steps[1])


@pytest.mark.parametrize("alpha", [1.0, 1000.0])
@torch.no_grad()
def test_the_decays_of_gla_s6_are_an_arange_per_head(alpha: float) -> None:
    config = ModelConfig(
        featurizer="gla_s6", width=8, heads=2, k_expansion=2, gate_rank=3, arange_alpha=alpha
    )
    gated, u = mixer(config), noise(5, 8)
    assert isinstance(gated, GLAS6)
    features = gated.features(u)
    assert isinstance(features, DecayFeatures)
    assert features.log_decay is not None
    gates = (
        u @ gated.projection.weight[-3:].T @ gated.gate_expansion.weight.T + gated.gate_expansion.bias
    )
    expected = torch.empty(2, 2, 5, 8, dtype=torch.float64)
    for head, state in itertools.product(range(2), range(8)):
        expected[:, head, :, state] = -(state + 1) / alpha * F.softplus(gates[..., 8 * head + state])
    torch.testing.assert_close(features.log_decay, expected)


@pytest.mark.parametrize("alpha", [0.0, -1.0])
def test_an_alpha_that_is_not_positive_is_refused(alpha: float) -> None:
    with pytest.raises(ValidationError, match="arange_alpha"):
        ModelConfig(featurizer="gla_s6", arange_alpha=alpha)


@pytest.mark.parametrize("featurizer", ["s6", "gla_s6"])
@torch.no_grad()
def test_ess_from_the_recurrence_is_that_of_the_operator(featurizer: str) -> None:
    config = ModelConfig(featurizer=featurizer, width=6, heads=2, d_state=3, arange_alpha=4.0)
    features = mixer(config).features(noise(24, 6))
    assert isinstance(features, SelectiveFeatures | DecayFeatures)
    profile = ess.measure(features.recurrence(), (1e-3,))
    assert profile.method == "qr"
    T = features.operator()
    torch.testing.assert_close(profile.entropy, ess.reference_entropy_ess(T), rtol=1e-7, atol=1e-7)
    assert torch.equal(profile.tolerance[1e-3], ess.reference_tolerance_ess(T, 1e-3))


@pytest.mark.parametrize("featurizer", sorted(MIXERS))
def test_a_compiled_model_computes_the_same(featurizer: str) -> None:
    config = ModelConfig(featurizer=featurizer, width=8, heads=2, d_state=3, num_layers=1)
    model = build_model(config, 10, 20, seed=0).double()
    tokens = torch.randint(0, 10, (2, 20), generator=torch.Generator().manual_seed(0))

    def loss() -> Tensor:
        return model(tokens).square().mean()

    def results(run: Callable[[], Tensor]) -> list[Tensor]:
        model.zero_grad()
        value = run()
        value.backward()
        return [value.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]

    # the whole path of torch.compile but for the code generator, in a second
    compiled = results(torch.compile(loss, backend="aot_eager", dynamic=False))
    for found, expected in zip(compiled, results(loss), strict=True):
        torch.testing.assert_close(found, expected)


def test_the_cost_of_s6_is_its_matrix_products_and_its_scan() -> None:
    config = ModelConfig(featurizer="s6", width=16, heads=2, d_state=5, num_layers=2)
    model = build_model(config, 10, 24, seed=0)
    tokens = torch.zeros(3, 24, dtype=torch.int64)
    with FlopCounterMode(display=False) as counter:
        model(tokens).sum().backward()
    scan = 3 * 3 * config.num_layers * (7 * 24 * 32 * 5)
    assert training_flops(config, 10, 24, 3, 24) == counter.get_total_flops() + scan


def test_the_cost_of_a_hybrid_is_that_of_its_layers() -> None:
    def cost(*names: str) -> float:
        config = ModelConfig(pattern=names, num_layers=2, width=16, heads=2)
        return training_flops(config, 10, 24, 3, 5)

    assert cost("gla_s6", "gla_s6") == cost("gla", "gla")
    assert 2 * cost("s6", "gla_s6") == cost("s6", "s6") + cost("gla_s6", "gla_s6")
    assert cost("s6", "s6") != cost("gla_s6", "gla_s6")
