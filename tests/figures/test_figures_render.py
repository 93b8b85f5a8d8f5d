"""Every figure on synthetic and degenerate tables: no warning, no clipped or overlapping text."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import synthetic_tables
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text

from effstate.analysis.correlation import correlations, within_run_correlations
from effstate.analysis.tables import cross_task
from effstate.figures.correlation_bars import fig5_table
from effstate.figures.panels import Page
from effstate.figures.registry import FIGURES, PACKAGE
from effstate.figures.render import FigureContext, draw, house_style, render

pytestmark = pytest.mark.filterwarnings("error")

STUDIES = ("mqar", "copying", "compression")


def context(axes: dict = synthetic_tables.SMALL, **options: object) -> FigureContext:
    tables = {}
    for study in STUDIES:
        tables |= synthetic_tables.tables(study, axes, proxies=True)
    tables |= synthetic_tables.other_tables()
    planned = {"planned_runs": {"mqar": len(tables["mqar_runs"]) + 3}}
    return FigureContext("demo", "synthetic tables", tables, options=planned, **options)


@functools.cache
def reduced(keep: str) -> FigureContext:
    """Degenerate versions of the synthetic tables."""
    tables = context().tables
    if keep == "no table":
        return FigureContext("demo")
    if keep == "no row":
        return FigureContext("demo", "", {n: t.iloc[:0] for n, t in tables.items()})
    if keep == "one run":
        of = {n: t["run"].iloc[0] for n, t in tables.items()}
        return FigureContext("demo", "", {n: t[t["run"] == of[n]] for n, t in tables.items()})
    assert keep == "all diverged"
    lost = {}
    for name, table in tables.items():
        measures = [c for c in table if c in ("accuracy", "loss", "macro_accuracy") or "ess_" in c]
        lost[name] = table.assign(**dict.fromkeys(measures, np.nan))
        if "state" in table:
            lost[name]["state"] = "diverged"
    return FigureContext("demo", "", lost)


@pytest.fixture(scope="module")
def full() -> FigureContext:
    return context(partial=True)


def texts(page: Page, dpi: float = 72) -> tuple[list[str], np.ndarray, tuple[float, float]]:
    """Every visible text with its box (n, 4) in pixels, after a real draw, and the page's size."""
    page.figure.set_dpi(dpi)
    canvas = FigureCanvasAgg(page.figure)
    canvas.draw()
    found = [t for t in page.figure.findobj(Text) if t.get_visible() and t.get_text().strip()]
    beyond = _undrawn(page)
    found = [t for t in found if id(t) not in beyond]
    boxes = np.array([t.get_window_extent(canvas.get_renderer()).extents for t in found])
    size = tuple(float(v) for v in page.figure.get_size_inches() * dpi)
    return [t.get_text() for t in found], boxes, size


def _undrawn(page: Page) -> set[int]:
    """Tick labels outside the limits of their axis: they exist but are not drawn."""
    beyond: set[int] = set()
    for axes in page.figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            every = {id(label) for which in (False, True) for label in axis.get_ticklabels(which)}
            beyond |= every - {id(tick.label1) for tick in axis._update_ticks()}
    return beyond


def overlaps(boxes: np.ndarray, slack: float = 1.5) -> list[tuple[int, int]]:
    """Pairs of boxes that share more than ``slack`` pixels in both directions."""
    low = np.maximum(boxes[:, None, :2], boxes[None, :, :2])
    high = np.minimum(boxes[:, None, 2:], boxes[None, :, 2:])
    shared = ((high - low) > slack).all(axis=-1)
    return [(int(i), int(j)) for i, j in np.argwhere(np.triu(shared, 1))]


@pytest.fixture(scope="module")
def paper() -> FigureContext:
    return FigureContext("paper", "table 1", synthetic_tables.tables("mqar", synthetic_tables.PAPER))


@pytest.mark.parametrize("figure_id", ["fig4", "fig14", "figB1"])
def test_the_papers_axes_fit(figure_id: str, paper: FigureContext) -> None:
    check_texts(figure_id, paper)


@pytest.mark.parametrize("figure_id", FIGURES)
def test_text_is_whole_and_apart(figure_id: str, full: FigureContext) -> None:
    check_texts(figure_id, full)


