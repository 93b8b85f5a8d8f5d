"""Nested dissection against the definition: counts at every index, entropies within their bound."""

from __future__ import annotations

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
from effstate.ess.dense import ENTROPY_BOUND, TRUST
from effstate.ess.dissection import counts_above, log_determinants, plan
from effstate.ess.quadrature import fit
from effstate.ess.summary import spectrum_sizes

TAUS = (1e-1, 1e-3, 1e-5)


def assert_counts_agree(op: Tensor, tau: float, *, block_size: int = 1) -> int:
    """Equal counts wherever no singular value is within 1e-12 sigma_max; how many were compared."""
    sigma = reference_singular_values(op, block_size=block_size)
    counts = tolerance_ess(op, tau, method="dissection", block_size=block_size)
    real = (
        torch.arange(sigma.shape[-1]) < spectrum_sizes(op.shape[-1] // block_size, block_size)[:, None]
    )
    distance = torch.where(real, (sigma - tau).abs(), float("inf")).amin(-1)
    clear = distance > 1e-12 * sigma.amax(-1)
    expected = (sigma > tau).sum(-1)
    assert bool((counts == expected)[clear].all())
    return int(clear.sum())


# 14 kinds x 3 lengths x 6 operators = 252 operators, three tolerances each
@pytest.mark.parametrize("length", [9, 37, 70])
@pytest.mark.parametrize("kind", OPERATOR_KINDS)
def test_counts_agree_at_every_index(kind: str, length: int) -> None:
    op = operator(kind, length, batch=(3, 2), seed=length)
    compared = sum(assert_counts_agree(op, tau) for tau in TAUS)
    assert compared >= (0 if kind == "zero" else 0.99 * 3 * 6 * (length - 1))


@pytest.mark.parametrize("kind", [k for k in OPERATOR_KINDS if k not in ("zero", "huge", "tiny")])
def test_counts_agree_for_tolerances_beside_singular_values(kind: str) -> None:
    op = operator(kind, 40, batch=(1,), seed=5)
    sigma = reference_singular_values(op)
    pool = sigma[sigma > 1e-6 * sigma.max()]
    picked = pool[torch.randint(len(pool), (4,), generator=generator(3))]
    for value in picked.tolist():
        for offset in (3e-12, -3e-12, 1e-10, -1e-10, 1e-7):
            assert_counts_agree(op, value + offset * float(sigma.max()))


@pytest.mark.parametrize("seed", [0, 10])
def test_counts_agree_where_a_pivot_is_nearly_singular_and_coupled(seed: int) -> None:
    # sharp attention: all H_i of a node share a singular value, so that its pivot has an eigenvalue
    # as near to zero as that one is to the tolerance, and elimination grows by its inverse
    op = operator("softmax-10", 96, batch=(1,), seed=seed)
    op = op / torch.linalg.matrix_norm(op.tril(-1), 2)
    sigma = reference_singular_values(op)[0, 59]
    for value in sigma[sigma > 1e-3].tolist():
        for offset in (1e-11, -1e-11):
            assert_counts_agree(op, value + offset)


@settings(max_examples=25, deadline=None)
@given(
    length=st.integers(2, 60),
    kind=st.sampled_from(OPERATOR_KINDS),
    seed=st.integers(0, 2**20),
    tau=st.floats(1e-9, 3.0),
)
def test_counts_agree_for_any_length(length: int, kind: str, seed: int, tau: float) -> None:
    assert_counts_agree(operator(kind, max(length, 4), seed=seed), tau)


@pytest.mark.parametrize("d", [2, 3, 10])
def test_counts_and_entropies_of_mimo_blocks(d: int) -> None:
    op = recurrence("gated", 11, 4, d=d).operator()
    for tau in TAUS:
        assert_counts_agree(op, tau, block_size=d)
    expected = reference_entropy_ess(op, block_size=d)
    found = entropy_ess(op, block_size=d, method="dissection")
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=0)


def test_large_nodes_take_the_same_values() -> None:
    # halves of 128 and 64 are factorised one by one
    op = operator("softmax-1", 260, batch=(1,))
    for tau in TAUS:
        assert assert_counts_agree(op, tau) >= 258
    found = measure(op, (), method="dissection")
    expected = reference_entropy_ess(op)
    assert float((found.entropy / expected - 1).abs().max()) <= found.entropy_bound <= 1e-3


def test_a_tolerance_that_is_a_singular_value_leaves_both_sides_open() -> None:
    op = operator("shift", 24)
    counts = tolerance_ess(op, 1.0, method="dissection")
    above = tolerance_ess(op, 1.0 - 1e-9, method="dissection")
    assert bool((counts >= 0).all()) and bool((counts <= above).all())


def test_tolerance_zero_and_tolerances_above_everything() -> None:
    op = operator("random", 30)
    assert_counts_agree(op, 0.0)
    assert bool((tolerance_ess(op, 1e6, method="dissection") == 0).all())


