"""Bars of correlations with intervals: figures 5, B1 and B5 (section 4.1 and beyond)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pandas as pd

from effstate.analysis.correlation import correlation_differences, correlations
from effstate.analysis.names import DIFFICULTY, PER_DIFFICULTY, column
from effstate.analysis.tables import PROXIES, SA_ACCURACY_LIMIT, cross_task, saturated
from effstate.figures import panels, style
from effstate.figures.panels import NO_RUNS, Page, Row
from effstate.figures.registry import FigureSpec, get

if TYPE_CHECKING:
    from effstate.figures.render import FigureContext

STATISTIC_LABELS = {
    "pearson_log2": "Pearson, x in log2",
    "pearson": "Pearson",
    "spearman": "Spearman",
}


def fig5_table(context: FigureContext) -> pd.DataFrame:
    """The correlations behind figure 5, for the terminal.

    One row per featurizer and statistic: r with ESS/kv, r with TSS/kv and their difference, each
    with both ends of its 95% interval, and ``n``. Empty without finished runs.
    """
    spec = get("fig5")
    table, ess, tss = _models(spec, context)
    if table is None:
        return pd.DataFrame()
    singles = correlations(table, [ess, tss]).set_index(["featurizer", "statistic"])
    joint = correlation_differences(table, [(ess, tss)]).set_index(["featurizer", "statistic"])
    parts = {
        "r_ess": singles[singles["x"] == ess],
        "r_tss": singles[singles["x"] == tss],
        "difference": joint.rename(columns={"difference": "r"}),
    }
    columns = {"n": parts["r_ess"]["n"]}
    for name, part in parts.items():
        columns |= {name: part["r"], f"{name}_low": part["low"], f"{name}_high": part["high"]}
    return pd.DataFrame(columns).reset_index()


def _models(spec: FigureSpec, context: FigureContext) -> tuple[pd.DataFrame | None, str, str]:
    """The models that figures 3 and 5 compare, and their ESS and TSS columns."""
    study, kind = spec.studies[0], spec.ess_kinds[0]
    ess = column("ess_per_difficulty", kind)
    runs = context.table(f"{study}_runs")
    if runs is None or f"ess_{kind}" not in runs.columns:
        return None, ess, "tss_per_difficulty"
    table = cross_task(runs, DIFFICULTY[study], kind)
    return (None if table.empty else table), ess, "tss_per_difficulty"


def draw(spec: FigureSpec, context: FigureContext) -> Page:
    """Draw figure 5, B1 or B5, as the registry's ``draw`` option names it."""
    by_name: dict[str, Callable[[FigureSpec, FigureContext], Page]] = {
        "ess_against_tss": _ess_against_tss,
        "saturation": _saturation,
        "proxies": _proxies,
    }
    page = by_name[spec.options["draw"]](spec, context)
    page.note(f"SA: totals; its models with accuracy > {SA_ACCURACY_LIMIT} are left out.")
    page.note("95% percentile bootstrap intervals over runs, 2000 resamples.")
    return page


def _legend(page: Page, colours: dict[str, str]) -> None:
    page.legend({n: panels.entry(c, marker="s", ls="", markersize=6) for n, c in colours.items()})


def _bar_panel(
    page: Page,
    place: tuple[int, int],
    panel: str,
    found: pd.DataFrame,
    colours: dict[str, str],
    label: str,
) -> None:
    ax = page.axes[place[0]][place[1]]
    if found.empty:
        panels.empty(page, ax, panel or "-", NO_RUNS)
        return
    panels.bars(page, ax, panel or "-", found, colours=colours, y_label=label)


def _named(found: pd.DataFrame, series: str | dict[str, str]) -> pd.DataFrame:
    """A correlation table as bars: ``series`` is one name, or maps the x column to names."""
    named = found["x"].map(series) if isinstance(series, dict) else series
    return found.rename(columns={"r": "y", "difference": "y"}).assign(series=named)


