"""Shared helpers: one thread per process, and a small project that tests may change."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

ROOT = Path(__file__).parents[1]

FIRST = ("slurm", "workflow", "test_docs.py")
"""Files that take minutes and wait a lot: started first, so that the others fill the waiting."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def rank(item: pytest.Item) -> int:
        return min((k for k, name in enumerate(FIRST) if name in item.path.parts), default=len(FIRST))

    items.sort(key=rank)


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

_TINY_MODEL = TINY["mqar"]["baseline"]["model"]
_TINY_TRAINING = TINY["mqar"]["baseline"]["training"] | {"epochs": 2}
_TINY_ROWS = {"seq_len": 16, "num_train": 256, "num_validation": 16, "num_test": 32}
_TINY_MQAR = {
    "task": {"name": "mqar", "vocab_size": 16, "kv": 2, **_TINY_ROWS},
    "model": _TINY_MODEL,
    "training": _TINY_TRAINING,
}

EVERY_STUDY: dict[str, Any] = {
    **TINY,
    "copying": {
        "baseline": {
            "task": {"name": "selective_copying", "vocab_size": 16, **_TINY_ROWS},
            "model": _TINY_MODEL,
            "training": _TINY_TRAINING,
        },
        "axes": {"model.featurizer": ["la", "sa"], "task.num_tokens_to_copy": [3]},
    },
    "compression": {
        "baseline": {
            "task": {"name": "compression", **_TINY_ROWS},
            "model": _TINY_MODEL,
            "training": _TINY_TRAINING,
        },
        "axes": {"model.featurizer": ["gla", "wla"], "task.vocab_size": [8]},
    },
    "init": {
        "baseline": _TINY_MQAR,
        "grids": {
            "tss_s6": {
                "baseline": {"model": {"featurizer": "s6"}},
                "axes": {"model.d_state": [4, 8]},
            },
            "tss_gated": {
                "axes": {"model.featurizer": ["gla", "gla_s6"], "model.k_expansion": [1, 2]},
            },
            "alpha": {
                "baseline": {"model": {"featurizer": "gla_s6", "k_expansion": 2}},
                "axes": {"model.arange_alpha": [10, 1000]},
            },
            "fig28": {
                "baseline": {"task": {"kv": 4}},
                "axes": {"model.k_expansion": [1, 2]},
            },
        },
        "trace": {"samples": 2, "noise": True},
    },
    "regularisation": {
        "baseline": _TINY_MQAR,
        "grids": {
            "base": {"axes": {"model.featurizer": ["gla", "la"]}},
            "penalised": {
                "axes": {
                    "training.regularised_layers": [[1], [0, 1]],
                    "training.regularisation": [0.5],
                },
            },
        },
        "trace": {"samples": 2},
    },
    "distillation": {
        "baseline": {**_TINY_MQAR, "model": {**_TINY_MODEL, "k_expansion": 4}},
        "axes": {"seed": [0]},
        "student_k_expansions": [1, 2],
        "matching": {"steps_operator": 4, "steps_activation": 4, "samples": 4},
        "trace": {"samples": 2},
    },
    "hybrids": {
        "baseline": {**_TINY_MQAR, "model": {**_TINY_MODEL, "num_layers": 3}},
        "grids": {
            "four": {"axes": {"model.pattern": ["ggg", "gsg", "ssg"]}},
            "jamba": {"axes": {"model.pattern": [{"jamba": [3, 1]}]}},
        },
        "trace": {"samples": 2},
    },
    "lm": {
        "corpus": {
            "source": {"kind": "sotu"},
            "tokenizer": {"kind": "bpe", "vocab_size": 300, "documents": 2},
            "validation": 0.2,
            "test": 0.2,
            "max_documents": 20,
        },
        "model": {"width": 8, "heads": 2},
        "featurizers": ["gla", "sa"],
        "training": {
            "steps": 4,
            "batch_size": 4,
            "learning_rate": 0.01,
            "precision": "fp32",
            "evaluate_every": 2,
            "evaluation_rows": 4,
        },
        "context": 64,
        "sequences": 8,
        "recall": {"window": 32, "bootstrap": 10, "grid_points": 8},
        "trace": {"contexts": ["a few words of one sort", "and more words of another"]},
    },
    "openweights": {
        "models": {
            "tiny-mamba": {
                "source": {
                    "kind": "random",
                    "architecture": "mamba",
                    "options": {"hidden_size": 8, "state_size": 4, "num_hidden_layers": 2},
                },
                "max_channels": 4,
            },
            "tiny-llama": {
                "source": {
                    "kind": "random",
                    "architecture": "llama",
                    "options": {
                        "hidden_size": 8,
                        "num_attention_heads": 2,
                        "num_hidden_layers": 2,
                        "intermediate_size": 16,
                    },
                },
            },
            "gated": {"source": {"kind": "folder", "path": "nowhere"}, "skip": True},
        },
        "figures": {
            "fig9": "tiny-mamba",
            "fig36": "tiny-llama",
            "fig38": "gated",
            "fig43": "tiny-llama",
            "fig46": "tiny-mamba",
        },
        "sentences": {"tolerances": [0.1, 1e-3, 1e-5]},
        "shots": {"measured": 1, "asked": 2},
    },
}
"""The scale ``tiny`` with a few runs of every study."""


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def make_project(folder: Path, tiny: dict[str, Any] | None = None, **keys: Any) -> Path:
    """A copy of the workflow with the scale ``tiny`` in ``folder``; returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("Snakefile", "workflow", "profiles", "config", "notebooks"):
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
