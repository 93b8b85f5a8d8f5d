"""Language models: state along sentences (figure 42), recall (9b), and learning curves (B6)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from effstate.analysis.names import order
from effstate.figures import panels, style
from effstate.figures.panels import NO_RUNS, Page, Row
from effstate.figures.registry import FigureSpec

if TYPE_CHECKING:
    from effstate.figures.render import FigureContext

SEPARATORS = {"eos": "sentences end with EOS", ".": 'sentences end with "."'}
CURVES = {"recall": "-", "standard": "--"}
"""The curves of figure 9b and how their lines are drawn."""


def draw(spec: FigureSpec, context: FigureContext) -> Page:
    """The figure that ``spec.options["draw"]`` names."""
    return {"modulation": _modulation, "learning": _learning}[spec.options["draw"]](spec, context)


def _first_seed(table: pd.DataFrame) -> pd.DataFrame:
    return table[table["seed"] == table["seed"].min()]


def _sizes(page: Page, context: FigureContext) -> None:
    """Say how large the models are, and on what they were trained."""
    runs = context.table("lm_runs")
    if runs is None or (runs := runs[runs["state"] == "done"]).empty:
        return
    low, high = runs["parameters"].min() / 1e6, runs["parameters"].max() / 1e6
    size = f"{low:,.2f}M" if f"{low:.2f}" == f"{high:.2f}" else f"{low:,.2f}M to {high:,.2f}M"
    tokens = runs["tokens"].max() / 1e6
    corpus = runs["corpus"].dropna().unique()
    on = f" of {corpus[0]}" if len(corpus) else ""
    page.note(f"Models of {size} parameters, trained on {tokens:,.1f}M tokens{on}.")


# -------------------------------------------------------------------------------------- figure 42


def _modulation(spec: FigureSpec, context: FigureContext) -> Page:
    tolerances = spec.options["tolerances"]
    row = Row(2, 1.0, above=0.34, below=0.14, left=0.6, gap=0.5)
    page = Page(spec.title, [row] * (len(tolerances) - 1) + [Row(2, 1.0, above=0.34, left=0.6, gap=0.5)])
    curves = context.table("lm_curves")
    empty = curves is None or curves.empty
    models = [] if curves is None or empty else order(curves["featurizer"].unique())
    page.legend(
        {style.name(f): panels.entry(style.look(f, models)[0], ls="-", lw=1) for f in models}
        | {"separator": panels.entry(style.GREY, ls=":", lw=0.8)}
    )
    for axes, tolerance in zip(page.axes, tolerances, strict=True):
        for ax, (separator, words) in zip(axes, SEPARATORS.items(), strict=True):
            if curves is None or empty:
                panels.empty(page, ax, separator, NO_RUNS)
                continue
            rows = _first_seed(curves)
            rows = rows[(rows["text"] == 0) & (rows["separator"] == separator)]
            rows = rows[np.isclose(rows["tolerance"], tolerance, rtol=1e-6)]
            if rows.empty:
                panels.empty(page, ax, separator, f"τ = {tolerance:g} was not measured")
                continue
            _lines_along(page, ax, separator, rows, models)
            ax.set_title(f"{words}, τ = {tolerance:g}", fontsize=7)
            ax.set_ylabel("total ESS" if separator == "eos" else "")
            ax.set_xlabel("token" if tolerance == tolerances[-1] else "")
    page.note("Total ESS sums over channels and layers; the last separator ends the text.")
    _sizes(page, context)
    _say_dips(page, context)
    return page


def _lines_along(page: Page, ax: Axes, panel: str, rows: pd.DataFrame, models: list[str]) -> None:
    """Total ESS over tokens, a line per featurizer, separators as dotted lines."""
    for featurizer in models:
        line = rows[rows["featurizer"] == featurizer].sort_values("index")
        ax.plot(line["index"], line["total_ess"], color=style.look(featurizer, models)[0], lw=1)
        points = line.rename(columns={"index": "x", "total_ess": "y"})
        page.record(panel, points[["featurizer", "x", "y", "tolerance", "token", "mark"]])
    for place in rows.loc[rows["mark"] == "separator", "index"].unique():
        ax.axvline(place, color=style.GREY, ls=":", lw=0.8, zorder=0)
    ax.set_xlim(1, rows["index"].max())
    ax.set_ylim(0, 1.08 * max(float(rows["total_ess"].max()), 1e-9))


def _say_dips(page: Page, context: FigureContext) -> None:
    """Mean dip at EOS and mid-sentence of each featurizer, at the tolerance of its largest dip."""
    dips = context.table("lm_dips")
    if dips is None or dips.empty:
        return
    said = []
    for separator, name in (("eos", "EOS"), (".", '"."')):
        here = dips[dips["separator"] == separator]
        means = here.groupby(["featurizer", "tolerance", "place"])["dip"].mean().unstack("place")
        parts = []
        for featurizer in order(means.index.get_level_values(0).unique()):
            own = means.loc[featurizer]
            best = own.loc[own["separator"].idxmax()]
            numbers = f"{best['separator']:.2f} ({best['control']:.2f})"
            parts.append(f"{style.name(featurizer)} {numbers} at τ = {best.name:g}")
        said.append(f"{name}: " + ", ".join(parts))
    page.note(
        "Mean dip over all orders of the sentences (and mid-sentence), where it is largest: "
        + "; ".join(said)
        + "."
    )


# -------------------------------------------------------------------------------------- figure 9b


def draw_recall(page: Page, ax: Axes, panel: str, context: FigureContext) -> None:
    """Log perplexity of recall tokens, and of all tokens at their positions, over the distance."""
    curves, runs = context.table("lm_smoothed"), context.table("lm_runs")
    if curves is None or runs is None or curves.empty:
        panels.empty(page, ax, panel, NO_RUNS)
        return
    curves = _first_seed(curves)
    models = order(curves["featurizer"].unique())
    looks = {f"{curve} tokens": panels.entry(style.GREY, ls=ls) for curve, ls in CURVES.items()}
    page.legend(
        {style.name(f): panels.entry(style.look(f, models)[0], ls="-", lw=1) for f in models} | looks
    )
    for featurizer in models:
        colour = style.look(featurizer, models)[0]
        for curve, ls in CURVES.items():
            rows = curves[(curves["featurizer"] == featurizer) & (curves["curve"] == curve)]
            rows = rows.sort_values("distance")
            ax.plot(rows["distance"], rows["log_perplexity"], color=colour, ls=ls, lw=1)
            ax.fill_between(rows["distance"], rows["low"], rows["high"], color=colour, alpha=0.12, lw=0)
            points = rows.rename(columns={"distance": "x", "log_perplexity": "y"})
            columns = ["featurizer", "x", "y", "low", "high", "tokens"]
            page.record(panel, points[columns], series=curve)
    panels.log2_axis(ax, curves["distance"])
    ax.set(xlabel="distance to the bigram's last occurrence (tokens)", ylabel="log perplexity (nats)")
    _sizes(page, context)
    page.note("Bands: 95% bootstrap intervals over contexts.")
    _say_perplexities(page, runs)


def _say_perplexities(page: Page, runs: pd.DataFrame) -> None:
    measured = _first_seed(runs.dropna(subset=["log_perplexity"])).set_index("featurizer")
    if measured.empty:
        return
    said = [
        f"{style.name(f)} {np.exp(measured.loc[f, 'log_perplexity']):.1f}" for f in order(measured.index)
    ]
    baseline = np.exp(measured["unigram_log_perplexity"].iloc[0])
    page.note(f"Test perplexity: {', '.join(said)}; of the tokens' shares alone {baseline:.1f}.")


# -------------------------------------------------------------------------------------- figure B6


def _learning(spec: FigureSpec, context: FigureContext) -> Page:
    page = Page(spec.title, [Row(1, 1.9, above=0.25)])
    ax = page.axes[0][0]
    losses, runs = context.table("lm_losses"), context.table("lm_runs")
    if losses is None or runs is None or losses.empty:
        panels.empty(page, ax, "-", NO_RUNS)
        return page
    losses = _first_seed(losses)
    models = order(losses["featurizer"].unique())
    page.legend(
        panels.featurizer_entries(models) | {"tokens' shares": panels.entry(style.GREY, ls=":", lw=1)}
    )
    for featurizer in models:
        colour, marker = style.look(featurizer, models)
        rows = losses[losses["featurizer"] == featurizer].sort_values("step")
        x = rows["tokens"] / 1e6
        ax.plot(x, rows["loss"], color=colour, marker=marker, ms=3, lw=1)
        points = pd.DataFrame({"x": x, "y": rows["loss"], "train_loss": rows["train_loss"]})
        page.record("-", points, featurizer=featurizer)
    baselines = runs["unigram_log_perplexity"].dropna()
    if len(baselines):
        ax.axhline(baselines.iloc[0], color=style.GREY, ls=":", lw=1)
        page.record("-", pd.DataFrame({"series": ["tokens' shares"], "y": [baselines.iloc[0]]}))
    ax.set(xlabel="training tokens (millions)", ylabel="validation loss (nats per token)")
    _sizes(page, context)
    _say_perplexities(page, runs)
    return page
