"""Operators of every kind that the tests of this folder share."""

from __future__ import annotations

import torch
from torch import Tensor

from effstate.ess import Recurrence


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=generator(seed), dtype=torch.float64)


def recurrence(
    kind: str, length: int, n: int, *, batch: tuple[int, ...] = (2,), d: int = 0, seed: int = 0
) -> Recurrence:
    """A recurrence of the named kind; d = 0 means one input and no block axis."""
    b_shape = (*batch, length, n, d) if d else (*batch, length, n)
    c_shape = (*batch, length, d, n) if d else (*batch, length, n)
    a = torch.sigmoid(2.0 + normal(*batch, length, n, seed=seed))
    b, c = normal(*b_shape, seed=seed + 1), normal(*c_shape, seed=seed + 2)
    if kind == "saturated":
        a = torch.ones_like(a)
    elif kind == "memoryless":
        a = torch.zeros_like(a)
    elif kind == "fast-decay":
        a = a * 1e-3
    elif kind == "zero-gate":
        a[..., length // 2, :] = 0.0
    elif kind == "zero-and-one":
        a = (a > 0.85).double()
    elif kind == "rank-deficient":
        c[..., n // 2 :] = 0.0
    elif kind == "zero":
        b, c = torch.zeros_like(b), torch.zeros_like(c)
    elif kind == "silent-past":
        (b[..., : length // 2, :, :] if d else b[..., : length // 2, :]).zero_()
    elif kind == "huge":
        b, c = b * 1e60, c * 1e60
    elif kind == "tiny":
        b, c = b * 1e-60, c * 1e-60
    elif kind == "lopsided":
        b, c = b * 1e120, c * 1e-120
    elif kind == "dense":
        a = 0.95 * torch.linalg.qr(normal(*batch, length, n, n, seed=seed))[0]
    elif kind == "dense-nilpotent":
        a = torch.triu(normal(*batch, length, n, n, seed=seed), diagonal=1)
    else:
        assert kind == "gated", kind
    return Recurrence(a, b, c, dense=kind.startswith("dense"), mimo=bool(d))


RECURRENCE_KINDS = [
    "gated",
    "saturated",
    "memoryless",
    "fast-decay",
    "zero-gate",
    "zero-and-one",
    "rank-deficient",
    "zero",
    "silent-past",
    "huge",
    "tiny",
    "lopsided",
    "dense",
    "dense-nilpotent",
]


def operator(kind: str, length: int, *, batch: tuple[int, ...] = (2,), seed: int = 0) -> Tensor:
    """A dense causal operator of the named kind."""
    full = normal(*batch, length, length, seed=seed)
    mask = torch.ones(length, length, dtype=torch.bool).tril()
    if kind == "random":
        out = full.tril()
    elif kind.startswith("softmax"):
        width, scale = 8, float(kind.split("-")[1])
        q = normal(*batch, length, width, seed=seed + 1)
        k = normal(*batch, length, width, seed=seed + 2)
        out = (scale * q @ k.mT).masked_fill(~mask, float("-inf")).softmax(-1)
    elif kind == "uniform":
        out = torch.ones_like(full).masked_fill(~mask, float("-inf")).softmax(-1)
    elif kind == "near-diagonal":
        out = torch.eye(length, dtype=torch.float64) + 1e-4 * full.tril()
    elif kind == "low-rank":
        out = (normal(*batch, length, 3, seed=seed) @ normal(*batch, 3, length, seed=1)).tril()
    elif kind == "block":
        inside = torch.arange(length) // max(2, length // 4)
        out = full.tril() * (inside.unsqueeze(0) == inside.unsqueeze(1))
    elif kind == "shift":
        # all singular values of every H_i are 0 or 1: as repeated as they get
        out = torch.diag_embed(torch.ones(*batch, length - 3).double(), -3)[..., :length, :length]
    elif kind == "orthogonal-block":
        half = length // 2
        size = length - half
        out = torch.zeros_like(full)
        out[..., half:, :size] = 0.5 * torch.linalg.qr(full[..., :size, :size])[0]
        out = out.tril()
    elif kind == "decaying":
        lag = torch.arange(length).unsqueeze(1) - torch.arange(length)
        out = (full * torch.exp(-0.3 * lag)).tril()
    elif kind == "zero":
        out = torch.zeros_like(full)
    elif kind == "huge":
        out = 1e150 * full.tril()
    else:
        assert kind == "tiny", kind
        out = 1e-150 * full.tril()
    return out


OPERATOR_KINDS = [
    "random",
    "softmax-0.1",
    "softmax-1",
    "softmax-10",
    "uniform",
    "near-diagonal",
    "low-rank",
    "block",
    "shift",
    "orthogonal-block",
    "decaying",
    "zero",
    "huge",
    "tiny",
]
