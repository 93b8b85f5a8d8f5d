"""Averages, totals, the geometric ceiling and utilisation."""

from __future__ import annotations

import pytest
import torch
from ess_cases import normal, recurrence

from effstate.ess import (
    EssError,
    average_ess,
    entropy_ess,
    geometric_ceiling,
    tolerance_ess,
    total_ess,
    utilisation,
)

VALUES = normal(2, 4, 3, 7, seed=0).abs()


def test_the_average_divides_by_the_indices_that_exist() -> None:
    counts = torch.ones(1, 1, 1, 7, dtype=torch.int64)
    assert average_ess(counts).item() == 1.0
    torch.testing.assert_close(average_ess(VALUES, (0, 2)), VALUES.mean(dim=(0, 2)))
    with pytest.raises(EssError, match="no ESS"):
        average_ess(VALUES[:0])


def test_totals_over_heads_and_channels_differ_by_the_channels_of_a_head() -> None:
    heads = total_ess(VALUES)
    torch.testing.assert_close(heads, VALUES.sum(1))
    assert average_ess(heads).item() == pytest.approx(4 * average_ess(VALUES).item())
    channels = total_ess(VALUES, over="channels", channels_per_head=16)
    torch.testing.assert_close(channels, 16 * heads)


@pytest.mark.parametrize("how", ["mean", "sum"])
def test_layers_are_reduced_on_demand(how: str) -> None:
    total = total_ess(VALUES, layers=how)
    torch.testing.assert_close(total, getattr(VALUES.sum(1), how)(0))


def test_totals_name_what_they_sum_over() -> None:
    with pytest.raises(EssError, match="needs channels_per_head"):
        total_ess(VALUES, over="channels")
    with pytest.raises(EssError, match="takes no channels_per_head"):
        total_ess(VALUES, channels_per_head=2)
    with pytest.raises(EssError, match="'heads' or 'channels'"):
        total_ess(VALUES, over="layers")
    with pytest.raises(EssError, match="no head axis"):
        total_ess(VALUES[0, 0])
    with pytest.raises(EssError, match="both the layers and the heads"):
        total_ess(VALUES, head_dim=0, layers="sum")


def test_the_ceiling_is_reached_by_a_saturated_state() -> None:
    length, n = 20, 3
    op = recurrence("saturated", length, n)
    reached = average_ess(tolerance_ess(op, 1e-9))
    assert reached.item() == pytest.approx(geometric_ceiling(n, length).item())
    assert bool((average_ess(entropy_ess(op), -1) <= geometric_ceiling(n, length)).all())


def test_the_ceiling_by_hand() -> None:
    # min(2, i, 5 - i) = 1, 2, 2, 1
    assert geometric_ceiling(2, 5).item() == 1.5
    growing = torch.tensor([[1, 2, 3, 4], [1, 1, 1, 1]])
    torch.testing.assert_close(geometric_ceiling(growing, 5), torch.tensor([1.5, 1.0]).double())
    with pytest.raises(EssError, match="not one per index"):
        geometric_ceiling(torch.ones(3), 5)
    with pytest.raises(EssError, match="no index"):
        geometric_ceiling(2, 1)


def test_utilisation() -> None:
    torch.testing.assert_close(utilisation(VALUES, 4), VALUES / 4)
    with pytest.raises(EssError, match="above 0"):
        utilisation(VALUES, 0)