def check_texts(figure_id: str, tables: FigureContext) -> None:
    """No text leaves the page, and no two texts overlap."""
    with house_style():
        page = draw(figure_id, tables)
        words, boxes, (width, height) = texts(page)
    outside = (boxes[:, :2] < -0.5).any(axis=1) | (boxes[:, 2:] > (width + 0.5, height + 0.5)).any(
        axis=1
    )
    assert [w for w, out in zip(words, outside, strict=True) if out] == []
    assert [(words[i], words[j]) for i, j in overlaps(boxes)] == []


@pytest.mark.parametrize("keep", ["no table", "no row", "one run", "all diverged"])
@pytest.mark.parametrize("figure_id", FIGURES)
def test_degenerate_tables_still_make_a_figure_that_says_so(figure_id: str, keep: str) -> None:
    with house_style():
        page = draw(figure_id, reduced(keep))
    numbers = page.numbers()
    assert len(numbers) > 0 and numbers["panel"].notna().all()
    if keep != "one run" and FIGURES[figure_id].studies and figure_id != "figB4":
        assert numbers["note"].dropna().str.len().gt(0).any()
    if "y" in numbers and keep in ("no table", "no row") and FIGURES[figure_id].studies:
        assert numbers["y"].isna().all()


def test_the_face_names_scale_kind_sum_and_runs(full: FigureContext) -> None:
    with house_style():
        page = draw("fig21", full)
    said = page.figure.texts[-1].get_text()
    runs = full.tables["mqar_runs"]["state"].value_counts()
    for part in (
        "tolerance-ESS (τ = 1e-3)",
        "'total' sums over heads",
        "scale: demo (synthetic tables)",
    ):
        assert part in said
    assert f"{len(full.tables['mqar_runs']) + 3} runs ({runs['done']} done" in said
    assert f"{runs['diverged']} diverged, 3 missing" in said


def test_scattered_points_are_the_tables_models(full: FigureContext) -> None:
    with house_style():
        page = draw("fig3", full)
    numbers = page.numbers()
    points = numbers[numbers["run"].notna()].set_index("run")
    table = cross_task(full.tables["mqar_runs"], "kv", "entropy").set_index("run")
    assert set(points.index) == set(table.index)
    np.testing.assert_allclose(points["y"], table.loc[points.index, "accuracy"])
    np.testing.assert_allclose(points["x"], table.loc[points.index, "ess_per_difficulty_entropy"])
    gla = page.axes[0][0].collections[-1].get_offsets()
    np.testing.assert_allclose(gla[:, 1], points[points["featurizer"] == "gla"]["y"])


def test_cells_of_figure_4_are_means_of_within_run_correlations(full: FigureContext) -> None:
    with house_style():
        numbers = draw("fig4", full).numbers()
    checkpoints = full.tables["mqar_checkpoints"]
    by_run = within_run_correlations(checkpoints[checkpoints["state"] == "done"], "ess_entropy")
    gla = by_run[(by_run["featurizer"] == "gla") & (by_run["tss"] == 16) & (by_run["kv"] == 8)]
    cell = numbers[(numbers["featurizer"] == "gla") & (numbers["y"] == 16) & (numbers["x"] == 8)]
    assert cell["value"].item() == pytest.approx(gla["correlation"].mean())
    assert cell["n"].item() == gla["correlation"].notna().sum()
    assert numbers[numbers["featurizer"] == "sa"]["y_axis"].unique() == ["total_tss"]


def test_the_table_of_figure_5_is_what_its_bars_show(full: FigureContext) -> None:
    table = fig5_table(full).set_index(["featurizer", "statistic"])
    with house_style():
        numbers = draw("fig5", full).numbers()
    for featurizer in ("gla", "la", "wla", "sa"):
        bars = numbers[numbers["featurizer"] == featurizer].set_index("series")
        row = table.loc[(featurizer, "pearson_log2")]
        assert bars.loc["ESS / kv", "y"] == row["r_ess"]
        assert bars.loc["TSS / kv", ["low", "high"]].tolist() == [
            row["r_tss_low"],
            row["r_tss_high"],
        ]
        assert bars.loc["difference", "y"] == row["difference"]
        assert row["difference"] == pytest.approx(row["r_ess"] - row["r_tss"])
    models = cross_task(full.tables["mqar_runs"], "kv", "entropy")
    expected = correlations(models, ["ess_per_difficulty_entropy"], statistics=("spearman",))
    assert table.xs("spearman", level=1)["r_ess"].tolist() == expected["r"].tolist()
    assert fig5_table(FigureContext("demo")).empty


