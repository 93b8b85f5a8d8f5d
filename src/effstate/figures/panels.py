"""General panels, and the page they stand on.

A panel draws a tidy frame and records exactly that frame, so the CSV beside a figure holds the
plotted numbers by construction. Sizes are in inches; the page grows downwards with its rows.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import Normalize, to_hex
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

from effstate.analysis.names import order
from effstate.figures import style

NO_RUNS = "no finished run has these values"


@dataclass(frozen=True)
class Row:
    """A row of axes on a page, in inches."""

    columns: int
    height: float = 1.25
    above: float = 0.36
    below: float = 0.42
    left: float = 0.55
    gap: float = 0.16
    right: float = 0.12


class Page:
    """A figure under construction: rows of axes from the top down, and the numbers drawn so far."""

    def __init__(self, title: str, rows: Sequence[Row], width: float = style.WIDTH) -> None:
        self.title = title
        self.figure = Figure(figsize=(width, 1.0))
        self.width = width
        self.legends: list[tuple[list[Line2D], list[str]]] = []
        self.notes: list[str] = []
        self._places: list[tuple[Axes, float, float, float, float]] = []
        self._numbers: list[pd.DataFrame] = []
        self.axes: list[list[Axes]] = []
        self._bottom = 0.0
        for row in rows:
            self._add_row(row)

    def _add_row(self, row: Row) -> None:
        free = self.width - row.left - row.right - row.gap * (row.columns - 1)
        panel = free / row.columns
        top = self._bottom + row.above
        made = []
        for i in range(row.columns):
            ax = self.figure.add_axes((0, 0, 1, 1), label=f"{len(self.axes)}-{i}")
            self._places.append((ax, row.left + i * (panel + row.gap), top, panel, row.height))
            made.append(ax)
        self.axes.append(made)
        self._bottom = top + row.height + row.below

    def beside(self, ax: Axes, width: float = 0.08, offset: float = 0.06) -> Axes:
        """A narrow axes to the right of ``ax``, for a colour bar."""
        _, left, top, panel, height = next(place for place in self._places if place[0] is ax)
        bar = self.figure.add_axes((0, 0, 1, 1), label=f"bar-{len(self._places)}")
        self._places.append((bar, left + panel + offset, top, width, height))
        return bar

    def twin(self, ax: Axes, colour: str = "black") -> Axes:
        """A second y axis on the right of ``ax``, for another quantity over the same x."""
        right = ax.twinx()
        right.spines["right"].set_visible(True)
        right.xaxis.set_visible(False)
        colour_axis(right, colour)
        return right

    def record(self, panel: str, frame: pd.DataFrame, **columns: Any) -> None:
        """Keep the drawn numbers of a panel; constants become columns."""
        self._numbers.append(frame.assign(panel=panel, **columns))

    def numbers(self) -> pd.DataFrame:
        """Everything drawn, tidy, with ``panel`` and ``featurizer`` first."""
        filled = [frame for frame in self._numbers if len(frame)]
        table = pd.concat(filled, ignore_index=True) if filled else pd.DataFrame({"panel": []})
        first = [c for c in ("panel", "featurizer", "series", "x", "y") if c in table.columns]
        return table[[*first, *(c for c in table.columns if c not in first)]]

    def label(self, ax: Axes, panel: str, text: str = "", above: float = 4) -> None:
        """``(a) text``, ``above`` points over the left end of an axes and its tick labels."""
        left = next(p[1] for p in self._places if p[0] is ax)
        before = max((p[1] + p[3] for p in self._row(ax) if p[1] < left), default=0.0)
        ax.annotate(
            f"({panel}) {text}".strip() if panel else text,
            xy=(0, 1),
            xycoords="axes fraction",
            xytext=(-(left - before - 0.08) * 72, above),
            textcoords="offset points",
            fontsize=8,
            fontweight="bold",
            annotation_clip=False,
        )

    def size(self, ax: Axes) -> tuple[float, float]:
        """Width and height of an axes in inches."""
        return next((w, h) for known, _, _, w, h in self._places if known is ax)

    def _row(self, ax: Axes) -> list[tuple[Axes, float, float, float, float]]:
        top = next(p[2] for p in self._places if p[0] is ax)
        return [p for p in self._places if p[2] == top]

    def legend(self, entries: Mapping[str, Line2D]) -> None:
        """A legend in one line under the title, shared by all panels."""
        if entries:
            self.legends.append((list(entries.values()), list(entries)))

    def note(self, sentence: str) -> None:
        """A sentence for the footer, said once."""
        if sentence not in self.notes:
            self.notes.append(sentence)

    def finish(self, footer: Sequence[str]) -> Figure:
        """Place everything, with the title on top and the footer's lines at the bottom."""
        per_line = int(self.width * 21)
        lines = [line for text in footer for line in textwrap.wrap(text, per_line)]
        title = textwrap.wrap(self.title, int(self.width * 14.5))
        head = 0.10 + 0.15 * len(title) + 0.20 * len(self.legends)
        foot = 0.06 + 0.125 * len(lines)
        height = head + self._bottom + foot
        self.figure.set_size_inches(self.width, height)
        for ax, left, top, w, h in self._places:
            ax.set_position(
                (left / self.width, 1 - (head + top + h) / height, w / self.width, h / height)
            )
        x = 0.08 / self.width
        self.figure.text(x, 1 - 0.08 / height, "\n".join(title), va="top", fontsize=9, fontweight="bold")
        for i, (handles, names) in enumerate(self.legends):
            y = 1 - (0.08 + 0.15 * len(title) + 0.20 * i) / height
            box = {"loc": "upper left", "bbox_to_anchor": (x, y), "borderaxespad": 0.0}
            shape = {"frameon": False, "ncols": len(names), "handlelength": 1.8, "borderpad": 0.2}
            self.figure.legend(handles, names, columnspacing=1.2, **box, **shape)
        self.figure.text(x, 0.04 / height, "\n".join(lines), va="bottom", fontsize=6.2, color=style.GREY)
        return self.figure


