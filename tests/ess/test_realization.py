"""Minimal realisations: the operator comes back, and the state is as small as the ESS says."""

from __future__ import annotations

import pytest
import torch
from ess_cases import OPERATOR_KINDS, RECURRENCE_KINDS, operator, recurrence

from effstate.ess import (
    EssError,
    minimal_realization,
    reduce_recurrence,
    reference_tolerance_ess,
)


@pytest.mark.parametrize("kind", OPERATOR_KINDS)
def test_an_operator_comes_back(kind: str) -> None:
    op = operator(kind, 23, batch=())
    found = minimal_realization(op)
    largest = float(op.abs().max())
    assert found.error <= 1e-12 * largest
    assert float((found.operator() - op).abs().max()) == found.error
    torch.testing.assert_close(
        found.state_sizes, reference_tolerance_ess(op, found.tolerance), rtol=0, atol=0
    )


def test_blocks_of_a_mimo_operator() -> None:
    op = recurrence("gated", 9, 3, batch=(), d=2).operator()
    found = minimal_realization(op, block_size=2)
    assert found.error <= 1e-12 * float(op.abs().max())
    assert int(found.state_sizes.max()) == 3
    assert found.B[2].shape[-1] == 2 and found.C[2].shape[0] == 2


@pytest.mark.parametrize("tau", [1e-3, 1e-2, 1e-1, 10.0])
def test_a_larger_tolerance_gives_smaller_states_and_says_its_error(tau: float) -> None:
    op = operator("softmax-1", 24, batch=())
    found = minimal_realization(op, tau)
    torch.testing.assert_close(found.state_sizes, reference_tolerance_ess(op, tau))
    difference = found.operator() - op
    assert found.error == pytest.approx(float(difference.abs().max()))
    norms = torch.linalg.matrix_norm(difference) / torch.linalg.matrix_norm(op)
    assert found.relative_error == pytest.approx(float(norms))
    # every index adds at most what its truncation leaves out
    assert found.error <= 24 * tau


@pytest.mark.parametrize("d", [0, 2])
@pytest.mark.parametrize("kind", RECURRENCE_KINDS)
def test_a_recurrence_is_reduced(kind: str, d: int) -> None:
    op = recurrence(kind, 14, 5, batch=(), d=d)
    found = reduce_recurrence(op)
    given = op.operator()
    assert found.error <= 1e-11 * float(given.abs().max())
    torch.testing.assert_close(
        found.state_sizes, reference_tolerance_ess(op, found.tolerance), rtol=0, atol=0
    )


def test_a_state_that_nothing_reads_is_dropped() -> None:
    op = recurrence("rank-deficient", 16, 6, batch=())
    assert int(reduce_recurrence(op).state_sizes.max()) == 3


def test_one_operator_at_a_time() -> None:
    with pytest.raises(EssError, match="one operator at a time"):
        minimal_realization(operator("random", 6))
    with pytest.raises(EssError, match="one recurrence at a time"):
        reduce_recurrence(recurrence("gated", 6, 2))
