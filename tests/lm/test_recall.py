"""Bigram recall against its definition, and perplexities against direct sums over tokens."""

import itertools
import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

pytest.importorskip("tokenizers")

from corpora import corpus_config, documents, write_fineweb

from effstate.artifacts import ArtifactError, write_table, write_text
from effstate.lm.config import RecallConfig
from effstate.lm.corpus import TokenRows, build_corpus
from effstate.lm.recall import (
    BigramCounts,
    RecallTables,
    naive_recall_distances,
    recall_distances,
    recall_mask,
    recall_tables,
    smoothing_kernel,
)

VOCABULARY = 4
token_rows = hnp.arrays(
    np.uint16,
    st.tuples(st.integers(1, 4), st.integers(2, 40)),
    elements=st.integers(0, VOCABULARY - 1),
)


@given(tokens=token_rows, eos=st.sampled_from([None, 0, 3]))
@settings(max_examples=60, deadline=None)
def test_distances_are_those_of_the_definition(tokens: np.ndarray, eos: int | None) -> None:
    found = recall_distances(tokens, VOCABULARY, eos)
    assert np.array_equal(found, naive_recall_distances(tokens, VOCABULARY, eos))


def test_distances_by_hand() -> None:
    #          a  b  c  a  b  b  b  b     bigrams: ab bc ca ab bb bb bb
    rows = np.array([[1, 2, 3, 1, 2, 2, 2, 2]], np.uint16)
    assert recall_distances(rows, 4).tolist() == [[0, 0, 0, 3, 0, 1, 1]]
    assert recall_distances(rows, 4, eos=1).tolist() == [[0, 0, 0, 0, 0, 1, 1]]


def test_codes_do_not_overflow_a_large_vocabulary() -> None:
    # As 32-bit numbers, (65536, 0) and (0, 0) would be one bigram.
    rows = np.array([[0, 0, 65536, 0, 0]], np.uint32)
    assert recall_distances(rows, 2**17).tolist() == [[0, 0, 0, 3]]
    assert recall_distances(np.array([[65536, 0, 0, 65536, 0]], np.uint32), 2**17).tolist() == [
        [0, 0, 0, 3]
    ]


# ------------------------------------------------------------------------------------------- counts


@given(
    shards=st.lists(hnp.arrays(np.uint16, st.integers(0, 50), elements=st.integers(0, 3)), max_size=6),
    chunk=st.integers(1, 60),
    eos=st.sampled_from([None, 0]),
)
@settings(max_examples=40, deadline=None)
def test_counts_are_those_of_a_counter(shards: list[np.ndarray], chunk: int, eos: int | None) -> None:
    expected: Counter[tuple[int, int]] = Counter()
    for shard in shards:
        expected.update(pair for pair in itertools.pairwise(shard.tolist()) if eos not in pair)
    counts = BigramCounts.of_shards(shards, VOCABULARY, eos, chunk)
    pairs = np.array(list(itertools.product(range(VOCABULARY), repeat=2)))
    assert counts.of(pairs)[:, 0].tolist() == [expected[tuple(pair)] for pair in pairs.tolist()]
    assert len(counts.codes) == len(expected)
    assert (np.diff(counts.codes) > 0).all()


def test_counts_of_a_corpus_and_the_mask(tmp_path: Path) -> None:
    folder = write_fineweb(tmp_path / "web", documents())
    corpus = build_corpus(tmp_path / "corpus", corpus_config(folder))
    counts = BigramCounts.of_corpus(corpus)
    stream = np.concatenate(corpus.shards("train"))
    naive = Counter(pair for pair in itertools.pairwise(stream.tolist()) if corpus.eos not in pair)
    assert counts.counts.sum() == naive.total()
    rows = TokenRows(corpus, "validation", 32)
    tokens = rows.read(range(len(rows))).numpy()
    everything, training = recall_mask(tokens, counts, None)
    assert np.array_equal(everything, naive_recall_distances(tokens, corpus.vocab_size, corpus.eos))
    for r, t in np.argwhere(everything)[:200]:
        assert training[r, t] == naive[(tokens[r, t], tokens[r, t + 1])]
    most = int(np.median(training[everything > 0]))
    rare, _ = recall_mask(tokens, counts, most)
    assert np.array_equal(rare, np.where(training <= most, everything, 0))
    assert 0 < (rare > 0).sum() < (everything > 0).sum()


