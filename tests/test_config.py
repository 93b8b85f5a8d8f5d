"""Configuration: the default file in step with the models, and bad input in one sentence."""

from __future__ import annotations

import copy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from effstate.config import (
    ConfigError,
    ModelConfig,
    TrainingConfig,
    default_yaml,
    jamba,
    parse,
)
from effstate.pipeline import Pipeline
from effstate.scales import ScaleConfig, load_scale
from effstate.sweep import expand

from .conftest import EVERY_STUDY, ROOT, TINY, make_project


def test_the_default_file_is_the_one_that_the_models_generate() -> None:
    assert (ROOT / "config/config.yaml").read_text() == default_yaml()


@pytest.mark.parametrize("scale", ["demo", "small", "paper"])
def test_every_shipped_scale_expands(scale: str) -> None:
    pipeline = Pipeline.from_config({"scale": scale}, ROOT)
    assert set(pipeline.sweeps) >= {"mqar", "copying", "compression"}
    assert all(sweep.runs for sweep in pipeline.sweeps.values())


def test_the_paper_scale_is_table_1() -> None:
    sweep = Pipeline.from_config({"scale": "paper"}, ROOT).sweeps["mqar"]
    cells = {(r.task.seq_len, r.task.kv) for r in sweep.runs}  # type: ignore[attr-defined]
    expected = {
        (length, kv)
        for length in (64, 128, 256, 512, 1024, 2048)
        for kv in (8, 16, 32, 64, 128)
        if 4 * kv <= length
    }
    assert cells == expected
    assert len(sweep.runs) == len(expected) * 4 * 8
    assert sum(sweep.dropped.values()) == (30 - len(expected)) * 4 * 8
    run = sweep.runs[0]
    assert (run.training.epochs, run.training.steps_per_epoch, run.training.batch_size) == (
        70,
        2000,
        64,
    )
    assert (run.task.vocab_size, run.task.num_train, run.task.num_test) == (8192, 128_000, 6400)


