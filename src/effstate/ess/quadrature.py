"""Entropy-ESS of dense operators without a spectrum: sums over singular values from determinants.

Entropy-ESS needs S = sum sigma and E = sum sigma log sigma: log ESS = log S - E / S. Both functions
are fitted, once and for all, by sums of log(1 + sigma^2 / t_j^2) over a few shifts t_j, and those
sums over all singular values of every H_i are log determinants (:mod:`dissection`). The fit's error
is known on all of [0, 1], where the scaled singular values lie, so every value comes with a bound.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from .dissection import log_determinants
from .summary import FLOOR_TERM, PROBABILITY_FLOOR
from .triangles import exact_log_determinants

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


LEVELS = (1e-6, 1e-7, 1e-8, 1e-10, 1e-12, 1e-14)
"""The precise fit tries these as the smallest singular value that it has to represent, in turn."""

PRECISE_BOUND = 1e-8
"""Proven relative error from which on the precise fit is not used."""

TRIANGLES_BELOW = 1e-5
"""Shifts below this take their determinants from triangles: forming squares would lose too much."""

_START, _STEP, _BEYOND = 8.0, 0.47, 10.0
_SUMS_BYTES = 64 * 2**20

_EMPTY = 1e-11
"""A sum up to this is that of a zero H_i, but for rounding: it calls for no smaller shifts."""


@dataclass(frozen=True)
class PreciseFit:
    """As :class:`Fit`, over ``shifts`` (s,), for singular values that are not below ``smallest``.

    On [smallest, 1] the error for sigma is at most first_error (sigma + knee), that for sigma log
    sigma at most second_error (sigma - sigma log sigma + knee). Below, they are at most first_below
    and second_below.
    """

    shifts: Tensor
    first: Tensor
    second: Tensor
    first_error: float
    second_error: float
    first_below: float
    second_below: float
    smallest: float
    knee: float


@cache
def precise_fit(smallest: float) -> PreciseFit:
    """Least squares on a logarithmic grid; the shifts continue those of a larger ``smallest``."""
    count = math.ceil(math.log(_START * _BEYOND / smallest) / _STEP) + 1
    shifts = _START * torch.exp(-_STEP * torch.arange(count, dtype=torch.float64))
    decades = round(-math.log10(smallest))
    grid = torch.logspace(-decades, 0, 250 * decades + 1, dtype=torch.float64)
    below = torch.logspace(-decades - 5, -decades, 501, dtype=torch.float64)
    knee = 100.0 * smallest
    basis, basis_below = (torch.log1p((x.unsqueeze(1) / shifts).square()) for x in (grid, below))
    found = []
    for power in (0, 1):
        target, target_below = (x * x.log() ** power for x in (grid, below))
        allowed = grid + knee - power * torch.special.xlogy(grid, grid)
        scaled = basis / allowed.unsqueeze(1)
        size = torch.linalg.vector_norm(scaled, dim=0)
        weights = torch.zeros_like(shifts)
        for _ in range(2):  # the second solution refines the first
            left = (target / allowed - scaled @ weights).unsqueeze(1)
            solution = torch.linalg.lstsq(scaled / size, left, rcond=1e-14, driver="gelsd").solution
            weights = weights + solution.squeeze(1) / size
        error = (scaled @ weights - target / allowed).abs().max()
        error_below = (basis_below @ weights - target_below).abs().max()
        found.append((weights, float(error), float(error_below)))
    (first, first_error, first_below), (second, second_error, second_below) = found
    return PreciseFit(
        shifts,
        first,
        second,
        first_error,
        second_error,
        first_below,
        second_below,
        smallest,
        knee,
    )


def precise_entropy(operator: Tensor, sizes: Tensor, block_size: int = 1) -> tuple[Tensor, Tensor]:
    """As :func:`entropy_by_determinants`, to about 1e-9.

    Few singular values are small in most operators, and how many there are is known from the
    determinants themselves. So smaller shifts are only taken for operators that need them. What
    clipping p at its floor adds, at most 2.8e-11 a singular value, comes from smoothed counts.
    """
    shifts = len(precise_fit(LEVELS[-1]).shifts)
    together = max(1, _SUMS_BYTES // (8 * shifts * max(1, len(sizes))))
    parts = [_precise_entropy(part, sizes, block_size) for part in operator.split(together)]
    entropy, bound = (torch.cat(x) for x in zip(*parts, strict=True))
    return entropy, bound


def _precise_entropy(operator: Tensor, sizes: Tensor, block_size: int) -> tuple[Tensor, Tensor]:
    entropy = operator.new_zeros(len(operator), len(sizes))
    bound = torch.full_like(entropy, float("inf"))
    sums = operator.new_zeros(len(operator), 0, len(sizes))
    open_ = torch.arange(len(operator), device=operator.device)
    for smallest in LEVELS:
        rule = precise_fit(smallest)
        new = rule.shifts[sums.shape[1] :].to(operator.device)
        squared = new >= TRIANGLES_BELOW
        parts = [sums]
        if bool(squared.any()):
            parts.append(log_determinants(operator[open_], new[squared], block_size))
        if not bool(squared.all()):
            parts.append(exact_log_determinants(operator[open_], new[~squared], block_size))
        sums = torch.cat(parts, dim=1)
        values, errors = _precise_values(sums, sizes.to(sums), rule, smallest == LEVELS[-1])
        entropy[open_], bound[open_] = values, errors
        empty = sums[:, -1] <= _EMPTY
        left = ((errors > PRECISE_BOUND) & ~empty).any(-1)
        open_, sums = open_[left], sums[left]
        if not len(open_):
            break
    return entropy, bound


def _precise_values(sums: Tensor, sizes: Tensor, rule: PreciseFit, clip: bool) -> tuple[Tensor, Tensor]:
    """Entropy-ESS and its bound (k, L-1) from log determinants (k, s, L-1)."""
    total = torch.einsum("ksi,s->ki", sums, rule.first.to(sums))
    weighted = torch.einsum("ksi,s->ki", sums, rule.second.to(sums))
    below = _at_most_below(sums, sizes, rule)
    first = rule.first_error * (total + sizes * rule.knee) + below * rule.first_below
    second = rule.second_error * (total - weighted + sizes * rule.knee) + below * rule.second_below
    log_entropy = total.log() - weighted / total
    error = (first * (1 + (weighted / total).abs()) + second) / total
    if clip:
        # p below the floor counts as the floor, which adds floor (1 - x (1 + ...)), x = p / floor:
        # integrated over log p as much as a step at x = 1 / e
        floor = total * PROBABILITY_FLOOR
        fewest, count, most = (
            _count_below(sums, sizes, rule.shifts, floor * x) for x in (1e-2, math.exp(-1), 10.0)
        )
        log_entropy = log_entropy + count * FLOOR_TERM
        error = error + (most - fewest) * FLOOR_TERM
    else:
        error = error + below * FLOOR_TERM
    good = (total > 0) & (error >= 0)
    bound = torch.where(good, error.expm1(), float("inf"))
    return torch.where(good, log_entropy.exp(), 0.0), bound


def _at_most_below(sums: Tensor, sizes: Tensor, rule: PreciseFit) -> Tensor:
    """No fewer than the singular values below ``rule.smallest`` of every H_i: (k, L-1).

    From sum log((t^2 + sigma^2) / (u^2 + sigma^2)), t > u: every term is positive, and those of
    smaller sigma are larger.
    """
    u, before = float(rule.shifts[-1]), int((rule.shifts > rule.smallest).sum()) - 1
    t = float(rule.shifts[before])
    spread = 2 * sizes * math.log(t / u) - (sums[:, -1] - sums[:, before])
    least = math.log((t**2 + rule.smallest**2) / (u**2 + rule.smallest**2))
    return torch.minimum((spread / least).clamp_min(0.0), sizes)


def _count_below(sums: Tensor, sizes: Tensor, shifts: Tensor, limit: Tensor) -> Tensor:
    """About how many singular values of every H_i are below ``limit`` (k, L-1), as a real number.

    The slope of the sums in log t, at the nearest shifts.
    """
    above = (sums[:, 2:] - sums[:, :-2]) / (4 * _STEP)
    place = (math.log(_START) - limit.clamp_min(1e-300).log()) / _STEP - 1
    place = place.clamp(0, above.shape[1] - 1)
    low = place.floor().long().clamp_max(above.shape[1] - 2)
    part = place - low
    at = [above.gather(1, (low + x).unsqueeze(1)).squeeze(1) for x in (0, 1)]
    return (sizes - (at[0] * (1 - part) + at[1] * part)).clamp_min(0.0)
