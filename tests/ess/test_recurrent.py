"""The recursion over triangles against the definition."""

from __future__ import annotations

import pytest
import torch
from ess_cases import RECURRENCE_KINDS, generator, normal, recurrence
from hypothesis import given, settings
from hypothesis import strategies as st

from effstate.ess import (
    EssError,
    Recurrence,
    causal_ess,
    entropy_ess,
    measure,
    reference_causal_ess,
    reference_entropy_ess,
    reference_singular_values,
    reference_tolerance_ess,
    singular_values,
    tolerance_ess,
)

SIZES = [(2, 1), (2, 5), (3, 2), (5, 9), (17, 1), (24, 4), (33, 6), (40, 40)]


def assert_spectra_agree(op: Recurrence, *, relative: float = 1e-10) -> None:
    """Fast and defined spectra agree to ``relative`` of each operator's largest singular value."""
    fast, slow = singular_values(op, method="qr"), reference_singular_values(op)
    width = fast.shape[-1]
    assert fast.dtype == torch.float64
    assert fast.shape[:-1] == slow.shape[:-1]
    error = (fast - slow[..., :width]).abs().amax(dim=(-2, -1))
    beyond = slow[..., width:].sum(dim=-1).amax(dim=-1)
    assert bool((error + beyond <= relative * slow.amax(dim=(-2, -1))).all())


@pytest.mark.parametrize("length,n", SIZES, ids=[f"L{length}-n{n}" for length, n in SIZES])
@pytest.mark.parametrize("kind", RECURRENCE_KINDS)
def test_spectra_agree_with_the_definition(kind: str, length: int, n: int) -> None:
    assert_spectra_agree(recurrence(kind, length, n))


@pytest.mark.parametrize("d", [1, 2, 5])
@pytest.mark.parametrize("kind", ["gated", "saturated", "zero-gate", "zero", "dense"])
def test_spectra_of_mimo_blocks(kind: str, d: int) -> None:
    op = recurrence(kind, 13, 3, d=d)
    assert op.block_size == d and op.mimo
    assert_spectra_agree(op)
    direct = reference_singular_values(op.operator(), block_size=d)
    torch.testing.assert_close(direct, reference_singular_values(op), rtol=0, atol=0)


@settings(max_examples=40, deadline=None)
@given(
    length=st.integers(2, 30),
    n=st.integers(1, 8),
    d=st.integers(0, 3),
    kind=st.sampled_from(RECURRENCE_KINDS),
    seed=st.integers(0, 2**20),
)
def test_spectra_agree_for_any_shape(length: int, n: int, d: int, kind: str, seed: int) -> None:
    assert_spectra_agree(recurrence(kind, length, n, d=d, seed=seed))


@settings(max_examples=30, deadline=None)
@given(
    length=st.integers(2, 24),
    n=st.integers(1, 6),
    kind=st.sampled_from(RECURRENCE_KINDS),
    seed=st.integers(0, 2**20),
)
def test_ess_is_never_above_its_three_bounds(length: int, n: int, kind: str, seed: int) -> None:
    op = recurrence(kind, length, n, seed=seed)
    profile = measure(op, (0.0, 1e-3))
    index = torch.arange(1, length)
    bound = torch.minimum(index, length - index).clamp_max(n)
    assert bool((profile.tolerance[0.0] <= bound).all())
    assert bool((profile.tolerance[1e-3] <= profile.tolerance[0.0]).all())
    assert bool((profile.entropy <= bound * (1 + 1e-6) + 1e-6).all())
    sigma = singular_values(op)
    rank = (sigma > 1e-9 * sigma.amax(dim=(-2, -1), keepdim=True)).sum(-1)
    assert bool((causal_ess(op, 0.0) >= rank).all())


@pytest.mark.parametrize("kind", ["gated", "saturated", "zero-gate", "zero", "dense", "tiny"])
def test_both_ess_agree_with_the_definition(kind: str) -> None:
    op = recurrence(kind, 29, 4, batch=(2, 3))
    for tau in (1e-1, 1e-3, 1e-5):
        torch.testing.assert_close(tolerance_ess(op, tau), reference_tolerance_ess(op, tau))
    expected = reference_entropy_ess(op)
    torch.testing.assert_close(entropy_ess(op), expected, rtol=1e-10, atol=0)


@pytest.mark.parametrize("d", [0, 2])
@pytest.mark.parametrize("kind", RECURRENCE_KINDS)
def test_causal_ess_counts_the_rank_of_the_state(kind: str, d: int) -> None:
    op = recurrence(kind, 19, 4, d=d)
    tau = 1e-8 * float(op.B.abs().max())
    torch.testing.assert_close(causal_ess(op, tau), reference_causal_ess(op, tau))


def test_operator_is_the_sum_of_eq_1() -> None:
    op = recurrence("dense", 6, 3, batch=(), d=2)
    direct = normal(6, 2, 2, seed=9)
    op = Recurrence(op.A, op.B, op.C, direct)
    u, state, outputs = normal(6, 2, seed=3), torch.zeros(3, dtype=torch.float64), []
    for i in range(6):
        outputs.append(op.C[i] @ state + direct[i] @ u[i])
        state = op.A[i] @ state + op.B[i] @ u[i]
    torch.testing.assert_close(op.operator() @ u.flatten(), torch.cat(outputs))