# ------------------------------------------------------------------------------------------- axes


def tick_text(value: float) -> str:
    """A positive tick of a log2 axis: plain up to 2^13, a fraction below 1, else a power."""
    exponent = math.log2(value)
    if not float(exponent).is_integer():
        return f"{value:.3g}"
    if 0 <= exponent <= 13:
        return f"{value:.0f}"
    return f"1/{1 / value:.0f}" if -10 <= exponent < 0 else f"$2^{{{exponent:.0f}}}$"


def tick_texts(values: Sequence[float], width: float = math.inf) -> list[str]:
    """Ticks of one axis in one notation: plain, or powers of two if ``width`` is narrow."""
    plain = [tick_text(v) for v in values]
    powers = all(v > 0 and float(math.log2(v)).is_integer() for v in values)
    # 0.07 inches a digit at the size of tick labels.
    crowded = max(map(len, plain), default=0) * 0.07 > width / max(len(plain), 1)
    if powers and (crowded or any(text.startswith("$") for text in plain)):
        return [f"$2^{{{math.log2(v):.0f}}}$" for v in values]
    return plain


def _octaves(values: Iterable[float], most: int) -> tuple[int, int, list[float]]:
    """Exponents of the powers of two around the positive ``values``, and at most ``most`` ticks."""
    data = np.asarray([v for v in values if np.isfinite(v) and v > 0], dtype=float)
    if data.size == 0:
        data = np.ones(1)
    low, high = math.floor(np.log2(data.min())), math.ceil(np.log2(data.max()))
    if low == high:
        low, high = low - 1, high + 1
    stride = math.ceil((high - low) / (most - 1))
    return low, high, [2.0**e for e in range(low, high + 1, stride)]


def log2_axis(ax: Axes, values: Iterable[float], which: str = "x", most: int = 5) -> None:
    """A log2 axis with few, readable ticks at powers of two around ``values``."""
    low, high, ticks = _octaves(values, most)
    margin = 0.06 * (high - low)
    getattr(ax, f"set_{which}scale")("log", base=2)
    getattr(ax, f"set_{which}lim")(2 ** (low - margin), 2 ** (high + margin))
    axis = ax.xaxis if which == "x" else ax.yaxis
    axis.set_major_locator(FixedLocator(ticks))
    axis.set_major_formatter(FixedFormatter(tick_texts(ticks)))
    axis.set_minor_locator(NullLocator())


