"""Rotary position embedding, interleaved convention: the channels (2k, 2k + 1) turn together."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from effstate.operators.precision import widened


def _angles(length: int, size: int, repeats: int, theta: float, device: torch.device) -> Tensor:
    """Position (from 0) times theta^(-2k/size), (length, repeats * size / 2), in float64.

    float32 would lose the low bits of a long sequence's positions.
    """
    k = torch.arange(size // 2, dtype=torch.float64, device=device)
    position = torch.arange(length, dtype=torch.float64, device=device)
    return (position[:, None] * theta ** (-2 * k / size)).repeat(1, repeats)


@lru_cache(maxsize=64)
@torch.inference_mode(False)
def _turns(
    length: int, size: int, repeats: int, theta: float, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """e^(i angle) as complex numbers of the given (complex) dtype."""
    angles = _angles(length, size, repeats, theta, device)
    return torch.polar(torch.ones_like(angles), angles).to(dtype)


def rotate(x: Tensor, size: int, theta: float) -> Tensor:
    """x (batch, L, m * size), m vectors of an even size at each position, turned by position.

    One complex product in eager mode; under torch.compile, which generates no complex code, the
    same in real numbers.
    """
    length, repeats = x.shape[-2], x.shape[-1] // size
    if torch.compiler.is_compiling():
        return rotate_real(x, size, theta)
    wide = widened(x)
    turns = _turns(length, size, repeats, theta, wide.dtype.to_complex(), x.device)
    turned = torch.view_as_complex(wide.unflatten(-1, (-1, 2))) * turns
    return torch.view_as_real(turned).flatten(-2).to(x.dtype)


def rotate_real(x: Tensor, size: int, theta: float) -> Tensor:
    """The definition of :func:`rotate`, in real numbers."""
    angles = _angles(x.shape[-2], size, x.shape[-1] // size, theta, x.device)
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    even, odd = x.unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack([even * cos - odd * sin, odd * cos + even * sin], -1).flatten(-2)
