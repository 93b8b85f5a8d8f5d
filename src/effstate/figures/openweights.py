"""Total ESS of open-weight models along sentences, code, questions (figures 9, 35-41, 43-46)."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from effstate.figures import panels, style
from effstate.figures.language import draw_recall
from effstate.figures.panels import NO_RUNS, Page, Row
from effstate.figures.registry import FigureSpec
from effstate.figures.render import FigureContext

SEPARATORS = {"eos": "sentences end with EOS", ".": 'sentences end with "."'}


def draw(spec: FigureSpec, context: FigureContext) -> Page:
    """The figure that ``spec.options["draw"]`` names."""
    how = {"separators": _separators, "code": _code, "shots": _shots, "causal": _causal}
    return how[spec.options["draw"]](spec, context)


def shown_model(spec: FigureSpec, context: FigureContext) -> tuple[pd.Series | None, str]:
    """The row of ``openweights_runs`` that a figure shows, or None with the sentence that says why."""
    runs = context.table("openweights_runs")
    if runs is None:
        return None, NO_RUNS
    mine = runs[[spec.id in figures.split("+") for figures in runs["figures"]]]
    if mine.empty:
        return None, "this scale shows no model here"
    row = mine.iloc[0]
    if row["state"] != "done":
        return None, f"{row['model']}: {row['state']}"
    return row, ""


def _curves(spec: FigureSpec, context: FigureContext, page: Page) -> tuple[pd.DataFrame | None, str]:
    """The figure's rows of ``openweights_curves``; says on the page which model they are of."""
    run, why = shown_model(spec, context)
    curves = context.table("openweights_curves")
    if run is None or curves is None:
        return None, why or NO_RUNS
    page.note(
        f"Model: {run['model']} ({1000 * run['billions']:.0f}M parameters, {run['layers']:.0f} layers "
        "measured)."
    )
    return curves[(curves["model"] == run["model"]) & (curves["suite"] == run["suite"])], ""


def _along(page: Page, ax: Axes, panel: str, rows: pd.DataFrame, column: str, tolerance: float) -> None:
    """Total ESS over tokens in full colour, marked tokens as dots and dotted lines."""
    rows = rows.sort_values("index")
    ax.plot(rows["index"], rows[column], color=style.SERIES[0], lw=1, zorder=3)
    marked = rows[rows["mark"] != ""]
    for place in marked["index"]:
        ax.axvline(place, color=style.SERIES[5], ls=":", lw=0.7, zorder=0)
    ax.plot(marked["index"], marked[column], ls="", marker="o", ms=2.5, color=style.SERIES[5], zorder=4)
    ax.set_xlim(1, rows["index"].max())
    ax.set_ylim(0, 1.08 * max(float(rows[column].max()), 1e-9))
    points = rows.rename(columns={"index": "x", column: "y"})[["x", "y", "token", "mark"]]
    page.record(panel, points, tolerance=tolerance)


def _legend(page: Page, mark: str) -> None:
    page.legend(
        {
            "total ESS": panels.entry(style.SERIES[0], ls="-", lw=1),
            mark: panels.entry(style.SERIES[5], ls=":", marker="o", ms=3),
        }
    )


def _label(tolerance: float) -> str:
    return f"τ = {tolerance:.0e}".replace("e-0", "e-")


# ------------------------------------------------------------------------------ figures 9, 35-41


def _separators(spec: FigureSpec, context: FigureContext) -> Page:
    tolerances = spec.options["tolerances"]
    row = Row(2, 0.95, above=0.34, below=0.2, left=0.7, gap=0.6)
    with_recall = "lm" in spec.studies
    page = Page(spec.title, [row] * len(tolerances) + [Row(1, 1.3)] * with_recall)
    _legend(page, "separator")
    curves, why = _curves(spec, context, page)
    for axes, tolerance in zip(page.axes, tolerances, strict=False):
        for ax, (separator, words) in zip(axes, SEPARATORS.items(), strict=True):
            if curves is None:
                panels.empty(page, ax, separator, why)
                continue
            rows = curves[(curves["separator"] == separator) & (curves["tolerance"] == tolerance)]
            _along(page, ax, separator, rows, "mean_total_ess", tolerance)
            ax.set_title(f"{words}, {_label(tolerance)}", fontsize=7)
            ax.set_ylabel("total ESS" if separator == "eos" else "")
            ax.set_xlabel("token" if tolerance == tolerances[-1] else "")
    if with_recall:
        page.label(page.axes[0][0], "a", above=16)
        page.label(page.axes[-1][0], "b", "log perplexity over the distance of recall")
        draw_recall(page, page.axes[-1][0], "b", context)
    page.note("Total ESS sums over channels, and is a mean over layers.")
    _say_dips(spec, context, page)
    return page


def _say_dips(spec: FigureSpec, context: FigureContext, page: Page) -> None:
    """Mean dips at separators and mid-sentence, for each separator and tolerance."""
    run, _ = shown_model(spec, context)
    dips = context.table("openweights_dips")
    if run is None or dips is None:
        return
    own = dips[dips["model"] == run["model"]]
    means = own.groupby(["separator", "tolerance", "place"])["dip"].mean().unstack("place")
    said = []
    for separator, name in (("eos", "EOS"), (".", '"."')):
        rows = means.loc[separator].sort_index(ascending=False)
        pairs = zip(rows["separator"], rows["control"], strict=True)
        said.append(f"{name} " + ", ".join(f"{dip:.2f} ({control:.2f})" for dip, control in pairs))
    page.note(f"Mean dip (and mid-sentence), τ from the largest: {'; '.join(said)}.")


