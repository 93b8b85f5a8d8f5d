"""Figure 7: accuracy and state utilisation at the smallest and largest state size (section 4.2)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from effstate.analysis.buckets import marginals
from effstate.analysis.names import AXIS_LABELS, DIFFICULTY, RECURRENT, column
from effstate.analysis.tables import add_ratios, done
from effstate.figures import panels, style
from effstate.figures.panels import NO_RUNS, Page, Row
from effstate.figures.registry import FigureSpec

if TYPE_CHECKING:
    from effstate.figures.render import FigureContext


def _line(table: pd.DataFrame, value: str, x: str) -> pd.DataFrame:
    return marginals(table, value, (x,)).rename(columns={x: "x", "mean": "y"})


def draw(spec: FigureSpec, context: FigureContext) -> Page:
    """Top: accuracy over the difficulty; bottom: ESS/TSS with its ceiling and untrained models."""
    study, kind = spec.studies[0], spec.ess_kinds[0]
    difficulty, used = DIFFICULTY[study], column("ess_per_tss", kind)
    runs, checkpoints = (context.table(f"{study}_{name}") for name in ("runs", "checkpoints"))
    page = Page(
        spec.title,
        [Row(2, 1.3, gap=0.45, above=0.25, below=0.15), Row(2, 1.3, gap=0.45, above=0.05)],
    )
    lines = {"untrained (epoch 0)": ":", "geometric ceiling mean_i min(TSS, i, L − i) / TSS": "-"}
    controls = {name: panels.entry(style.GREY, ls=ls) for name, ls in lines.items()}
    page.legend(panels.featurizer_entries(RECURRENT) | controls)
    final = untrained = None
    if runs is not None and f"ess_{kind}" in runs.columns:
        final = add_ratios(done(runs), difficulty)
        final = final[final["featurizer"].isin(RECURRENT)]
    if final is None or final.empty:
        for ax, panel in zip([ax for row in page.axes for ax in row], "abcd", strict=True):
            panels.empty(page, ax, panel, NO_RUNS)
        return page
    if checkpoints is not None and f"ess_{kind}" in checkpoints.columns:
        untrained = add_ratios(checkpoints[checkpoints["epoch"] == 0], difficulty)
        untrained = untrained[untrained["featurizer"].isin(RECURRENT)]
    sizes = [final["tss"].min(), final["tss"].max()]
    for i, tss in enumerate(sizes):
        top, bottom = page.axes[0][i], page.axes[1][i]
        place = ("smallest", "largest")[i]
        page.label(top, "ab"[i], f"TSS = {tss:g} ({place})")
        rows = final[final["tss"] == tss]
        if "chance" in rows.columns:
            panels.chance(page, top, "ab"[i], rows["chance"])
        accuracy = _line(rows, "accuracy", difficulty).assign(tss=tss, quantity="accuracy")
        panels.lines(page, top, "ab"[i], accuracy, y_label="" if i else "accuracy")
        top.set_xticklabels([])
        if untrained is not None and not (start := untrained[untrained["tss"] == tss]).empty:
            before = _line(start, used, difficulty).assign(tss=tss, quantity=used, series="untrained")
            looks = {f: {"ls": ":", "marker": "", "alpha": 0.9} for f in RECURRENT}
            panels.lines(page, bottom, "ab"[i], before, looks=looks)
        if "ceiling" in rows.columns:
            most = rows.assign(most=rows["ceiling"] / tss, featurizer="ceiling")
            limit = _line(most, "most", difficulty).assign(tss=tss, quantity="ceiling_per_tss")
            grey = {"ceiling": {"color": style.GREY, "marker": "", "lw": 0.9}}
            panels.lines(page, bottom, "ab"[i], limit, looks=grey)
        after = _line(rows, used, difficulty).assign(tss=tss, quantity=used, series="trained")
        x_label = AXIS_LABELS[difficulty]
        panels.lines(page, bottom, "ab"[i], after, x_label=x_label, y_label="" if i else "ESS / TSS")
        for ax in (top, bottom):
            panels.accuracy_axis(ax)
            panels.log2_axis(ax, final[difficulty])
        top.set_xticklabels([])
    return page
