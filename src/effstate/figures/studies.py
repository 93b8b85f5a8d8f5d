"""What the figures of the studies beside the sweeps share: selections, seeds, twin axes, ranks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from effstate.analysis.buckets import marginals
from effstate.analysis.correlation import pearson, spearman
from effstate.analysis.names import AXIS_LABELS, in_part
from effstate.analysis.tables import done, last_epoch
from effstate.figures import panels
from effstate.figures.panels import Page

if TYPE_CHECKING:
    from effstate.figures.render import FigureContext

ACCURACY = {"color": "black", "marker": "P", "ls": "--"}
"""Look of the accuracy's line in :func:`ess_and_accuracy`."""


def finished(
    context: FigureContext, name: str, *columns: str, part: str | None = None
) -> pd.DataFrame | None:
    """The finished runs' rows of a table that have values in ``columns``; None without any.

    ``part`` keeps the runs of one part of the study: see :func:`~effstate.analysis.names.in_part`.
    """
    table = context.table(name)
    if table is None or not {*columns} <= {*table.columns}:
        return None
    rows = done(table).dropna(subset=[*columns])
    if part is not None:
        rows = rows[[in_part(grids, part) for grids in rows["grids"]]]
    return None if rows.empty else rows


def final_layers(runs: pd.DataFrame, layers: pd.DataFrame) -> pd.DataFrame:
    """Layers of the finished runs at their last epoch, with the runs' design columns."""
    design = done(runs)[[c for c in runs.columns if c not in layers.columns or c == "run"]]
    return last_epoch(layers).merge(design, on="run", how="inner", validate="many_to_one")


def over_seeds(rows: pd.DataFrame, value: str, x: str, by: str = "featurizer") -> pd.DataFrame:
    """Mean, low and high of ``value`` over the runs at each ``x``: ``by``, x, y, low, high, n."""
    found = marginals(rows, value, (x,), group=by)
    return found.rename(columns={x: "x", "mean": "y"}).assign(quantity=value)


def relation(rows: pd.DataFrame, x: str, y: str) -> dict[str, float]:
    """``n``, ``pearson`` and ``spearman`` of two columns; NaN for fewer than three rows."""
    values = rows[[x, y]].dropna().to_numpy(dtype=float).T
    n = values.shape[1]
    if n < 3:
        return {"n": n, "pearson": np.nan, "spearman": np.nan}
    return {"n": n, "pearson": float(pearson(*values)), "spearman": float(spearman(*values))}


def short(value: float) -> str:
    """``.76``, ``-.40``, ``1.00``; a dash for a number that does not exist."""
    if not np.isfinite(value):
        return "–"
    return f"{round(value, 2) + 0.0:.2f}".replace("0.", ".", 1)  # + 0.0: no minus before a zero


def relation_text(found: dict[str, float]) -> str:
    """``r = .76, ρ = .70, n = 30``."""
    return f"r = {short(found['pearson'])}, ρ = {short(found['spearman'])}, n = {found['n']:.0f}"


def ess_and_accuracy(
    page: Page,
    ax: Axes,
    panel: str,
    rows: pd.DataFrame | None,
    x: str,
    ess: str,
    label: str,
    look: Mapping[str, Any],
    why: str,
) -> bool:
    """ESS (left axis) and accuracy (right axis) over ``x`` in log2: mean and extremes over seeds.

    ``look`` is that of the line of ESS. Without rows: False, and an empty panel that says ``why``.
    """
    if rows is None:
        panels.empty(page, ax, panel, why)
        return False
    looks = {"ESS": look, "accuracy": ACCURACY}
    right = page.twin(ax)
    panels.chance(page, right, panel, rows["chance"])
    for axes, value, name, text in (
        (ax, ess, "ESS", label),
        (right, "accuracy", "accuracy", "accuracy"),
    ):
        points = over_seeds(rows, value, x).assign(series=name)
        how: dict[str, Any] = {"by": "series", "looks": looks, "band": True}
        below = AXIS_LABELS[x] if axes is ax else ""  # the twin's x axis is not drawn
        panels.lines(page, axes, panel, points, x_label=below, y_label=text, **how)
    ax.set_ylim(bottom=0)
    panels.accuracy_axis(right)
    return True
