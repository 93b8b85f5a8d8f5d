"""Rows of each task: tiny rows position by position, then properties over configurations."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from effstate.config import CompressionConfig, MQARConfig, SelectiveCopyingConfig, TaskConfig
from effstate.tasks import IGNORE, Rows, task_for

COUNT = 32
seeds = st.integers(0, 2**32 - 1)


def draw(config: TaskConfig, seed: int = 0, count: int = COUNT) -> Rows:
    rng = np.random.Generator(np.random.Philox(seed))
    rows = task_for(config).rows(config, count, rng)
    assert rows.inputs.shape == rows.labels.shape == (count, config.seq_len)
    assert rows.inputs.min() >= 0 and rows.inputs.max() < config.vocab_size
    return rows


@st.composite
def mqar_configs(draw_: st.DrawFn) -> MQARConfig:
    kv = draw_(st.integers(1, 12))
    return MQARConfig(
        kv=kv,
        vocab_size=draw_(st.one_of(st.integers(2 * kv + 2, 200), st.sampled_from([8192, 40_000]))),
        seq_len=draw_(st.one_of(st.just(4 * kv), st.integers(4 * kv, 4 * kv + 60))),
        kv_dist_const=draw_(st.sampled_from([0.01, 0.1, 1.0, 4.0])),
        filler=draw_(st.sampled_from(["random", "zero"])),
    )


@st.composite
def copying_configs(draw_: st.DrawFn) -> SelectiveCopyingConfig:
    n = draw_(st.integers(1, 20))
    return SelectiveCopyingConfig(
        num_tokens_to_copy=n,
        vocab_size=draw_(st.sampled_from([4, 5, 16, 8192, 40_000])),
        seq_len=draw_(st.integers(2 * n + 2, 2 * n + 50)),
    )


# ----------------------------------------------------------------------------------------- MQAR


def test_mqar_smallest_row_is_fixed_but_for_the_value() -> None:
    """V = 4, kv = 1, L = 4: key 1, value 2 or 3, one slot right after the pair."""
    rows = draw(MQARConfig(vocab_size=4, kv=1, seq_len=4, filler="zero"))
    assert set(map(tuple, rows.inputs.tolist())) == {(1, 2, 1, 0), (1, 3, 1, 0)}
    expected = np.full((COUNT, 4), IGNORE)
    expected[:, 2] = rows.inputs[:, 1]
    assert np.array_equal(rows.labels, expected)


def test_mqar_odd_length_and_vocabulary() -> None:
    """V = 7 has keys 1, 2 and values 3..6; L = 9 has slots at 4 and 6 and one filler at the end."""
    rows = draw(MQARConfig(vocab_size=7, kv=2, seq_len=9, filler="zero"), count=400)
    assert set(np.unique(rows.inputs[:, [0, 2]])) == {1, 2}
    assert set(np.unique(rows.inputs[:, [1, 3]])) == {3, 4, 5, 6}
    asked = rows.labels != IGNORE
    assert np.array_equal(asked, np.tile([0, 0, 0, 0, 1, 0, 1, 0, 0], (400, 1)))
    assert not rows.inputs[:, [5, 7, 8]].any()


@given(config=mqar_configs(), seed=seeds)
@settings(max_examples=80, deadline=None)
def test_mqar_asks_every_key_once_for_its_value(config: MQARConfig, seed: int) -> None:
    rows = draw(config, seed)
    half = config.vocab_size // 2
    for tokens, labels in zip(rows.inputs.tolist(), rows.labels.tolist(), strict=True):
        keys, values = tokens[: 2 * config.kv : 2], tokens[1 : 2 * config.kv : 2]
        assert len(set(keys)) == len(set(values)) == config.kv
        assert all(1 <= key < half for key in keys) and min(values) >= half
        asked = [i for i, label in enumerate(labels) if label != IGNORE]
        assert all(i >= 2 * config.kv and i % 2 == 0 for i in asked)
        assert {tokens[i]: labels[i] for i in asked} == dict(zip(keys, values, strict=True))
        assert len(asked) == config.kv
        if config.filler == "zero":
            carried = {*range(2 * config.kv), *asked}
            assert all(tokens[i] == 0 for i in range(config.seq_len) if i not in carried)


@pytest.mark.parametrize("a", [0.1, 1.0, 2.0], ids=lambda a: f"a={a}")
def test_mqar_first_key_takes_slot_with_power_law_probability(a: float) -> None:
    """The first key's slot, drawn while all are free, has p(slot) ~ slot^(a-1) exactly."""
    config = MQARConfig(vocab_size=64, kv=4, seq_len=48, kv_dist_const=a)
    rows = draw(config, count=20_000)
    asked = np.argmax(rows.labels == rows.inputs[:, 1:2], axis=1)
    observed = np.bincount((asked - 8) // 2, minlength=20)
    weights = np.arange(1, 21) ** (a - 1)
    assert stats.chisquare(observed, 20_000 * weights / weights.sum()).pvalue > 1e-4


def test_mqar_random_filler_covers_the_vocabulary_at_every_free_position() -> None:
    config = MQARConfig(vocab_size=8, kv=1, seq_len=9)
    rows = draw(config, count=3000)
    for position in range(2, 9):
        free = rows.labels[:, position] == IGNORE
        counts = np.bincount(rows.inputs[free, position], minlength=8)
        expected = free.sum() / 8
        # Each count is binomial; six standard deviations.
        assert np.abs(counts - expected).max() < 6 * np.sqrt(expected), position


# ----------------------------------------------------------------------------- selective copying


def test_copying_smallest_row() -> None:
    """V = 4: content 0 and 1, blank 2, copy token 3; n = 1, L = 4: two places before the copy."""
    rows = draw(SelectiveCopyingConfig(vocab_size=4, num_tokens_to_copy=1, seq_len=4))
    expected = {(c, 2, 3, 2) for c in (0, 1)} | {(2, c, 3, 2) for c in (0, 1)}
    assert set(map(tuple, rows.inputs.tolist())) == expected
    content = rows.inputs[:, :2].min(axis=1)
    assert np.array_equal(rows.labels[:, 3], content)
    assert (rows.labels[:, :3] == IGNORE).all()


@given(config=copying_configs(), seed=seeds)
@settings(max_examples=60, deadline=None)
def test_copying_answers_are_the_content_in_order(config: SelectiveCopyingConfig, seed: int) -> None:
    rows = draw(config, seed)
    n, blank, copy = config.num_tokens_to_copy, config.vocab_size - 2, config.vocab_size - 1
    for tokens, labels in zip(rows.inputs.tolist(), rows.labels.tolist(), strict=True):
        content = [token for token in tokens if token < blank]
        assert tokens[-n - 1] == copy and tokens.count(copy) == 1
        assert tokens[-n:] == [blank] * n
        assert labels == [IGNORE] * (config.seq_len - n) + content


# ----------------------------------------------------------------------------------- compression


def test_compression_smallest_row() -> None:
    rows = draw(CompressionConfig(vocab_size=4, seq_len=2))
    assert set(map(tuple, rows.inputs.tolist())) == {(0, 3), (1, 3), (2, 3)}
    assert np.array_equal(rows.labels[:, 0], rows.inputs[:, 0])
    assert (rows.labels[:, 1] == IGNORE).all()


@given(vocab=st.sampled_from([4, 16, 32_767, 32_768, 2**31 - 1]), length=st.integers(2, 60))
@settings(max_examples=40, deadline=None)
def test_compression_labels_are_the_content(vocab: int, length: int) -> None:
    rows = draw(CompressionConfig(vocab_size=vocab, seq_len=length))
    assert rows.inputs.dtype == rows.labels.dtype == (np.int16 if vocab < 32_768 else np.int32)
    assert (rows.inputs[:, -1] == vocab - 1).all() and (rows.inputs[:, :-1] < vocab - 1).all()
    assert np.array_equal(rows.labels[:, :-1], rows.inputs[:, :-1])
    assert (rows.labels[:, -1] == IGNORE).all()


# ------------------------------------------------------------------------- what all tasks share

MQAR_CONFIG = MQARConfig(vocab_size=40, kv=2, seq_len=9, filler="zero")
COPYING_CONFIG = SelectiveCopyingConfig(vocab_size=8, num_tokens_to_copy=2, seq_len=7)
COMPRESSION_CONFIG = CompressionConfig(vocab_size=16, seq_len=4)


@pytest.mark.parametrize(
    "config, chance, difficulty",
    [
        (MQAR_CONFIG, 1 / 2, ("kv", 2)),
        (COPYING_CONFIG, 1 / 6, ("num_tokens_to_copy", 2)),
        (COMPRESSION_CONFIG, 1 / 15, ("vocab_size", 16)),
    ],
    ids=["mqar", "copying", "compression"],
)
def test_chance_is_the_accuracy_of_guessing(
    config: TaskConfig, chance: float, difficulty: tuple[str, int]
) -> None:
    task = task_for(config)
    assert (task.difficulty_name, task.difficulty(config)) == difficulty
    assert task.chance(config) == chance
    # Guess with the labels of another draw, for MQAR with those of the same row: six deviations.
    labels = draw(config, count=4000).labels
    asked = labels[labels != IGNORE].reshape(4000, -1)
    guess = np.random.default_rng(3).permuted(asked, axis=1 if config.name == "mqar" else 0)
    assert abs((guess == asked).mean() - chance) < 6 * np.sqrt(chance / asked.size)


@pytest.mark.parametrize(
    "config, inputs, labels, text",
    [
        (
            MQAR_CONFIG,
            [3, 21, 7, 30, 0, 0, 7, 0, 3],
            {6: 30, 8: 21},
            "role   k  v  k  v  .  .  ?  .  ?\n"
            "token  3 21  7 30  0  0  7  0  3\n"
            "label                   30    21",
        ),
        (
            COPYING_CONFIG,
            [4, 6, 6, 1, 7, 6, 6],
            {5: 4, 6: 1},
            "role  c . . c > ? ?\ntoken 4 6 6 1 7 6 6\nlabel           4 1",
        ),
        (
            COMPRESSION_CONFIG,
            [2, 11, 0, 15],
            {0: 2, 1: 11, 2: 0},
            "role   c  c  c  >\ntoken  2 11  0 15\nlabel  2 11  0",
        ),
    ],
    ids=["mqar", "copying", "compression"],
)
def test_annotate(config: TaskConfig, inputs: list[int], labels: dict[int, int], text: str) -> None:
    row = np.array([labels.get(i, IGNORE) for i in range(len(inputs))])
    assert task_for(config).annotate(config, np.array(inputs), row) == text


def test_annotate_wraps_long_rows() -> None:
    config = CompressionConfig(vocab_size=16, seq_len=80)
    rows = draw(config)
    lines = task_for(config).annotate(config, rows.inputs[0], rows.labels[0]).splitlines()
    assert max(map(len, lines)) <= 104
    tokens = " ".join(line.removeprefix("token") for line in lines if line.startswith("token"))
    assert [int(token) for token in tokens.split()] == rows.inputs[0].tolist()


@pytest.mark.parametrize(
    "config, broken",
    [
        (MQARConfig(vocab_size=8, kv=5, seq_len=16), ["4 * 5 > 16", "5 > 3 keys"]),
        (SelectiveCopyingConfig(num_tokens_to_copy=8, seq_len=17), ["2 * 8 + 1 >= 17"]),
    ],
    ids=["mqar", "copying"],
)
def test_broken_constraints_are_one_sentence(config: TaskConfig, broken: list[str]) -> None:
    with pytest.raises(ValueError) as error:
        task_for(config)
    sentence = str(error.value)
    assert sentence == f"task {config.name}: {'; '.join(config.violations())}"
    assert all(part in sentence for part in broken) and "\n" not in sentence
