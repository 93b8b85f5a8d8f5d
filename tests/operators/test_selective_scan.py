"""S6's scan against its definition: values, gradients, extremes; its recurrence against its operator."""

from __future__ import annotations

import importlib

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from effstate import ess
from effstate.operators import SelectiveFeatures, selective_scan, selective_scan_naive

MODULE = importlib.import_module("effstate.operators.selective")


def arguments(
    length: int,
    p: int = 1,
    *,
    batch: int = 3,
    channels: int = 5,
    n: int = 4,
    largest: float = 1.0,
    seed: int = 0,
) -> list[Tensor]:
    """C, B, values, steps and rates in float64; steps lie between 0 and ``largest``."""
    generator = torch.Generator().manual_seed(seed)
    C, B = torch.randn(2, batch, 1, length, n, generator=generator, dtype=torch.float64)
    values = torch.randn(batch, channels, length, p, generator=generator, dtype=torch.float64)
    steps = largest * torch.rand(batch, channels, length, generator=generator, dtype=torch.float64)
    return [C, B, values, steps, torch.arange(1, n + 1, dtype=torch.float64)]


def assert_same(inputs: list[Tensor]) -> None:
    """Equal values and equal gradients of every input."""
    inputs = [x.requires_grad_() for x in inputs]
    fast, slow = selective_scan(*inputs), selective_scan_naive(*inputs)
    torch.testing.assert_close(fast, slow, rtol=1e-9, atol=1e-9)
    weight = torch.randn(fast.shape, generator=torch.Generator().manual_seed(1), dtype=fast.dtype)
    found = torch.autograd.grad((fast * weight).sum(), inputs)
    # one position alone has no decay, so the definition does not depend on the rates
    expected = torch.autograd.grad(
        (slow * weight).sum(), inputs, allow_unused=True, materialize_grads=True
    )
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("group", [1, 700, 2**19], ids=["row by row", "uneven groups", "one group"])
@pytest.mark.parametrize("p", [1, 3], ids=["one input", "three inputs"])
@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 32, 70])
def test_values_and_gradients_equal_the_recurrence(
    length: int, p: int, group: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MODULE, "GROUP_ELEMENTS", group)
    assert_same(arguments(length, p))


@settings(max_examples=40, deadline=None)
@given(
    length=st.integers(1, 40),
    batch=st.integers(1, 4),
    channels=st.integers(1, 5),
    n=st.integers(1, 7),
    p=st.integers(1, 3),
    extreme=st.sampled_from([0.0, 1e-300, 1e-12, 1e-3, 30.0, 1e3, 1e6]),
    seed=st.integers(0, 2**16),
)
def test_any_shape_and_extreme_steps(
    length: int, batch: int, channels: int, n: int, p: int, extreme: float, seed: int
) -> None:
    C, B, values, steps, rates = arguments(
        length, p, batch=batch, channels=channels, n=n, largest=0.1, seed=seed
    )
    # large inputs would hide errors behind the tolerance: B takes what the steps add
    B = B / max(extreme, 1.0)
    assert_same([C, B, values, torch.where(steps < 0.05, extreme, steps), rates])


@pytest.mark.parametrize("largest", [1e-8, 0.1, 1e5], ids=["remember", "medium", "forget"])
def test_long_rows_in_single_precision(largest: float) -> None:
    inputs = arguments(2048, batch=1, largest=largest)
    inputs[1] /= max(largest, 1.0)
    single = [x.float().requires_grad_() for x in inputs]
    fast = selective_scan(*single)
    slow = selective_scan_naive(*inputs)
    torch.testing.assert_close(fast.double(), slow, rtol=1e-3, atol=1e-3 * float(slow.abs().max()))
    assert all(torch.isfinite(g).all() for g in torch.autograd.grad(fast.sum(), single))


def test_one_row_of_features_serves_all_rows_of_values() -> None:
    C, B, values, steps, rates = arguments(20)
    assert_same([C[:1], B[:1], values, steps[:1], rates])


def test_the_operator_is_registered_as_torch_wants_it() -> None:
    C, B, values, steps, rates = arguments(20)
    given_ = [x.requires_grad_() for x in (C[:, 0], B[:, 0], values, steps, rates)]
    torch.library.opcheck(MODULE._scan, given_)


# ------------------------------------------------------------------------------------- features


def features(length: int, n: int = 4, skip: bool = True) -> tuple[SelectiveFeatures, Tensor]:
    C, B, values, steps, rates = arguments(length, n=n)
    return SelectiveFeatures(C, B, steps, rates, torch.linspace(-1, 1, 5) if skip else None), values


@pytest.mark.parametrize("skip", [False, True], ids=["no skip", "skip"])
@pytest.mark.parametrize("length", [2, 19])
def test_operator_apply_and_recurrence_are_one(length: int, skip: bool) -> None:
    described, values = features(length, skip=skip)
    T = described.operator()
    assert T.shape == (3, 5, length, length)
    torch.testing.assert_close(T @ values, described.apply(values))
    recurrence = described.recurrence()
    torch.testing.assert_close(recurrence.operator(), T)
    spelt = ess.Recurrence(
        recurrence.A, recurrence.B, recurrence.C, recurrence.D, dense=False, mimo=False
    )
    torch.testing.assert_close(spelt.operator(), T)
    torch.testing.assert_close(described.log_decay.exp(), recurrence.A)


@pytest.mark.parametrize(("length", "n", "path"), [(40, 4, "qr"), (14, 9, "svd")])
def test_ess_of_the_recurrence_is_that_of_the_operator(length: int, n: int, path: str) -> None:
    described, _ = features(length, n)
    profile = ess.measure(described.recurrence(), (1e-1, 1e-6))
    assert profile.method == path
    T = described.operator()
    torch.testing.assert_close(profile.entropy, ess.reference_entropy_ess(T), rtol=1e-7, atol=1e-7)
    for tolerance, counts in profile.tolerance.items():
        assert torch.equal(counts, ess.reference_tolerance_ess(T, tolerance))
    causal = ess.causal_ess(described.recurrence(), 1e-3)
    assert torch.equal(causal, ess.reference_causal_ess(described.recurrence(), 1e-3))


def test_a_recurrence_without_a_spectrum_is_refused() -> None:
    described, _ = features(6)
    described.steps[1, 2, 3] = float("nan")
    with pytest.raises(ess.EssError, match=r"steps of operator \(1, 2\) is not finite at time index 3"):
        described.recurrence()
    with pytest.raises(ess.EssError, match="at least 2 indices"):
        features(1)[0].recurrence()
