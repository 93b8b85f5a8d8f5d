"""Correlations across final models and within a run over training (METHOD section 5).

Intervals are percentile bootstrap intervals over runs. A correlation that does not exist (fewer
than three runs, a constant column) is NaN, never 0.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pandas as pd
from scipy import stats

from effstate.analysis.names import order
from effstate.analysis.tables import require

Array = np.ndarray

CONSTANT = 1e-9
"""A column whose range is below this share of its size is constant; averaging leaves such noise."""


def _constant(values: Array) -> Array:
    """Whether values are constant along the last axis: (..., n) -> (...)."""
    # The absolute part is for logarithms around 0, whose rounding is relative to 1.
    return np.ptp(values, axis=-1) <= CONSTANT * np.abs(values).max(axis=-1) + 1e-12


def pearson(x: Array, y: Array) -> Array:
    """Pearson correlation along the last axis: (..., n) twice -> (...); NaN if one is constant."""
    a = x - x.mean(axis=-1, keepdims=True)
    b = y - y.mean(axis=-1, keepdims=True)
    with np.errstate(invalid="ignore", divide="ignore"):
        r = (a * b).sum(axis=-1) / np.sqrt((a * a).sum(axis=-1) * (b * b).sum(axis=-1))
    return np.where(_constant(x) | _constant(y), np.nan, np.clip(r, -1, 1))


def spearman(x: Array, y: Array) -> Array:
    """Spearman correlation along the last axis; ties get mean ranks."""
    r = pearson(stats.rankdata(x, axis=-1), stats.rankdata(y, axis=-1))
    # Ranks would turn rounding noise into an order.
    return np.where(_constant(x) | _constant(y), np.nan, r)


STATISTICS: dict[str, tuple[Callable[[Array, Array], Array], bool]] = {
    "pearson": (pearson, False),
    "pearson_log2": (pearson, True),
    "spearman": (spearman, False),
}
"""Name to (function, whether the x column is taken in log2): ratios, the scatters' axis, ranks."""


def _groups(
    table: pd.DataFrame, columns: Sequence[str], group: str, target: str, log2: bool
) -> Iterator[tuple[str, Array, list[Array], int]]:
    """Per group: its name, y (n,), the x columns (n,), and how many rows were left out.

    Rows without a finite value in any column, or (in log2) without a positive one, are left out.
    """
    require(table, group, target, *columns)
    for name in order(table[group].dropna().unique()):
        rows = table[table[group] == name]
        y = rows[target].to_numpy(dtype=float)
        xs = [rows[c].to_numpy(dtype=float) for c in columns]
        if log2:
            with np.errstate(divide="ignore", invalid="ignore"):
                xs = [np.log2(x) for x in xs]
        finite = np.isfinite(np.stack([y, *xs])).all(axis=0)
        yield name, y[finite], [x[finite] for x in xs], int((~finite).sum())


def _with_interval(
    statistic: Callable[[Array], Array], n: int, key: str, resamples: int, seed: int, level: float
) -> tuple[float, float, float]:
    """The statistic of all n runs and its bootstrap interval.

    ``statistic`` maps run indices (..., n) to values (...). The generator depends on the seed and
    on ``key`` only, so that one group's interval does not move when another group is added.
    """
    if n < 3:
        return np.nan, np.nan, np.nan
    generator = np.random.default_rng([seed, zlib.crc32(key.encode())])
    drawn = statistic(generator.integers(0, n, size=(resamples, n)))
    drawn = drawn[np.isfinite(drawn)]
    value = float(statistic(np.arange(n)))
    if not np.isfinite(value) or drawn.size == 0:
        return value, np.nan, np.nan
    tail = (1 - level) / 2
    low, high = np.quantile(drawn, [tail, 1 - tail])
    return value, float(low), float(high)


