"""Held-out tokens under a trained language model: log probability, recall distance, training count.

The counts come from the corpus' training split and are an artifact of their own. An evaluation is
written part by part, and one that was stopped goes on behind its last part.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from effstate.artifacts import (
    Artifact,
    ArtifactError,
    read_json,
    read_tensors,
    write_json,
    write_tensors,
)
from effstate.lm.checkpoints import EXPORTED, load_model
from effstate.lm.config import LmEvaluationConfig
from effstate.lm.corpus import TokenCorpus, TokenRows
from effstate.lm.recall import BigramCounts, recall_distances
from effstate.lm.trainer import EXPORT, LOSS_CHUNK
from effstate.models import SequenceModel
from effstate.training.interruption import StopFlag
from effstate.training.trainer import RESULT, Execution

Array = np.ndarray

BIGRAMS, UNIGRAMS = "bigrams.safetensors", "unigrams.safetensors"

PART_TOKENS = 2**20
"""Tokens of one part of an evaluation: what an interruption can lose."""

FORWARD_TOKENS = 2**13
"""Tokens of one forward pass, at the most (at least one row)."""


# ------------------------------------------------------------------------------------------ counts


def unigram_counts(corpus: TokenCorpus) -> Array:
    """How often each token, EOS among them, occurs in the training split: int64 (vocabulary,)."""
    total = np.zeros(corpus.vocab_size, np.int64)
    for shard in corpus.shards("train"):
        for start in range(0, len(shard), 2**24):
            total += np.bincount(shard[start : start + 2**24], minlength=corpus.vocab_size)
    return total


def unigram_log_probabilities(counts: Array) -> Array:
    """Natural logarithms of the tokens' shares, (vocabulary,), each counted once more than it occurs."""
    return np.log((counts + 1) / (counts.sum() + len(counts)))


def make_counts(artifact: Artifact, corpus: TokenCorpus) -> None:
    """Count the training split's bigrams and tokens, and seal the artifact."""
    started = time.monotonic()
    BigramCounts.of_corpus(corpus).write(artifact.path(BIGRAMS), corpus.labels)
    write_tensors(artifact.path(UNIGRAMS), {"counts": torch.from_numpy(unigram_counts(corpus))})
    seconds = time.monotonic() - started
    artifact.finish("done", (BIGRAMS, UNIGRAMS), seconds=seconds, facts=corpus.labels)


# -------------------------------------------------------------------------------------- evaluation


@torch.no_grad()
def log_probabilities(model: SequenceModel, rows: Tensor) -> Tensor:
    """Log probability in nats of tokens 1 .. L of each row: (rows, L + 1) to (rows, L) in float32."""
    hidden = model.hidden(rows[:, :-1]).flatten(0, 1)
    targets = rows[:, 1:].flatten()
    found = [
        model.read(part).float().log_softmax(-1).gather(1, wanted[:, None])[:, 0]
        for part, wanted in zip(hidden.split(LOSS_CHUNK), targets.split(LOSS_CHUNK), strict=True)
    ]
    return torch.cat(found).view(len(rows), -1)


@dataclass(frozen=True)
class Evaluation:
    """A finished evaluation; every array is (contexts, L).

    Attributes:
        log_probabilities: in nats.
        distances: to the latest earlier occurrence of the bigram that a target ends, 0 where new.
        training_counts: how often that bigram occurs in training.
        result: ``log_perplexity``, ``unigram_log_perplexity``, corpus, tokenizer, split ...
    """

    log_probabilities: Array
    distances: Array
    training_counts: Array
    result: dict[str, object]

    def recall_distances(self, max_training_count: int | None) -> Array:
        """The distances, 0 also where the bigram is more frequent in training than that."""
        if max_training_count is None:
            return self.distances
        return np.where(self.training_counts <= max_training_count, self.distances, 0)


def part_name(number: int) -> str:
    """File name of a part of an evaluation."""
    return f"parts/{number:05d}.safetensors"


def _part(path: Path, rows: int) -> dict[str, Tensor] | None:
    """A part that an earlier attempt wrote, or None."""
    try:
        tensors, _ = read_tensors(path)
    except ArtifactError:
        return None
    complete = set(tensors) == {"log_probabilities", "distances", "training_counts"}
    return tensors if complete and all(len(t) == rows for t in tensors.values()) else None