def from_zero_axis(ax: Axes, values: Iterable[float], most: int = 5) -> None:
    """A log2 x axis around ``values`` that shows 0 as well, at its left end behind a break."""
    low, high, ticks = _octaves(values, most)
    least = 2.0**low
    ax.set_xscale("symlog", base=2, linthresh=least, linscale=0.75)
    ax.set_xlim(-0.15 * least, 2 ** (high + 0.06 * (high - low)))
    ax.xaxis.set_major_locator(FixedLocator([0.0, *ticks]))
    ax.xaxis.set_major_formatter(FixedFormatter(["0", *tick_texts(ticks)]))
    ax.xaxis.set_minor_locator(NullLocator())
    for place in (0.42, 0.58):
        ax.plot(
            [place * least],
            [0],
            transform=ax.get_xaxis_transform(),
            marker=[(-1, -3), (1, 3)],
            color="black",
            mew=0.6,
            clip_on=False,
        )


def colour_axis(ax: Axes, colour: str) -> None:
    """The y axis' ticks and label in the colour of what it measures."""
    ax.tick_params(axis="y", colors=colour)
    ax.yaxis.label.set_color(colour)


def ramp(keys: Sequence[str]) -> dict[str, Any]:
    """A colour for each of an ordered axis' values, dark to light."""
    places = np.linspace(0.0, 0.85, len(keys))
    return dict(zip(keys, map(to_hex, colormaps[style.SEQUENTIAL](places)), strict=True))


def accuracy_axis(ax: Axes) -> None:
    """Accuracies lie between 0 and 1; a margin keeps markers whole."""
    ax.set_ylim(-0.05, 1.05)
    ax.yaxis.set_major_locator(FixedLocator([0, 0.5, 1]))


def chance(page: Page, ax: Axes, panel: str, levels: pd.Series | None) -> None:
    """Draw the chance level as a line, or as a band where the runs' levels differ."""
    if levels is None or (levels := levels.dropna()).empty:
        return
    low, high = float(levels.min()), float(levels.max())
    if high - low > 0.004:
        ax.axhspan(low, high, color=style.LIGHT, lw=0, zorder=0)
    ax.axhline(high, color=style.GREY, lw=0.8, ls=(0, (1, 2)), zorder=0)
    page.record(panel, pd.DataFrame({"series": ["chance"], "low": [low], "high": [high]}))
    page.note("The dotted grey line (a band where runs differ) is the chance level.")


def empty(page: Page, ax: Axes, panel: str, sentence: str, featurizer: str | None = None) -> None:
    """A panel without data: a frame and a sentence that says why."""
    ax.set_xticks([])
    ax.set_yticks([])
    for spine in ax.spines.values():
        spine.set_visible(True)
        spine.set_color(style.LIGHT)
    text = "\n".join(textwrap.wrap(sentence, max(12, int(page.size(ax)[0] * 14))))
    ax.text(0.5, 0.5, text, transform=ax.transAxes, ha="center", va="center", color=style.GREY)
    page.record(panel, pd.DataFrame({"featurizer": [featurizer], "note": [sentence]}))


# ----------------------------------------------------------------------------------------- panels


def scatter(
    page: Page,
    ax: Axes,
    panel: str,
    points: pd.DataFrame,
    *,
    x_label: str = "",
    y_label: str = "",
    text: str = "",
    log2_x: bool = True,
    unranked: str = "at 0",
) -> None:
    """Accuracy ``y`` against ``x``, a colour and marker per ``featurizer``; x in log2.

    Points without a finite (in log2: positive) x are not drawn and are counted in the panel;
    ``unranked`` says what they are.
    """
    values = points[["x", "y"]].to_numpy(dtype=float)
    drawn = np.isfinite(values).all(axis=1) & ((values[:, 0] > 0) | (not log2_x))
    shown = points[drawn]
    for featurizer, rows in shown.groupby("featurizer", sort=False):
        colour, marker = style.look(str(featurizer), order(points["featurizer"]))
        face = {"alpha": 0.55, "linewidths": 0.4, "edgecolors": "white", "s": 17}
        ax.scatter(rows["x"], rows["y"], color=colour, marker=marker, zorder=3, **face)
    if log2_x:
        log2_axis(ax, shown["x"], most=4)
    accuracy_axis(ax)
    ax.set(xlabel=x_label, ylabel=y_label)
    hidden = int((~drawn).sum())
    said = f"{text}, {hidden} {unranked} not shown" if hidden else text
    # Above the axes: inside it would cover points.
    ax.text(0.5, 1.03, said, transform=ax.transAxes, ha="center", va="bottom", fontsize=6.2)
    page.record(panel, points.assign(drawn=drawn))


