"""Figures that show a sweep over tasks and models: 3, 4, 11-25 (sections 4.1, 4.2, E.1).

A figure is a list of rows (:class:`~effstate.figures.registry.RowSpec`) that the registry gives:
scatters, heat maps and lines of one quantity each.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from effstate.analysis.buckets import marginals
from effstate.analysis.correlation import correlations, within_run_correlations
from effstate.analysis.names import (
    AXIS_LABELS,
    DIFFICULTY,
    FEATURIZERS,
    column,
    order,
    quantity_label,
)
from effstate.analysis.tables import SA_ACCURACY_LIMIT, add_ratios, cross_task, done
from effstate.figures import panels, style
from effstate.figures.panels import NO_RUNS, Page, Row
from effstate.figures.registry import FigureSpec, RowSpec

if TYPE_CHECKING:
    from effstate.figures.render import FigureContext

ROWS = {
    "scatter": Row(4, 1.15, above=0.62, below=0.38),
    "heatmap": Row(4, 1.25, above=0.42, below=0.36, gap=0.42, right=0.5),
    "lines": Row(4, 1.2, gap=0.42, above=0.32, left=0.6),
}


class Sweep:
    """A study's tables with their ratios, for one ESS kind."""

    def __init__(self, study: str, kind: str, context: FigureContext) -> None:
        self.study = study
        self.difficulty = DIFFICULTY[study]
        self.kind = kind
        self.context = context
        runs = context.table(f"{self.study}_runs")
        self.all_runs = runs
        self.runs = None if runs is None else add_ratios(done(runs), self.difficulty)
        self.checkpoints = context.table(f"{self.study}_checkpoints")
        self._within: pd.DataFrame | None = None

    def featurizers(self) -> list[str]:
        """The built-in featurizers, then those of the user's own that the tables have."""
        tables = [t for t in (self.all_runs, self.checkpoints) if t is not None]
        return order({*FEATURIZERS, *(f for t in tables for f in t["featurizer"].unique())})

    def axis(self, name: str) -> str:
        """The column of a row's axis."""
        return self.difficulty if name == "difficulty" else name

    def values(self, quantity: str) -> tuple[pd.DataFrame | None, str]:
        """One row per model with the quantity, and the column that holds it.

        None if no table has it.
        """
        if quantity != "correlation":
            name = column(quantity, self.kind)
            has = self.runs is not None and name in self.runs.columns
            return (self.runs if has else None), name
        ess = f"ess_{self.kind}"
        if self._within is None and self.checkpoints is not None and ess in self.checkpoints.columns:
            measured = self.checkpoints[self.checkpoints["state"] == "done"]
            self._within = within_run_correlations(measured, ess)
        return self._within, "correlation"


def draw(spec: FigureSpec, context: FigureContext) -> Page:
    """Compose the rows that the registry names for this figure."""
    sweep = Sweep(spec.studies[0], (*spec.ess_kinds, "entropy")[0], context)
    rows: tuple[RowSpec, ...] = spec.options["rows"]
    columns = max(len(sweep.featurizers()), 4)
    shapes = []
    for row in rows:
        shape = ROWS[row.kind]
        count = len(row.axes) if row.kind == "lines" else columns
        above = shape.above if row.panels else shape.above - 0.2
        shapes.append(replace(shape, columns=count, above=above))
    page = Page(spec.title, shapes)
    if any(row.kind == "lines" for row in rows):
        page.legend(panels.featurizer_entries(sweep.featurizers()))
    if any(row.quantity == "correlation" for row in rows):
        _say_dropped(page, sweep)
    for row, axes in zip(rows, page.axes, strict=True):
        if row.kind == "scatter":
            scatter_row(page, axes, sweep, row, spec.options.get("cross_task", False))
        elif row.kind == "heatmap":
            heatmap_row(page, axes, sweep, row, spec.options.get("sa_total", False))
        else:
            line_row(page, axes, sweep, row)
    return page


