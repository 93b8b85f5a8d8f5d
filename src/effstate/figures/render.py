"""From a figure's id and its tables to PNG, PDF and the CSV of the numbers behind it."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib import rc_context, rcdefaults, rcParams
from matplotlib.backends.backend_agg import FigureCanvasAgg

from effstate.analysis.names import kind_label
from effstate.analysis.tables import state_counts
from effstate.artifacts import atomic_path
from effstate.figures import style
from effstate.figures.panels import Page
from effstate.figures.registry import FigureSpec, get


@dataclass(frozen=True)
class FigureContext:
    """What a figure is drawn from.

    ``tables`` maps names such as ``mqar_runs`` to tidy tables; absent ones leave panels empty.
    ``partial`` writes counts into cells. ``options`` may hold ``planned_runs`` (study to number,
    so that missing runs are counted) and ``total_over`` (study to ``heads`` or ``channels``).
    """

    scale: str
    description: str = ""
    tables: Mapping[str, pd.DataFrame] = field(default_factory=dict)
    partial: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)

    def table(self, name: str) -> pd.DataFrame | None:
        """The table, or None if it does not exist or has no row."""
        table = self.tables.get(name)
        return None if table is None or table.empty else table


def footer(spec: FigureSpec, context: FigureContext, notes: list[str]) -> list[str]:
    """The lines on a figure's face: ESS kind, what total sums over, scale, runs, notes."""
    facts = []
    if spec.ess_kinds:
        facts.append("ESS: " + ", ".join(kind_label(kind) for kind in spec.ess_kinds))
    over = context.options.get("total_over", {})
    if spec.studies:
        sums = sorted({over[study] for study in spec.studies if study in over} or {"heads"})
        facts.append(f"'total' sums over {' or '.join(sums)}")
    described = f" ({context.description.rstrip('.')})" if context.description else ""
    facts.append(f"scale: {context.scale}{described}" if spec.studies else "scale: none (toy operators)")
    lines = [" · ".join(facts) + "."]
    runs = [_runs(study, context) for study in spec.studies]
    if runs:
        lines.append(" ".join(runs))
    return lines + ([" ".join(notes)] if notes else [])


def _runs(study: str, context: FigureContext) -> str:
    table = context.table(f"{study}_runs")
    planned = context.options.get("planned_runs", {}).get(study)
    if table is None:
        checkpoints = context.table(f"{study}_checkpoints")
        if checkpoints is None:
            return f"{study}: no runs at this scale."
        table = checkpoints.drop_duplicates("run", keep="last")
    counts = state_counts(table, planned)
    shown = ", ".join(f"{n} {state}" for state, n in counts.items() if n or state != "failed")
    return f"{study}: {sum(counts.values())} runs ({shown})."


@contextmanager
def house_style() -> Iterator[None]:
    """Matplotlib's defaults with the project's style, whatever the user's own settings are."""
    with rc_context():
        rcdefaults()
        rcParams.update(style.RC)
        yield


def draw(figure_id: str, context: FigureContext) -> Page:
    """The figure's page, drawn but not placed yet; inside :func:`house_style`.

    Raises UnknownNameError for an unknown id.
    """
    spec = get(figure_id)
    module = importlib.import_module(f"effstate.figures.{spec.module}")
    page: Page = module.draw(spec, context)
    prefix = "Figure " if spec.section != "beyond the paper" else ""
    page.title = f"{prefix}{spec.number}: {spec.title}"
    page.finish(footer(spec, context, page.notes))
    return page


def _write(path: Path, save: Callable[[Path], object]) -> Path:
    """Write through a temporary file in the same folder, so that no reader sees half a figure."""
    with atomic_path(path) as temporary:
        save(temporary)
    return path


def render(figure_id: str, context: FigureContext, out_prefix: str | Path) -> dict[str, Path]:
    """Draw a figure and write ``<out_prefix>.png``, ``.pdf`` and ``.csv``; returns the paths.

    The CSV holds the drawn numbers, tidy. The same tables give the same bytes: no dates or versions
    are written. Raises UnknownNameError for an unknown id.
    """
    prefix = Path(out_prefix)
    prefix.parent.mkdir(parents=True, exist_ok=True)
    with house_style():
        page = draw(figure_id, context)
        FigureCanvasAgg(page.figure)
        undated: dict[str, dict[str, Any]] = {
            "png": {"Software": None},
            "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
        }
        written = {
            ending: _write(
                prefix.with_name(f"{prefix.name}.{ending}"),
                lambda name, e=ending, m=metadata: page.figure.savefig(name, format=e, metadata=m),
            )
            for ending, metadata in undated.items()
        }
    csv = prefix.with_name(f"{prefix.name}.csv")
    written["csv"] = _write(csv, lambda name: page.numbers().to_csv(name, index=False))
    return written
