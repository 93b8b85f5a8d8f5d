"""Rival proxies against their definitions, written as loops."""

from __future__ import annotations

import pytest
import torch

from effstate.analysis.proxies import WINDOW_THRESHOLD, effective_window, unmasked_rank
from effstate.operators import DecayFeatures, SoftmaxFeatures


def gated(seed: int = 0, strength: float = 2.0, length: int = 9, n: int = 3) -> DecayFeatures:
    draw = torch.Generator().manual_seed(seed)
    C, B = torch.randn(2, 2, 4, length, n, dtype=torch.float64, generator=draw)
    log_decay = -strength * torch.rand(2, 4, length, n, dtype=torch.float64, generator=draw)
    return DecayFeatures(C, B, log_decay, 0.5)


@pytest.mark.parametrize("strength", [0.0, 0.1, 2.0, 50.0], ids="strength {}".format)
def test_the_window_counts_states_that_still_move_the_present_one(strength: float) -> None:
    features = gated(strength=strength)
    assert features.log_decay is not None
    a = features.log_decay.exp()
    batch, heads, length, n = a.shape
    counts = torch.zeros(batch, heads, length, n)
    for i in range(length):
        for j in range(i):
            counts[:, :, i] += a[:, :, j + 1 : i + 1].prod(2) > WINDOW_THRESHOLD
    expected = counts[:, :, 1:].double().mean((0, 2, 3))
    assert effective_window(features) == pytest.approx(expected)


def test_without_decay_every_earlier_state_counts() -> None:
    features = gated()
    kept = DecayFeatures(features.C, features.B, torch.zeros(1, 4, 1, 3, dtype=torch.float64))
    plain = DecayFeatures(features.C, features.B)
    assert effective_window(plain) == pytest.approx(effective_window(kept))
    assert effective_window(plain) == pytest.approx(torch.full((4,), 4.5, dtype=torch.float64))


def test_a_closed_gate_leaves_no_window() -> None:
    features = gated()
    closed = DecayFeatures(features.C, features.B, torch.full((2, 4, 9, 3), -torch.inf))
    assert effective_window(closed) == pytest.approx(torch.zeros(4, dtype=torch.float64))


def test_attention_counts_its_weights() -> None:
    features = SoftmaxFeatures(gated().C * 4, gated().B, 1.0)
    T = features.operator()
    expected = [(T[:, h].tril(-1)[:, 1:] > WINDOW_THRESHOLD).sum(-1).double().mean() for h in range(4)]
    assert effective_window(features) == pytest.approx(torch.stack(expected))


def test_the_unmasked_rank_is_that_of_the_full_matrix() -> None:
    features = gated()
    assert features.log_decay is not None
    a, (batch, heads, length, _) = features.log_decay.exp(), features.C.shape
    full = torch.zeros(batch, heads, length, length, dtype=torch.float64)
    for i in range(length):
        for j in range(length):
            low, high = min(i, j), max(i, j)
            between = a[:, :, low + 1 : high + 1].prod(2)
            full[:, :, i, j] = 0.5 * (features.C[:, :, i] * between * features.B[:, :, j]).sum(-1)
    p = torch.linalg.svdvals(full)
    p = p / p.sum(-1, keepdim=True)
    expected = (-(p * p.log()).sum(-1)).exp().mean(0)
    assert unmasked_rank(features) == pytest.approx(expected)


def test_unmasked_linear_attention_has_at_most_the_rank_of_its_state() -> None:
    features = DecayFeatures(gated().C, gated().B)
    assert (unmasked_rank(features) <= 3 + 1e-6).all()


def test_unmasked_attention_of_equal_scores_has_rank_one() -> None:
    features = SoftmaxFeatures(torch.zeros_like(gated().C), gated().B, 1.0)
    assert unmasked_rank(features) == pytest.approx(torch.ones(4, dtype=torch.float64))