def _say_dropped(page: Page, sweep: Sweep) -> None:
    within, _ = sweep.values("correlation")
    if within is not None:
        counts = within["status"].value_counts()
        said = ", ".join(f"{counts.get(s, 0)} {s}" for s in sorted(counts.index, key=_used_first))
        page.note(f"Correlations within runs: {said}; epoch 0 is left out.")


def _used_first(status: str) -> tuple[bool, str]:
    return status != "used", status


def scatter_row(page: Page, axes: list[Axes], sweep: Sweep, row: RowSpec, cross: bool) -> None:
    """Accuracy against a quantity, a panel per featurizer, r in each (section 4.1).

    ``cross``: as figure 3 compares featurizers, with totals for softmax attention.
    """
    table, name = sweep.values(row.quantity)
    if cross and table is not None:
        table = cross_task(table, sweep.difficulty, sweep.kind)
        page.note(f"SA: totals; its models with accuracy > {SA_ACCURACY_LIMIT} are left out.")
    label = quantity_label(row.quantity, sweep.difficulty)
    if row.panels:
        page.label(axes[0], row.panels, f"accuracy against {label}", above=35)
    if table is not None:
        page.note("r: Pearson, x in log2 and as it is, with 95% bootstrap intervals over runs.")
        found = correlations(table, [name], statistics=("pearson_log2", "pearson"))
    for i, (ax, featurizer) in enumerate(zip(axes, sweep.featurizers(), strict=False)):
        ax.set_title(style.name(featurizer), pad=21)
        rows = None if table is None else table[table["featurizer"] == featurizer]
        if rows is None or rows[[name, "accuracy"]].dropna().empty:
            panels.empty(page, ax, row.panels or "-", NO_RUNS, featurizer)
            continue
        mine = found[found["featurizer"] == featurizer].set_index("statistic")
        text = "\n".join(
            f"{'r(log2)' if s == 'pearson_log2' else 'r'} = {interval_text(mine.loc[s])}"
            for s in mine.index
        )
        n = int(rows[[name, "accuracy"]].dropna().shape[0])
        points = pd.DataFrame(
            {
                "featurizer": featurizer,
                "x": rows[name],
                "y": rows["accuracy"],
                "tss": rows["tss"],
                sweep.difficulty: rows[sweep.difficulty],
                "seq_len": rows["seq_len"],
                "run": rows["run"],
                "quantity": name,
            }
        )
        if "chance" in rows.columns:
            panels.chance(page, ax, row.panels or "-", rows["chance"])
        total = "total " if cross and featurizer == "sa" else ""
        panels.scatter(
            page,
            ax,
            row.panels or "-",
            points,
            x_label=f"{total}{label}",
            y_label="accuracy" if i == 0 else "",
            text=f"{text}, n = {n}",
        )
        if i:
            ax.set_yticklabels([])


def interval_text(found: pd.Series) -> str:
    """``.76 [.51, .90]``; a dash where the correlation does not exist."""
    if not np.isfinite(found["r"]):
        return "–"
    shown = [f"{v:.2f}".replace("0.", ".") for v in (found["r"], found["low"], found["high"])]
    return f"{shown[0]} [{shown[1]}, {shown[2]}]"