# ----------------------------------------------------------------------------- figures 43 and 44


def _code(spec: FigureSpec, context: FigureContext) -> Page:
    tolerances = spec.options["tolerances"]
    page = Page(spec.title, [Row(1, 1.15, above=0.34, left=0.8)] * len(tolerances))
    _legend(page, "closing brace")
    curves, why = _curves(spec, context, page)
    program = spec.options["program"]
    for (ax,), tolerance in zip(page.axes, tolerances, strict=True):
        if curves is None:
            panels.empty(page, ax, "-", why)
            continue
        rows = curves[(curves["prompt"] == program) & (curves["tolerance"] == tolerance)]
        _along(page, ax, "-", rows, "sum_total_ess", tolerance)
        ax.set(title=_label(tolerance), xlabel="token", ylabel="total ESS")
    page.note("Total ESS sums over channels and over the layers that were measured.")
    return page


# ----------------------------------------------------------------------------- figures 45 and 46


def _shots(spec: FigureSpec, context: FigureContext) -> Page:
    page = Page(spec.title, [Row(1, 1.9, above=0.2, left=0.8)])
    ((ax,),) = page.axes
    curves, why = _curves(spec, context, page)
    if curves is None:
        panels.empty(page, ax, "-", why)
        return page
    accuracies = context.tables["openweights_accuracies"]
    accuracies = accuracies[accuracies["model"] == curves["model"].iloc[0]].set_index("shots")[
        "accuracy"
    ]
    first = curves[curves["prompt"] == curves["prompt"].iloc[0]]
    entries = {}
    for (shots, rows), colour in zip(first.groupby("shots"), style.SERIES, strict=False):
        rows = rows.sort_values("index")
        start = int(rows.loc[rows["mark"] == "question", "index"].min())
        x = rows["index"] - start
        ax.plot(x, rows["sum_total_ess"], color=colour, lw=1)
        entries[f"{shots} shots ({accuracies[shots]:.2f})"] = panels.entry(colour, ls="-", lw=1)
        points = pd.DataFrame({"x": x, "y": rows["sum_total_ess"], "token": rows["token"]})
        page.record("-", points, shots=shots, accuracy=accuracies[shots])
    page.legend(entries)
    ax.axvline(0, color=style.GREY, ls=":", lw=0.7)
    ax.set(xlabel="tokens since the question starts", ylabel="total ESS")
    ax.set_ylim(0, 1.08 * float(np.nanmax(first["sum_total_ess"])))
    page.note("Total ESS sums over channels and over the layers that were measured; one question.")
    page.note("In brackets: accuracy over all questions.")
    return page


# -------------------------------------------------------------------------------------- figure B3


def _causal(spec: FigureSpec, context: FigureContext) -> Page:
    """Mean dips of ESS and of causal ESS at separators, a pair of points per model."""
    tolerances = spec.options["tolerances"]
    rows = [Row(2, 1.0, above=0.34, below=0.1, gap=0.5)] * (len(tolerances) - 1)
    page = Page(spec.title, [*rows, Row(2, 1.0, above=0.34, below=1.35, gap=0.5)])
    looks = {"ESS": (style.SERIES[0], "o"), "causal ESS": (style.SERIES[1], "s")}
    page.legend({name: panels.entry(c, ls="", marker=m) for name, (c, m) in looks.items()})
    dips, causal = context.table("openweights_dips"), context.table("openweights_causal")
    for axes, tolerance in zip(page.axes, tolerances, strict=True):
        for ax, (separator, words) in zip(axes, SEPARATORS.items(), strict=True):
            if dips is None or causal is None:
                panels.empty(page, ax, separator, NO_RUNS)
                continue
            models = sorted(dips["model"].unique())
            for (name, (colour, marker)), table in zip(looks.items(), (dips, causal), strict=True):
                here = (table["separator"] == separator) & (table["tolerance"] == tolerance)
                at = table[here & (table["place"] == "separator")]
                y = at.groupby("model")["dip"].mean().reindex(models)
                ax.plot(range(len(models)), y, ls="", marker=marker, color=colour, zorder=3)
                points = pd.DataFrame({"model": models, "y": y.to_numpy()})
                page.record(separator, points, series=name, tolerance=tolerance)
            ax.axhline(0, color=style.GREY, lw=0.5, zorder=0)
            last = tolerance == tolerances[-1]
            ax.set_xticks(range(len(models)), models if last else [""] * len(models), rotation=90)
            ax.set_title(f"{words}, {_label(tolerance)}", fontsize=7)
            ax.set_ylabel("dip" if separator == "eos" else "")
    page.note("A dip is 1 - (lowest total ESS around a separator) / (median inside its sentence).")
    page.note("The causal ESS of softmax attention is the number of past tokens, so it only grows.")
    return page
