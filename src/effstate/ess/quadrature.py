"""Entropy-ESS of dense operators without a spectrum: sums over singular values from determinants.

Entropy-ESS needs S = sum sigma and E = sum sigma log sigma: log ESS = log S - E / S. Both functions
are fitted, once and for all, by sums of log(1 + sigma^2 / t_j^2) over a few shifts t_j, and those
sums over all singular values of every H_i are log determinants (:mod:`dissection`). The fit's error
is known on all of [0, 1], where the scaled singular values lie, so every value comes with a bound.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from .dissection import log_determinants

SHIFTS = 20
"""Number of shifts t_j."""

SMALLEST_SHIFT, LARGEST_SHIFT = 3e-7, 4.0
_KNEE = 3e-2


@dataclass(frozen=True)
class Fit:
    """sigma ~ sum_j first_j log(1 + sigma^2/t_j^2), sigma log sigma ~ the same with ``second``.

    On [0, 1] the errors are at most first_error (sigma + knee) and second_error (sigma + knee).
    """

    shifts: Tensor
    first: Tensor
    second: Tensor
    first_error: float
    second_error: float
    knee: float


@cache
def fit(count: int = SHIFTS, smallest: float = SMALLEST_SHIFT, knee: float = _KNEE) -> Fit:
    """Weighted least squares on a logarithmic grid, reweighted towards the minimax error."""
    grid = torch.logspace(-10, 0, 3001, dtype=torch.float64)
    shifts = torch.logspace(
        torch.tensor(smallest).log10().item(),
        torch.tensor(LARGEST_SHIFT).log10().item(),
        count,
        dtype=torch.float64,
    )
    weight = 1.0 / (grid + knee)
    basis = torch.log1p((grid.unsqueeze(1) / shifts).square()) * weight.unsqueeze(1)
    size = torch.linalg.vector_norm(basis, dim=0)
    found = []
    for target in (grid, torch.special.xlogy(grid, grid)):
        emphasis = torch.full_like(grid, 1.0 / len(grid))
        best: tuple[float, Tensor] | None = None
        for _ in range(20):
            root = emphasis.sqrt()
            solution = torch.linalg.lstsq(
                basis / size * root.unsqueeze(1),
                (target * weight * root).unsqueeze(1),
                rcond=1e-13,
                driver="gelsd",
            ).solution.squeeze(1)
            error = (basis / size @ solution - target * weight).abs()
            if best is None or float(error.max()) < best[0]:
                best = (float(error.max()), solution / size)
            emphasis = emphasis * (error / error.max() + 1e-3)
            emphasis = emphasis / emphasis.sum()
        assert best is not None
        found.append(best)
    (first_error, first), (second_error, second) = found
    return Fit(shifts, first, second, first_error, second_error, knee)


def entropy_by_determinants(
    operator: Tensor, sizes: Tensor, block_size: int = 1
) -> tuple[Tensor, Tensor]:
    """Entropy-ESS of every H_i and a bound of its relative error, both (k, L-1).

    Args:
        operator: (k, L d, L d) float64, zero above and in the block diagonal, of norm at most 1.
        sizes: (L-1,), the number of singular values of H_i.

    The bound is infinite or NaN where nothing can be said: an empty or nearly empty H_i.
    """
    rule = fit()
    shifts, first, second = (x.to(operator.device) for x in (rule.shifts, rule.first, rule.second))
    sums = log_determinants(operator, shifts, block_size)
    total = torch.einsum("ksi,s->ki", sums, first)
    weighted = torch.einsum("ksi,s->ki", sums, second)
    spread = total + sizes.to(total) * rule.knee
    error = spread * (rule.first_error * (1 + (weighted / total).abs()) + rule.second_error)
    bound = torch.where(total > 0, (error / total).expm1(), float("inf"))
    return (total.log() - weighted / total).exp(), bound
