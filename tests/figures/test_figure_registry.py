"""The registry of figures: complete, light, and honest about its sources."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from effstate.figures.registry import FIGURES, PACKAGE, get, sources
from effstate.registry import UnknownNameError

EXPECTED = [
    *(f"fig{n}" for n in range(1, 47)),
    "figB1",
    "figB2",
    "figB3",
    "figB4",
    "figB5",
    "figB6",
]


def test_the_sweeps_figures_are_registered_in_the_papers_order() -> None:
    assert set(EXPECTED) <= set(FIGURES)
    assert [name for name in FIGURES if name in EXPECTED] == EXPECTED


def test_the_registry_imports_nothing_heavy() -> None:
    code = (
        "import sys, effstate.figures.registry\n"
        "heavy = {'torch', 'matplotlib', 'pandas', 'numpy', 'scipy'} & set(sys.modules)\n"
        "sys.exit(f'imported {sorted(heavy)}' if heavy else 0)"
    )
    path = os.pathsep.join([str(PACKAGE.parent), os.environ.get("PYTHONPATH", "")])
    env = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr


def test_an_unknown_figure_names_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match=r"'figB44'.*'figB4'"):
        get("figB44")


@pytest.mark.parametrize("figure_id", FIGURES)
def test_sources_exist_and_hold_the_module(figure_id: str) -> None:
    spec = FIGURES[figure_id]
    found = sources(spec)
    assert f"figures/{spec.module}.py" in found
    assert {"figures/panels.py", "figures/style.py"} <= set(found)
    assert not {"analysis/collect.py", "analysis/trace.py"} & set(found)
    assert all((PACKAGE / path).is_file() for path in found)
    others = {f"figures/{s.module}.py" for s in FIGURES.values() if s.module != spec.module}
    assert not others & (set(found) - set(spec.uses))


@pytest.mark.parametrize("module", sorted({s.module for s in FIGURES.values()}))
def test_sources_hold_what_the_module_imports(module: str) -> None:
    """Figure and analysis modules that a figure's module names, directly."""
    text = (PACKAGE / f"figures/{module}.py").read_text("utf-8")
    named = re.findall(r"^from effstate\.(figures|analysis)\.(\w+) import", text, flags=re.M)
    needed = {f"{folder}/{name}.py" for folder, name in named} - {"figures/registry.py"}
    assert needed
    for spec in FIGURES.values():
        if spec.module == module:
            assert needed <= set(sources(spec))


@pytest.mark.parametrize("figure_id", FIGURES)
def test_captions_are_sentences_and_tables_are_named_after_studies(figure_id: str) -> None:
    spec = FIGURES[figure_id]
    assert spec.caption.endswith(".") and spec.title and spec.section
    assert all(table.rpartition("_")[0] in spec.studies for table in spec.tables)


def test_printed_values_say_where_they_come_from() -> None:
    first = (PACKAGE / "figures/data/printed_heatmaps.csv").read_text("utf-8").splitlines()[0]
    assert first.startswith("#") and "ICML 2025" in first
    assert Path(PACKAGE / "figures/data").is_dir()