def test_leading_dimensions_broadcast() -> None:
    heads, batch, length, n = 3, 4, 12, 2
    a = torch.rand(heads, 1, length, n, generator=generator(0), dtype=torch.float64)
    b, c = normal(heads, batch, length, n, seed=1), normal(1, batch, length, n, seed=2)
    shared = singular_values(Recurrence(a, b, c))
    assert shared.shape == (heads, batch, length - 1, n)
    full = Recurrence(*torch.broadcast_tensors(a, b, c))
    torch.testing.assert_close(shared, singular_values(full), rtol=0, atol=0)


def test_pieces_do_not_change_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    op = recurrence("gated", 50, 3, batch=(5,))
    whole = singular_values(op)
    monkeypatch.setattr("effstate.ess.recurrent.WORKSPACE_BYTES", 4000)
    torch.testing.assert_close(singular_values(op), whole, rtol=1e-13, atol=1e-13)
    reference = reference_causal_ess(op, 0.5)
    torch.testing.assert_close(causal_ess(op, 0.5), reference)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_any_precision_is_computed_in_float64(dtype: torch.dtype) -> None:
    op = recurrence("gated", 16, 3)
    low = Recurrence(op.A.to(dtype), op.B.to(dtype), op.C.to(dtype))
    same = Recurrence(low.A.double(), low.B.double(), low.C.double())
    torch.testing.assert_close(singular_values(low), singular_values(same), rtol=0, atol=0)


def test_shapes_that_fit_two_readings_prefer_equal_ranks() -> None:
    # L = n: A could be L x n diagonals with a batch of L, or L dense matrices
    a, b, c = normal(4, 4, 4, seed=0), normal(4, 4, seed=1), normal(4, 4, seed=2)
    assert Recurrence(a, b, c).dense
    assert not Recurrence(a, b, c, dense=False).dense
    assert not Recurrence(a, b.expand(4, 4, 4), c.expand(4, 4, 4)).dense
    assert Recurrence(a, b.expand(4, 4, 4), c.expand(4, 4, 4), mimo=True).block_size == 4


@pytest.mark.parametrize(
    "shapes",
    [
        ((8, 3), (8, 2), (8, 3)),
        ((7, 3), (8, 3), (8, 3)),
        ((2, 8, 3), (3, 8, 3), (8, 3)),
        ((3,),) * 3,
    ],
    ids=["state", "length", "batch", "rank"],
)
def test_shapes_that_fit_nothing_are_refused(shapes: tuple[tuple[int, ...], ...]) -> None:
    with pytest.raises(EssError, match="are no recurrence"):
        Recurrence(*(torch.ones(*shape) for shape in shapes))


def test_a_single_index_is_refused() -> None:
    with pytest.raises(EssError, match="at least 2 indices"):
        Recurrence(torch.ones(1, 3), torch.ones(1, 3), torch.ones(1, 3))


def test_integers_are_refused() -> None:
    with pytest.raises(EssError, match="floating point"):
        Recurrence(torch.ones(4, 2, dtype=torch.int64), torch.ones(4, 2), torch.ones(4, 2))


def test_a_wrong_d_is_refused() -> None:
    with pytest.raises(EssError, match="D \\(5,\\) does not fit"):
        Recurrence(torch.ones(4, 2), torch.ones(4, 2), torch.ones(4, 2), torch.ones(5))


@pytest.mark.parametrize("name", ["A", "B", "C"])
def test_a_non_finite_entry_is_located(name: str) -> None:
    parts = {key: torch.ones(2, 3, 8, 4) for key in "ABC"}
    parts[name][1, 2, 5, 0] = float("nan")
    sentence = rf"^{name} of operator \(1, 2\) is not finite at time index 5\.$"
    with pytest.raises(EssError, match=sentence):
        Recurrence(**parts)


def test_an_overflow_is_a_sentence_and_not_a_number() -> None:
    a = torch.full((2, 30, 2), 1e100, dtype=torch.float64)
    op = Recurrence(a, torch.ones_like(a), torch.ones_like(a))
    with pytest.raises(EssError, match=r"operator \(0\) has no spectrum at .* overflow"):
        singular_values(op)


def test_threads_do_not_change_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    op = recurrence("gated", 20, 3, batch=(30,))
    whole = singular_values(op)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    torch.testing.assert_close(singular_values(op), whole, rtol=0, atol=0)


@pytest.mark.parametrize("scale", [1e-170, 1e-100, 1.0, 1e100, 1e150])
def test_spectra_of_any_scale_and_condition(scale: float) -> None:
    # n states of very different strength: squaring alone would lose the weak ones
    op = recurrence("saturated", 24, 5)
    strength = torch.logspace(0, -9, 5, dtype=torch.float64)
    assert_spectra_agree(Recurrence(op.A, op.B * strength * scale, op.C), relative=1e-11)
