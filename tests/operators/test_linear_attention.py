"""The fast product T u against its definition: values, gradients, extremes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from effstate.ess import singular_values
from effstate.operators import DecayFeatures, SoftmaxFeatures, recurrence_from_qk, softmax_operator
from effstate.operators.linear_attention import linear_attention
from effstate.operators.reference import linear_attention_naive

GATES = {"none": None, "weak": 0.1, "medium": 3.0, "strong": 100.0, "closed": 1e4, "open": 0.0}


def features(
    length: int, strength: float | None, *, invariant: bool = False, seed: int = 0
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """C, B, values (2, 3, L, 4) and log decays of the given strength, in float64."""
    generator = torch.Generator().manual_seed(seed)
    C, B, values = torch.randn(3, 2, 3, length, 4, generator=generator, dtype=torch.float64)
    if strength is None:
        return C, B, values, None
    shape = (1, 3, 1, 4) if invariant else (2, 3, length, 4)
    decay = -strength * torch.rand(*shape, generator=generator, dtype=torch.float64)
    return C, B, values, decay


@pytest.mark.parametrize("invariant", [False, True], ids=["input-varying", "invariant"])
@pytest.mark.parametrize("gates", GATES)
@pytest.mark.parametrize("length", [1, 2, 15, 17, 64, 65, 200])
def test_values_and_gradients_equal_the_recurrence(length: int, gates: str, invariant: bool) -> None:
    C, B, values, decay = features(length, GATES[gates], invariant=invariant)
    inputs = [x.requires_grad_() for x in (C, B, values, decay) if x is not None]
    fast = linear_attention(C, B, values, decay, 0.5)
    slow = linear_attention_naive(C, B, values, decay, 0.5)
    torch.testing.assert_close(fast, slow, rtol=1e-9, atol=1e-9)
    weight = torch.randn(fast.shape, generator=torch.Generator().manual_seed(1), dtype=fast.dtype)
    found = torch.autograd.grad((fast * weight).sum(), inputs, allow_unused=True)
    expected = torch.autograd.grad((slow * weight).sum(), inputs, allow_unused=True)
    for a, b in zip(found, expected, strict=True):
        zero = torch.zeros(())
        torch.testing.assert_close(
            a if a is not None else zero, b if b is not None else zero, rtol=1e-8, atol=1e-8
        )


@settings(max_examples=30, deadline=None)
@given(
    length=st.integers(1, 150),
    low=st.floats(-1e5, 0.0),
    seed=st.integers(0, 2**16),
    single=st.booleans(),
)
def test_mixed_gates_in_both_precisions(length: int, low: float, seed: int, single: bool) -> None:
    C, B, values, decay = features(length, 1.0, seed=seed)
    assert decay is not None
    decay = torch.where(decay < -0.5, torch.tensor(low, dtype=torch.float64), decay * 1e-3)
    dtype = torch.float32 if single else torch.float64
    fast = linear_attention(C.to(dtype), B.to(dtype), values.to(dtype), decay.to(dtype), 1.0)
    slow = linear_attention_naive(C, B, values, decay, 1.0)
    tolerance = 1e-3 if single else 1e-9
    torch.testing.assert_close(fast.double(), slow, rtol=tolerance, atol=tolerance * length)


@settings(max_examples=6, deadline=None)
@given(logit=st.sampled_from([-1e4, -100.0, -5.0, 0.0, 5.0, 1e4]), seed=st.integers(0, 99))
def test_no_nan_at_length_4096(logit: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    C, B, values = torch.randn(3, 1, 1, 4096, 4, generator=generator)
    gates = torch.full((1, 1, 4096, 4), logit).requires_grad_()
    output = linear_attention(C, B, values, torch.nn.functional.logsigmoid(gates) / 16, 1.0)
    output.sum().backward()
    assert torch.isfinite(output).all()
    assert gates.grad is not None and torch.isfinite(gates.grad).all()


@pytest.mark.parametrize("gates", ["none", "weak", "medium", "closed"])
def test_operator_and_recurrence_describe_the_same_mixer(gates: str) -> None:
    C, B, values, decay = features(33, GATES[gates])
    described = DecayFeatures(C, B, decay, 0.5)
    torch.testing.assert_close(described.operator() @ values, described.apply(values))
    dense = singular_values(described.operator())
    recurrent = singular_values(described.recurrence())
    width = min(dense.shape[-1], recurrent.shape[-1])
    torch.testing.assert_close(recurrent[..., :width], dense[..., :width], rtol=0, atol=1e-9)


def test_a_decay_per_head_stands_for_that_of_every_state() -> None:
    C, B, _, _ = features(17, GATES["medium"])
    per_head = torch.tensor([0.9] * B.shape[1], dtype=B.dtype).log().view(1, -1, 1, 1)
    short = DecayFeatures(C, B, per_head)
    full = DecayFeatures(C, B, per_head.expand(*B.shape[:-2], *B.shape[-2:]))
    torch.testing.assert_close(short.decay_sum().expand_as(full.decay_sum()), full.decay_sum())
    assert short.decay_sum().shape[-1] == B.shape[-1]
    found, expected = (singular_values(f.recurrence()) for f in (short, full))
    torch.testing.assert_close(found, expected)


def test_softmax_operator_is_causal_with_rows_of_sum_1() -> None:
    C, B, values, _ = features(20, None)
    T = softmax_operator(C, B)
    assert torch.equal(T.triu(1), torch.zeros_like(T))
    torch.testing.assert_close(T.sum(-1), torch.ones_like(T[..., 0]))
    torch.testing.assert_close(SoftmaxFeatures(C, B, 0.5).apply(values), T @ values)


def test_the_default_scale_is_the_inverse_root_of_the_state_size() -> None:
    C, B, _, _ = features(9, None)
    found = recurrence_from_qk(C, B).operator()
    expected = DecayFeatures(C, B, None, 0.5).operator().tril(-1)
    torch.testing.assert_close(found.tril(-1), expected)
