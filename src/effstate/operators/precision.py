"""What stays in float32 under autocast."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def widened(x: Tensor) -> Tensor:
    """A 16-bit tensor as float32, any other as it is."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


def in_full_precision(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Decorator: leave autocast for the call, with 16-bit tensors handed over as float32.

    Sums of decays and states over a long sequence lose everything to 8 bits of mantissa.
    """

    @functools.wraps(function)
    def call(first: Tensor, *others: Any) -> Tensor:
        kind = first.device.type
        if not torch.is_autocast_enabled(kind):
            return function(first, *others)
        arguments = [widened(x) if isinstance(x, Tensor) else x for x in (first, *others)]
        with torch.autocast(kind, enabled=False):
            return function(*arguments)

    return call