def test_counts_are_written_and_read(tmp_path: Path) -> None:
    path = tmp_path / "counts.safetensors"
    for eos in (None, 0):
        counts = BigramCounts.of_shards([np.array([1, 2, 1, 2, 0, 3], np.uint16)], 4, eos)
        counts.write(path, {"corpus": "x"})
        read = BigramCounts.read(path)
        assert np.array_equal(read.codes, counts.codes) and np.array_equal(read.counts, counts.counts)
        assert (read.vocab_size, read.eos) == (4, eos)
    write_text(path, "nothing")
    with pytest.raises(ArtifactError, match=r"counts\.safetensors"):
        BigramCounts.read(path)


# --------------------------------------------------------------------------------------- perplexity


def drawn(contexts: int = 30, length: int = 40, gain: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Log probabilities and distances of random rows; recall tokens are ``gain`` nats likelier."""
    rng = np.random.default_rng(3)
    distances = recall_distances(rng.integers(0, 12, (contexts, length + 1)), 12)
    # Later positions are easier, so that positions have to be matched.
    loss = rng.exponential(1, distances.shape) + np.linspace(4, 2, length) - gain * (distances > 0)
    return -np.maximum(loss, 0), distances


def config_of(**keys: Any) -> RecallConfig:
    return RecallConfig(**{"window": 40, "bootstrap": 60, "grid_points": 9, **keys})


def curve_of(table: pd.DataFrame, curve: str) -> pd.DataFrame:
    return table[table["curve"] == curve].reset_index(drop=True)


@pytest.fixture(scope="module")
def tables() -> RecallTables:
    return recall_tables(*drawn(), config_of(), {"corpus": "c", "tokenizer": "t", "split": "test"})


def test_totals_and_distances_are_means_over_tokens(tables: RecallTables) -> None:
    log_probabilities, distances = drawn()
    recalling = distances > 0
    totals = tables.totals.set_index("curve")
    assert totals.loc["standard", "log_perplexity"] == pytest.approx(-log_probabilities.mean())
    assert totals.loc["recall", "log_perplexity"] == pytest.approx(-log_probabilities[recalling].mean())
    assert totals["tokens"].to_dict() == {"recall": recalling.sum(), "standard": distances.size}
    recall, standard = (curve_of(tables.distances, name) for name in ("recall", "standard"))
    assert recall["distance"].tolist() == sorted(set(distances[recalling].tolist()))
    for row, same in zip(recall.itertuples(), standard.itertuples(), strict=True):
        places = np.argwhere(distances == row.distance)
        own = [log_probabilities[r, t] for r, t in places]
        typical = [log_probabilities[:, t].mean() for _, t in places]
        assert row.tokens == same.tokens == len(places)
        assert row.log_perplexity == pytest.approx(-np.mean(own))
        assert same.log_perplexity == pytest.approx(-np.mean(typical))


def test_curves_are_kernel_means_over_tokens(tables: RecallTables) -> None:
    log_probabilities, distances = drawn()
    places = np.argwhere(distances)
    recall, standard = (curve_of(tables.curves, name) for name in ("recall", "standard"))
    for row, same in zip(recall.itertuples(), standard.itertuples(), strict=True):
        weights = [
            math.exp(-0.5 * (math.log2(distances[r, t] / row.distance) / 0.25) ** 2) for r, t in places
        ]
        own = [log_probabilities[r, t] for r, t in places]
        typical = [log_probabilities[:, t].mean() for _, t in places]
        assert row.log_perplexity == pytest.approx(-np.average(own, weights=weights))
        assert same.log_perplexity == pytest.approx(-np.average(typical, weights=weights))


def test_a_model_that_recalls_is_told_from_one_that_does_not(tables: RecallTables) -> None:
    totals = tables.totals.set_index("curve")
    assert totals.loc["recall", "high"] < totals.loc["standard", "low"]
    none = recall_tables(*drawn(gain=0.0), config_of())
    bounds = none.curves.set_index(["curve", "distance"])[["low", "high"]]
    recall, standard = bounds.loc["recall"], bounds.loc["standard"]
    # Where nothing is recalled, matched positions leave no difference.
    apart = (recall["high"] < standard["low"]) | (standard["high"] < recall["low"])
    assert apart.mean() < 0.5
    difference = none.distances.groupby("curve").apply(
        lambda rows: np.average(rows["log_perplexity"], weights=rows["tokens"])
    )
    assert abs(difference["recall"] - difference["standard"]) < 0.15


def test_intervals_hold_the_estimate_and_narrow_with_contexts(tables: RecallTables) -> None:
    for table in (tables.totals, tables.curves):
        assert (
            (table["low"] <= table["log_perplexity"]) & (table["log_perplexity"] <= table["high"])
        ).all()
    wide = tables.totals["high"] - tables.totals["low"]
    many = recall_tables(*drawn(contexts=480), config_of()).totals
    assert ((many["high"] - many["low"]) < 0.5 * wide).all()


def test_bootstrap_is_that_over_whole_contexts() -> None:
    """Against resampling by repeating rows, the way the definition says it."""
    log_probabilities, distances = drawn(contexts=5)
    found = recall_tables(log_probabilities, distances, config_of(bootstrap=400, level=0.8)).totals
    rng = np.random.default_rng(0)
    values = []
    for _ in range(400):
        rows = rng.integers(0, 5, 5)
        values.append(-log_probabilities[rows][distances[rows] > 0].mean())
    low, high = np.quantile(values, [0.1, 0.9])
    assert found["low"][0] == pytest.approx(low, abs=0.03)
    assert found["high"][0] == pytest.approx(high, abs=0.03)


def test_parameters_stand_beside_the_numbers(tables: RecallTables, tmp_path: Path) -> None:
    for table in (tables.totals, tables.distances, tables.curves):
        for name, value in {
            "corpus": "c",
            "tokenizer": "t",
            "split": "test",
            "window": 40,
            "max_training_count": 1250,
            "contexts": 30,
        }.items():
            assert set(table[name]) == {value}
        path = tmp_path / "table.parquet"
        write_table(path, table)
        pd.testing.assert_frame_equal(pd.read_parquet(path), table)


def test_equal_seeds_give_equal_tables(tables: RecallTables) -> None:
    again = recall_tables(*drawn(), config_of())
    pd.testing.assert_frame_equal(again.curves, tables.curves[again.curves.columns])
    other = recall_tables(*drawn(), config_of(seed=1))
    assert not again.curves["low"].equals(other.curves["low"])


def test_a_single_distance_and_a_narrow_kernel() -> None:
    distances = np.zeros((4, 40), int)
    distances[:, 7] = 3
    table = recall_tables(np.full((4, 40), -2.0), distances, config_of()).curves
    assert set(table["distance"]) == {3.0} and np.allclose(table["log_perplexity"], 2)
    distances[:, 39] = 39
    table = recall_tables(np.full((4, 40), -2.0), distances, config_of(bandwidth=1e-3)).curves
    assert np.allclose(table[["log_perplexity", "low", "high"]], 2)
    assert np.isfinite(smoothing_kernel(np.array([1, 2**15]), np.geomspace(1, 2**15, 9), 1e-3)).all()


@pytest.mark.parametrize(
    "log_probabilities, distances, message",
    [
        (np.full((2, 40), -1.0), np.ones((2, 39), int), r"found \(2, 40\) and \(2, 39\)"),
        (np.full((2, 20), -1.0), np.ones((2, 20), int), "set window = 20"),
        (np.full((2, 40), 0.5), np.ones((2, 40), int), "at most 0"),
        (np.full((2, 40), np.nan), np.ones((2, 40), int), "finite"),
        (np.full((2, 40), -1.0), np.zeros((2, 40), int), "recalls a bigram.*1250"),
    ],
    ids=["shapes", "window", "positive", "nan", "no-recall"],
)
def test_bad_input(log_probabilities: np.ndarray, distances: np.ndarray, message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        recall_tables(log_probabilities, distances, config_of())
    assert "\n" not in str(error.value)