def heatmap_row(page: Page, axes: list[Axes], sweep: Sweep, row: RowSpec, sa_total: bool) -> None:
    """A quantity's mean over two axes, a panel per featurizer with one colour scale (section E.1).

    Softmax attention has no state size of its own: its panel is on total TSS where ``sa_total``,
    and empty on plain TSS otherwise.
    """
    table, name = sweep.values(row.quantity)
    y_name, x_name = (sweep.axis(a) for a in row.axes)
    if row.panels:
        page.label(axes[0], row.panels, f"{AXIS_LABELS[y_name]} × {AXIS_LABELS[x_name]}", above=16)
    cells = {}
    for featurizer in sweep.featurizers():
        on = "total_tss" if sa_total and featurizer == "sa" else y_name
        if table is None or (on == "tss" and featurizer == "sa"):
            continue
        found = marginals(table[table["featurizer"] == featurizer], name, (on, x_name))
        if not found.empty:
            names = {on: "y", x_name: "x", "mean": "value"}
            cells[featurizer] = found.rename(columns=names).assign(y_axis=on, x_axis=x_name)
    limits = color_limits(row.quantity, list(cells.values()))
    last = None
    for i, (ax, featurizer) in enumerate(zip(axes, sweep.featurizers(), strict=False)):
        ax.set_title(style.name(featurizer))
        if featurizer not in cells:
            of_sa = y_name == "tss" and featurizer == "sa" and table is not None and not sa_total
            why = "the state of SA grows with the index: see the total TSS" if of_sa else NO_RUNS
            panels.empty(page, ax, row.panels or "-", why, featurizer)
            continue
        found = cells[featurizer]
        on = found["y_axis"].iloc[0]
        if on != y_name:
            ax.set_title(f"{style.name(featurizer)} ({AXIS_LABELS[on]})")
        last = panels.heatmap(
            page,
            ax,
            row.panels or "-",
            found,
            limits=limits,
            cmap=style.DIVERGING if row.quantity == "correlation" else style.SEQUENTIAL,
            x_label=AXIS_LABELS[x_name],
            y_label=AXIS_LABELS[on] if i == 0 else "",
            counts=sweep.context.partial,
            quantity=name,
        )
    if last is not None:
        bar = page.beside(axes[len(sweep.featurizers()) - 1])
        page.figure.colorbar(last, cax=bar)
        bar.tick_params(labelsize=6)
        bar.yaxis.get_offset_text().set_fontsize(6)


def color_limits(quantity: str, cells: list[pd.DataFrame]) -> tuple[float, float]:
    """One colour scale for a row: fixed where the quantity is bounded, from 0 up otherwise."""
    if quantity == "correlation":
        return -1.0, 1.0
    if quantity in ("accuracy", "ess_per_tss", "total_ess_per_total_tss"):
        return 0.0, 1.0
    largest = max((float(c["value"].max()) for c in cells), default=1.0)
    return 0.0, largest if largest > 0 else 1.0


def line_row(page: Page, axes: list[Axes], sweep: Sweep, row: RowSpec) -> None:
    """A quantity's mean over each axis alone, all featurizers in one panel (section E.1, f-i)."""
    table, name = sweep.values(row.quantity)
    label = quantity_label(row.quantity, sweep.difficulty)
    for i, (ax, panel, axis) in enumerate(zip(axes, row.panels, row.axes, strict=True)):
        x_name = sweep.axis(axis)
        page.label(ax, panel, AXIS_LABELS[x_name])
        found = None
        if table is not None:
            # The state of softmax attention is its length: it has a total TSS, no TSS of its own.
            rows = table[table["featurizer"].ne("sa")] if axis == "tss" else table
            found = marginals(rows, name, (x_name,))
        if found is None or found.empty:
            panels.empty(page, ax, panel, NO_RUNS)
            continue
        points = found.rename(columns={x_name: "x", "mean": "y"})
        points = points.assign(x_axis=x_name, quantity=name)
        if row.quantity == "accuracy" and "chance" in table.columns:
            panels.chance(page, ax, panel, table["chance"])
        panels.lines(page, ax, panel, points, x_label=AXIS_LABELS[x_name])
        if row.quantity in ("accuracy", "ess_per_tss", "total_ess_per_total_tss"):
            panels.accuracy_axis(ax)
        elif row.quantity == "correlation":
            ax.set_ylim(-1.08, 1.08)
            ax.axhline(0, color=style.LIGHT, lw=0.6, zorder=0)
        else:
            ax.set_ylim(bottom=0)
        if i == 0:
            ax.set_ylabel("correlation" if row.quantity == "correlation" else label)
            page.note("Lines are means over all models.")
