"""A results folder of synthetic tables, as the notebooks read it."""

from __future__ import annotations

import importlib.util
from itertools import product
from pathlib import Path
from types import ModuleType

import numpy as np
import pandas as pd

from effstate.analysis import language, openweights
from effstate.analysis.claims import judge
from effstate.artifacts import write_table
from effstate.figures.render import FigureContext, draw, house_style
from effstate.notebooks import NOTEBOOKS
from effstate.scales import ScaleConfig

MODELS = ("gla", "sa")
TOLERANCES = (0.1, 1e-3)


def _synthetic_tables() -> ModuleType:
    """The module beside the tests of figures, wherever the tests are started."""
    spec = importlib.util.spec_from_file_location(
        "synthetic_tables", Path(__file__).parent / "figures/synthetic_tables.py"
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _frames(
    study: str, columns: dict[str, tuple[str, ...]], rows: dict[str, list[dict]]
) -> dict[str, pd.DataFrame]:
    """Tables with all of a study's columns; a misspelt one is an error."""
    for name, found in rows.items():
        assert set().union(*found) <= set(columns[name]), name
    return {
        f"{study}_{name}": pd.DataFrame(rows.get(name, []), columns=[*names])
        for name, names in columns.items()
    }


def _along(depth: float) -> list[dict]:
    """Total ESS along twelve tokens, with a dip of ``depth`` at every fourth."""
    rows = []
    for index in range(1, 13):
        marked = index % 4 == 0
        total = 20.0 + index - (depth * 20 if marked else 0)
        rows.append({"index": index, "total": total, "mark": "separator" if marked else ""})
    return rows


def language_tables() -> dict[str, pd.DataFrame]:
    """Two models; softmax attention dips deeper, and both learn."""
    draw = np.random.default_rng(0)
    rows: dict[str, list[dict]] = {name: [] for name in language.COLUMNS}
    for featurizer, seed in product(MODELS, (0, 1)):
        model = {"featurizer": featurizer, "seed": seed}
        depth = 0.5 if featurizer == "sa" else 0.1
        run = {"run": f"lm-{featurizer}-{seed}", "state": "done", "parameters": 1e6, "steps": 30}
        run |= {"tokens": 3000, "log_perplexity": 4.0 + depth, "unigram_log_perplexity": 6.0}
        run |= {"recall_log_perplexity": 5.0 - depth, "corpus": "made up", "validation_loss": 4.0}
        rows["runs"].append(model | run)
        for step in (10, 20, 30):
            losses = {"step": step, "tokens": 100 * step, "loss": 6 - step / 20}
            rows["losses"].append(model | losses | {"train_loss": 6 - step / 19})
        for text, separator, tolerance in product((0, 1), ("eos", "."), TOLERANCES):
            prompt = model | {"text": text, "separator": separator, "tolerance": tolerance}
            for row in _along(depth):
                total = {"index": row["index"], "total_ess": row["total"], "mark": row["mark"]}
                rows["curves"].append(prompt | total | {"token": "word"})
            for place, mean in (("separator", depth), ("control", 0.02)):
                dip = {"place": place, "dip": mean + draw.normal(0, 0.01)}
                rows["dips"].append(prompt | dip)
        for curve, distance in product(("recall", "standard"), (2, 4, 8, 16)):
            value = 4 + np.log2(distance) / 4 + (curve == "recall") - depth
            band = {"log_perplexity": value, "low": value - 0.1, "high": value + 0.1}
            rows["smoothed"].append(model | band | {"curve": curve, "distance": distance})
    return _frames("lm", language.COLUMNS, rows)


def weights_tables() -> dict[str, pd.DataFrame]:
    """A trained attention model, and a random state-space model that does not dip."""
    rows: dict[str, list[dict]] = {name: [] for name in openweights.COLUMNS}
    for model, kind, trained, depth in (("big", "attention", True, 0.2), ("toy", "ssm", False, 0.0)):
        about = {"model": model, "trained": trained, "kind": kind}
        for suite in ("sentences", "code", "questions"):
            run = {"run": f"{model}-{suite}", "suite": suite, "billions": 0.1, "layers": 2}
            rows["runs"].append(about | run | {"state": "done"})
        for separator, tolerance in product(("eos", "."), TOLERANCES):
            prompt = {"separator": separator, "tolerance": tolerance}
            for row in _along(depth):
                total = {"mean_total_ess": row["total"], "sum_total_ess": 2 * row["total"]}
                place = {"suite": "sentences", "prompt": "0", "shots": 0, "model": model}
                place |= {"index": row["index"], "mark": row["mark"], "token": "word"}
                rows["curves"].append(prompt | place | total)
            for text, place in product((0, 1), ("separator", "control")):
                dip = prompt | {"text": text, "place": place}
                dip["dip"] = depth if place == "separator" else 0.01
                rows["dips"].append(about | {"billions": 0.1} | dip)
                rows["causal"].append(about | dip)
        for program, place in product(("one", "two"), ("closing brace", "control")):
            dip = {"model": model, "trained": trained, "program": program, "text": 0}
            dip |= {"place": place, "tolerance": 0.1}
            rows["code"].append(dip | {"dip": depth / 2 if place != "control" else 0.01})
        for question, shots in product((0, 1), (0, 1)):
            rows["shots"].append(about | {"question": question, "shots": shots, "ess": 10.0 + shots})
    rows["runs"].append({"run": "gated", "model": "gated", "suite": "sentences", "state": "skipped"})
    return _frames("openweights", openweights.COLUMNS, rows)


def every_table() -> dict[str, pd.DataFrame]:
    """Tables of every study."""
    synthetic = _synthetic_tables()
    found: dict[str, pd.DataFrame] = {}
    for study in ("mqar", "copying", "compression"):
        found |= synthetic.tables(study, proxies=True)
    return found | synthetic.other_tables() | language_tables() | weights_tables()


def write_results(folder: Path, scale: str = "tiny") -> None:
    """Everything that the notebooks read, under ``folder`` as the pipeline lays it out."""
    tables = every_table()
    for name, table in tables.items():
        write_table(folder / "tables" / scale / f"{name}.parquet", table)
    context = FigureContext(scale, "synthetic tables", tables)
    for figure in sorted({f for notebook in NOTEBOOKS.values() for f in notebook.figures}):
        path = folder / "figures" / scale / f"{figure}.csv"
        path.parent.mkdir(parents=True, exist_ok=True)
        with house_style():
            draw(figure, context).numbers().to_csv(path, index=False)
    judged = judge(tables, ScaleConfig(name=scale, description="synthetic tables"))
    write_table(folder / "claims" / scale / "claims.parquet", judged.claims)
