"""Figures 8, 27 and 28: the state that untrained layers have, and what they learn (5.1, E.2)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from effstate.analysis.names import AXIS_LABELS, INIT_FEATURIZERS
from effstate.figures import panels, style
from effstate.figures.panels import NO_RUNS, Page, Row
from effstate.figures.registry import FigureSpec
from effstate.figures.studies import (
    ACCURACY,
    ess_and_accuracy,
    finished,
    over_seeds,
    relation,
    relation_text,
    short,
)

if TYPE_CHECKING:
    from effstate.figures.render import FigureContext

LOOKS = {
    featurizer: dict(zip(("color", "marker"), style.look(featurizer, INIT_FEATURIZERS), strict=True))
    for featurizer in INIT_FEATURIZERS
}
NOT_TRACED = "no finished run has the ESS of its untrained layers on noise"


def draw(spec: FigureSpec, context: FigureContext) -> Page:
    """Draw figure 8 (``noise``), 27 (``curves``) or 28 (``harder``), as the registry names it."""
    by_name = {"noise": _noise, "curves": _curves, "harder": _harder}
    return by_name[spec.options["draw"]](spec, context)


def _only(rows: pd.DataFrame | None, featurizer: str) -> pd.DataFrame | None:
    """A featurizer's rows; None without any."""
    if rows is None or (mine := rows[rows["featurizer"] == featurizer]).empty:
        return None
    return mine


def _say_relation(page: Page, rows: pd.DataFrame, what: str, x: str, y: str) -> None:
    page.note(f"{what}: {relation_text(relation(rows, x, y))}.")


def _noise(spec: FigureSpec, context: FigureContext) -> Page:
    page = Page(spec.title, [Row(3, 1.35, above=0.3, gap=0.85, right=0.5)])
    entries = {f"ESS of {style.name(f)}": panels.entry(**look) for f, look in LOOKS.items()}
    page.legend(entries | {"accuracy": panels.entry(**ACCURACY)})
    ess = f"init_ess_{spec.ess_kinds[0]}"
    by_size = finished(context, "init_runs", ess, "accuracy", part="tss")
    by_alpha = _only(finished(context, "init_runs", ess, "accuracy", part="alpha"), "gla_s6")
    first, second, third = page.axes[0]
    page.note("Lines are means over seeds, bands their extremes; r: Pearson, ρ: Spearman, over runs.")
    page.label(first, "a", "untrained, on noise")
    if by_size is None:
        panels.empty(page, first, "a", NOT_TRACED)
    else:
        shown = by_size[by_size["featurizer"].isin(INIT_FEATURIZERS)]
        points = over_seeds(shown, ess, "tss")
        how = {"looks": LOOKS, "band": True, "y_label": "ESS at initialisation"}
        panels.lines(page, first, "a", points, x_label=AXIS_LABELS["tss"], **how)
        first.set_ylim(bottom=0)
        for featurizer in INIT_FEATURIZERS:
            if (mine := _only(shown, featurizer)) is not None:
                _say_relation(page, mine, f"{style.name(featurizer)}, init ESS and TSS", "tss", ess)
    gla = _only(by_size, "gla")
    page.label(second, "b", "GLA")
    label = "ESS at initialisation"
    if ess_and_accuracy(page, second, "b", gla, "tss", ess, label, LOOKS["gla"], NOT_TRACED):
        _say_relation(page, gla, "GLA, init ESS and accuracy", ess, "accuracy")
    largest = None
    if by_alpha is not None:
        largest = by_alpha[by_alpha["tss"] == by_alpha["tss"].max()]
        _say_relation(page, largest, "(c) α and init ESS", "arange_alpha", ess)
        _say_relation(page, largest, "(c) α and accuracy", "arange_alpha", "accuracy")
    size = "the largest TSS" if largest is None else f"TSS {largest['tss'].iloc[0]:g}"
    page.label(third, "c", f"GLA-S6 at {size}")
    look = LOOKS["gla_s6"]
    ess_and_accuracy(page, third, "c", largest, "arange_alpha", ess, label, look, NOT_TRACED)
    return page


def _curves(spec: FigureSpec, context: FigureContext) -> Page:
    page = Page(
        spec.title, [Row(2, 1.1, above=0.25, below=0.1, gap=0.4), Row(2, 1.1, above=0.1, gap=0.4)]
    )
    table = finished(context, "init_checkpoints", "accuracy", "loss", part="tss")
    shown = {f: _only(table, f) for f in ("s6", "gla_s6")}
    sizes = sorted({tss for rows in shown.values() if rows is not None for tss in rows["tss"]})
    names = {tss: f"TSS {tss:g}" for tss in sizes}
    looks = {
        name: {"color": colour, "marker": ""} for name, colour in panels.ramp([*names.values()]).items()
    }
    page.legend({name: panels.entry(look["color"]) for name, look in looks.items()})
    for i, (featurizer, rows) in enumerate(shown.items()):
        name = style.name(featurizer)
        page.axes[0][i].set_title(name)
        for ax, value in zip((page.axes[0][i], page.axes[1][i]), ("accuracy", "loss"), strict=True):
            if rows is None:
                panels.empty(page, ax, name, NO_RUNS, featurizer)
                continue
            series = rows.assign(series=rows["tss"].map(names))
            points = over_seeds(series, value, "epoch", "series").assign(featurizer=featurizer)
            how = {"by": "series", "looks": looks, "band": True, "log2_x": False}
            how["y_label"] = "" if i else f"validation {value}"
            if value == "accuracy":
                panels.chance(page, ax, name, rows["chance"])
            panels.lines(page, ax, name, points, x_label="" if value == "accuracy" else "epoch", **how)
            if value == "accuracy":
                panels.accuracy_axis(ax)
                ax.set_xticklabels([])
        if rows is not None:
            above = rows["accuracy"] - rows["chance"]
            best = rows.loc[above.idxmax()]
            page.note(
                f"{name}: the largest accuracy of any checkpoint is {short(best['accuracy'])} "
                f"(TSS {best['tss']:g}, epoch {best['epoch']:g}; chance {short(best['chance'])}), "
                f"over {rows['run'].nunique()} runs."
            )
    page.note("Lines are means over seeds, bands their extremes.")
    return page


def _harder(spec: FigureSpec, context: FigureContext) -> Page:
    page = Page(spec.title, [Row(2, 1.35, above=0.3, gap=1.1, right=0.5)])
    page.legend({"ESS": panels.entry(**LOOKS["gla"]), "accuracy": panels.entry(**ACCURACY)})
    kind = spec.ess_kinds[0]
    cell: set[str] = set()
    for ax, panel, text, ess, why in (
        (page.axes[0][0], "a", "untrained, on noise", f"init_ess_{kind}", NOT_TRACED),
        (page.axes[0][1], "b", "trained", f"ess_{kind}", NO_RUNS),
    ):
        rows = _only(finished(context, "init_runs", ess, "accuracy", part="fig28"), "gla")
        page.label(ax, panel, text)
        if ess_and_accuracy(page, ax, panel, rows, "tss", ess, "ESS", LOOKS["gla"], why):
            cell |= {f"length {a:g}, kv {b:g}" for a, b in zip(rows["seq_len"], rows["kv"], strict=True)}
            _say_relation(page, rows, f"({panel}) ESS and TSS", "tss", ess)
            _say_relation(page, rows, f"({panel}) ESS and accuracy", ess, "accuracy")
    if cell:
        page.note(f"GLA at {' and '.join(sorted(cell))} (paper: length 1024, kv 256).")
    page.note("Lines are means over seeds, bands their extremes; r: Pearson, ρ: Spearman, over runs.")
    return page