def _ess_against_tss(spec: FigureSpec, context: FigureContext) -> Page:
    page = Page(spec.title, [Row(2, 1.7, gap=0.5, above=0.15, below=0.5)])
    table, ess, tss = _models(spec, context)
    unit = PER_DIFFICULTY[DIFFICULTY[spec.studies[0]]]
    names = {ess: f"ESS / {unit}", tss: f"TSS / {unit}"}
    colours = dict(zip(names.values(), style.SERIES, strict=False))
    _legend(page, colours)
    bars = {"statistics": ("pearson_log2",)}
    single = (
        _named(correlations(table, [ess, tss], **bars), names) if table is not None else pd.DataFrame()
    )
    joint = pd.DataFrame()
    if table is not None:
        joint = _named(correlation_differences(table, [(ess, tss)], **bars), "difference")
    _bar_panel(page, (0, 0), "", single, colours, "correlation with accuracy")
    _bar_panel(page, (0, 1), "", joint, {"difference": style.GREY}, "ESS minus TSS correlation")
    page.note("Pearson, x in log2 (the axis of figure 3); Spearman and unscaled ratios: fig5_table.")
    return page


def _saturation(spec: FigureSpec, context: FigureContext) -> Page:
    page = Page(spec.title, [Row(3, 1.7, gap=0.45, above=0.4)] * 2)
    table, ess, tss = _models(spec, context)
    kind, unit = spec.ess_kinds[0], PER_DIFFICULTY[DIFFICULTY[spec.studies[0]]]
    subsets = {}
    if table is not None and "ceiling" in table.columns:
        full = saturated(table, kind)
        subsets = {"all models": table, "without saturated models": table[~full]}
        page.note(f"{int(full.sum())} of {len(table)} models are saturated.")
    colours = {"all models": style.SERIES[0], "without saturated models": style.SERIES[1]}
    _legend(page, colours)
    for i, statistic in enumerate(("pearson_log2", "spearman")):
        how = STATISTIC_LABELS[statistic]
        for j, x in enumerate((ess, tss, None)):
            parts = []
            for series, rows in subsets.items():
                found = (
                    correlation_differences(rows, [(ess, tss)], statistics=(statistic,))
                    if x is None
                    else correlations(rows, [x], statistics=(statistic,))
                )
                parts.append(_named(found, series))
            found = pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()
            panel = "abcdef"[3 * i + j]
            what = {ess: f"ESS / {unit}", tss: f"TSS / {unit}", None: "difference"}[x]
            page.label(page.axes[i][j], panel, f"{what}: {how}")
            label = "difference" if x is None else ("correlation with accuracy" if j == 0 else "")
            _bar_panel(page, (i, j), panel, found, colours, label)
    return page


def _proxies(spec: FigureSpec, context: FigureContext) -> Page:
    page = Page(spec.title, [Row(1, 1.9, above=0.4)] * 2)
    table, ess, tss = _models(spec, context)
    unit = PER_DIFFICULTY[DIFFICULTY[spec.studies[0]]]
    names = {ess: f"ESS / {unit}", tss: f"TSS / {unit}"}
    names |= {f"{p}_per_difficulty": f"{p.replace('_', ' ')} / {unit}" for p in PROXIES}
    colours = dict(zip(names.values(), style.SERIES, strict=False))
    _legend(page, colours)
    present = {} if table is None else {c: n for c, n in names.items() if c in table.columns}
    absent = [names[f"{p}_per_difficulty"] for p in PROXIES if f"{p}_per_difficulty" not in present]
    for i, statistic in enumerate(("pearson_log2", "spearman")):
        panel = "ab"[i]
        page.label(page.axes[i][0], panel, STATISTIC_LABELS[statistic])
        if table is not None and len(absent) == len(PROXIES):
            why = "the runs were not traced for the rival proxies (effective window, unmasked rank)"
            panels.empty(page, page.axes[i][0], panel, why)
            continue
        found = pd.DataFrame()
        if table is not None:
            found = _named(correlations(table, list(present), statistics=(statistic,)), present)
        shown = {n: colours[n] for n in present.values()}
        _bar_panel(page, (i, 0), panel, found, shown, "correlation with accuracy")
    if table is not None and 0 < len(absent) < len(PROXIES):
        page.note(f"Not traced: {', '.join(absent)}.")
    return page
