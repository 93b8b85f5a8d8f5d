"""Entropy-ESS by determinants on triangles: 1e-8 against the definition, whatever the spectrum."""

from __future__ import annotations

import math

import pytest
import torch
from ess_cases import OPERATOR_KINDS, generator, operator, recurrence
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from effstate.ess import (
    EssError,
    entropy_ess,
    measure,
    reference_entropy_ess,
    reference_singular_values,
    singular_values,
    tolerance_ess,
)
from effstate.ess.quadrature import LEVELS, PRECISE_BOUND, _at_most_below, precise_fit
from effstate.ess.summary import FLOOR_TERM, spectrum_sizes
from effstate.ess.triangles import exact_log_determinants


def assert_agrees(op: Tensor, *, block_size: int = 1) -> None:
    """Within 1e-8, and within the stated bound but for rounding; zero where the definition is."""
    found = measure(op, (), method="determinants", block_size=block_size)
    expected = reference_entropy_ess(op, block_size=block_size)
    assert found.method == "determinants"
    assert bool(((found.entropy == 0) == (expected == 0)).all())
    error = torch.where(expected > 0, (found.entropy - expected).abs() / expected, 0.0)
    assert float(error.max()) <= min(1e-8, found.entropy_bound + 1e-9)
    assert found.entropy_bound <= PRECISE_BOUND
    assert found.zero_blocks == int((expected == 0).sum())


@pytest.mark.parametrize("length", [9, 37, 90])
@pytest.mark.parametrize("kind", OPERATOR_KINDS)
def test_entropies_agree_to_1e_8_for_every_kind(kind: str, length: int) -> None:
    assert_agrees(operator(kind, length, batch=(2,), seed=length))


@settings(max_examples=40, deadline=None)
@given(
    length=st.integers(2, 60),
    kind=st.sampled_from([k for k in OPERATOR_KINDS if k != "shift"]),
    seed=st.integers(0, 2**20),
)
def test_entropies_agree_for_any_length(length: int, kind: str, seed: int) -> None:
    assert_agrees(operator(kind, length, seed=seed))


@settings(max_examples=25, deadline=None)
@given(
    exponents=st.lists(st.floats(-18.0, 0.0), min_size=1, max_size=20),
    seed=st.integers(0, 2**20),
)
def test_entropies_agree_for_any_spectrum(exponents: list[float], seed: int) -> None:
    # the block below the middle has singular values of any size, also near the floor of p
    n = len(exponents)
    u, v = (
        torch.linalg.qr(torch.randn(n, n, generator=generator(seed + k), dtype=torch.float64))[0]
        for k in range(2)
    )
    op = torch.zeros(2 * n, 2 * n, dtype=torch.float64)
    op[n:, :n] = (u * 10.0 ** torch.tensor(exponents, dtype=torch.float64)) @ v
    assert_agrees(op)


@pytest.mark.parametrize("kind", ["softmax-0.1", "softmax-10", "low-rank", "near-diagonal"])
def test_large_nodes_take_the_same_values(kind: str) -> None:
    assert_agrees(operator(kind, 260, batch=(1,)))


@pytest.mark.parametrize("d", [2, 3, 10])
def test_blocks_of_a_mimo_operator(d: int) -> None:
    assert_agrees(recurrence("gated", 11, 4, d=d).operator(), block_size=d)


def test_a_recurrence_is_taken_by_its_operator() -> None:
    op = recurrence("gated", 30, 3)
    found = entropy_ess(op, method="determinants")
    torch.testing.assert_close(found, reference_entropy_ess(op), rtol=1e-8, atol=0)


def test_two_indices_and_nothing_at_all() -> None:
    two = torch.tensor([[1.0, 0.0], [-3.0, 2.0]], dtype=torch.float64)
    assert entropy_ess(two, method="determinants").item() == pytest.approx(1.0, rel=1e-8)
    assert bool((entropy_ess(torch.zeros(3, 7, 7), method="determinants") == 0).all())
    assert entropy_ess(torch.zeros(0, 3, 8, 8), method="determinants").shape == (0, 3, 7)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_non_finite_entry_is_located(value: float) -> None:
    op = operator("softmax-1", 8)
    op[1, 5, 2] = value
    with pytest.raises(EssError, match=r"^operator \(1\) is not finite at row 5, column 2\.$"):
        entropy_ess(op, method="determinants")


def test_counts_are_those_of_dissection_and_spectra_are_refused() -> None:
    op = operator("softmax-1", 40)
    found, expected = (tolerance_ess(op, 1e-3, method=m) for m in ("determinants", "dissection"))
    torch.testing.assert_close(found, expected)
    with pytest.raises(EssError, match="method 'determinants' has no singular values"):
        singular_values(op, method="determinants")


