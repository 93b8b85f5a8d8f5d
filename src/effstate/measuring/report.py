"""What a measurement says: a summary per layer, dips at separators, and a picture."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch

from effstate.analysis.names import kind_label
from effstate.artifacts import atomic_path
from effstate.ess import geometric_ceiling

if TYPE_CHECKING:
    from effstate.measuring.measurement import Measurement

DIP_WINDOW = 2
"""Tokens before and after a separator that count as around it."""

SEPARATORS = {"eos": "EOS", ".": '"."'}


def label(kind: str, tolerance: float) -> str:
    """A kind as axes and summaries write it."""
    return kind_label(kind if kind == "entropy" else f"tol_{tolerance:g}")


def layer_summary(measurement: Measurement) -> pd.DataFrame:
    """A row per layer and kind, each a mean over channels and index (METHOD section 2).

    ``tss``, ``ess``; ``utilisation``: ess / tss; ``per_ceiling``: ess over mean_i min(TSS, i, L - i);
    ``total_ess``: the sum over channels.
    """
    rows: list[dict[str, Any]] = []
    totals = measurement.totals()
    for place, entry in enumerate(measurement.layers):
        length = len(entry.tss) + 1
        tss = float(entry.tss.mean())
        ceiling = float(geometric_ceiling(torch.from_numpy(entry.tss), length))
        for k, (kind, tolerance) in enumerate(measurement.kinds):
            total = float(totals[k, place].mean())
            ess = total / float(entry.channels.sum())
            rows.append(
                {
                    "layer": entry.layer,
                    "mixer": entry.mixer,
                    "kind": kind,
                    "tolerance": tolerance,
                    "tss": tss,
                    "ess": ess,
                    "utilisation": ess / tss,
                    "per_ceiling": ess / ceiling,
                    "total_ess": total,
                }
            )
    return pd.DataFrame(rows)


def separator_dips(total: np.ndarray, separators: list[int], window: int = DIP_WINDOW) -> pd.DataFrame:
    """How far ESS falls around each interior separator (METHOD section 5, state modulation).

    Args:
        total: total ESS (L-1,) at i = 1 .. L-1.
        separators: the tokens' indices; each ends a sentence, the last one is left out.
        window: how many tokens before and after a separator count as around it.

    Returns:
        ``separator``, ``lowest``: the smallest total in the window, ``median``: over the sentence's
        tokens outside of every window, ``dip``: 1 - lowest / median, ``control``: the same
        with the middle of the sentence for the separator. Sentences without inner tokens are left out.
    """
    rows = []
    previous = -1
    for place in separators[:-1]:
        inner = np.arange(max(previous + window + 1, 1), place - window)
        start, previous = previous, place
        if len(inner) == 0:
            continue
        median = float(np.median(total[inner - 1]))
        if median <= 0:
            continue
        lowest = float(_around(total, place, window).min())
        middle = (max(start, 0) + place) // 2
        control = 1 - float(_around(total, middle, window).min()) / median
        rows.append((place, lowest, median, 1 - lowest / median, control))
    return pd.DataFrame(rows, columns=["separator", "lowest", "median", "dip", "control"])


def _around(total: np.ndarray, place: int, window: int) -> np.ndarray:
    return total[max(place - window, 1) - 1 : place + window]


def all_dips(measurement: Measurement) -> pd.DataFrame:
    """:func:`separator_dips` of the total ESS, mean over layers, by kind and by sort of separator."""
    parts = []
    marks = measurement.tokens["separator"]
    for (kind, tolerance), total in zip(
        measurement.kinds, measurement.totals().mean(axis=1), strict=True
    ):
        for mark in SEPARATORS:
            found = separator_dips(total, measurement.tokens["index"][marks == mark].tolist())
            parts.append(found.assign(sort=mark, kind=kind, tolerance=tolerance))
    return pd.concat(parts, ignore_index=True)


def summary_text(*measurements: Measurement) -> str:
    """The printed summary: a table per kind, totals, and the dips at separators.

    Of several measurements of one model, on a text each: means over the texts, and all dips.
    """
    first = measurements[0]
    lengths = " + ".join(str(len(one.tokens)) for one in measurements)
    several = f" of {len(measurements)} texts" if len(measurements) > 1 else ""
    lines = [
        f"{first.name}: {lengths} tokens{several}, {len(first.layers)} layers, {first.facts['dtype']}"
    ]
    sampled = {pair for pair in first.facts["channels"].values() if pair[0] < pair[1]}
    lines += [f"{few} of {many} channels measured: totals are estimates" for few, many in sampled]
    each = pd.concat([layer_summary(one) for one in measurements])
    places = ["layer", "mixer", "kind", "tolerance"]
    summary = each.groupby(places, dropna=False, sort=False, as_index=False).mean()
    for kind, tolerance in first.kinds:
        level = summary["tolerance"].isna() if kind == "entropy" else summary["tolerance"] == tolerance
        rows = summary[level & (summary["kind"] == kind)].drop(columns=["kind", "tolerance"])
        mean = float(rows["total_ess"].mean())
        lines += ["", label(kind, tolerance), _format(rows)]
        lines += [f"total ESS (sum over channels, mean over layers and index): {mean:.4g}"]
    dips = pd.concat([all_dips(one) for one in measurements])
    lines += ["", *(_dip_lines(dips) or ["no interior separator, so no dip"])]
    return "\n".join(lines) + "\n"


def _format(rows: pd.DataFrame) -> str:
    shown = rows.rename(columns={"utilisation": "ESS/TSS", "per_ceiling": "ESS/ceiling"})
    shown = shown.rename(columns={"tss": "TSS", "ess": "ESS", "total_ess": "total ESS"})
    return shown.to_string(index=False, float_format=lambda value: f"{value:.4g}")


def _dip_lines(dips: pd.DataFrame) -> list[str]:
    lines = []
    for (sort, kind, tolerance), rows in dips.groupby(["sort", "kind", "tolerance"], dropna=False):
        each = ", ".join(f"{dip:.3f}" for dip in rows["dip"])
        lines.append(
            f"dip at {SEPARATORS[sort]}, {label(kind, tolerance)}: mean {rows['dip'].mean():.3f}, "
            f"mid-sentence {rows['control'].mean():.3f}; each {each}"
        )
    return lines


def write_picture(path: Path, measurement: Measurement) -> None:
    """Total ESS along the tokens, separators marked, and layers x tokens: two panels for each kind."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.lines import Line2D

    from effstate.figures import style
    from effstate.figures.panels import Page, Row
    from effstate.figures.render import house_style

    totals = measurement.totals()
    layers = [entry.layer for entry in measurement.layers]
    height = float(np.clip(0.06 * len(layers), 0.5, 2.2))
    places = {"left": 0.6, "right": 0.6}
    pair = [Row(1, 1.0, below=0.05, **places), Row(1, height, above=0.12, below=0.36, **places)]
    rows = pair * len(measurement.kinds)
    looks = {"eos": (style.SERIES[5], "-"), ".": (style.GREY, (0, (2, 2)))}
    index = np.arange(1, totals.shape[-1] + 1)
    with house_style():
        page = Page(f"ESS of {Path(measurement.name).name} along {len(index) + 1} tokens", rows)
        for k, (kind, tolerance) in enumerate(measurement.kinds):
            line, heat = page.axes[2 * k][0], page.axes[2 * k + 1][0]
            line.plot(index, totals[k].mean(axis=0), color=style.SERIES[0], lw=1)
            for mark, (colour, dashes) in looks.items():
                for place in measurement.tokens["index"][measurement.tokens["separator"] == mark]:
                    line.axvline(place, color=colour, ls=dashes, lw=0.6, zorder=0)
            line.set(xlim=(0.5, index[-1] + 0.5), ylabel="total ESS", title=label(kind, tolerance))
            line.set_ylim(bottom=0)
            line.tick_params(labelbottom=False)
            image = heat.imshow(
                totals[k],
                aspect="auto",
                interpolation="nearest",
                cmap=style.SEQUENTIAL,
                extent=(0.5, index[-1] + 0.5, len(layers) - 0.5, -0.5),
            )
            ticks = range(0, len(layers), max(1, len(layers) // 6))
            heat.set_yticks(list(ticks), [str(layers[t]) for t in ticks])
            heat.set(xlabel="token", ylabel="layer")
            page.figure.colorbar(image, cax=page.beside(heat))
        page.legend({SEPARATORS[m]: Line2D([], [], color=c, ls=d) for m, (c, d) in looks.items()})
        page.finish(
            ["Total ESS sums over channels; lines are means over layers, colours single layers' totals."]
        )
        FigureCanvasAgg(page.figure)
        with atomic_path(path) as temporary:
            page.figure.savefig(temporary, format="png", metadata={"Software": None})
