"""Tiny language-model runs over a corpus made by the tests."""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from corpora import corpus_config, documents, write_fineweb

from effstate.artifacts import Artifact, RunStore
from effstate.cohorts import Interrupted
from effstate.config import parse
from effstate.lm.config import LmRunConfig
from effstate.lm.corpus import TokenCorpus, build_corpus
from effstate.lm.requests import lm_train_request
from effstate.lm.trainer import train_language_model
from effstate.training.trainer import Execution

EXECUTION = Execution(device="cpu", threads=1, compile="no")


def make_corpus(folder: Path) -> TokenCorpus:
    """A corpus of a few thousand tokens in ``folder``."""
    return build_corpus(folder / "tokens", corpus_config(write_fineweb(folder / "source", documents())))


def lm_run(corpus: TokenCorpus, model: dict[str, Any] | None = None, **training: Any) -> LmRunConfig:
    """Sixteen steps of four rows of 32 tokens, unless said otherwise."""
    data = {
        "corpus": corpus.config.model_dump(),
        "model": {"featurizer": "gla", "width": 16, "heads": 2, **(model or {})},
        "training": {
            "steps": 16,
            "batch_size": 4,
            "learning_rate": 0.01,
            "precision": "fp32",
            "checkpoint_every": 5,
            "evaluate_every": 8,
            "evaluation_rows": 6,
            **training,
        },
        "context": 32,
    }
    return parse(LmRunConfig, data, "the test")


def begun(folder: Path, run: LmRunConfig) -> Artifact:
    """The run's artifact in the store in ``folder``, begun."""
    artifact = RunStore(folder).artifact(lm_train_request(run))
    artifact.begin()
    return artifact


def losses(artifact: Artifact) -> list[float]:
    """The training loss of every step that the log holds."""
    lines = [json.loads(line) for line in artifact.path("log.jsonl").open()]
    return [line["loss"] for line in lines if line["event"] == "step"]


def stop_itself(number: int, at: int) -> Callable[[int, int], None]:
    """An ``on_step`` that sends this process a signal after the step ``at``."""
    return lambda step, steps: os.kill(os.getpid(), number) if step == at else None


def interrupted(folder: Path, run: LmRunConfig, corpus: TokenCorpus, at: int) -> Artifact:
    """The run, stopped by SIGTERM after the step ``at``."""
    artifact = begun(folder, run)
    with pytest.raises(Interrupted, match="signal 15"):
        on_step = stop_itself(signal.SIGTERM, at)
        train_language_model(artifact, corpus, EXECUTION, on_step=on_step)
    return artifact
