"""Operators given as a matrix: values, both ESS, and what is refused."""

from __future__ import annotations

import math

import pytest
import torch
from ess_cases import OPERATOR_KINDS, normal, operator, recurrence
from hypothesis import given, settings
from hypothesis import strategies as st

from effstate.ess import (
    EssError,
    causal_ess,
    entropy_ess,
    measure,
    reference_entropy_ess,
    reference_singular_values,
    reference_tolerance_ess,
    singular_values,
    tolerance_ess,
)


@pytest.mark.parametrize("kind", OPERATOR_KINDS)
def test_spectra_and_both_ess_agree_with_the_definition(kind: str) -> None:
    op = operator(kind, 21, batch=(2, 2))
    torch.testing.assert_close(singular_values(op), reference_singular_values(op), rtol=1e-12, atol=0)
    profile = measure(op)
    for tau, counts in profile.tolerance.items():
        torch.testing.assert_close(counts, reference_tolerance_ess(op, tau))
    expected = reference_entropy_ess(op)
    torch.testing.assert_close(profile.entropy, expected, rtol=1e-10, atol=0)


def test_h_is_rows_from_i_and_columns_before_i() -> None:
    op = normal(5, 5, seed=0).tril()
    by_hand = torch.linalg.svdvals(op[2:, :2])
    torch.testing.assert_close(singular_values(op)[1, :2], by_hand)


def test_known_values() -> None:
    # a shift by one: H_i has the single entry 1, whatever i
    shift = torch.diag(torch.ones(7), -1)
    torch.testing.assert_close(tolerance_ess(shift, 0.5), torch.ones(7, dtype=torch.int64))
    assert bool((tolerance_ess(shift, 1.0) == 0).all()), "the comparison is strict"
    torch.testing.assert_close(entropy_ess(shift), torch.ones(7, dtype=torch.float64))
    # a shift by four: min(i, L - i, 4) equal singular values
    four = entropy_ess(torch.diag(torch.ones(4), -4))
    torch.testing.assert_close(four, torch.tensor([1.0, 2, 3, 4, 3, 2, 1]).double())


def test_entropy_of_two_known_singular_values() -> None:
    op = torch.zeros(4, 4, dtype=torch.float64)
    op[2, 0], op[3, 1] = 3.0, 1.0
    expected = math.exp(-(0.75 * math.log(0.75) + 0.25 * math.log(0.25)))
    assert entropy_ess(op)[1].item() == pytest.approx(expected, rel=1e-14)


def test_zero_blocks_have_no_ess_and_are_counted() -> None:
    op = operator("random", 9, batch=(2,))
    op[0] = 0.0
    op[1, 4:, :4] = 0.0
    profile = measure(op)
    assert profile.zero_blocks == 8 + 1
    assert bool((profile.entropy[0] == 0).all()) and profile.entropy[1, 3] == 0
    assert bool((profile.entropy[1, [0, 1, 2, 4]] > 0).all())


@pytest.mark.parametrize("d", [2, 3])
def test_blocks_of_a_mimo_operator(d: int) -> None:
    op = recurrence("gated", 8, 4, d=d).operator()
    profile = measure(op, (1e-3,), block_size=d)
    assert profile.entropy.shape == (2, 7)
    for i in range(1, 8):
        sigma = torch.linalg.svdvals(op[:, i * d :, : i * d])
        torch.testing.assert_close(profile.tolerance[1e-3][:, i - 1], (sigma > 1e-3).sum(-1))
    # inside a diagonal block everything is allowed
    op[..., 0, d - 1] = 5.0
    torch.testing.assert_close(measure(op, (), block_size=d).entropy, profile.entropy)


@settings(max_examples=40, deadline=None)
@given(
    length=st.integers(2, 20),
    kind=st.sampled_from(OPERATOR_KINDS),
    seed=st.integers(0, 2**20),
    factor=st.sampled_from([1e-3, 2.0, 1e5]),
)
def test_entropy_does_not_see_the_scale(length: int, kind: str, seed: int, factor: float) -> None:
    op = operator(kind, max(length, 4), seed=seed)
    torch.testing.assert_close(entropy_ess(factor * op), entropy_ess(op), rtol=1e-8, atol=0)


@settings(max_examples=30, deadline=None)
@given(length=st.integers(4, 20), seed=st.integers(0, 2**20), tau=st.floats(1e-6, 2.0))
def test_tolerance_ess_of_the_reversed_operator(length: int, seed: int, tau: float) -> None:
    # reversing time and transposing turns H_i into the transpose of H_{L-i}
    op = operator("softmax-1", length, seed=seed)
    back = op.mT.flip(-1, -2)
    torch.testing.assert_close(tolerance_ess(back, tau), tolerance_ess(op, tau).flip(-1))


