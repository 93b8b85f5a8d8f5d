"""Figure B4: our means beside the values that the paper prints in its heat maps."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from effstate.analysis.buckets import marginals
from effstate.analysis.correlation import spearman
from effstate.analysis.names import AXIS_LABELS, DIFFICULTY, FEATURIZERS, kind_label, quantity_label
from effstate.figures import panels, style
from effstate.figures.panels import Page, Row
from effstate.figures.registry import FigureSpec
from effstate.figures.sweep import ROWS, Sweep

if TYPE_CHECKING:
    from effstate.figures.render import FigureContext

PRINTED = Path(__file__).parent / "data" / "printed_heatmaps.csv"
STUDY = {"mqar": "mqar", "selective_copying": "copying", "compression": "compression"}
QUANTITY = {
    "accuracy": "accuracy",
    "ess_per_kv": "ess_per_difficulty",
    "state_utilization": "ess_per_tss",
    "ess_accuracy_correlation": "correlation",
}
KIND = {"-": "entropy", "entropy": "entropy", "tolerance_1e-3": "tol_1e-3"}
MAP = ["figure", "task", "metric", "ess_kind", "row_axis", "col_axis"]


def printed_maps() -> pd.DataFrame:
    """The printed cells: figure, task, featurizer, metric, ess_kind, row/col axis, value."""
    return pd.read_csv(PRINTED, comment="#")


def comparison(context: FigureContext) -> pd.DataFrame:
    """Every printed cell and every cell of ours on the same axes, matched by axis values.

    Columns: the map (:data:`MAP`), ``featurizer``, ``row``, ``col``, ``printed``, ``ours``,
    ``n`` (our models); a cell that one side lacks is NaN there.
    """
    sweeps: dict[tuple[str, str], Sweep] = {}
    found = []
    for key, cells in printed_maps().groupby([*MAP, "featurizer"], sort=True):
        (_, task, metric, kind, row_axis, col_axis), featurizer = key[:-1], key[-1]
        which = (STUDY[task], KIND[kind])
        if which not in sweeps:
            sweeps[which] = Sweep(*which, context)
        table, name = sweeps[which].values(QUANTITY[metric])
        ours = pd.DataFrame({"row": [], "col": [], "ours": [], "n": []}, dtype=float)
        if table is not None:
            rows = table[table["featurizer"] == featurizer]
            names = {row_axis: "row", col_axis: "col", "mean": "ours"}
            ours = marginals(rows, name, (row_axis, col_axis)).rename(columns=names)
            ours = ours[["row", "col", "ours", "n"]]
        both = cells[["row", "col", "value"]].rename(columns={"value": "printed"})
        both = both.merge(ours, on=["row", "col"], how="outer")
        found.append(both.assign(**dict(zip([*MAP, "featurizer"], key, strict=True))))
    return pd.concat(found, ignore_index=True)


def trends(cells: pd.DataFrame) -> pd.DataFrame:
    """Spearman correlation of the value with each axis, printed and ours, per map and featurizer.

    It compares directions where the axes of a scale do not meet the paper's. NaN where one side has
    fewer than three cells or one value on the axis.
    """
    found = []
    for key, rows in cells.groupby([*MAP, "featurizer"], sort=True):
        named = dict(zip([*MAP, "featurizer"], key, strict=True))
        for side in ("row", "col"):
            values = {}
            for whose in ("printed", "ours"):
                has = rows[[side, whose]].dropna().to_numpy(dtype=float)
                values[whose] = float(spearman(*has.T)) if len(has) >= 3 else np.nan
            found.append(named | values | {"side": side, "axis": named[f"{side}_axis"]})
    return pd.DataFrame(found)


def agreement(shared: pd.DataFrame) -> pd.DataFrame:
    """Per map and featurizer, over cells that both sides have: mean |difference| and Spearman rank.

    ``spearman`` is NaN for fewer than three shared cells or values that do not vary.
    """
    found = []
    for key, rows in shared.groupby([*MAP, "featurizer"], sort=True):
        ours, printed = rows["ours"].to_numpy(float), rows["printed"].to_numpy(float)
        found.append(
            dict(zip([*MAP, "featurizer"], key, strict=True))
            | {
                "cells": len(rows),
                "mean_absolute_difference": float(np.abs(ours - printed).mean()),
                "spearman": float(spearman(printed, ours)) if len(rows) >= 3 else np.nan,
            }
        )
    return pd.DataFrame(found)


def draw(spec: FigureSpec, context: FigureContext) -> Page:
    """Difference maps where cells meet; then trends along shared axes, ours against printed."""
    cells = comparison(context)
    shared = cells.dropna(subset=["printed", "ours"])
    maps = [key for key, _ in shared.groupby(MAP, sort=True)]
    trend_row = Row(2, 2.0, above=0.5, gap=1.0, left=0.6, right=0.6)
    page = Page(spec.title, [*([replace(ROWS["heatmap"], height=0.85)] * len(maps)), trend_row])
    page.legend(panels.featurizer_entries(FEATURIZERS))
    agreed = agreement(shared)
    page.record("agreement", agreed)
    for axes, key in zip(page.axes, maps, strict=False):
        _difference_row(page, axes, key, shared, agreed, context.partial)
    _trend_row(page, page.axes[-1], trends(cells))
    if len(shared):
        page.note(
            f"{len(shared)} of {int(cells['printed'].notna().sum())} printed cells have a cell of "
            "ours with the same axis values; what is averaged inside a cell differs with the scale."
        )
        page.note("Maps: ours minus printed; white cells are blank on one side.")
        page.note("|Δ|: mean absolute difference over the shared cells; ρ: their rank correlation.")
    else:
        page.note("No cell of this scale stands on the paper's axes: only trends are compared.")
    return page


def _difference_row(
    page: Page,
    axes: list[Axes],
    key: tuple[str, ...],
    shared: pd.DataFrame,
    agreed: pd.DataFrame,
    partial: bool,
) -> None:
    figure, task, metric, kind, row_axis, col_axis = key
    summary = agreed[(agreed[MAP] == list(key)).all(axis=1)].set_index("featurizer")
    here = shared[(shared[MAP] == list(key)).all(axis=1)]
    here = here.assign(value=here["ours"] - here["printed"])
    what = quantity_label(QUANTITY[metric], DIFFICULTY[STUDY[task]])
    of = "" if kind == "-" else f", {kind_label(KIND[kind])}"
    reach = max(float(here["value"].abs().max()), 1e-9)
    panel = figure.replace("/", " and ")
    page.label(axes[0], "", f"Figure {panel}: {what}{of}", above=16)
    mesh = None
    for i, (ax, featurizer) in enumerate(zip(axes, FEATURIZERS, strict=True)):
        ax.set_title(style.name(featurizer))
        mine = here[here["featurizer"] == featurizer]
        if mine.empty:
            panels.empty(page, ax, panel, "no shared cell", featurizer)
            continue
        found = summary.loc[featurizer]
        rank = "" if np.isnan(found["spearman"]) else f", ρ {found['spearman']:.2f}"
        difference = found["mean_absolute_difference"]
        ax.set_title(f"{style.name(featurizer)}: |Δ| {difference:.2g}{rank}", fontsize=7)
        mesh = panels.heatmap(
            page,
            ax,
            panel,
            mine.rename(columns={"row": "y", "col": "x"}),
            limits=(-reach, reach),
            cmap=style.DIVERGING,
            x_label=AXIS_LABELS[col_axis],
            y_label=AXIS_LABELS[row_axis] if i == 0 else "",
            counts=partial,
        )
    bar = page.beside(axes[-1])
    page.figure.colorbar(mesh, cax=bar)
    bar.tick_params(labelsize=6)


def _trend_row(page: Page, axes: list[Axes], found: pd.DataFrame) -> None:
    """Printed trend against ours, one point a map and featurizer: rows left, columns right."""
    named = {"row": "trend along the rows' axis", "col": "trend along the columns' axis"}
    for ax, (side, text), panel in zip(axes, named.items(), "ab", strict=True):
        page.label(ax, panel, text, above=16)
        points = found[found["side"] == side].rename(columns={"printed": "x", "ours": "y"})
        drawn = points.dropna(subset=["x", "y"])
        if drawn.empty:
            panels.empty(page, ax, panel, "no axis of this scale has cells to rank")
            page.record(panel, points)
            continue
        agree = int((np.sign(drawn["x"]) == np.sign(drawn["y"])).sum())
        panels.scatter(
            page,
            ax,
            panel,
            points,
            x_label="Spearman, printed",
            y_label="Spearman, ours",
            text=f"{agree} of {len(drawn)} have the printed sign",
            log2_x=False,
            unranked="without a trend",
        )
        ax.plot([-1, 1], [-1, 1], color=style.LIGHT, lw=0.8, zorder=0)
        for line in (ax.axhline, ax.axvline):
            line(0, color=style.LIGHT, lw=0.6, zorder=0)
        ax.set(xlim=(-1.1, 1.1), ylim=(-1.1, 1.1))
        ax.set_xticks([-1, 0, 1])
        ax.set_yticks([-1, 0, 1])
