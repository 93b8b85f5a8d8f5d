"""The one error of this layer, and the sentences that locate a fault."""

from __future__ import annotations

import torch
from torch import Tensor


class EssError(ValueError):
    """An operator that has no effective state-size: its one-sentence message says where and why."""


def operator_name(index: tuple[int, ...]) -> str:
    """``operator (0, 2)`` for a leading multi-index, ``the operator`` where there is only one."""
    return f"operator ({', '.join(map(str, index))})" if index else "the operator"


def first_true(mask: Tensor) -> tuple[int, ...] | None:
    """Multi-index of the first True entry of ``mask``, or None."""
    if not bool(mask.any()):
        return None
    flat = int(mask.reshape(-1).to(torch.uint8).argmax())
    return tuple(int(k) for k in torch.unravel_index(torch.tensor(flat), mask.shape))


def check_real_floating(value: object, name: str) -> Tensor:
    """Return ``value`` if it is a real floating point tensor, else raise :class:`EssError`."""
    if not isinstance(value, Tensor):
        raise EssError(f"{name} must be a torch.Tensor, not {type(value).__name__}.")
    if not value.dtype.is_floating_point:
        raise EssError(f"{name} must be real and floating point, not {value.dtype}.")
    return value


def check_tolerance(tolerance: float) -> float:
    """Return ``tolerance`` as a float if it is finite and not negative, else raise."""
    value = float(tolerance)
    if not 0.0 <= value < float("inf"):
        raise EssError(f"a tolerance must be finite and at least 0, not {tolerance}.")
    return value