def points(
    page: Page,
    ax: Axes,
    panel: str,
    frame: pd.DataFrame,
    *,
    looks: Mapping[str, Mapping[str, Any]],
    by: str = "series",
    text: str = "",
    x_label: str = "",
    y_label: str = "",
) -> None:
    """Points of ``y`` against ``x`` on plain axes, one look per value of ``by``; ``text`` above.

    ``low`` and ``high``, where the frame has them, are drawn as a bar through each point.
    """
    shown = frame[np.isfinite(frame[["x", "y"]].to_numpy(dtype=float)).all(axis=1)]
    for key, rows in shown.groupby(by, sort=False):
        how = {"ls": "", "zorder": 3, "markeredgecolor": "white", "mew": 0.4} | dict(looks[str(key)])
        ax.plot(rows["x"], rows["y"], **how)
        if "low" in rows:
            ax.vlines(rows["x"], rows["low"], rows["high"], color=how["color"], lw=0.8, zorder=2)
    ax.text(0.5, 1.03, text, transform=ax.transAxes, ha="center", va="bottom", fontsize=6.2)
    ax.set(xlabel=x_label, ylabel=y_label)
    page.record(panel, frame)


def heatmap(
    page: Page,
    ax: Axes,
    panel: str,
    cells: pd.DataFrame,
    *,
    limits: tuple[float, float],
    cmap: str = style.SEQUENTIAL,
    x_label: str = "",
    y_label: str = "",
    counts: bool = False,
    **constants: Any,
) -> Any:
    """Annotated cells: ``x`` and ``y`` are axis values, ``value`` the colour, ``n`` the models.

    Larger y stands higher, as printed in the paper. Cells without a row stay blank. ``counts``
    writes n under each value.
    """
    xs, ys = sorted(cells["x"].unique()), sorted(cells["y"].unique())
    grid = np.full((len(ys), len(xs)), np.nan)
    i, j = np.searchsorted(ys, cells["y"]), np.searchsorted(xs, cells["x"])
    grid[i, j] = cells["value"]
    norm = Normalize(*limits)
    mesh = ax.pcolormesh(
        np.arange(len(xs) + 1), np.arange(len(ys) + 1), grid, norm=norm, cmap=cmap, lw=0
    )
    red, green, blue, _ = colormaps[cmap](norm(cells["value"].to_numpy(dtype=float))).T
    dark = 0.3 * red + 0.59 * green + 0.11 * blue < 0.5
    size = 6.2 if max(len(xs), len(ys)) <= 6 else 5.0
    for row, column, value, n, light in zip(i, j, cells["value"], cells["n"], dark, strict=True):
        if np.isfinite(value):
            text = cell_text(float(value)) + (f"\nn={n:.0f}" if counts else "")
            where = {"ha": "center", "va": "center", "linespacing": 0.95}
            colour = "white" if light else "black"
            ax.text(column + 0.5, row + 0.5, text, fontsize=size, color=colour, **where)
    ax.set_xticks(np.arange(len(xs)) + 0.5, tick_texts(xs, page.size(ax)[0]))
    ax.set_yticks(np.arange(len(ys)) + 0.5, tick_texts(ys))
    ax.tick_params(length=0)
    for spine in ax.spines.values():
        spine.set_visible(True)
        spine.set_color(style.LIGHT)
    ax.set(xlabel=x_label, ylabel=y_label)
    page.record(panel, cells, **constants)
    page.note("Blank cells have no finished run, or none in which the value exists.")
    return mesh


def cell_text(value: float) -> str:
    """Two significant places, short enough for a cell: .83, -.4, 1.0, 12."""
    if abs(value) >= 9.95:
        return f"{value:.0f}" if abs(value) < 1000 else f"{value:.0e}".replace("e+0", "e")
    text = f"{value:.1f}" if abs(value) >= 0.995 else f"{value:.2f}"
    if text in ("-0.00", "0.00"):
        return "0" if value == 0 else "~0"
    return text.replace("0.", ".", 1) if abs(value) < 0.995 else text


