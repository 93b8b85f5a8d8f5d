"""Figures 6, 31 and 32: teachers' ESS and what smaller students lose (sections 5.2, E.4)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from scipy import stats

from effstate.figures import panels, style
from effstate.figures.panels import NO_RUNS, Page, Row
from effstate.figures.registry import FigureSpec
from effstate.figures.studies import finished, relation, relation_text, short

if TYPE_CHECKING:
    from effstate.figures.render import FigureContext

PER_ROW = 4
MARKERS = "os^Dv"
Limits = tuple[float, float]


def draw(spec: FigureSpec, context: FigureContext) -> Page:
    """Draw figure 6 (``loss``), 31 (``curves``) or 32 (``pairs``), as the registry names it."""
    by_name = {"loss": _loss, "curves": _curves, "pairs": _pairs}
    return by_name[spec.options["draw"]](spec, context)


def _limits(values: np.ndarray) -> Limits:
    """From 0 to a margin above the largest value."""
    largest = float(np.max(values, initial=0.0))
    return -0.04 * largest if largest > 0 else -0.05, 1.06 * largest if largest > 0 else 1.0


def _layer(number: float) -> str:
    return f"layer {number:g}"


def _per_size(
    spec: FigureSpec,
    table: pd.DataFrame | None,
    x: str,
    y: str,
    labels: tuple[str, str],
    finish: Callable[[Page, Axes, str, pd.DataFrame], str],
    square: bool = False,
) -> Page:
    """Points of ``y`` against ``x``, a panel per student TSS, a look per layer.

    ``finish(page, ax, panel, points)`` adds to a panel and returns the text above it. ``square``
    gives both axes the same limits.
    """
    sizes = [] if table is None else sorted(table["tss"].unique())
    rows = max(1, math.ceil(len(sizes) / PER_ROW))
    columns = max(1, math.ceil(len(sizes) / rows))
    height = 1.35 if columns > 1 else 1.6
    page = Page(spec.title, [Row(columns, height, above=0.42, gap=0.22)] * rows)
    axes = [ax for row in page.axes for ax in row]
    if table is None:
        panels.empty(page, axes[0], "-", NO_RUNS)
        return page
    names = [_layer(n) for n in sorted(table["layer"].unique())]
    looks = {
        name: {"color": style.SERIES[i % len(style.SERIES)], "marker": MARKERS[i % len(MARKERS)]}
        for i, name in enumerate(names)
    }
    page.legend({name: panels.entry(ls="", **look) for name, look in looks.items()})
    limits = _limits(table[x].to_numpy()), _limits(table[y].to_numpy())
    if square:
        limits = (max(limits, key=lambda pair: pair[1]),) * 2
    for i, (ax, tss) in enumerate(zip(axes, sizes, strict=False)):
        mine = table[table["tss"] == tss]
        panel = f"student TSS {tss:g}"
        ax.set_title(panel, pad=14)
        kept = ["student", "run", "epoch", "layer", "featurizer", "seq_len", "kv", "seed", "tss"]
        points = mine[kept].assign(x=mine[x], y=mine[y], series=mine["layer"].map(_layer))
        left = i % columns == 0
        said = finish(page, ax, panel, points)
        page_labels = {"x_label": labels[0], "y_label": labels[1] if left else ""}
        panels.points(page, ax, panel, points, looks=looks, text=said, **page_labels)
        if not left:
            ax.set_yticklabels([])
    lowest = min(limits[1][0], *(ax.dataLim.y0 for ax in axes[: len(sizes)]))
    highest = max(limits[1][1], *(ax.dataLim.y1 for ax in axes[: len(sizes)]))
    for ax in axes[: len(sizes)]:
        ax.set(xlim=limits[0], ylim=(lowest, 1.02 * highest))
    for ax in axes[len(sizes) :]:
        ax.set_axis_off()
    teachers = table.drop_duplicates(["run", "epoch"])
    page.note(
        f"A point is one layer of one teacher checkpoint: {table['run'].nunique()} teachers, "
        f"{len(teachers)} checkpoints. {_teachers_accuracy(teachers)}"
    )
    return page


def _teachers_accuracy(teachers: pd.DataFrame) -> str:
    """Whether the teachers learnt anything: their best accuracies beside chance, per task cell."""
    best = teachers.groupby(["seq_len", "kv"])[["teacher_accuracy", "chance"]].max()
    cells = [
        f"{short(row.teacher_accuracy)} at length {length:g}, kv {kv:g} (chance {short(row.chance)})"
        for (length, kv), row in best.iterrows()
    ]
    return f"Best accuracy of a teacher: {', '.join(cells)}."


def _loss(spec: FigureSpec, context: FigureContext) -> Page:
    ess = f"teacher_ess_mid_{spec.ess_kinds[0]}"
    table = finished(context, "distillation_students", ess, "activation_loss")
    labels = "teacher ESS, mid index", "activation loss"
    page = _per_size(spec, table, ess, "activation_loss", labels, _regression)
    page.note("Teacher ESS: the smallest over samples and channels at the middle of the sequence.")
    page.note("r: Pearson, ρ: Spearman; the line is least squares over all layers.")
    return page


def _regression(page: Page, ax: Axes, panel: str, points: pd.DataFrame) -> str:
    """The least-squares line over the points; nothing is drawn where it does not exist."""
    found = relation(points, "x", "y")
    if np.isfinite(found["pearson"]):
        fit = stats.linregress(points["x"], points["y"])
        ends = np.array([points["x"].min(), points["x"].max()])
        ax.plot(ends, fit.intercept + fit.slope * ends, color="black", lw=1.0, zorder=4)
        numbers = {"slope": fit.slope, "intercept": fit.intercept, "p": fit.pvalue}
        line = pd.DataFrame({"x": ends, "y": fit.intercept + fit.slope * ends})
        page.record(panel, line, series="regression", **numbers, **found)
    return relation_text(found)


def _pairs(spec: FigureSpec, context: FigureContext) -> Page:
    kind = spec.ess_kinds[0]
    x, y = f"teacher_ess_{kind}", f"ess_{kind}"
    table = finished(context, "distillation_students", x, y)
    labels = "teacher ESS", "student ESS"
    page = _per_size(spec, table, x, y, labels, _equality, square=True)
    page.note("ESS: mean over samples, channels and index. The grey line is equality.")
    return page


def _equality(page: Page, ax: Axes, panel: str, points: pd.DataFrame) -> str:
    """The line on which a student has its teacher's ESS, and how many lie below it."""
    ax.axline((0, 0), slope=1, color=style.GREY, lw=0.8, zorder=0)
    below = int((points["y"] < points["x"]).sum())
    return f"{below} of {len(points)} below, ρ = {short(relation(points, 'x', 'y')['spearman'])}"


