"""Marginals: means over all models in the buckets of one or two axes (METHOD section 5)."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from effstate.analysis.tables import require


def marginals(
    table: pd.DataFrame, value: str, axes: Sequence[str], *, group: str = "featurizer"
) -> pd.DataFrame:
    """Mean and number of models in each bucket of ``axes``, per group.

    Every model counts once, whatever its place on the axes that are summed out. Models without the
    value (diverged, failed, correlation undefined) take no part; a bucket without any model has no
    row. Returns ``group``, the axes, ``mean``, ``low`` and ``high`` (the extremes) and ``n``,
    sorted.

    Raises TableError if a column is missing.
    """
    keys = [group, *axes]
    require(table, value, *keys)
    rows = table.dropna(subset=[value])
    buckets = rows.groupby(keys, sort=True, observed=True)[value]
    named = {"mean": "mean", "low": "min", "high": "max", "n": "count"}
    return buckets.agg(**named).reset_index()