def test_what_is_not_sure_is_settled_by_svd(monkeypatch: pytest.MonkeyPatch) -> None:
    op = operator("softmax-1", 30)
    plain = measure(op, method="svd")
    monkeypatch.setattr("effstate.ess.dense.TRUST", float("inf"))
    monkeypatch.setattr("effstate.ess.dense.ENTROPY_BOUND", 0.0)
    settled = measure(op, method="dissection")
    assert settled.counters == {"counts_settled": 58, "entropies_settled": 58}
    torch.testing.assert_close(settled.entropy, plain.entropy, rtol=1e-12, atol=0)
    for tau in TAUS:
        torch.testing.assert_close(settled.tolerance[tau], plain.tolerance[tau])
    assert settled.entropy_bound == 0.0


@pytest.mark.parametrize("length", [9, 37, 90])
@pytest.mark.parametrize("kind", OPERATOR_KINDS)
def test_entropies_are_within_their_bound(kind: str, length: int) -> None:
    op = operator(kind, length, batch=(2,), seed=length)
    found = measure(op, (), method="dissection")
    expected = reference_entropy_ess(op)
    assert found.method == "dissection"
    assert bool(((found.entropy == 0) == (expected == 0)).all())
    error = torch.where(expected > 0, (found.entropy - expected).abs() / expected, 0.0)
    # settled values are exact up to rounding, so that the bound may be 0
    assert float(error.max()) <= found.entropy_bound + 1e-12
    assert found.entropy_bound <= ENTROPY_BOUND
    assert found.zero_blocks == int((expected == 0).sum())


def test_the_fit_keeps_its_bounds_between_its_grid_points() -> None:
    rule = fit()
    exponent = 12 * torch.rand(20_000, generator=generator(0), dtype=torch.float64)
    sigma = torch.cat([10.0**-exponent, torch.rand(20_000, generator=generator(1)).double()])
    basis = torch.log1p((sigma.unsqueeze(1) / rule.shifts).square())
    allowed = (sigma + rule.knee) * (1 + 1e-3)
    first = (basis @ rule.first - sigma).abs()
    second = (basis @ rule.second - torch.special.xlogy(sigma, sigma)).abs()
    assert bool((first <= rule.first_error * allowed).all())
    assert bool((second <= rule.second_error * allowed).all())


@pytest.mark.parametrize("length", [2, 5, 16, 33])
def test_log_determinants_are_sums_over_singular_values(length: int) -> None:
    op = operator("random", length, batch=(2,)) if length > 3 else torch.eye(length).double()
    op = op.reshape(-1, length, length) / (2 * length)
    shifts = torch.tensor([1e-3, 0.1, 2.0], dtype=torch.float64)
    sigma = reference_singular_values(op)
    expected = torch.log1p((sigma.unsqueeze(1) / shifts.view(1, -1, 1, 1)).square()).sum(-1)
    torch.testing.assert_close(log_determinants(op, shifts), expected, rtol=1e-9, atol=1e-9)


@given(length=st.integers(2, 5000), block=st.integers(1, 40))
def test_plans_cover_the_length_with_little_padding(length: int, block: int) -> None:
    tree = plan(length, block)
    per_leaf = max(1, -(-8 // block))
    assert length <= tree.padded
    # halving a leaf leaves at least `per_leaf` indices, so that padding stays below 1 / per_leaf
    assert tree.padded <= length * (1 + 1 / per_leaf) + 2 * per_leaf
    assert tree.leaf <= max(2 * per_leaf + 1, length if tree.depth == 0 else 0)


def test_pieces_do_not_change_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    op = operator("softmax-1", 40, batch=(5,))
    whole = measure(op, method="dissection")
    monkeypatch.setattr("effstate.ess.dense.WORKSPACE_BYTES", 40_000)
    monkeypatch.setattr("effstate.ess.dissection.WORKSPACE_BYTES", 1)
    parts = measure(op, method="dissection")
    torch.testing.assert_close(parts.entropy, whole.entropy, rtol=1e-9, atol=0)
    for tau in TAUS:
        torch.testing.assert_close(parts.tolerance[tau], whole.tolerance[tau])


def test_auto_chooses_by_size_and_by_what_is_asked() -> None:
    assert measure(operator("softmax-1", 64)).method == "svd"
    assert measure(operator("softmax-1", 200, batch=())).method == "dissection"
    assert measure(recurrence("gated", 200, 2)).method == "qr"
    assert measure(recurrence("gated", 12, 6)).method == "svd"
    with pytest.raises(EssError, match="only ESS"):
        singular_values(operator("softmax-1", 64), method="dissection")


def test_trust_falls_beside_a_singular_value_of_a_shared_part() -> None:
    op = operator("orthogonal-block", 32, batch=(1,))
    near, far = 0.5 * (1 + 1e-14), 0.4  # trust is a distance in units of rounding
    tolerances = torch.tensor([[near, far]], dtype=torch.float64)
    counts, trust = counts_above(op, tolerances)
    assert counts.shape == trust.shape == (1, 2, 31)
    assert float(trust[0, 0].min()) < TRUST < float(trust[0, 1].min())