# ----------------------------------------------------------------------------- along the sequence


def shown_teacher(curves: pd.DataFrame) -> pd.DataFrame:
    """Curves of the one teacher that figure 31 shows.

    It is that of the longest sequences, then of the most key-value pairs, then of the first seed.
    """
    ordered = curves.sort_values(
        ["seq_len", "kv", "seed", "run"], ascending=[False, False, True, True], kind="stable"
    )
    return curves[curves["run"] == ordered["run"].iloc[0]]


def _named(rows: pd.DataFrame) -> dict[tuple[str, float], str]:
    """Role and TSS of a layer's curves to a legend entry, the teacher first, then small to large."""
    found = rows[["role", "tss", "accuracy"]].drop_duplicates(["role", "tss"])
    found = found.sort_values(["role", "tss"], ascending=[False, True])
    return {
        (role, tss): f"{role}, TSS {tss:g}: {short(accuracy)}"
        for role, tss, accuracy in found.itertuples(index=False)
    }


def _curves(spec: FigureSpec, context: FigureContext) -> Page:
    ess = f"ess_{spec.ess_kinds[0]}"
    curves = context.table("distillation_curves")
    if curves is not None:
        curves = curves.dropna(subset=[ess]) if ess in curves.columns else curves.iloc[:0]
    rows = None if curves is None or curves.empty else shown_teacher(curves)
    layers = [0, 1] if rows is None else sorted(rows["layer"].unique())
    page = Page(spec.title, [Row(1, 1.35, above=0.25, right=1.75)] * len(layers))
    for (ax,), layer, panel in zip(page.axes, layers, "abcdefgh", strict=False):
        page.label(ax, panel, _layer(layer))
        if rows is None:
            panels.empty(page, ax, panel, NO_RUNS)
            continue
        mine = rows[rows["layer"] == layer]
        names = _named(mine)
        students = [name for (role, _), name in names.items() if role == "student"]
        looks: dict[str, dict[str, Any]] = {
            name: {"color": colour, "marker": "", "lw": 1.0}
            for name, colour in panels.ramp(students).items()
        }
        looks |= {
            n: {"color": "black", "marker": "", "ls": "--"} for n in names.values() if n not in looks
        }
        keys = zip(mine["role"], mine["tss"], strict=True)
        points = mine.assign(series=[names[key] for key in keys], x=mine["index"], y=mine[ess])
        kept = ["run", "student", "featurizer", "layer", "role", "tss", "accuracy", "series", "x", "y"]
        labels = {"x_label": "index", "y_label": "mean ESS"}
        how = {"by": "series", "looks": looks, "log2_x": False}
        panels.lines(page, ax, panel, points[kept], **labels, **how)
        ax.set_ylim(bottom=0)
        handles = [panels.entry(**looks[name]) for name in names.values()]
        box = {"loc": "upper left", "bbox_to_anchor": (1.02, 1.05), "frameon": False}
        ax.legend(handles, [*names.values()], title="accuracy on the test rows", title_fontsize=7, **box)
    if rows is not None:
        first = rows.iloc[0]
        page.note(
            f"Teacher {first['run']}: {style.name(first['featurizer'])}, length {first['seq_len']:g}, "
            f"kv {first['kv']:g}, seed {first['seed']:g} (the longest length, then the largest kv, then "
            "the first seed). Each student replaces one layer of its last checkpoint."
        )
    return page
