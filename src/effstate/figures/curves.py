"""Figures 26 and 29: ESS and accuracy over training in one cell (sections E.1, E.3)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import pandas as pd

from effstate.analysis.names import FEATURIZERS, kind_label
from effstate.analysis.tables import done, in_cell, nearest_cell
from effstate.figures import panels, style
from effstate.figures.panels import NO_RUNS, Page, Row
from effstate.figures.registry import FigureSpec

if TYPE_CHECKING:
    from effstate.figures.render import FigureContext


def figure_cell(
    checkpoints: pd.DataFrame,
    place: Mapping[str, float],
    named: Mapping[str, float] | None = None,
) -> tuple[pd.DataFrame, dict[str, float] | None]:
    """The finished runs' checkpoints in the figure's cell, and the cell.

    The cell is the one that the scale names, else the one nearest to ``place`` in the paper's axes.
    It is chosen on the recurrent mixers; softmax attention, whose TSS is its length, is taken at the
    same width, heads, length and kv.
    """
    table = done(checkpoints)
    if named is not None:
        return in_cell(table, named), dict(named)
    cell = nearest_cell(table[table["featurizer"] != "sa"], place, also=("heads",))
    if cell is None:
        return table.iloc[:0], None
    return in_cell(table, {k: v for k, v in cell.items() if k != "tss"}), cell


def normalised(rows: pd.DataFrame, value: str) -> pd.DataFrame:
    """Min-max normalised per run, then mean, low and high over runs: x (epoch), y, raw, n.

    A run in which the value never moves has no normalised curve and is left out.
    """
    by_run = rows.groupby("run")[value]
    low, high = by_run.transform("min"), by_run.transform("max")
    spread = (high - low).where(high - low > 1e-9 * high.abs())
    table = rows.assign(y=(rows[value] - low) / spread).dropna(subset=["y"])
    return _over_seeds(table, "y", value)


def _over_seeds(table: pd.DataFrame, y: str, raw: str) -> pd.DataFrame:
    grouped = table.groupby("epoch")
    found = grouped[y].agg(y="mean", low="min", high="max", n="count")
    return found.assign(raw=grouped[raw].mean()).reset_index().rename(columns={"epoch": "x"})


def draw(spec: FigureSpec, context: FigureContext) -> Page:
    """A panel per featurizer: normalised entropy- and tolerance-ESS, and accuracy, over epochs."""
    page = Page(spec.title, [Row(4, 1.3, above=0.25, right=0.2)])
    looks = {
        kind_label(spec.ess_kinds[0]): {"color": style.SERIES[0], "marker": "o"},
        kind_label(spec.ess_kinds[1]): {
            "color": style.SERIES[1],
            "marker": "s",
            "markerfacecolor": "white",
        },
        "accuracy": {"color": "black", "marker": "", "ls": "--"},
    }
    page.legend({name: panels.entry(**look) for name, look in looks.items()})
    checkpoints = context.table(f"{spec.studies[0]}_checkpoints")
    rows, cell = None, None
    if checkpoints is not None:
        named = context.options.get("cells", {}).get(spec.id)
        rows, cell = figure_cell(checkpoints, spec.options["place"], named)
    if cell is not None:
        names = {"width": "width", "heads": "heads", "seq_len": "length", "kv": "kv"}
        shown = ", ".join(f"{name} {cell[key]:g}" for key, name in names.items() if key in cell)
        page.note(f"Cell: {shown} (paper: {spec.options['paper_cell']}).")
    for i, (ax, featurizer) in enumerate(zip(page.axes[0], FEATURIZERS, strict=True)):
        ax.set_title(style.name(featurizer))
        mine = None if rows is None else rows[rows["featurizer"] == featurizer]
        if mine is None or mine.empty:
            panels.empty(page, ax, "-", NO_RUNS, featurizer)
            continue
        kinds = {kind_label(k): f"ess_{k}" for k in spec.ess_kinds if f"ess_{k}" in mine.columns}
        found = [normalised(mine, name).assign(series=label) for label, name in kinds.items()]
        found.append(_over_seeds(mine, "accuracy", "accuracy").assign(series="accuracy"))
        points = pd.concat([f for f in found if len(f)], ignore_index=True)
        points = points.assign(featurizer=featurizer)
        flat = [label for label in kinds if not points["series"].eq(label).any()]
        if flat:
            page.note(f"{style.name(featurizer)}: {', '.join(flat)} never moves and is not drawn.")
        if "chance" in mine.columns:
            panels.chance(page, ax, "-", mine["chance"])
        how = {"log2_x": False, "by": "series", "looks": looks, "band": True}
        y_label = "" if i else "min-max ESS, accuracy"
        panels.lines(page, ax, "-", points, x_label="epoch", y_label=y_label, **how)
        panels.accuracy_axis(ax)
        if i:
            ax.set_yticklabels([])
    return page
