"""Bigram recall: perplexity of tokens that a context has shown before (METHOD section 5, figure 9b).

A token *recalls* if it ends a bigram that stands earlier in the same context; its distance is that to
the latest earlier one. As the prior work on recall asks, the bigram may be required to be rare in
training. Bigrams with EOS in them join two documents and are none.

Arrays of shape (contexts, L) belong to targets: entry t is about token t + 1 of a row of L + 1 tokens,
which the model predicts from tokens 0 .. t.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from scipy import stats

from effstate.artifacts import ArtifactError, derive_seed, read_tensors, write_tensors
from effstate.lm.config import RecallConfig
from effstate.lm.corpus import TokenCorpus

Array = np.ndarray

CHUNK = 2**24
"""Tokens of a shard counted at once: bounds memory beside the table itself."""


# ------------------------------------------------------------------------------------- the bigrams


def bigram_codes(tokens: Array, vocab_size: int, eos: int | None = None) -> Array:
    """Bigrams ending at tokens 1 .. L as numbers: (..., L + 1) -> int64 (..., L), -1 with EOS in it."""
    first, second = tokens[..., :-1].astype(np.int64), tokens[..., 1:].astype(np.int64)
    codes = first * vocab_size + second
    return codes if eos is None else np.where((first == eos) | (second == eos), -1, codes)


def recall_distances(tokens: Array, vocab_size: int, eos: int | None = None) -> Array:
    """Distance from each target's bigram to the latest equal one before it in its row.

    ``tokens`` (rows, L + 1) -> int32 (rows, L), 0 where the bigram is new.
    """
    codes = bigram_codes(tokens, vocab_size, eos)
    order = np.argsort(codes, axis=1, kind="stable")
    ordered = np.take_along_axis(codes, order, axis=1)
    # Equal bigrams stand side by side, in the order of the row.
    repeats = (ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)
    distances = np.zeros(codes.shape, np.int32)
    gaps = np.where(repeats, np.diff(order, axis=1), 0).astype(np.int32)
    np.put_along_axis(distances, order[:, 1:], gaps, axis=1)
    return distances


def naive_recall_distances(tokens: Array, vocab_size: int, eos: int | None = None) -> Array:
    """The definition of :func:`recall_distances`, one bigram after the other."""
    distances = np.zeros((tokens.shape[0], tokens.shape[1] - 1), np.int32)
    for r, row in enumerate(tokens.tolist()):
        latest: dict[tuple[int, int], int] = {}
        for t in range(1, len(row)):
            bigram = (row[t - 1], row[t])
            if eos in bigram:
                continue
            if bigram in latest:
                distances[r, t - 1] = t - latest[bigram]
            latest[bigram] = t
    return distances


def _merge(one: tuple[Array, Array], other: tuple[Array, Array]) -> tuple[Array, Array]:
    """Two sorted tables of (codes, counts) as one."""
    codes = np.concatenate([one[0], other[0]])
    order = np.argsort(codes, kind="stable")
    codes = codes[order]
    starts = np.flatnonzero(np.diff(codes, prepend=-1))
    counts = np.concatenate([one[1], other[1]])[order]
    return codes[starts], np.add.reduceat(counts, starts) if len(starts) else counts


@dataclass(frozen=True)
class BigramCounts:
    """How often each bigram occurs in training: sorted ``codes`` (bigrams,) int64, ``counts`` int32.

    Counts above the largest int32 are kept as that.
    """

    codes: Array
    counts: Array
    vocab_size: int
    eos: int | None

    @classmethod
    def of_shards(
        cls, shards: Iterable[Array], vocab_size: int, eos: int | None, chunk: int = CHUNK
    ) -> BigramCounts:
        """Count shard by shard, so many tokens at once.

        Each shard must end with EOS if bigrams across shards are not to be missed.
        """
        # Tables of like sizes are merged first, so each bigram is moved a logarithmic number of times.
        tables = [(np.empty(0, np.int64), np.empty(0, np.int64))]
        for shard in shards:
            for start in range(0, len(shard) - 1, chunk):
                codes = bigram_codes(np.asarray(shard[start : start + chunk + 1]), vocab_size, eos)
                found, counts = np.unique(codes[codes >= 0], return_counts=True)
                tables.append((found, counts.astype(np.int64)))
                while len(tables) > 1 and len(tables[-2][0]) <= 2 * len(tables[-1][0]):
                    tables.append(_merge(tables.pop(), tables.pop()))
        while len(tables) > 1:
            tables.append(_merge(tables.pop(), tables.pop()))
        codes, counts = tables[0]
        return cls(codes, np.minimum(counts, 2**31 - 1).astype(np.int32), vocab_size, eos)

    @classmethod
    def of_corpus(cls, corpus: TokenCorpus) -> BigramCounts:
        """Counts over the training split of a corpus."""
        return cls.of_shards(corpus.shards("train"), corpus.vocab_size, corpus.eos)

    def of(self, tokens: Array) -> Array:
        """Training counts of the bigrams of rows: (rows, L + 1) -> int32 (rows, L)."""
        wanted = bigram_codes(tokens, self.vocab_size, self.eos)
        if not len(self.codes):
            return np.zeros(wanted.shape, np.int32)
        places = np.minimum(np.searchsorted(self.codes, wanted), len(self.codes) - 1)
        return np.where(self.codes[places] == wanted, self.counts[places], np.int32(0))

    def write(self, path: Path, notes: Mapping[str, str] | None = None) -> None:
        """Write the table as safetensors, atomically."""
        described = {"vocab_size": str(self.vocab_size), "eos": str(self.eos), **(notes or {})}
        tensors = {"codes": torch.from_numpy(self.codes), "counts": torch.from_numpy(self.counts)}
        write_tensors(path, tensors, described)

    @classmethod
    def read(cls, path: Path) -> BigramCounts:
        """Read a table; raises ArtifactError if the file is none."""
        tensors, notes = read_tensors(path)
        if set(tensors) != {"codes", "counts"} or not {"vocab_size", "eos"} <= set(notes):
            raise ArtifactError(f"{path}: not a table of bigram counts; make it again")
        eos = None if notes["eos"] == "None" else int(notes["eos"])
        codes, counts = (tensors[name].numpy() for name in ("codes", "counts"))
        return cls(codes, counts, int(notes["vocab_size"]), eos)


def recall_mask(
    tokens: Array, counts: BigramCounts, max_training_count: int | None
) -> tuple[Array, Array]:
    """Distances (rows, L), 0 where a target is no recall token, and training counts (rows, L).

    ``tokens`` (rows, L + 1); bigrams that occur more than ``max_training_count`` times in training
    are no recall.
    """
    distances = recall_distances(tokens, counts.vocab_size, counts.eos)
    training = counts.of(tokens)
    if max_training_count is not None:
        distances = np.where(training <= max_training_count, distances, 0)
    return distances, training


# -------------------------------------------------------------------------------------- perplexity


@dataclass(frozen=True)
class RecallTables:
    """Log perplexities in nats (mean negative log probability), each with a bootstrap interval.

    Columns of all: curve (recall, standard), log_perplexity, low, high, tokens, and the parameters.
    ``totals`` is over everything; ``distances`` has a row per distance; ``curves`` is smoothed over
    log2 distance, its tokens weighted by the kernel.
    """

    totals: pd.DataFrame
    distances: pd.DataFrame
    curves: pd.DataFrame


CURVES = ("recall", "standard")


@dataclass(frozen=True)
class _Recalls:
    """Loss (contexts, L), and where its n recall tokens stand (context, position, distance (n,))."""

    loss: Array
    context: Array
    position: Array
    distance: Array

    def sums(self, weights: Array) -> tuple[Array, Array]:
        """Sums per distance 0 .. L - 1 with each context counted ``weights`` times (contexts,).

        Returns tokens (L,), and the losses (2, L) of the recall tokens and of all tokens at their
        positions: the mean over contexts at the same position in place of the token's own.
        """
        drawn = weights[self.context]
        typical = weights @ self.loss / weights.sum()
        values = (drawn, drawn * self.loss[self.context, self.position], drawn * typical[self.position])
        tokens, *sums = (np.bincount(self.distance, value, self.loss.shape[1]) for value in values)
        return tokens, np.stack(sums)

    def estimates(self, weights: Array, present: Array, kernel: Array) -> list[Array]:
        """Log perplexities (2, 1) in all, (2, distances) and smoothed (2, grid); NaN without tokens.

        ``present`` (distances,) are the distances that occur, ``kernel`` (distances, grid).
        """
        tokens, sums = (values[..., present] for values in self.sums(weights))
        standard = weights @ self.loss.mean(axis=1) / weights.sum()
        with np.errstate(invalid="ignore", divide="ignore"):
            total = np.array([[sums[0].sum() / tokens.sum()], [standard]])
            return [total, sums / tokens, (sums @ kernel) / (tokens @ kernel)]


def smoothing_kernel(distances: Array, grid: Array, bandwidth: float) -> Array:
    """Gaussian weights in log2 distance: (distances,), (grid,) -> (distances, grid).

    Each grid point's are divided by that of the distance nearest to it.
    """
    density = stats.norm.logpdf(np.log2(distances)[:, None], np.log2(grid), bandwidth)
    # Far from every distance all weights would underflow; a factor per grid point changes no ratio.
    return np.exp(density - density.max(axis=0))


def recall_tables(
    log_probabilities: Array,
    distances: Array,
    config: RecallConfig,
    parameters: Mapping[str, Any] | None = None,
) -> RecallTables:
    """Standard and recall log perplexity, in all, by distance, and smoothed (section 5.3, figure 9b).

    ``log_probabilities`` (contexts, L), natural logarithms of the targets' probabilities;
    ``distances`` (contexts, L) from :func:`recall_mask`. Intervals are percentile intervals over
    resamples of whole contexts. ``parameters`` (corpus, tokenizer, split ...) become columns beside
    those of ``config``.

    In ``distances`` and ``curves`` the standard log perplexity is that of all tokens at the positions
    where recall tokens of that distance stand; in ``totals`` it is that of all tokens.

    Raises ValueError if shapes differ, a value is no log probability, or no token recalls.
    """
    loss = -np.asarray(log_probabilities, dtype=np.float64)
    _check(loss, distances, config)
    context, position = np.nonzero(distances)
    recalls = _Recalls(loss, context, position, distances[context, position].astype(np.int64))
    tokens = np.bincount(recalls.distance)
    present = np.flatnonzero(tokens)
    grid = np.geomspace(present[0], present[-1], config.grid_points)
    kernel = smoothing_kernel(present, grid, config.bandwidth)

    rng = np.random.default_rng(derive_seed(config.seed, "recall"))
    contexts = len(loss)
    resamples = rng.multinomial(contexts, np.full(contexts, 1 / contexts), config.bootstrap)
    drawn = [recalls.estimates(weights.astype(float), present, kernel) for weights in resamples]
    tails = [(1 - config.level) / 2, (1 + config.level) / 2]
    bounds = [np.nanquantile(np.stack(values), tails, axis=0) for values in zip(*drawn, strict=True)]

    total, by_distance, smoothed = recalls.estimates(np.ones(contexts), present, kernel)
    columns = {**(parameters or {}), **config.model_dump(exclude={"seed"}), "contexts": contexts}
    counts, mass = tokens[present], tokens[present] @ kernel
    return RecallTables(
        _table(total, bounds[0], columns, tokens=[len(context), loss.size]),
        _table(by_distance, bounds[1], columns, distance=[present] * 2, tokens=[counts] * 2),
        _table(smoothed, bounds[2], columns, distance=[grid] * 2, tokens=[mass] * 2),
    )


def mean_by_shard(log_probabilities: Array, distances: Array, shards: int) -> pd.DataFrame:
    """Log perplexities in nats of at most so many parts of the contexts, each of contexts in a row.

    Columns: shard, ``recall_log_perplexity`` of its recall tokens, ``log_perplexity`` of all tokens
    at the same positions of the shard, tokens (that recall); shards without any are left out.
    """
    rows = []
    for shard, part in enumerate(np.array_split(np.arange(len(distances)), shards)):
        if not len(part) or not distances[part].any():
            continue
        loss = -log_probabilities[part].astype(np.float64)
        context, position = np.nonzero(distances[part])
        means = loss[context, position].mean(), loss.mean(axis=0)[position].mean()
        rows.append((shard, *means, len(position)))
    return pd.DataFrame(rows, columns=["shard", "recall_log_perplexity", "log_perplexity", "tokens"])


def _table(values: Array, bounds: Array, columns: Mapping[str, Any], **per_curve: Any) -> pd.DataFrame:
    """Values (2, n) of both curves with bounds (2, 2, n) and further columns (2, n), tidy."""
    parts = {
        "curve": np.repeat(CURVES, values.shape[1]),
        **{name: np.ravel(column) for name, column in per_curve.items()},
        "log_perplexity": values.ravel(),
        "low": bounds[0].ravel(),
        "high": bounds[1].ravel(),
    }
    return pd.DataFrame(parts).assign(**columns)


def _check(loss: Array, distances: Array, config: RecallConfig) -> None:
    """Raise ValueError, in one sentence, for arrays that are no contexts of one window."""
    if loss.ndim != 2 or loss.shape != distances.shape:
        raise ValueError(
            f"log probabilities and distances need one shape (contexts, L); found {loss.shape} "
            f"and {distances.shape}"
        )
    if loss.shape[1] != config.window:
        raise ValueError(
            f"the contexts have {loss.shape[1]} targets, but window = {config.window}; set window = "
            f"{loss.shape[1]}"
        )
    if not (np.isfinite(loss) & (loss >= -1e-6)).all():
        raise ValueError("log probabilities must be finite and at most 0")
    if not (distances > 0).any():
        raise ValueError(
            "no token of these contexts recalls a bigram; take more contexts, a longer window or a "
            f"larger max_training_count than {config.max_training_count}"
        )
