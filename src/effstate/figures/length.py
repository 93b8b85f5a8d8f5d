"""Figures 10 and 30: what the length of the sequence does to ESS (appendix A, section E.3)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pandas as pd

from effstate.analysis.buckets import marginals
from effstate.analysis.names import AXIS_LABELS, DIFFICULTY, RECURRENT, column, quantity_label
from effstate.analysis.tables import comparable
from effstate.figures import panels, style
from effstate.figures.panels import NO_RUNS, Page, Row
from effstate.figures.registry import FigureSpec
from effstate.figures.regularisation import penalty_row
from effstate.figures.studies import final_layers

if TYPE_CHECKING:
    from effstate.figures.render import FigureContext

NORM = "decay_product_norm"


def _models(spec: FigureSpec, context: FigureContext, page: Page) -> pd.DataFrame | None:
    """Layers of the recurrent models whose difficulty occurs at every length, with ESS/kv."""
    study, kind = spec.studies[0], spec.ess_kinds[0]
    difficulty = DIFFICULTY[study]
    runs, layers = context.table(f"{study}_runs"), context.table(f"{study}_layers")
    if runs is None or layers is None or f"ess_{kind}" not in layers.columns:
        return None
    table = final_layers(runs, layers)
    table = table[table["featurizer"].isin(RECURRENT)]
    if table.empty:
        return None
    kept = comparable(table, "seq_len", difficulty)
    values = ", ".join(f"{v:g}" for v in sorted(kept[difficulty].unique()))
    name = AXIS_LABELS[difficulty]
    if kept.empty:
        page.note(f"No {name} occurs at every length, so lengths cannot be compared.")
        return None
    page.note(f"Means over models with {name} in {{{values}}}, which every length has.")
    ratio = kept[f"ess_{kind}"] / kept[difficulty]
    return kept.assign(**{column("ess_per_difficulty", kind): ratio})


def _over_length(
    page: Page,
    place: tuple[int, int],
    panel: str,
    rows: pd.DataFrame | None,
    value: str,
    **how: Any,
) -> bool:
    """Lines of the mean of ``value`` over the length; False if there was nothing to draw."""
    ax = page.axes[place[0]][place[1]]
    group = how.get("by", "featurizer")
    found = None if rows is None else marginals(rows, value, ("seq_len",), group=group)
    if found is None or found.empty:
        panels.empty(page, ax, panel, NO_RUNS)
        return False
    points = found.rename(columns={"seq_len": "x", "mean": "y"}).assign(quantity=value)
    panels.lines(page, ax, panel, points, x_label=AXIS_LABELS["seq_len"], **how)
    panels.log2_axis(ax, rows["seq_len"], most=6)
    return True


def draw(spec: FigureSpec, context: FigureContext) -> Page:
    """Draw figure 10 (``norms``) or figure 30 (``layers``)."""
    return (_norms if spec.options["draw"] == "norms" else _layers)(spec, context)


def _norms(spec: FigureSpec, context: FigureContext) -> Page:
    page = Page(spec.title, [Row(2, 1.35, above=0.32, gap=0.65), Row(3, 1.1, above=0.45, gap=0.3)])
    page.legend(panels.featurizer_entries(RECURRENT))
    layers = _models(spec, context, page)
    difficulty = DIFFICULTY[spec.studies[0]]
    value = column("ess_per_difficulty", spec.ess_kinds[0])
    models = None
    if layers is not None:
        keys = ["run", "featurizer", "seq_len"]
        models = layers.groupby(keys)[[value, NORM]].mean().reset_index()
    label = quantity_label("ess_per_difficulty", difficulty)
    page.label(page.axes[0][0], "a", "ESS, and the norm of the product of all A")
    if _over_length(page, (0, 0), "a", models, value, y_label=f"mean {label}"):
        page.axes[0][0].set_ylim(bottom=0)
    if _over_length(page, (0, 1), "a", models, NORM, y_label="mean norm of ∏ A"):
        means = marginals(models, NORM, ("seq_len",))["mean"]
        panels.log2_axis(page.axes[0][1], means, "y")
        if (zero := int((means <= 0).sum())) > 0:
            page.note(f"{zero} mean norms are 0 in float64 and cannot be shown on a log axis.")
    page.label(page.axes[1][0], "b", "accuracy against the regulariser", above=15)
    penalty_row(page, page.axes[1], "b", context.table("regularisation_runs"), "accuracy")
    return page


def _layers(spec: FigureSpec, context: FigureContext) -> Page:
    page = Page(spec.title, [Row(2, 1.35, above=0.25, gap=0.5)])
    layers = _models(spec, context, page)
    label = quantity_label("ess_per_difficulty", DIFFICULTY[spec.studies[0]])
    value = column("ess_per_difficulty", spec.ess_kinds[0])
    numbers = [] if layers is None else sorted(layers["layer"].unique())
    names = {f"mixer {n + 1}": n for n in numbers}
    markers = "os^Dv"
    looks = {
        name: {"color": style.SERIES[n % len(style.SERIES)], "marker": markers[n % len(markers)]}
        for name, n in names.items()
    }
    page.legend({name: panels.entry(**look) for name, look in looks.items()})
    for i, featurizer in enumerate(("gla", "wla")):
        ax = page.axes[0][i]
        ax.set_title(style.name(featurizer))
        rows = None
        if layers is not None:
            rows = layers[layers["featurizer"] == featurizer]
            rows = rows.assign(series=[f"mixer {n + 1}" for n in rows["layer"]])
        how = {"by": "series", "looks": looks, "y_label": "" if i else f"mean {label}"}
        if _over_length(page, (0, i), style.name(featurizer), rows, value, **how):
            ax.set_ylim(bottom=0)
    return page
