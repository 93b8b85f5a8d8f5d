"""Statistics of claims with bootstrap intervals, beside those of correlation.py."""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy import stats

from effstate.analysis.correlation import Array, correlation_differences, spearman

RESAMPLES = 2000
LEVEL = 0.95


@dataclass(frozen=True)
class Estimate:
    """A statistic, the ends of its 95% interval (NaN if there is none), and the units behind it."""

    value: float
    low: float
    high: float
    n: int


NOTHING = Estimate(np.nan, np.nan, np.nan, 0)
"""The estimate without a unit to estimate from."""


def bootstrap(statistic: Callable[..., Array], *samples: Array, key: str) -> Estimate:
    """A statistic of samples (..., n) and its percentile interval, samples resampled on their own.

    ``statistic`` maps arrays (..., n_1), (..., n_2), ... to (...); what stands in one column of a
    sample is resampled together. The generator depends on ``key`` only. :data:`NOTHING` if a sample
    is empty; no interval if one has a single unit.
    """
    sizes = [sample.shape[-1] for sample in samples]
    if not sizes or min(sizes) == 0:
        return NOTHING
    with np.errstate(invalid="ignore", divide="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", stats.DegenerateDataWarning)  # resamples without a value
        value = float(statistic(*samples))
        if min(sizes) < 2 or not np.isfinite(value):
            return Estimate(value, np.nan, np.nan, sum(sizes))
        drawn = stats.bootstrap(
            samples,
            lambda *resampled, axis: statistic(*resampled),
            n_resamples=RESAMPLES,
            vectorized=True,
            axis=-1,
            method="percentile",
            random_state=np.random.default_rng(zlib.crc32(key.encode())),
        ).bootstrap_distribution
    drawn = drawn[np.isfinite(drawn)]
    tail = (1 - LEVEL) / 2
    low, high = np.quantile(drawn, [tail, 1 - tail]) if drawn.size else (np.nan, np.nan)
    return Estimate(value, float(low), float(high), sum(sizes))


def difference(a: Array, b: Array) -> Array:
    """Mean of ``a`` minus mean of ``b``, along the last axis."""
    return a.mean(axis=-1) - b.mean(axis=-1)


def mean(a: Array) -> Array:
    """Mean along the last axis."""
    return a.mean(axis=-1)


def of_means(statistic: Callable[[Array], Array]) -> Callable[..., Array]:
    """The function of samples that applies ``statistic`` to their means, (..., samples)."""
    return lambda *samples: statistic(np.stack([mean(s) for s in samples], axis=-1))


def ranks(x: Array, y: Array) -> Array:
    """Spearman correlation along the last axis; NaN for fewer than three values."""
    return spearman(x, y) if y.shape[-1] >= 3 else np.full(y.shape[:-1], np.nan)


def slope(x: Array, y: Array) -> Array:
    """Least-squares slope of y over x along the last axis."""
    centred = x - x.mean(axis=-1, keepdims=True)
    return (centred * y).sum(axis=-1) / (centred**2).sum(axis=-1)


def cells(rows: pd.DataFrame, by: str, *columns: str) -> tuple[Array, list[Array]]:
    """The values of ``by``, sorted, and per value its runs' columns, (columns, runs)."""
    groups = [(key, group[[*columns]].to_numpy(float).T) for key, group in rows.groupby(by)]
    return np.array([key for key, _ in groups], dtype=float), [sample for _, sample in groups]


def by_cluster(
    statistic: Callable[[Array], Array], rows: pd.DataFrame, by: str, *columns: str
) -> Estimate:
    """A statistic of columns (columns, ..., rows), its interval by resampling whole values of ``by``."""
    values = rows[[*columns]].to_numpy(float).T
    clusters = [*rows.groupby(by).indices.values()]

    def of_draws(index: Array) -> Array:
        drawn = [np.concatenate([clusters[i] for i in draw]) for draw in np.atleast_2d(index)]
        found = np.empty(len(drawn))
        sizes = np.array([len(places) for places in drawn])
        for size in np.unique(sizes):  # clusters may differ in size: equal draws at once
            here = np.flatnonzero(sizes == size)
            found[here] = statistic(values[:, np.stack([drawn[i] for i in here])])
        return found.reshape(index.shape[:-1])

    return bootstrap(of_draws, np.arange(len(clusters)), key=by)


def correlation_gaps(
    table: pd.DataFrame, pair: tuple[str, str], statistic: str, group: str = "featurizer"
) -> dict[str, Estimate]:
    """Per group: r(accuracy, first of the pair) - r(accuracy, second), jointly resampled over runs."""
    found = correlation_differences(
        table, [pair], group=group, statistics=(statistic,), resamples=RESAMPLES
    )
    columns = [group, "difference", "low", "high", "n"]
    return {str(name): Estimate(*rest) for name, *rest in found[columns].itertuples(index=False)}


def paired(rows: pd.DataFrame, value: str, names: Iterable[str], by: str, keys: list[str]) -> Array:
    """``value`` of each of ``names`` (in ``by``) in the cells that all of them have: (names, cells)."""
    table = rows.pivot_table(index=keys, columns=by, values=value).reindex(columns=[*names]).dropna()
    return table.to_numpy(float).T
