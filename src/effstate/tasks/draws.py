"""Random draws over blocks of rows, built from ``Generator.random`` alone.

Philox doubles are the same on every machine and in every numpy version; ``choice``, ``permutation``
and ``exponential`` promise neither. What follows uses only operations that IEEE 754 rounds exactly
(no ``np.log``, whose last bit differs between processors), so that equal seeds give equal tokens.
"""

from __future__ import annotations

from decimal import Context, Decimal
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

_DECK_ENTRIES = 2**22
"""Entries of the decks shuffled at once by :func:`distinct`: bounds its memory to 16 MiB."""

_LN2 = 0.6931471805599453
_SERIES_TERMS = 12


def integers(
    rng: np.random.Generator, shape: tuple[int, ...], high: int, dtype: DTypeLike = np.int64
) -> NDArray[Any]:
    """Independent uniform integers from 0..high-1, of the given shape and dtype."""
    return (rng.random(shape) * high).astype(dtype)


def distinct(rng: np.random.Generator, rows: int, pool: int, count: int) -> NDArray[np.int32]:
    """``count`` distinct uniform integers from 0..pool-1 in each row, in the order drawn.

    A partial Fisher-Yates shuffle, vectorised over rows. Returns shape (rows, count); takes
    rows * count doubles. Raises ValueError if the pool is smaller than ``count``.
    """
    if count > pool:
        raise ValueError(f"cannot draw {count} distinct numbers from a pool of {pool}")
    uniform = rng.random((rows, count))
    drawn = np.empty((rows, count), dtype=np.int32)
    chunk = max(1, _DECK_ENTRIES // pool)
    for start in range(0, rows, chunk):
        part = slice(start, min(start + chunk, rows))
        row = np.arange(part.stop - part.start)
        deck = np.tile(np.arange(pool, dtype=np.int32), (len(row), 1))
        for i in range(count):
            j = i + (uniform[part, i] * (pool - i)).astype(np.int64)
            drawn[part, i] = deck[row, j]
            deck[row, j] = deck[:, i]
    return drawn


def exponentials(uniform: NDArray[np.float64]) -> NDArray[np.float64]:
    """Standard exponential variables -log(1 - u) from u in [0, 1), elementwise.

    log m = 2 artanh((m - 1) / (m + 1)) as a series of 12 terms: the error is below 1e-12.
    """
    mantissa, exponent = np.frexp(1.0 - uniform)
    ratio = (mantissa - 1.0) / (mantissa + 1.0)
    square = ratio * ratio
    series = np.full_like(square, 1.0 / (2 * _SERIES_TERMS - 1))
    for term in range(_SERIES_TERMS - 2, -1, -1):
        series *= square
        series += 1.0 / (2 * term + 1)
    series *= ratio
    series *= -2.0
    series -= exponent * _LN2
    return series


@lru_cache(maxsize=64)
def _inverse_weights(slots: int, exponent: float) -> NDArray[np.float64]:
    """(slot / slots)^-exponent for slot = 1..slots: one over the power law's weights."""
    # Decimal arithmetic is the same everywhere; the platform's pow is not.
    context = Context(prec=30, traps=[])
    power = -Decimal(exponent)
    ratios = (context.divide(Decimal(slot), Decimal(slots)) for slot in range(1, slots + 1))
    # The bound keeps extreme laws finite: weights under 1e-300 of the largest count as equal.
    values = [min(float(context.power(ratio, power)), 1e300) for ratio in ratios]
    weights = np.array(values)
    weights.setflags(write=False)
    return weights


def power_law_slots(
    rng: np.random.Generator, rows: int, slots: int, count: int, exponent: float
) -> NDArray[np.int64]:
    """``count`` of the slots 0..slots-1 per row without replacement, in the order drawn.

    Each draw takes slot s among those left with probability proportional to (s + 1)^exponent
    (what ``numpy.random.choice(p=..., replace=False)`` does). Drawn as a race: slot s arrives
    after an exponential time of rate (s + 1)^exponent, and the first ``count`` arrivals win.
    Returns shape (rows, count); takes rows * slots doubles. Raises ValueError if count > slots.
    """
    if count > slots:
        raise ValueError(f"cannot draw {count} distinct slots out of {slots}")
    arrival = exponentials(rng.random((rows, slots)))
    arrival *= _inverse_weights(slots, exponent)
    first = np.argpartition(arrival, count - 1, axis=1)[:, :count]
    order = np.argsort(np.take_along_axis(arrival, first, axis=1), axis=1)
    return np.take_along_axis(first, order, axis=1)
