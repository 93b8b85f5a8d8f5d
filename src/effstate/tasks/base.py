"""What a task is, and how its three disjoint splits are drawn (METHOD section 4).

Every draw comes from a Philox generator seeded by (seed, task configuration, split, block of 1024
rows, redraw). The numbers of rows are no part of it: a longer split starts with the rows of a
shorter one, and neither worker count nor machine changes a token. Training rows are never
redrawn; a validation or test row is redrawn only where an earlier split holds it already.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from effstate.config import TaskConfig
from effstate.registry import TASKS

IGNORE = -100
"""Label of positions that are not asked (the value that torch's cross entropy ignores)."""

SPLITS = ("train", "validation", "test")
"""The splits in the order in which they are drawn."""

BLOCK = 1024
"""Rows drawn together by one generator; part of the data's definition, so never change it."""

MAX_REDRAWS = 100
"""Redraws of a row that an earlier split holds before the task counts as too small."""

ANNOTATION_WIDTH = 96
"""Columns after which a printed row is wrapped."""

C = TypeVar("C", bound=TaskConfig)


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of a task: token ids, and the labels asked for.

    inputs: (rows, L) integers in 0..vocab_size-1.
    labels: (rows, L) integers, the token to predict at a position, :data:`IGNORE` elsewhere.
    """

    inputs: NDArray[Any]
    labels: NDArray[Any]

    def __post_init__(self) -> None:
        if self.inputs.ndim != 2 or self.inputs.shape != self.labels.shape:
            raise ValueError(
                f"rows need inputs and labels of one shape (rows, length); "
                f"found {self.inputs.shape} and {self.labels.shape}"
            )

    def __len__(self) -> int:
        return len(self.inputs)


class Task(ABC, Generic[C]):
    """A synthetic task; stateless, so that a configuration and a generator decide every token.

    A task of one's own derives from this class and from TaskConfig, and registers both
    (``TASKS`` and ``TASK_CONFIGS`` of :mod:`effstate.registry`) under the configuration's name.
    """

    config: ClassVar[type[TaskConfig]]
    readout: ClassVar[Literal["tokens", "sequence"]]
    """Where answers are read: at each labelled position, or all from the last position."""
    difficulty_name: ClassVar[str]
    """The configuration's key that makes the task harder; the axis of the sweeps."""

    @abstractmethod
    def rows(self, config: C, count: int, rng: np.random.Generator) -> Rows:
        """``count`` independent rows of length config.seq_len; all randomness comes from ``rng``.

        ``config`` has no violations (:func:`check`).
        """

    @abstractmethod
    def chance(self, config: C) -> float:
        """Accuracy of a uniform guess among the labels that the task admits."""

    def roles(self, config: C, inputs: NDArray[Any], labels: NDArray[Any]) -> list[str]:
        """A short mark for each position of one row: ``?`` where a label is asked, else ``.``."""
        return ["?" if label != IGNORE else "." for label in labels]

    def difficulty(self, config: C) -> int:
        """Value of the difficulty axis, :attr:`difficulty_name`."""
        return int(getattr(config, self.difficulty_name))

    def annotate(self, config: C, inputs: NDArray[Any], labels: NDArray[Any]) -> str:
        """One row (inputs and labels of shape (L,)) as text: roles, tokens, labels, in columns."""
        marks = self.roles(config, inputs, labels)
        answers = ["" if label == IGNORE else str(label) for label in labels]
        columns = list(zip(marks, map(str, inputs), answers, strict=True))
        width = 1 + max(len(cell) for column in columns for cell in column)
        per_line = max(1, ANNOTATION_WIDTH // width)
        lines = []
        for start in range(0, len(columns), per_line):
            shown = zip(*columns[start : start + per_line], strict=True)
            for name, cells in zip(("role ", "token", "label"), shown, strict=True):
                lines.append((name + "".join(cell.rjust(width) for cell in cells)).rstrip())
        return "\n".join(lines)


def check(config: TaskConfig) -> None:
    """Raise ValueError, in one sentence, if the configuration breaks the task's constraints."""
    violations = config.violations()
    if violations:
        raise ValueError(f"task {config.name}: {'; '.join(violations)}")


def task_for(config: TaskConfig) -> Task[Any]:
    """The task registered under the configuration's name.

    Raises UnknownNameError for a name without a task, ValueError for a broken constraint.
    """
    task: Task[Any] = TASKS[config.name]()
    check(config)
    return task


def token_dtype(config: TaskConfig) -> type[np.signedinteger[Any]]:
    """int16 where it holds every token and :data:`IGNORE`, else int32."""
    return np.int16 if config.vocab_size < 2**15 else np.int32


def generate_splits(config: TaskConfig, seed: int, workers: int = 1) -> dict[str, Rows]:
    """The rows of train, validation and test; no row's inputs occur in two of them.

    ``workers`` threads draw blocks of rows; they change the time and nothing else. Raises
    ValueError for a broken constraint, and if the task has too few distinct rows for disjoint
    splits.
    """
    task = task_for(config)
    counts = (config.num_train, config.num_validation, config.num_test)
    splits: dict[str, Rows] = {}
    taken: set[bytes] = set()
    for name, count in zip(SPLITS, counts, strict=True):
        splits[name], digests = _split(task, config, seed, name, count, taken, workers)
        taken |= digests
    return splits


def _split(
    task: Task[Any],
    config: TaskConfig,
    seed: int,
    name: str,
    count: int,
    taken: Set[bytes],
    workers: int,
) -> tuple[Rows, set[bytes]]:
    """``count`` rows of a split, none of them in ``taken``, and the digests of all."""
    shape, dtype = (count, config.seq_len), token_dtype(config)
    split = Rows(np.empty(shape, dtype), np.empty(shape, dtype))
    entropy = _entropy(config, seed)

    def fill(block: int) -> set[bytes]:
        start = block * BLOCK
        pending = np.arange(min(BLOCK, count - start))
        digests: set[bytes] = set()
        for redraw in range(MAX_REDRAWS + 1):
            key = (SPLITS.index(name), block, redraw)
            # The whole block is drawn however few rows are wanted: a row depends on its place only.
            drawn = _draw(task, config, np.random.SeedSequence(entropy, spawn_key=key))
            split.inputs[start + pending] = drawn.inputs[pending]
            split.labels[start + pending] = drawn.labels[pending]
            found = [_digest(row) for row in split.inputs[start + pending]]
            digests.update(digest for digest in found if digest not in taken)
            pending = pending[[digest in taken for digest in found]]
            if not pending.size:
                return digests
        raise ValueError(
            f"task {config.name}: too few distinct rows for disjoint splits: after {MAX_REDRAWS} "
            f"redraws a {name} row still occurs in an earlier split; raise vocab_size or seq_len, "
            f"or lower num_train = {config.num_train}"
        )

    with ThreadPoolExecutor(workers) as pool:
        digests = pool.map(fill, range(-(-count // BLOCK)))
        return split, set().union(*digests)


def _draw(task: Task[Any], config: TaskConfig, seed: np.random.SeedSequence) -> Rows:
    """One block of rows; raises ValueError if the task made something that is no row of it."""
    rows = task.rows(config, BLOCK, np.random.Generator(np.random.Philox(seed)))
    expected = (BLOCK, config.seq_len)
    if rows.inputs.shape != expected:
        raise ValueError(
            f"task {config.name}: rows() made inputs of shape {rows.inputs.shape}, not {expected}"
        )
    largest = max(rows.inputs.max(), rows.labels.max())
    if rows.inputs.min() < 0 or largest >= config.vocab_size:
        raise ValueError(f"task {config.name}: rows() made a token outside 0..{config.vocab_size - 1}")
    return rows


def _entropy(config: TaskConfig, seed: int) -> list[int]:
    """Seed and configuration as integers; the numbers of rows are left out (see the module)."""
    content = config.model_dump(mode="json", exclude={f"num_{split}" for split in SPLITS})
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).digest()
    # Words of one size: SeedSequence joins integers, and a shorter one would shift the others.
    return [seed, *(int(word) for word in np.frombuffer(digest, dtype="<u4"))]


def _digest(row: NDArray[Any]) -> bytes:
    """What stands for a row's inputs when splits are compared."""
    return hashlib.blake2b(row.tobytes(), digest_size=16).digest()