def test_operators_of_a_batch_do_not_change_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    # they need smallest shifts of different sizes
    op = torch.cat([operator(k, 24) for k in ("random", "low-rank", "zero", "softmax-10", "decaying")])
    whole = entropy_ess(op, method="determinants")
    for k, one in enumerate(op):
        alone = entropy_ess(one, method="determinants")
        torch.testing.assert_close(alone, whole[k], rtol=1e-9, atol=0)
    monkeypatch.setattr("effstate.ess.quadrature._SUMS_BYTES", 1)
    monkeypatch.setattr("effstate.ess.dissection.WORKSPACE_BYTES", 1)
    torch.testing.assert_close(entropy_ess(op, method="determinants"), whole, rtol=1e-9, atol=0)


def test_what_is_not_sure_is_settled_by_svd(monkeypatch: pytest.MonkeyPatch) -> None:
    op = operator("softmax-1", 20)
    monkeypatch.setattr("effstate.ess.dense.PRECISE_BOUND", 0.0)
    found = measure(op, (), method="determinants")
    assert found.counters["entropies_settled"] == 38 and found.entropy_bound == 0.0
    torch.testing.assert_close(found.entropy, reference_entropy_ess(op), rtol=1e-12, atol=0)


def test_clipped_zeros_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    # one singular value and up to 63 zeros, each of which adds the floor's term
    op = torch.diag(torch.ones(127, dtype=torch.float64), -1)
    monkeypatch.setattr("effstate.ess.quadrature.LEVELS", LEVELS[-1:])
    found = entropy_ess(op, method="determinants")
    expected = ((spectrum_sizes(128) - 1).double() * FLOOR_TERM).exp()
    assert 63 * FLOOR_TERM > 1.5e-9
    torch.testing.assert_close(found, expected, rtol=7e-10, atol=0)


@pytest.mark.parametrize("kind", ["random", "softmax-0.1", "softmax-10", "low-rank", "uniform"])
@pytest.mark.parametrize("length", [2, 5, 33, 150])
def test_small_shifts_lose_nothing_to_squaring(kind: str, length: int) -> None:
    op = operator(kind, length, batch=(2,))
    op = op.tril(-1) / length
    shifts = torch.logspace(-14, 0, 8, dtype=torch.float64)
    sigma = reference_singular_values(op)
    expected = torch.log1p((sigma.unsqueeze(1) / shifts.view(-1, 1, 1)).square()).sum(-1)
    error = (exact_log_determinants(op, shifts) - expected).abs()
    # a change of a singular value by one rounding changes its logarithm by eps / t
    allowed = 1e-14 * (1 + sigma.amax() / shifts) * length
    assert bool((error.amax((0, 2)) <= allowed).all())


@pytest.mark.parametrize("smallest", LEVELS)
def test_the_fits_keep_their_bounds_between_their_grid_points(smallest: float) -> None:
    rule = precise_fit(smallest)
    decades = -math.log10(smallest)
    exponent = (decades + 4) * torch.rand(20_000, generator=generator(0), dtype=torch.float64)
    sigma = 10.0**-exponent
    basis = torch.log1p((sigma.unsqueeze(1) / rule.shifts).square())
    entropy = torch.special.xlogy(sigma, sigma)
    first, second = (basis @ rule.first - sigma).abs(), (basis @ rule.second - entropy).abs()
    below = sigma < smallest
    # the errors themselves are computed in float64, with sums of larger terms
    slack = 1.01
    assert bool((first <= slack * rule.first_error * (sigma + rule.knee))[~below].all())
    assert bool((second <= slack * rule.second_error * (sigma - entropy + rule.knee))[~below].all())
    assert bool((first <= slack * rule.first_below)[below].all())
    assert bool((second <= slack * rule.second_below)[below].all())
    assert rule.first_error < 3e-10 and rule.second_error < 3e-10


@pytest.mark.parametrize("smallest", LEVELS[:4])
@pytest.mark.parametrize("kind", ["random", "softmax-1", "softmax-0.1", "low-rank"])
def test_no_small_singular_value_is_missed(kind: str, smallest: float) -> None:
    op = operator(kind, 40, batch=(2,)).tril(-1) / 40
    rule = precise_fit(smallest)
    sizes = spectrum_sizes(40)
    sums = exact_log_determinants(op, rule.shifts)
    limit = _at_most_below(sums, sizes.to(sums), rule)
    sigma = reference_singular_values(op)
    inside = torch.arange(sigma.shape[-1]) < sizes.unsqueeze(-1)
    true = ((sigma < smallest * (1 - 1e-6)) & inside).sum(-1)
    assert bool((limit >= true - 1e-6).all())
