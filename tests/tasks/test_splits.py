"""Splits: the same tokens for the same configuration and seed, and no row in two of them."""

import hashlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from effstate.config import CompressionConfig, MQARConfig, SelectiveCopyingConfig, TaskConfig
from effstate.registry import TASKS
from effstate.tasks import BLOCK, IGNORE, SPLITS, Rows, Task, generate_splits

COUNTS = {"num_train": 2 * BLOCK + 5, "num_validation": 9, "num_test": BLOCK + 3}
CONFIGS = [
    MQARConfig(vocab_size=64, kv=4, seq_len=33, **COUNTS),
    SelectiveCopyingConfig(vocab_size=16, num_tokens_to_copy=6, seq_len=20, **COUNTS),
    CompressionConfig(vocab_size=16, seq_len=12, **COUNTS),
]
every_task = pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.name)


def with_(config: TaskConfig, **changes: Any) -> Any:
    return type(config).model_validate({**config.model_dump(), **changes})


def as_set(rows: Rows) -> set[tuple[int, ...]]:
    return set(map(tuple, rows.inputs.tolist()))


def assert_equal(one: Rows, other: Rows, count: int | None = None) -> None:
    assert np.array_equal(one.inputs[:count], other.inputs[:count])
    assert np.array_equal(one.labels[:count], other.labels[:count])


@every_task
def test_sizes_and_dtype(config: TaskConfig) -> None:
    splits = generate_splits(config, seed=3)
    assert tuple(splits) == SPLITS
    assert [len(splits[name]) for name in SPLITS] == [*COUNTS.values()]
    assert all(rows.inputs.dtype == rows.labels.dtype == np.int16 for rows in splits.values())


@every_task
def test_workers_change_nothing(config: TaskConfig) -> None:
    one, many = generate_splits(config, seed=3), generate_splits(config, seed=3, workers=4)
    for name in SPLITS:
        assert_equal(one[name], many[name])


@every_task
def test_a_longer_split_starts_with_the_shorter(config: TaskConfig) -> None:
    long = generate_splits(config, seed=3)
    short = generate_splits(with_(config, num_train=7, num_validation=4, num_test=BLOCK), seed=3)
    for name in SPLITS:
        assert_equal(short[name], long[name], len(short[name]))


@every_task
def test_seed_configuration_split_and_block_each_give_other_tokens(config: TaskConfig) -> None:
    splits = generate_splits(config, seed=3)
    drawn = [splits["train"].inputs[:9], splits["train"].inputs[BLOCK : BLOCK + 9]]
    drawn += [splits["validation"].inputs[:9], splits["test"].inputs[:9]]
    drawn += [generate_splits(config, seed=4)["train"].inputs[:9]]
    other = with_(config, vocab_size=config.vocab_size + 1)
    drawn += [generate_splits(other, seed=3)["train"].inputs[:9]]
    assert len({rows.tobytes() for rows in drawn}) == len(drawn)


@pytest.mark.parametrize(
    "config, digest",
    [
        (MQARConfig(vocab_size=32, kv=3, seq_len=17, **COUNTS), "18eb4f516e188e92"),
        (
            SelectiveCopyingConfig(vocab_size=16, num_tokens_to_copy=5, seq_len=14, **COUNTS),
            "e2c39c2313f1adf0",
        ),
        (
            # Few distinct rows: the digest covers redrawn rows too.
            CompressionConfig(vocab_size=4, seq_len=6, num_train=90, num_validation=60, num_test=9),
            "35f7d2a7a1890896",
        ),
    ],
    ids=["mqar", "copying", "compression"],
)
def test_golden_tokens(config: TaskConfig, digest: str) -> None:
    """A change here changes every data set: raise the data stage's version with the digest."""
    content = hashlib.sha256()
    for rows in generate_splits(config, seed=5).values():
        content.update(np.stack([rows.inputs, rows.labels]).astype("<i2").tobytes())
    assert content.hexdigest()[:16] == digest


# --------------------------------------------------------------------------------- disjointness


