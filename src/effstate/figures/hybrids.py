"""Figures 33 and 34: ESS of the layers of hybrids of SA and GLA (section E.4)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from effstate.analysis.names import attention_places
from effstate.figures import panels, style
from effstate.figures.panels import NO_RUNS, Page, Row
from effstate.figures.registry import FigureSpec
from effstate.figures.studies import final_layers, finished, over_seeds, relation, relation_text, short

if TYPE_CHECKING:
    from effstate.figures.render import FigureContext

PRINTED = Path(__file__).parent / "data" / "printed_hybrids.csv"
PARTS = {"four": ("33a", "all orders of four mixers"), "jamba": ("33b", "the Jamba policy")}
"""Part of the study to the printed figure and its name."""

MIXERS = ("sa", "gla")
SUMMARIES = {"maximum": "max", "average": "mean"}


def draw(spec: FigureSpec, context: FigureContext) -> Page:
    """Draw figure 33 (``layers``) or figure 34 (``accuracy``), as the registry names it."""
    return (_layers if spec.options["draw"] == "layers" else _accuracy)(spec, context)


def printed_accuracies() -> pd.DataFrame:
    """The printed accuracies: figure, mixer_layers, places (of attention, a tuple), accuracy."""
    table = pd.read_csv(PRINTED, comment="#", dtype={"sa_layers": str}, keep_default_na=False)
    return table.assign(places=[tuple(map(int, text.split())) for text in table["sa_layers"]])


def ordered(patterns: pd.Series) -> list[str]:
    """Hybrids by their number of attention layers, then by where those stand."""
    return sorted(set(patterns), key=lambda p: (len(attention_places(p)), attention_places(p), p))


def layers_of(context: FigureContext, kind: str, part: str) -> pd.DataFrame | None:
    """Final layers of a part's finished runs with their ESS; None without any."""
    runs = finished(context, "hybrids_runs", "accuracy", part=part)
    layers = context.table("hybrids_layers")
    if runs is None or layers is None or f"ess_{kind}" not in layers.columns:
        return None
    table = final_layers(runs, layers).dropna(subset=[f"ess_{kind}"])
    return None if table.empty else table


def _look(mixer: str) -> dict[str, Any]:
    colour, marker = style.look(mixer)
    return {"color": colour, "marker": marker}


# -------------------------------------------------------------------------------------- figure 33


def _layers(spec: FigureSpec, context: FigureContext) -> Page:
    page = Page(spec.title, [Row(1, 1.4, above=0.3, below=0.25, right=0.5)] * len(PARTS))
    sides = dict(zip(MIXERS, ("left", "right"), strict=True))
    page.legend(
        {f"{style.name(m)} ({side} axis)": panels.entry(ls="", **_look(m)) for m, side in sides.items()}
    )
    kind = spec.ess_kinds[0]
    for (ax,), panel, (part, (_, name)) in zip(page.axes, "ab", PARTS.items(), strict=True):
        page.label(ax, panel, name)
        table = layers_of(context, kind, part)
        if table is None:
            panels.empty(page, ax, panel, NO_RUNS)
            continue
        right = page.twin(ax, style.look("gla")[0])
        panels.colour_axis(ax, style.look("sa")[0])
        _place_layers(page, ax, right, panel, table, f"ess_{kind}")
    page.note(
        "A group of points is a hybrid, its layers from first to last; means over heads and seeds."
    )
    page.note("Bars through points are the extremes over seeds. The two axes differ in scale.")
    return page


