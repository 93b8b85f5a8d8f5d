"""The data artifact of a task cell, and the order in which a run reads its rows."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from effstate.artifacts import Artifact, derive_seed, read_tensors, write_tensors
from effstate.config import RunConfig
from effstate.registry import TASKS
from effstate.requests import DataConfig
from effstate.tasks.base import IGNORE, SPLITS, generate_splits

DATA_FILE = "rows.safetensors"


@dataclass(frozen=True)
class Split:
    """Rows of one split, on one device.

    ``inputs`` (rows, L) tokens; ``positions`` (rows, k) where labels stand; ``targets`` (rows, k) the
    labels there (rows with fewer than k labels are filled up with -100).
    """

    inputs: Tensor
    positions: Tensor
    targets: Tensor

    def __len__(self) -> int:
        return self.inputs.shape[0]

    def batch(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The chosen rows as int64 (inputs, positions, targets)."""
        return self.inputs[rows].long(), self.positions[rows].long(), self.targets[rows].long()

    def head(self, rows: int) -> Split:
        """The first ``rows`` rows."""
        return Split(self.inputs[:rows], self.positions[:rows], self.targets[:rows])


def labelled_positions(labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Dense labels (rows, L), -100 where there is none, to positions and targets (rows, k)."""
    present = labels != IGNORE
    counts = present.sum(1)
    widest = max(int(counts.max(initial=0)), 1)
    # A stable sort brings labelled positions to the front and keeps their order.
    positions = np.argsort(~present, axis=1, kind="stable")[:, :widest]
    targets = np.take_along_axis(labels, positions, axis=1)
    return positions.astype(np.int32), targets.astype(np.int32)


def make_data(artifact: Artifact, workers: int = 1) -> None:
    """Generate a data set's three splits and seal the artifact.

    Raises ValueError if the task's constraints are broken or it has too few distinct rows.
    """
    started = time.monotonic()
    config = artifact.request.config
    assert isinstance(config, DataConfig)
    tensors: dict[str, Tensor] = {}
    for name, rows in generate_splits(config.task, config.seed, workers=workers).items():
        positions, targets = labelled_positions(np.asarray(rows.labels))
        tensors[f"{name}.inputs"] = torch.from_numpy(np.ascontiguousarray(rows.inputs))
        tensors[f"{name}.positions"] = torch.from_numpy(positions)
        tensors[f"{name}.targets"] = torch.from_numpy(targets)
    write_tensors(artifact.path(DATA_FILE), tensors)
    artifact.finish("done", [DATA_FILE], seconds=time.monotonic() - started)


def load_data(
    artifact: Artifact, device: torch.device | str = "cpu", splits: Iterable[str] = SPLITS
) -> dict[str, Split]:
    """The chosen splits of a finished data artifact, and no others, verified.

    Raises ArtifactError if the artifact is damaged.
    """
    chosen = tuple(splits)
    prefixes = tuple(f"{name}." for name in chosen)
    tensors, _ = read_tensors(artifact.checked(DATA_FILE), prefixes)
    return {
        name: Split(
            *(tensors[f"{name}.{part}"].to(device) for part in ("inputs", "positions", "targets"))
        )
        for name in chosen
    }


class RowOrder:
    """Which rows step ``s`` reads: a fresh permutation for every pass over the training rows.

    A pure function of (seed, step), so a resumed run reads exactly what an undisturbed one reads.
    """

    def __init__(self, seed: int, rows: int, batch_size: int) -> None:
        self.seed, self.rows, self.batch_size = seed, rows, batch_size
        self._passes: dict[int, Tensor] = {}

    def _permutation(self, number: int) -> Tensor:
        if number not in self._passes:
            generator = torch.Generator().manual_seed(derive_seed(self.seed, "order", number))
            self._passes = {
                k: v for k, v in self._passes.items() if k == number - 1
            }  # a batch spans at most two passes
            self._passes[number] = torch.randperm(self.rows, generator=generator)
        return self._passes[number]

    def __call__(self, step: int) -> Tensor:
        """Row indices (batch_size,) of step ``step`` (0 is the first)."""
        first, end = step * self.batch_size, (step + 1) * self.batch_size
        parts = []
        while first < end:
            number, offset = divmod(first, self.rows)
            taken = min(end - first, self.rows - offset)
            parts.append(self._permutation(number)[offset : offset + taken])
            first += taken
        return torch.cat(parts) if len(parts) > 1 else parts[0]


def readout_of(run: RunConfig) -> str:
    """How the task reads the model's output: ``tokens`` or ``sequence``."""
    return TASKS[run.task.name].readout