def assert_disjoint(splits: dict[str, Rows]) -> None:
    train, validation, test = (as_set(splits[name]) for name in SPLITS)
    assert not train & validation and not train & test and not validation & test


@given(
    length=st.integers(5, 8),
    counts=st.tuples(*[st.integers(1, 60)] * 3),
    seed=st.integers(0, 2**32 - 1),
)
@settings(max_examples=40, deadline=None)
def test_splits_of_a_tiny_task_are_disjoint(
    length: int, counts: tuple[int, int, int], seed: int
) -> None:
    """At least 3^5 distinct rows, so that splits of up to 60 rows collide often and still fit."""
    sizes = dict(zip(COUNTS, counts, strict=True))
    splits = generate_splits(CompressionConfig(vocab_size=4, seq_len=length + 1, **sizes), seed)
    assert_disjoint(splits)
    assert [len(rows) for rows in splits.values()] == list(counts)
    for rows in splits.values():
        assert np.array_equal(rows.labels[:, :-1], rows.inputs[:, :-1])


def test_only_rows_that_collide_are_redrawn() -> None:
    config = CompressionConfig(vocab_size=4, seq_len=6, num_train=1, num_validation=40, num_test=1)
    free = generate_splits(config, seed=0)["validation"].inputs
    larger = generate_splits(with_(config, num_train=100), seed=0)
    assert_disjoint(larger)
    taken = as_set(larger["train"])
    collides = np.array([tuple(row) in taken for row in free.tolist()])
    assert 0 < collides.sum() < 40
    changed = (larger["validation"].inputs != free).any(axis=1)
    assert np.array_equal(changed, collides)


@pytest.mark.parametrize(
    "config",
    [
        CompressionConfig(vocab_size=4, seq_len=4, num_train=2000),
        MQARConfig(vocab_size=4, kv=1, seq_len=4, num_train=2000),
    ],
    ids=["compression", "mqar"],
)
def test_too_few_distinct_rows_are_refused(config: TaskConfig) -> None:
    with pytest.raises(ValueError, match=r"too few distinct rows .*num_train = 2000") as error:
        generate_splits(config, seed=0, workers=2)
    assert "\n" not in str(error.value)


def test_broken_constraint_is_refused_before_any_draw() -> None:
    with pytest.raises(ValueError, match=r"4 \* kv <= seq_len is broken"):
        generate_splits(MQARConfig(kv=8, seq_len=16), seed=0)


# --------------------------------------------------------------------------- a task of one's own


class Echo(Task[CompressionConfig]):
    """Sets every token to a value given by the test, to see what the splits let through."""

    config = CompressionConfig
    readout = "tokens"
    difficulty_name = "vocab_size"
    token, width = 0, 4

    def rows(self, config: CompressionConfig, count: int, rng: np.random.Generator) -> Rows:
        inputs = np.full((count, self.width), self.token)
        return Rows(inputs, np.full_like(inputs, IGNORE))

    def chance(self, config: CompressionConfig) -> float:
        return 1.0


@pytest.mark.parametrize(
    "token, width, message",
    [
        (16, 4, r"made a token outside 0\.\.15"),
        (-1, 4, r"made a token outside 0\.\.15"),
        (0, 3, r"made inputs of shape \(1024, 3\), not \(1024, 4\)"),
    ],
    ids=["token-too-large", "token-negative", "wrong-length"],
)
def test_faulty_task_of_ones_own_is_refused(
    monkeypatch: pytest.MonkeyPatch, token: int, width: int, message: str
) -> None:
    faulty = type("Faulty", (Echo,), {"token": token, "width": width})
    monkeypatch.setitem(TASKS._entries, "compression", faulty)
    with pytest.raises(ValueError, match=message):
        generate_splits(CompressionConfig(vocab_size=16, seq_len=4), seed=0)


def test_rows_refuse_shapes_that_differ() -> None:
    with pytest.raises(ValueError, match=r"one shape .* found \(2, 3\) and \(2, 4\)"):
        Rows(np.zeros((2, 3), int), np.zeros((2, 4), int))