def test_several_tolerances_come_as_a_dictionary() -> None:
    op = operator("softmax-1", 12)
    found = tolerance_ess(op, [1e-1, 1e-3])
    assert sorted(found) == [1e-3, 1e-1]
    torch.testing.assert_close(found[1e-3], tolerance_ess(op, 1e-3))
    assert found[1e-3].dtype == torch.int64


def test_a_dense_operator_has_its_whole_past_as_causal_state() -> None:
    op = operator("softmax-1", 6)
    torch.testing.assert_close(causal_ess(op, 1e-3), torch.arange(1, 6).expand(2, 5))
    torch.testing.assert_close(causal_ess(op, 1e-3, block_size=2), torch.tensor([[2, 4]] * 2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_any_precision_is_computed_in_float64(dtype: torch.dtype) -> None:
    op = operator("softmax-1", 16).to(dtype)
    assert singular_values(op).dtype == torch.float64
    torch.testing.assert_close(singular_values(op), singular_values(op.double()), rtol=0, atol=0)


def test_pieces_do_not_change_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    op = operator("softmax-1", 16, batch=(3, 2))
    whole = measure(op)
    monkeypatch.setattr("effstate.ess.dense.WORKSPACE_BYTES", 1)
    parts = measure(op)
    torch.testing.assert_close(parts.entropy, whole.entropy, rtol=1e-12, atol=0)
    torch.testing.assert_close(parts.tolerance[1e-3], whole.tolerance[1e-3])


def test_empty_batches_give_empty_results() -> None:
    assert measure(torch.zeros(0, 3, 8, 8)).entropy.shape == (0, 3, 7)


@pytest.mark.parametrize(
    "value,block,sentence",
    [
        (torch.ones(3, 4).tril(), 1, r"must be square"),
        (torch.ones(4), 1, r"must be square"),
        (torch.ones(1, 1), 1, r"at least 2 indices"),
        (torch.ones(5, 5).tril(), 2, r"no whole number of blocks of 2"),
        (torch.ones(4, 4).tril(), 4, r"at least 2 indices"),
        (torch.ones(4, 4).tril(), 0, r"at least 1"),
        (torch.ones(4, 4, dtype=torch.int64), 1, r"floating point"),
        (torch.ones(4, 4, dtype=torch.complex64), 1, r"real"),
        ([[1.0]], 1, r"must be a torch.Tensor"),
    ],
    ids=[
        "not-square",
        "vector",
        "one-index",
        "odd-blocks",
        "one-block",
        "zero-block",
        "int",
        "complex",
        "list",
    ],
)
def test_wrong_shapes_are_refused(value: object, block: int, sentence: str) -> None:
    with pytest.raises(EssError, match=sentence):
        measure(value, block_size=block)


def test_a_non_causal_operator_is_located() -> None:
    op = operator("softmax-1", 8, batch=(2, 3))
    op[1, 2, 3, 6] = 1e-3
    sentence = r"^operator \(1, 2\) is not causal: row 3, column 6 is not zero\.$"
    with pytest.raises(EssError, match=sentence):
        entropy_ess(op)
    op[1, 2, 3, 6] = 1e-17
    entropy_ess(op)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_non_finite_entry_is_located(value: float) -> None:
    op = operator("softmax-1", 8)
    op[1, 5, 2] = value
    with pytest.raises(EssError, match=r"^operator \(1\) is not finite at row 5, column 2\.$"):
        entropy_ess(op)


def test_a_failing_decomposition_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: torch.Tensor) -> torch.Tensor:
        raise torch.linalg.LinAlgError("did not converge")

    monkeypatch.setattr(torch.linalg, "svdvals", fail)
    with pytest.raises(EssError, match=r"operator \(0\) has no spectrum at index 1"):
        singular_values(operator("random", 6))
    with pytest.raises(EssError, match=r"has no spectrum at time index 1"):
        singular_values(recurrence("gated", 6, 2))


def test_unknown_methods_and_tolerances_are_refused() -> None:
    op = operator("random", 6)
    with pytest.raises(EssError, match="no method"):
        measure(op, method="guess")
    with pytest.raises(EssError, match="needs a Recurrence"):
        measure(op, method="qr")
    for bad in (-1.0, float("nan"), float("inf")):
        with pytest.raises(EssError, match="a tolerance must be"):
            tolerance_ess(op, bad)
