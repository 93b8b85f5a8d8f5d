"""Shared helpers: one thread per process, and a small project that tests may change."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

ROOT = Path(__file__).parents[1]

TINY: dict[str, Any] = {
    "name": "tiny",
    "description": "seconds; for tests",
    "mqar": {
        "baseline": {
            "task": {
                "name": "mqar",
                "vocab_size": 16,
                "seq_len": 16,
                "num_train": 256,
                "num_validation": 16,
                "num_test": 32,
            },
            "model": {"width": 8, "heads": 2},
            "training": {
                "learning_rate": 0.01,
                "batch_size": 16,
                "epochs": 4,
                "steps_per_epoch": 4,
                "evaluate_every": 1,
            },
        },
        "axes": {"model.featurizer": ["gla", "sa"], "task.kv": [2, 4]},
        "trace": {"samples": 2},
    },
}
"""A scale of four runs of sixteen steps."""


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def make_project(folder: Path, tiny: dict[str, Any] | None = None, **keys: Any) -> Path:
    """A copy of the workflow with the scale ``tiny`` in ``folder``; returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("Snakefile", "workflow", "profiles", "config"):
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name)
        else:
            shutil.copy(source, folder / name)
    (folder / "config/scales/tiny.yaml").write_text(yaml.safe_dump(tiny or TINY))
    configured = yaml.safe_load((folder / "config/config.yaml").read_text())
    configured |= {"scale": "tiny", **keys}
    (folder / "config/config.yaml").write_text(yaml.safe_dump(configured))
    return folder
