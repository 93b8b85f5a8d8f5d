"""Batches of small matrices on more than one core."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

PARALLEL_FROM = 256
"""Matrices in a batch from which more than one thread is worth its start."""

SMALL = 128
"""Up to this many rows and columns LAPACK itself stays on one core."""


def in_parallel(work: Callable[[Tensor], Tensor], matrices: Tensor) -> Tensor:
    """``work`` on ``matrices`` (k, p, n), split over torch's threads where that pays.

    LAPACK handles the matrices of a batch one after the other, on one core; torch's calls release
    the interpreter, so that threads do share the batch.
    """
    workers = torch.get_num_threads()
    small = max(matrices.shape[-2:]) <= SMALL
    if matrices.device.type != "cpu" or workers == 1 or not small:
        return work(matrices)
    if len(matrices) < PARALLEL_FROM:
        return work(matrices)
    with ThreadPoolExecutor(workers) as pool:
        return torch.cat(list(pool.map(work, matrices.chunk(workers))))
