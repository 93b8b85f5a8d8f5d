"""Resume points of a language model: parameters, moments and progress, whatever the number of processes.

Each is a folder that torch.distributed.checkpoint writes, every process its shards, as safetensors:
its own format holds a pickle. It gets its name when it is complete.
"""

from __future__ import annotations

import contextlib
import shutil
import warnings
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.distributed import checkpoint
from torch.distributed.checkpoint import CheckpointException
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.optim import Optimizer

from effstate.artifacts import ArtifactError, read_json, write_json
from effstate.lm.parallel import World
from effstate.training.trainer import Progress

KEPT = 2
PROGRESS = "progress.json"
_FLAT = StateDictOptions(flatten_optimizer_state_dict=True)


def resume_points(folder: Path) -> list[Path]:
    """The complete resume points in ``folder``, oldest first."""
    return sorted(folder.glob("step-*"))


def _tensors(parameters: dict[str, Tensor], state: dict[str, Any]) -> dict[str, Tensor]:
    """Parameters and moments by name; the optimiser's numbers follow from the configuration."""
    return parameters | {key: value for key, value in state.items() if isinstance(value, Tensor)}


@contextlib.contextmanager
def _quiet_alone() -> Iterator[None]:
    """Without the warning that a single process, which is what is meant, works alone."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield


def save_resume_point(
    folder: Path, model: nn.Module, optimizer: Optimizer, progress: Progress, world: World
) -> None:
    """Write a resume point and remove all but the last two; collective."""
    final = folder / f"step-{progress.step:08d}"
    if final.exists():
        return
    temporary = folder / f".{final.name}"
    if world.first:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
    world.wait()
    tensors = _tensors(*get_state_dict(model, optimizer, options=_FLAT))
    writer = checkpoint.HuggingFaceStorageWriter(str(temporary), save_distributed=True)
    with _quiet_alone():
        checkpoint.save(tensors, storage_writer=writer, no_dist=world.size == 1)
    if world.first:
        write_json(temporary / PROGRESS, asdict(progress))
        temporary.rename(final)
        for old in resume_points(folder)[:-KEPT]:
            shutil.rmtree(old)
    world.wait()


def load_resume_point(path: Path, model: nn.Module, optimizer: Optimizer, world: World) -> Progress:
    """Put a resume point back, from any number of processes; collective.

    Raises ArtifactError if it is damaged.
    """
    parameters, state = get_state_dict(model, optimizer, options=_FLAT)
    try:
        progress = Progress(**read_json(path / PROGRESS))
        reader = checkpoint.HuggingFaceStorageReader(str(path))
        # Into the tensors that are there.
        tensors = _tensors(parameters, state)
        with _quiet_alone():
            checkpoint.load(tensors, storage_reader=reader, no_dist=world.size == 1)
    except (ArtifactError, CheckpointException, TypeError):
        raise ArtifactError(
            f"{path}: not a complete resume point of this run; remove the folder, and the run goes on "
            "from the one before"
        ) from None
    set_state_dict(model, optimizer, model_state_dict=parameters, optim_state_dict=state, options=_FLAT)
    return progress
