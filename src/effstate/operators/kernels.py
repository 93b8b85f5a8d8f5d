"""Kernels of the package flash-linear-attention in place of our chunks, on CUDA and on request.

They compute the function of :func:`~effstate.operators.linear_attention` in lower precision, so they are
a key of the project (``kernels: fla``), and a run's provenance says which ones it used.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from contextvars import ContextVar
from importlib import metadata
from typing import Literal

import torch
from torch import Tensor

from effstate.config import ConfigError

Kernels = Literal["own", "fla"]

PACKAGE = "flash-linear-attention"
_CHOSEN: ContextVar[Kernels] = ContextVar("kernels", default="own")


def kernels_in_use() -> str:
    """``own``, or the package with its version: for provenance."""
    return "own" if _CHOSEN.get() == "own" else f"{PACKAGE} {metadata.version(PACKAGE)}"


@contextlib.contextmanager
def kernels(chosen: Kernels, device: torch.device) -> Iterator[None]:
    """Use the chosen kernels in this block.

    Raises ConfigError if ``fla`` is asked for without its package, or on a device that is no GPU.
    """
    if chosen == "fla":
        if device.type != "cuda":
            raise ConfigError(f"kernels = fla, but its kernels need CUDA, not {device.type}; take own")
        try:
            importlib.import_module("fla.ops.gla")
        except ImportError:
            raise ConfigError(
                f"kernels = fla, but the package '{PACKAGE}' is not installed; pip install "
                "'effstate[kernels]', or take kernels = own"
            ) from None
    token = _CHOSEN.set(chosen)
    try:
        yield
    finally:
        _CHOSEN.reset(token)


def applies(C: Tensor) -> bool:
    """Whether the package's kernels take this call: chosen, and no float64 (which they do not have)."""
    return _CHOSEN.get() == "fla" and C.dtype != torch.float64


def fla_linear_attention(
    C: Tensor, B: Tensor, values: Tensor, log_decay: Tensor | None, scale: float
) -> Tensor:
    """T values by the package: shapes as :func:`~effstate.operators.linear_attention`."""
    batch, heads, length, _ = values.shape
    shape = (batch, heads, length, C.shape[-1])
    # The package has (batch, L, heads, n).
    q, k, v = (x.transpose(1, 2).contiguous() for x in (C.expand(shape), B.expand(shape), values))
    if log_decay is None:
        chunked = importlib.import_module("fla.ops.linear_attn").chunk_linear_attn
        mixed, _ = chunked(q, k, v, scale=scale, normalize=False)
    else:
        decay = log_decay.expand(shape).transpose(1, 2).contiguous()
        chunked = importlib.import_module("fla.ops.gla").chunk_gla
        mixed, _ = chunked(q, k, v, decay, scale=scale)
    return mixed.transpose(1, 2)