def lines(
    page: Page,
    ax: Axes,
    panel: str,
    points: pd.DataFrame,
    *,
    x_label: str = "",
    y_label: str = "",
    log2_x: bool = True,
    by: str = "featurizer",
    looks: Mapping[str, Mapping[str, Any]] | None = None,
    band: bool = False,
) -> None:
    """Lines of ``y`` over ``x``, one per value of ``by``; ``band`` fills ``low`` to ``high``.

    The look of a line is its featurizer's unless ``looks`` names keyword arguments for it.
    """
    shown = points[np.isfinite(points["y"].to_numpy(dtype=float))]
    for key, rows in shown.groupby(by, sort=False):
        rows = rows.sort_values("x")
        colour, marker = style.look(str(key), order(points[by]))
        how = {"color": colour, "marker": marker} | dict((looks or {}).get(str(key), {}))
        ax.plot(rows["x"], rows["y"], zorder=3, **how)
        if band and len(rows):
            ax.fill_between(rows["x"], rows["low"], rows["high"], color=how["color"], alpha=0.15, lw=0)
    if log2_x:
        log2_axis(ax, shown["x"], most=4)
    ax.set(xlabel=x_label, ylabel=y_label)
    page.record(panel, points)


def bars(
    page: Page,
    ax: Axes,
    panel: str,
    values: pd.DataFrame,
    *,
    colours: Mapping[str, str],
    y_label: str = "",
) -> None:
    """Grouped bars of ``y`` with ``low`` to ``high`` intervals: a group per featurizer.

    The number of runs stands under each group; a value that does not exist leaves a gap.
    """
    page.note("Under the bars: the number of runs.")
    groups = order(values["featurizer"].unique())
    width = 0.8 / max(len(colours), 1)
    for s, (series, colour) in enumerate(colours.items()):
        rows = values[values["series"] == series].set_index("featurizer").reindex(groups)
        at = np.arange(len(groups)) + (s - (len(colours) - 1) / 2) * width
        y = rows["y"].to_numpy(dtype=float)
        ax.bar(at, np.nan_to_num(y), width * 0.92, color=colour, zorder=2)
        spread = np.abs(rows[["low", "high"]].to_numpy(dtype=float).T - y)
        has = np.isfinite(spread).all(axis=0)
        if has.any():
            whisker = {"fmt": "none", "ecolor": "black", "elinewidth": 0.8, "capsize": 2}
            ax.errorbar(at[has], y[has], spread[:, has], zorder=3, **whisker)
        for place in at[~np.isfinite(y)]:
            ax.text(place, 0.03, "×", ha="center", va="bottom", color=style.GREY)
    if not np.isfinite(values["y"].to_numpy(dtype=float)).all():
        page.note("× : the correlation does not exist (fewer than three runs, or constant values).")
    n = values.groupby("featurizer")["n"].agg(["min", "max"]).reindex(groups)
    shown = [f"{a:.0f}" if a == b else f"{a:.0f}–{b:.0f}" for a, b in n.to_numpy()]
    names = [f"{style.name(g)}\n{count}" for g, count in zip(groups, shown, strict=True)]
    ax.set_xticks(np.arange(len(groups)), names, fontsize=6.2)
    ax.set_xlim(-0.6, len(groups) - 0.4)
    ax.tick_params(axis="x", length=0)
    ax.axhline(0, color="black", lw=0.6, zorder=4)
    drawn = values[["y", "low", "high"]].to_numpy(dtype=float)
    reach = np.nan_to_num(drawn, nan=0.0)
    ax.set_ylim(min(1.08 * reach.min(), -0.02), max(1.08 * reach.max(), 0.1))
    ax.set_ylabel(y_label)
    page.record(panel, values)


def featurizer_entries(featurizers: Sequence[str]) -> dict[str, Line2D]:
    """Legend entries of featurizers: colour, marker and name."""
    return {
        style.name(f): Line2D(
            [], [], color=style.look(f, featurizers)[0], marker=style.look(f, featurizers)[1]
        )
        for f in featurizers
    }


def entry(color: str, **how: Any) -> Line2D:
    """A legend entry of a line or, with ``marker="s"`` and ``ls=""``, of a bar."""
    return Line2D([], [], color=color, **how)
