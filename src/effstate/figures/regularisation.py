"""Accuracy and ESS against the strength of the penalty on decays: figures 10b and B2 (appendix A)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd
from matplotlib.axes import Axes

from effstate.analysis.names import AXIS_LABELS, DIFFICULTY, RECURRENT, column, quantity_label
from effstate.analysis.tables import add_ratios, done, penalised
from effstate.figures import panels, style
from effstate.figures.panels import NO_RUNS, Page, Row
from effstate.figures.registry import FigureSpec
from effstate.figures.studies import over_seeds, short

if TYPE_CHECKING:
    from effstate.figures.render import FigureContext

PANELS = {"1": "second layer", "0": "first layer", "0,1": "both layers"}
"""Which mixers are regularised, as the column ``regularised_layers`` has it, to its panel."""

PENALISED = ("gla", "wla")
"""Featurizers with a decay to regularise; LA, whose A is the identity, is the base line."""


def penalty_curve(runs: pd.DataFrame, layers: str, value: str) -> pd.DataFrame:
    """Mean and extremes over seeds of ``value`` at each λ: ``featurizer``, x, y, low, high, n.

    Runs without a penalty (λ = 0) are the start of every curve, whatever layers they name.
    """
    mine = runs[runs["featurizer"].isin(PENALISED)]
    return over_seeds(penalised(mine, layers), value, "regularisation")


def penalty_row(
    page: Page,
    axes: list[Axes],
    panel: str,
    runs: pd.DataFrame | None,
    value: str,
    label: str = "accuracy",
) -> None:
    """``value`` against λ, a panel per choice of regularised layers, LA as a horizontal line."""
    table = None
    if runs is not None:
        has = value in runs.columns
        table = done(runs).dropna(subset=[value]) if has else runs.iloc[:0]
    for i, (ax, (layers, name)) in enumerate(zip(axes, PANELS.items(), strict=True)):
        ax.set_title(name)
        points = pd.DataFrame() if table is None else penalty_curve(table, layers, value)
        if points.empty:
            absent = f"{name}: the regularisation study has not run at this scale"
            panels.empty(page, ax, panel, absent if table is None else NO_RUNS)
            continue
        _base_line(page, ax, panel, table, value)
        x_label = AXIS_LABELS["regularisation"]
        how = {"log2_x": False, "band": True, "x_label": x_label, "y_label": "" if i else label}
        panels.lines(page, ax, panel, points.assign(regularised=name), **how)
        panels.from_zero_axis(ax, table["regularisation"])
        if value == "accuracy":
            panels.chance(page, ax, panel, table["chance"])
            panels.accuracy_axis(ax)
        else:
            ax.set_ylim(bottom=0)
        page.note("Lines are means over seeds, bands their extremes; λ = 0 is the same in all panels.")


def _base_line(page: Page, ax: Axes, panel: str, table: pd.DataFrame, value: str) -> None:
    """LA without a penalty, mean and extremes over seeds, across the panel."""
    plain = table[(table["featurizer"] == "la") & (table["regularisation"] == 0)]
    for found in over_seeds(plain, value, "regularisation").to_dict("records"):
        colour = style.look("la")[0]
        ax.axhspan(found["low"], found["high"], color=colour, alpha=0.12, lw=0, zorder=0)
        ax.axhline(found["y"], color=colour, ls="--", lw=1.0, zorder=1)
        page.record(panel, pd.DataFrame([found]), series="base line")
        page.note("The dashed line is LA, which has no decay to regularise.")


def best_penalties(runs: pd.DataFrame) -> pd.DataFrame:
    """Per curve of accuracy: where it is best, and what it does after that.

    Columns: ``layers`` (the panel), ``featurizer``, ``without`` (mean accuracy at λ = 0), ``best``
    and ``best_lambda`` (the smallest, if several are best), ``after`` and ``after_lambda`` (the
    lowest mean at a larger λ; NaN if the best is the largest), ``apart`` (whether at ``after_lambda``
    every seed lies below every seed at ``best_lambda``). Curves without a penalised run are left out.
    """
    found = []
    for layers, name in PANELS.items():
        curves = penalty_curve(done(runs).dropna(subset=["accuracy"]), layers, "accuracy")
        for featurizer, curve in curves.groupby("featurizer", sort=True):
            if (curve["x"] == 0).all():
                continue
            best = curve.loc[curve["y"].idxmax()]
            later = curve[curve["x"] > best["x"]]
            row = {"layers": name, "featurizer": featurizer}
            row["without"] = curve.loc[curve["x"] == 0, "y"].mean()
            row |= {"best": best["y"], "best_lambda": best["x"], "apart": False}
            if not later.empty:
                after = later.loc[later["y"].idxmin()]
                row |= {"after": after["y"], "after_lambda": after["x"]}
                row["apart"] = bool(after["high"] < best["low"])
            found.append(row)
    columns = [
        "layers",
        "featurizer",
        "without",
        "best",
        "best_lambda",
        "after",
        "after_lambda",
        "apart",
    ]
    return pd.DataFrame(found, columns=columns)


def _sentence(found: pd.Series) -> str:
    """What a row of :func:`best_penalties` says."""
    start = (
        f"{style.name(found['featurizer'])}, {found['layers']}: best at λ = {found['best_lambda']:g} "
        f"({short(found['best'])}"
    )
    start += f"; without {short(found['without'])})" if found["best_lambda"] > 0 else ", no penalty)"
    if pd.isna(found["after"]):
        return f"{start}, the largest λ: it has not fallen again."
    if not found["after"] < found["best"]:
        return f"{start}; it does not fall after that."
    seeds = "apart" if found["apart"] else "overlap"
    return f"{start}; falls to {short(found['after'])} at λ = {found['after_lambda']:g} (seeds {seeds})."


def draw(spec: FigureSpec, context: FigureContext) -> Page:
    """Figure B2: accuracy against λ, and below it ESS per key-value pair."""
    shapes = [Row(3, 1.3, above=0.3, gap=0.3, below=0.45), Row(3, 1.3, above=0.3, gap=0.3)]
    page = Page(spec.title, shapes)
    page.legend(panels.featurizer_entries(RECURRENT))
    runs = context.table("regularisation_runs")
    difficulty = DIFFICULTY["regularisation"]
    penalty_row(page, page.axes[0], "accuracy", runs, "accuracy")
    name, label = (
        column("ess_per_difficulty", spec.ess_kinds[0]),
        quantity_label("ess_per_difficulty", difficulty),
    )
    ratios = None if runs is None else add_ratios(runs, difficulty)
    penalty_row(page, page.axes[1], "ESS", ratios, name, f"mean {label}")
    if runs is not None:
        best = best_penalties(runs)
        page.record("best", best)
        for _, found in best.iterrows():
            page.note(_sentence(found))
    return page