def test_the_paper_scale_is_tables_2_to_8() -> None:
    pipeline = Pipeline.from_config({"scale": "paper"}, ROOT)
    counts = {name: len(sweep.runs) for name, sweep in pipeline.sweeps.items()}
    lambdas, layers, seeds = 9, 3, 3
    # alpha = 1000 stands beside the alpha axis, so no run is in two grids.
    assert counts["init"] == seeds * (5 + 2 * 5 + 6 + 5)
    assert counts["regularisation"] == seeds * (3 + 2 * layers * lambdas)
    assert counts["distillation"] == 3 * 2 * seeds
    assert len(pipeline.requests("distillation", "distill")) == 6 * 3 * 8 * 2 * 4
    assert counts["hybrids"] == 16 + 5
    tss = {r.model.width // r.model.heads * r.model.k_expansion for r in pipeline.sweeps["init"].runs}
    assert tss == {16, 32, 64, 128, 256}


def test_the_jamba_policy_is_the_papers_for_eight_mixers() -> None:
    printed = {0: (), 1: (3,), 2: (2, 5), 3: (1, 3, 5), 4: (1, 3, 5, 7)}
    for attention, places in printed.items():
        pattern = jamba(8, attention)
        assert tuple(i for i, name in enumerate(pattern) if name == "sa") == places
        assert set(pattern) <= {"gla", "sa"} and len(pattern) == 8


def test_a_pattern_is_a_value_of_a_run_in_every_spelling() -> None:
    names = ("gla", "sa", "gla", "gla")
    for spelling in ("gsgg", list(names)):
        config = ModelConfig(pattern=spelling, num_layers=4)
        assert (config.mixers, config.label) == (names, "gsgg")
    assert ModelConfig(pattern={"jamba": [8, 1]}, num_layers=8).label == "gggsgggg"
    assert ModelConfig(num_layers=3).mixers == ("gla",) * 3


def test_grids_share_runs_and_name_them() -> None:
    scale = _with(
        "mqar/grids",
        {
            "all": {"axes": {"model.k_expansion": [1, 2]}},
            "wide": {"baseline": {"model": {"k_expansion": 2}}},
        },
    )
    sweep = expand("mqar", parse(ScaleConfig, scale, "tiny").mqar, "tiny")
    assert len(sweep.runs) == 8
    named = {(r.model.k_expansion, grids) for r, grids in zip(sweep.runs, sweep.grids, strict=True)}
    assert named == {(1, "all"), (2, "all+wide")}


def test_without_a_penalty_its_layers_make_no_new_run() -> None:
    plain = TrainingConfig()
    assert TrainingConfig(regularisation=0, regularised_layers=(0,)) == plain
    assert TrainingConfig(regularisation=1, regularised_layers=(0,)).regularised_layers == (0,)


def _with(path: str, value: Any) -> dict[str, Any]:
    """TINY with one dotted key set."""
    scale = copy.deepcopy(TINY)
    *parents, last = path.split("/")
    node = scale
    for part in parents:
        node = node.setdefault(part, {})
    node[last] = value
    return scale


BAD_SCALES = {
    "unknown study": (_with("mqr", {}), "unknown key 'mqr'; the nearest known one is 'mqar'"),
    "unknown sweep key": (
        _with("mqar/axis", {}),
        "unknown key 'mqar.axis'; the nearest known one is 'axes'",
    ),
    "unknown task key": (
        _with("mqar/baseline/task/vocabsize", 3),
        "unknown key 'task.vocabsize'; the nearest known one is 'vocab_size'",
    ),
    "unknown axis": (
        _with("mqar/axes/model.widht", [8]),
        "unknown key 'model.widht'; the nearest known one is 'width'",
    ),
    "unknown task": (
        _with("mqar/baseline/task/name", "mqra"),
        "unknown task 'mqra'; the nearest known one is 'mqar'",
    ),
    "unknown mixer": (
        _with("mqar/axes/model.featurizer", ["glaa"]),
        "unknown mixer 'glaa'; the nearest known one is 'gla'",
    ),
    "heads": (
        _with("mqar/axes/model.heads", [3]),
        "heads = 3 does not divide width = 8; the nearest that does is 2",
    ),
    "too many pairs": (
        _with("mqar/axes/task.kv", [2, 8]),
        "task.kv = 8 leaves no run: 4 * kv <= seq_len is broken: 4 * 8 > 16 (kv is at most 4 here)",
    ),
    "too few tokens": (
        _with("mqar/baseline/task/vocab_size", 8),
        "kv <= vocab_size / 2 - 1 is broken: 4 > 3 keys",
    ),
    "empty axis": (_with("mqar/axes/task.kv", []), "the axis 'task.kv' has no values"),
    "axis of two": (
        _with("mqar/axes/model.width, model.heads", [8]),
        "the axis 'model.width, model.heads' moves 2 keys, so each of its values is a list of 2",
    ),
    "wrong type": (_with("mqar/baseline/training/epochs", "ten"), "training.epochs = 'ten': input"),
    "negative": (_with("mqar/baseline/training/learning_rate", -1), "learning_rate = -1: input"),
    "not a number": (_with("mqar/baseline/training/weight_decay", float("nan")), "weight_decay"),
    "tolerance": (_with("mqar/trace/tolerances", [0.1, -1]), "tolerances are positive"),
    "batch": (
        _with("mqar/baseline/training/batch_size", 512),
        "training.batch_size = 512 is larger than task.num_train = 256",
    ),
    "odd rotary state": (
        _with("mqar/axes/model.width, model.heads", [[6, 2]]),
        "RoPE needs an even state size per head; width / heads * k_expansion is 3",
    ),
    "options of a built-in mixer": (
        _with("mqar/baseline/model/options", {"x": 1}),
        "options are for registered mixers; 'gla' takes none",
    ),
    "where": (
        _with("mqar/changes", [{"where": {"model.hads": 1}, "set": {"model.heads": 1}}]),
        "unknown key 'model.hads'; the nearest known one is 'heads'",
    ),
    "letter": (
        _with("mqar/baseline/model/pattern", "gx"),
        "the pattern has the unknown letter 'x'; known ones are g (gla), s (sa)",
    ),
    "pattern's length": (
        _with("mqar/baseline/model/pattern", "gsg"),
        "the pattern names 3 mixers, but num_layers = 2",
    ),
    "policy": (
        _with("mqar/baseline/model/pattern", {"jamba": [2]}),
        "a policy is written {jamba: [layers, attention layers]}",
    ),
    "policy that leaves the network": (
        _with("mqar/baseline/model/pattern", {"jamba": [11, 6]}),
        "jamba: [11, 6] puts attention at layer 11, outside of 0 .. 10",
    ),
    "alpha": (_with("mqar/baseline/model/arange_alpha", 0), "model.arange_alpha = 0: input"),
    "lambda": (_with("mqar/baseline/training/regularisation", -1), "regularisation = -1: input"),
    "penalised layer": (
        _with("mqar/baseline/training", {"regularisation": 1, "regularised_layers": [2]}),
        "training.regularised_layers names layer 2; the model has layers 0 .. 1",
    ),
    "penalty without decays": (
        _with("mqar/baseline/training/regularisation", 1),
        "training.regularisation: layer 1 is 'sa', which has no decay to regularise",
    ),
    "grid's name": (_with("mqar/grids", {"a+b": {}}), "the grid's name 'a+b' is not a plain word"),
    "cell": (_with("cells", {"fig26": {"depth": 2}}), "cells.fig26.depth"),
    "larger student": (
        _with(
            "distillation",
            {**EVERY_STUDY["distillation"], "student_k_expansions": [1, 8]},
        ),
        "config/scales/tiny.yaml: distillation: student_k_expansions: 8 makes a student larger than",
    ),
    "name": (_with("name", "tinny"), "name is 'tinny', but the file is called 'tiny'"),
}


@pytest.mark.parametrize("case", BAD_SCALES)
def test_a_bad_scale_is_one_sentence(case: str, tmp_path: Path) -> None:
    scale, expected = BAD_SCALES[case]
    project = make_project(tmp_path, scale)
    with pytest.raises(ConfigError) as caught:
        Pipeline.from_file(project / "config/config.yaml")
    text = str(caught.value)
    assert expected in text
    assert "tiny.yaml" in text
    assert "\n" not in text


BAD_PROJECTS = {
    "unknown key": ({"scal": "demo"}, "unknown key 'scal'; the nearest known one is 'scale'"),
    "unknown scale": ({"scale": "dem"}, "the scale 'dem' does not exist in"),
    "unknown device": (
        {"device": "gpu"},
        "device = 'gpu': input should be 'auto', 'cpu' or 'cuda'",
    ),
    "no threads": ({"threads": 0}, "threads = 0: input should be greater than or equal to 1"),
    "missing plugin": ({"plugins": ["mine.py"]}, "the file 'mine.py' does not exist"),
    "missing module": ({"plugins": ["no_such_module"]}, "no module named 'no_such_module'"),
    "override": ({"overrides": {"mqar": {"axs": {}}}}, "unknown key 'mqar.axs'"),
}


@pytest.mark.parametrize("case", BAD_PROJECTS)
def test_a_bad_project_is_one_sentence(case: str, tmp_path: Path) -> None:
    keys, expected = BAD_PROJECTS[case]
    project = make_project(tmp_path, **keys)
    with pytest.raises(ConfigError) as caught:
        Pipeline.from_file(project / "config/config.yaml")
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["a: [1", "- 1", "\x00"], ids=["cut off", "a list", "binary"])
def test_a_scale_that_is_not_yaml_is_named(text: str, tmp_path: Path) -> None:
    (tmp_path / "odd.yaml").write_text(text)
    with pytest.raises(ConfigError, match=r"odd\.yaml"):
        load_scale("odd", tmp_path)


def test_reading_a_configuration_does_not_import_torch() -> None:
    code = (
        "import sys; from pathlib import Path; from effstate.pipeline import Pipeline; "
        f"Pipeline.from_config({{'scale': 'paper'}}, Path({str(ROOT)!r})); "
        "import effstate.planning, effstate.figures.registry; "
        "sys.exit(any(m in sys.modules for m in ('torch', 'pandas', 'matplotlib')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_conda_environment_has_the_versions_of_the_lock() -> None:
    lock = [
        line
        for line in (ROOT / "requirements.lock").read_text().splitlines()
        if line and not line.startswith("#")
    ]
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    (pip,) = [d["pip"] for d in environment["dependencies"] if isinstance(d, dict)]
    assert pip == lock
    assert "torch==2.13.0" in lock
