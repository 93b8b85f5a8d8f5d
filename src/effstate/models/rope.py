"""Rotary position embedding in the half-rotation convention (channel k turns with k + n/2)."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor


def _tables(
    length: int, n: int, theta: float, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Cosine and sine (L, n/2) of position (from 0) times theta^(-2k/n)."""
    # Angles in float64: float32 loses the low bits of a long sequence's positions.
    k = torch.arange(n // 2, dtype=torch.float64, device=device)
    position = torch.arange(length, dtype=torch.float64, device=device)
    angles = position[:, None] * theta ** (-2 * k / n)
    return angles.cos().to(dtype), angles.sin().to(dtype)


# Outside inference mode: tables made there could not be used in a later training step.
_cached_tables = lru_cache(maxsize=64)(torch.inference_mode(False)(_tables))


def rotate(x: Tensor, theta: float) -> Tensor:
    """x (..., L, n), n even, each pair (k, k + n/2) turned by position * theta^(-2k/n)."""
    make = _tables if torch.compiler.is_compiling() else _cached_tables
    cos, sin = make(x.shape[-2], x.shape[-1], theta, x.dtype, x.device)
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
