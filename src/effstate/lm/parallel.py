"""One process, or the processes that torchrun started, working on one run."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from effstate.training.trainer import Execution


@dataclass(frozen=True)
class World:
    """This process among those of a run: its rank, how many there are, and its device."""

    device: torch.device
    rank: int = 0
    size: int = 1

    @property
    def first(self) -> bool:
        """Whether this process writes what all of them share."""
        return self.rank == 0

    def mean(self, values: Tensor) -> Tensor:
        """The elementwise mean over all processes, the same in each; collective."""
        if self.size > 1:
            dist.all_reduce(values)
        return values / self.size

    def wait(self) -> None:
        """Until every process is here; collective."""
        if self.size > 1:
            dist.barrier()


def is_first() -> bool:
    """Whether this is the first of torchrun's processes, or not one of several."""
    return int(os.environ.get("RANK", "0")) == 0


@contextlib.contextmanager
def joined(execution: Execution) -> Iterator[World]:
    """The world that torchrun describes, with its process group; else this process alone."""
    device = execution.resolve_device()
    if not dist.is_torchelastic_launched():
        yield World(device)
        return
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    dist.init_process_group()
    try:
        yield World(device, dist.get_rank(), dist.get_world_size())
    finally:
        dist.destroy_process_group()


def parallelise(module: nn.Module, blocks: nn.ModuleList, world: World, sharded: bool) -> nn.Module:
    """``module`` on this process's device, its gradients averaged over all processes.

    ``sharded``: parameters, gradients and moments are split over the processes (FSDP2), block by
    block; else each has all of them (DDP). ``blocks`` are parts of the module.
    """
    if world.size == 1:
        return module.to(world.device)
    if not sharded:
        return DistributedDataParallel(module.to(world.device))
    mesh = init_device_mesh(world.device.type, (world.size,))
    for block in blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(module, mesh=mesh)


def without_averaging(module: nn.Module) -> contextlib.AbstractContextManager[None]:
    """A block whose gradients only add up here; DDP averages them in the next backward outside of it."""
    return module.no_sync() if isinstance(module, DistributedDataParallel) else contextlib.nullcontext()