def _place_layers(page: Page, ax: Axes, right: Axes, panel: str, table: pd.DataFrame, ess: str) -> None:
    """A group of places per hybrid, one per layer; SA on the left axis, GLA on the right."""
    patterns = ordered(table["featurizer"])
    wide = int(table["num_layers"].max()) + 1
    group = table["featurizer"].map({p: i for i, p in enumerate(patterns)})
    placed = table.assign(place=group * wide + table["layer"])
    for axes, mixer in ((ax, "sa"), (right, "gla")):
        found = over_seeds(placed[placed["mixer"] == mixer], ess, "place", "mixer")
        points = found.assign(
            featurizer=[patterns[int(x) // wide] for x in found["x"]],
            layer=[int(x) % wide for x in found["x"]],
        )
        label = f"ESS of {style.name(mixer)} layers"
        how = {"looks": {mixer: _look(mixer)}, "by": "mixer", "y_label": label}
        panels.points(page, axes, panel, points, **how)
        axes.set_ylim(0, 1.08 * max(float(found["high"].max()) if len(found) else 1.0, 0.1))
    for i in range(1, len(patterns)):
        ax.axvline(i * wide - 1, color=style.LIGHT, lw=0.6, zorder=0)
    ax.set_xticks(np.arange(len(patterns)) * wide + (wide - 2) / 2, map(str.upper, patterns))
    ax.tick_params(axis="x", length=0, labelsize=6.2)
    ax.set_xlim(-1, len(patterns) * wide - 1)


# -------------------------------------------------------------------------------------- figure 34


def per_run(layers: pd.DataFrame, mixer: str, ess: str) -> pd.DataFrame:
    """``maximum`` and ``average`` ESS over a run's layers of a mixer, one row a run that has any."""
    mine = layers[layers["mixer"] == mixer]
    keys = ["run", "featurizer", "num_layers", "seed"]
    found = mine.groupby(keys)[ess].agg(**SUMMARIES)
    return found.reset_index()


def beside_printed(accuracy: pd.DataFrame, figure: str, layers: dict[str, int]) -> pd.DataFrame:
    """The rows with ``printed``, the paper's accuracy of their pattern, or NaN.

    ``layers`` maps a pattern to its number of layers.
    """
    table = printed_accuracies()
    table = table[table["figure"] == figure]
    keys = zip(table["mixer_layers"], table["places"], strict=True)
    known = dict(zip(keys, table["accuracy"], strict=True))
    found = [known.get((layers[p], attention_places(p)), np.nan) for p in accuracy["featurizer"]]
    return accuracy.assign(printed=found)


def _accuracy(spec: FigureSpec, context: FigureContext) -> Page:
    shapes = [Row(2, 1.35, above=0.55, below=0.65, gap=1.05, right=0.5)] * len(MIXERS)
    page = Page(spec.title, shapes)
    entries = {"accuracy": panels.entry(style.LIGHT, marker="s", ls="", markersize=6)}
    for name, look in _summary_looks("black").items():
        entries[f"{name} ESS"] = panels.entry(**look)
    page.legend(entries)
    ess = f"ess_{spec.ess_kinds[0]}"
    for column, (part, (figure, name)) in enumerate(PARTS.items()):
        table = layers_of(context, spec.ess_kinds[0], part)
        runs = finished(context, "hybrids_runs", "accuracy", part=part)
        for row, mixer in enumerate(MIXERS):
            ax, panel = page.axes[row][column], "ab"[row]
            page.label(ax, panel, f"{style.name(mixer)} layers, {name}", above=26)
            if table is None or runs is None:
                panels.empty(page, ax, panel, NO_RUNS)
                continue
            hybrids = ordered(runs["featurizer"])
            shown = _accuracies(page, ax, panel, runs, hybrids, figure)
            right = page.twin(ax, style.look(mixer)[0])
            _summaries(page, ax, right, panel, runs, per_run(table, mixer, ess), hybrids, mixer)
            both = shown.dropna(subset=["printed"])
            if row == 0 and len(both):
                rho = relation(both, "printed", "y")["spearman"]
                page.note(
                    f"{len(both)} hybrids of {name} have a printed accuracy (in the CSV); its rank "
                    f"correlation with ours is {short(rho)}."
                )
    page.note("r: Pearson, ρ: Spearman of accuracy and ESS, over runs that have such a layer.")
    page.note("Bars and points are means over seeds, thin lines their extremes.")
    return page


def _accuracies(
    page: Page, ax: Axes, panel: str, runs: pd.DataFrame, hybrids: list[str], figure: str
) -> pd.DataFrame:
    """Bars of accuracy with the chance level; the printed accuracy goes into the numbers only."""
    numbered = runs.assign(place=runs["featurizer"].map(hybrids.index), series="accuracy")
    found = over_seeds(numbered, "accuracy", "place", "series")
    found = found.assign(featurizer=[hybrids[int(x)] for x in found["x"]])
    depth = dict(zip(runs["featurizer"], runs["num_layers"].astype(int), strict=True))
    found = beside_printed(found, figure, depth)
    ax.bar(found["x"], found["y"], 0.75, color=style.LIGHT, zorder=-1)
    ax.vlines(found["x"], found["low"], found["high"], color=style.GREY, lw=0.8, zorder=2)
    panels.chance(page, ax, panel, runs["chance"])
    panels.accuracy_axis(ax)
    ax.set_ylim(bottom=0)
    ax.set_ylabel("accuracy")
    ax.set_xticks(range(len(hybrids)), map(str.upper, hybrids), rotation=90, fontsize=6)
    ax.tick_params(axis="x", length=0)
    ax.set_xlim(-0.7, len(hybrids) - 0.3)
    page.record(panel, found, part=figure)
    return found


def _summary_looks(colour: str) -> dict[str, dict[str, Any]]:
    hollow = {"markerfacecolor": "white", "markeredgecolor": colour, "mew": 0.9}
    return {
        "maximum": {"color": colour, "marker": "^", "ls": ""},
        "average": {"color": colour, "marker": "o", "ls": "", **hollow},
    }


def _summaries(
    page: Page,
    ax: Axes,
    right: Axes,
    panel: str,
    runs: pd.DataFrame,
    mine: pd.DataFrame,
    hybrids: list[str],
    mixer: str,
) -> None:
    """Maximum and average ESS of a mixer's layers per hybrid, and their correlations above."""
    joined = mine.merge(runs[["run", "accuracy"]], on="run", validate="one_to_one")
    parts, said = [], []
    for name, aside in zip(SUMMARIES, (-0.18, 0.18), strict=True):
        place = joined["featurizer"].map(hybrids.index).astype(float) + aside
        numbered = joined.assign(place=place, series=name)
        parts.append(over_seeds(numbered, name, "place", "series"))
        said.append(f"{name}: {relation_text(relation(joined, name, 'accuracy'))}")
    found = pd.concat(parts, ignore_index=True)
    points = found.assign(featurizer=[hybrids[round(x)] for x in found["x"]], mixer=mixer)
    looks = _summary_looks(style.look(mixer)[0])
    label = f"ESS of {style.name(mixer)} layers"
    panels.points(page, right, panel, points, looks=looks, text="\n".join(said), y_label=label)
    right.set_ylim(0, 1.08 * max(float(found["high"].max()) if len(found) else 1.0, 0.1))
    right.set_xlim(ax.get_xlim())