def make_evaluation(
    artifact: Artifact,
    trained: Artifact,
    counts: Artifact,
    corpus: TokenCorpus,
    execution: Execution,
    *,
    on_step: Callable[[int, int], None] = lambda step, steps: None,
    flag: StopFlag | None = None,
) -> None:
    """Evaluate a trained model on held-out rows, or go on with it; seal the artifact.

    ``on_step(rows, all rows)`` is called after every forward pass. Each part holds tensors
    ``log_probabilities``, ``distances`` and ``training_counts``, (rows, L). A model that diverged gives
    an artifact that says so. Raises ArtifactError if an input is damaged, ConfigError if the
    split is too small, Interrupted when ``flag`` is set.
    """
    started = time.monotonic()
    config = artifact.request.config
    assert isinstance(config, LmEvaluationConfig)
    if seal_diverged(artifact, trained, started):
        return
    torch.set_num_threads(execution.threads)
    device = execution.resolve_device()
    model = load_model(exported(trained), device).model
    bigrams = BigramCounts.read(counts.checked(BIGRAMS))
    rows = TokenRows(corpus, config.split, config.window)
    count, step = min(len(rows), config.sequences), max(1, PART_TOKENS // config.window)
    together = max(1, FORWARD_TOKENS // config.window)
    unigrams, _ = read_tensors(counts.checked(UNIGRAMS))
    baseline = unigram_log_probabilities(unigrams["counts"].numpy())
    names, total, total_baseline = [], 0.0, 0.0
    for number, first in enumerate(range(0, count, step)):
        name, last = part_name(number), min(first + step, count)
        tokens = rows.read(range(first, last))
        part = _part(artifact.path(name), last - first)
        if part is None:
            found = []
            for batch in tokens.split(together):
                if flag is not None:
                    flag.check()
                found.append(log_probabilities(model, batch.to(device)).cpu())
                on_step(first + sum(map(len, found)), count)
            ids = tokens.numpy()
            part = {
                "log_probabilities": torch.cat(found),
                "distances": torch.from_numpy(recall_distances(ids, bigrams.vocab_size, bigrams.eos)),
                "training_counts": torch.from_numpy(bigrams.of(ids)),
            }
            write_tensors(artifact.path(name), part)
        names.append(name)
        total -= float(part["log_probabilities"].double().sum())
        total_baseline -= float(baseline[tokens[:, 1:].numpy()].sum())
    targets = count * config.window
    result = {
        "log_perplexity": total / targets,
        "unigram_log_perplexity": total_baseline / targets,
        "sequences": count,
        "parts": names,
        "split": config.split,
        **corpus.labels,
    }
    if not math.isfinite(total):
        raise ArtifactError(
            f"{artifact.request.slug}: the model gives a held-out token no finite log probability; "
            f"{trained.remedy}"
        )
    write_json(artifact.path(RESULT), result)
    facts = {"device": str(device), "dtype": "float32", "threads": torch.get_num_threads()}
    artifact.finish("done", (RESULT, *names), seconds=time.monotonic() - started, facts=facts)


def read_evaluation(artifact: Artifact) -> Evaluation:
    """A finished evaluation, verified; raises ArtifactError naming a damaged file."""
    result = read_json(artifact.checked(RESULT))
    parts = [read_tensors(artifact.checked(name))[0] for name in result["parts"]]
    columns = ("log_probabilities", "distances", "training_counts")
    arrays = [np.concatenate([part[column].numpy() for part in parts]) for column in columns]
    return Evaluation(*arrays, result)


# ------------------------------------------------------------------------ what needs a trained model


def exported(trained: Artifact) -> Path:
    """The folder of a trained model's export, every file checked; raises ArtifactError."""
    for name in EXPORTED:
        trained.checked(f"{EXPORT}/{name}")
    return trained.path(EXPORT)


def seal_diverged(artifact: Artifact, trained: Artifact, started: float) -> bool:
    """Seal the artifact as ``diverged`` if the model that it is about is; whether it was."""
    if trained.state != "diverged":
        return False
    write_json(artifact.path(RESULT), {"state": "diverged"})
    artifact.finish("diverged", (RESULT,), seconds=time.monotonic() - started)
    return True