def correlations(
    table: pd.DataFrame,
    columns: Sequence[str],
    *,
    group: str = "featurizer",
    target: str = "accuracy",
    statistics: Sequence[str] = tuple(STATISTICS),
    resamples: int = 2000,
    seed: int = 0,
    level: float = 0.95,
) -> pd.DataFrame:
    """Correlation of ``target`` with each column, per group, with bootstrap intervals.

    Returns one row per group, column and statistic: ``group``, ``x``, ``statistic``, ``r``,
    ``low``, ``high``, ``n`` (runs used) and ``left_out`` (runs without a usable value).

    Raises TableError if a column is missing.
    """
    found = []
    for statistic in statistics:
        function, log2 = STATISTICS[statistic]
        for x_name in columns:
            for name, y, (x,), left_out in _groups(table, [x_name], group, target, log2):
                r, low, high = _with_interval(
                    lambda i, f=function, x=x, y=y: f(x[i], y[i]),
                    y.size,
                    name,
                    resamples,
                    seed,
                    level,
                )
                found.append((name, x_name, statistic, r, low, high, y.size, left_out))
    names = [group, "x", "statistic", "r", "low", "high", "n", "left_out"]
    return pd.DataFrame(found, columns=names)


def correlation_differences(
    table: pd.DataFrame,
    pairs: Sequence[tuple[str, str]],
    *,
    group: str = "featurizer",
    target: str = "accuracy",
    statistics: Sequence[str] = tuple(STATISTICS),
    resamples: int = 2000,
    seed: int = 0,
    level: float = 0.95,
) -> pd.DataFrame:
    """r(target, first) - r(target, second) for each pair, with intervals by joint resampling.

    Both correlations are taken over the same runs and the same resamples, so the interval is that
    of the difference. Returns ``group``, ``x``, ``other``, ``statistic``, ``difference``, ``low``,
    ``high``, ``n``, ``left_out``.

    Raises TableError if a column is missing.
    """
    found = []
    for statistic in statistics:
        function, log2 = STATISTICS[statistic]
        for pair in pairs:
            for name, y, (x, z), left_out in _groups(table, pair, group, target, log2):
                difference, low, high = _with_interval(
                    lambda i, f=function, x=x, z=z, y=y: f(x[i], y[i]) - f(z[i], y[i]),
                    y.size,
                    name,
                    resamples,
                    seed,
                    level,
                )
                found.append((name, *pair, statistic, difference, low, high, y.size, left_out))
    names = [group, "x", "other", "statistic", "difference", "low", "high", "n", "left_out"]
    return pd.DataFrame(found, columns=names)


WITHIN_RUN_STATUS = ("used", "constant accuracy", "constant ESS", "fewer than 3 checkpoints")
"""What became of a run in :func:`within_run_correlations`."""


def within_run_correlations(
    checkpoints: pd.DataFrame, ess: str, *, target: str = "accuracy", run: str = "run"
) -> pd.DataFrame:
    """Per run, the Pearson correlation of ESS and accuracy over its checkpoints (section 4.2).

    Epoch 0 and checkpoints without measures are dropped. Returns one row per run with the run's
    other columns (of its last checkpoint), ``correlation`` (NaN unless used), ``checkpoints`` (how
    many were used) and ``status``, one of :data:`WITHIN_RUN_STATUS`, so that what was dropped can
    be counted.

    Raises TableError if a column is missing.
    """
    require(checkpoints, run, "epoch", ess, target)
    found = []
    for _, rows in checkpoints.sort_values("epoch", kind="stable").groupby(run, sort=True):
        trained = rows[rows["epoch"] > 0].dropna(subset=[ess, target])
        x, y = trained[ess].to_numpy(dtype=float), trained[target].to_numpy(dtype=float)
        r = np.nan
        if x.size < 3:
            status = WITHIN_RUN_STATUS[3]
        elif _constant(y):
            status = WITHIN_RUN_STATUS[1]
        elif _constant(x):
            status = WITHIN_RUN_STATUS[2]
        else:
            status, r = WITHIN_RUN_STATUS[0], float(pearson(x, y))
        last = rows.iloc[-1].to_dict()
        found.append(last | {"correlation": r, "checkpoints": x.size, "status": status})
    names = [*checkpoints.columns, "correlation", "checkpoints", "status"]
    return pd.DataFrame(found, columns=list(dict.fromkeys(names)))