def test_printed_values_are_subtracted_where_cells_meet() -> None:
    axes = synthetic_tables.SMALL | {"models": ((32, 4), (64, 4)), "seq_len": (64,)}
    tables = synthetic_tables.tables("mqar", axes)
    with house_style():
        numbers = draw("figB4", FigureContext("demo", "", tables)).numbers()
    cells = numbers[(numbers["panel"] == "12a") & (numbers["featurizer"] == "gla")]
    assert set(cells["y"]) == {8, 16} and set(cells["x"]) == {8, 16}
    np.testing.assert_allclose(cells["value"], cells["ours"] - cells["printed"])
    runs = tables["mqar_runs"]
    mine = runs[(runs["featurizer"] == "gla") & (runs["tss"] == 8) & (runs["kv"] == 16)]
    cell = cells[(cells["y"] == 8) & (cells["x"] == 16)]
    assert cell["ours"].item() == pytest.approx(mine["accuracy"].mean())
    assert cell["printed"].item() == pytest.approx(0.6)  # figure 12a, as the data file has it


def test_a_mixer_of_ones_own_gets_its_own_panel() -> None:
    tables = synthetic_tables.tables()
    mine = {n: t[t["featurizer"] == "gla"] for n, t in tables.items() if "layers" not in n}
    mine = {n: t.assign(featurizer="mine", run="x" + t["run"]) for n, t in mine.items()}
    both = {n: pd.concat([tables[n], t]) for n, t in mine.items()}
    for figure_id in ("fig3", "fig12", "fig5"):
        with house_style():
            numbers = draw(figure_id, FigureContext("demo", "", both)).numbers()
        assert (numbers["featurizer"] == "mine").any(), figure_id


def test_missing_kinds_and_studies_leave_their_panels_empty() -> None:
    tables = synthetic_tables.tables()
    only = {n: t[[c for c in t if "tol_1e-3" not in c]] for n, t in tables.items()}
    for figure_id in ("fig7", "fig19", "fig18", "fig30"):
        with house_style():
            numbers = draw(figure_id, FigureContext("demo", "", only)).numbers()
        assert numbers["note"].notna().all(), figure_id
    with house_style():
        ten = draw("fig10", FigureContext("demo", "", tables)).numbers()
    assert ten[ten["panel"] == "b"]["note"].str.contains("has not run").all()


@pytest.mark.parametrize("figure_id", ["fig1", "fig4", "fig5", "fig7", "fig26", "fig30"])
def test_the_same_tables_give_the_same_bytes(
    figure_id: str, full: FigureContext, tmp_path: Path
) -> None:
    first = render(figure_id, full, tmp_path / "a" / figure_id)
    second = render(figure_id, full, tmp_path / "b" / figure_id)
    assert set(first) == {"png", "pdf", "csv"}
    for ending, path in first.items():
        assert path.read_bytes() == second[ending].read_bytes(), ending
        assert path.name == f"{figure_id}.{ending}"
    assert sorted(p.name for p in (tmp_path / "a").iterdir()) == sorted(p.name for p in first.values())
    assert len(pd.read_csv(first["csv"])) > 0
    assert b"CreationDate" not in first["pdf"].read_bytes()


def test_other_processes_and_hash_seeds_give_the_same_bytes(tmp_path: Path) -> None:
    code = (
        "import sys; from effstate.figures.render import FigureContext, render\n"
        "render('fig10', FigureContext('demo'), sys.argv[1])"
    )
    here = {**os.environ, "PYTHONPATH": os.pathsep.join([str(PACKAGE.parent), *sys.path])}
    for seed in ("1", "2"):
        env = here | {"PYTHONHASHSEED": seed}
        subprocess.run([sys.executable, "-c", code, str(tmp_path / seed)], check=True, env=env)
    for ending in ("png", "pdf", "csv"):
        one, two = ((tmp_path / f"{seed}.{ending}").read_bytes() for seed in "12")
        assert one == two, ending


def test_a_failing_figure_leaves_the_old_files_alone(
    full: FigureContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = tmp_path / "fig7.png"
    old.write_text("old")

    def fail(*_: object, **__: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("matplotlib.figure.Figure.savefig", fail)
    with pytest.raises(OSError, match="disk full"):
        render("fig7", full, tmp_path / "fig7")
    assert [p.name for p in tmp_path.iterdir()] == ["fig7.png"] and old.read_text() == "old"
