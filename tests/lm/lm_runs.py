"""Tiny language-model runs over a corpus made by the tests."""

from pathlib import Path
from typing import Any

from corpora import corpus_config, documents, write_fineweb

from effstate.artifacts import Artifact, RunStore
from effstate.config import parse
from effstate.lm.config import LmRunConfig
from effstate.lm.corpus import TokenCorpus, build_corpus
from effstate.lm.requests import lm_train_request
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
