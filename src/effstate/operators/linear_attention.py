"""Linear attention with diagonal decays: exact for any gate, linear in the length."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

CHUNK = 64
"""Positions handled at once; between chunks only the (n, p) state is carried."""


def linear_attention(
    C: Tensor, B: Tensor, values: Tensor, log_decay: Tensor | None = None, scale: float = 1.0
) -> Tensor:
    """y = T values with T_ij = scale * C_i . (a_{j+1} * ... * a_i) . B_j, i >= j (METHOD section 3).

    C, B: (batch | 1, heads | 1, L, n); values: (batch, heads, L, p); log_decay: log a <= 0, each of
    its four dimensions full or 1, or None for a = 1. Returns (batch, heads, L, p).

    No exponential of a positive number is ever taken: inside a chunk every pair of positions is
    decayed through the middle of the smallest aligned block that holds both, level by level.
    """
    L = values.shape[-2]
    chunk = min(CHUNK, 1 << (L - 1).bit_length())
    padding = -L % chunk
    if padding:
        C, B, values = (F.pad(x, (0, 0, 0, padding)) for x in (C, B, values))
        if log_decay is not None and log_decay.shape[-2] > 1:
            log_decay = F.pad(log_decay, (0, 0, 0, padding))
    C = C * scale
    chunks = (L + padding) // chunk
    a = total = None
    if log_decay is not None:
        log_decay = log_decay.expand(*log_decay.shape[:-2], L + padding, -1)
        log_decay = log_decay.unflatten(-2, (chunks, chunk))
        a = log_decay.exp()
        total = log_decay.sum(-2).exp().unsqueeze(-1)
    C, B, values = (x.unflatten(-2, (chunks, chunk)) for x in (C, B, values))
    outputs, C, B = _within_chunks(C, B, values, a)
    if chunks > 1:
        outputs = outputs + C @ _carried_states(B.mT @ values, total)
    return outputs.flatten(-3, -2)[..., :L, :]


def _within_chunks(
    C: Tensor, B: Tensor, values: Tensor, a: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Outputs from the pairs inside each chunk; C decayed from its start, B to its end."""
    if a is None:
        return torch.tril(C @ B.mT) @ values, C, B
    chunk = values.shape[-2]
    outputs = (C * B).sum(-1, keepdim=True) * values
    C, B = C * a, B * torch.ones_like(a)
    half = 1
    while half < chunk:
        split = (chunk // (2 * half), 2, half)
        C0, C1 = C.unflatten(-2, split).unbind(-3)
        B0, B1 = B.unflatten(-2, split).unbind(-3)
        v0, _ = values.unflatten(-2, split).unbind(-3)
        y0, y1 = outputs.unflatten(-2, split).unbind(-3)
        a0, a1 = a.unflatten(-2, (chunk // (2 * half), 2, -1)).unbind(-3)
        a0, a1 = a0[..., -1:, :], a1[..., -1:, :]
        outputs = torch.stack([y0, y1 + (C1 @ B0.mT) @ v0], -3).flatten(-4, -2)
        C = torch.stack([C0, C1 * a0], -3).flatten(-4, -2)
        B = torch.stack([B0 * a1, B1], -3).flatten(-4, -2)
        a = (a0 * a1).flatten(-3, -2)
        half *= 2
    return outputs, C, B


def _carried_states(updates: Tensor, total: Tensor | None) -> Tensor:
    """State at the start of every chunk (..., chunks, n, p) from what each chunk adds to it."""
    state = torch.zeros_like(updates[..., 0, :, :])
    states = [state]
    for i in range(updates.shape[-3] - 1):
        if total is not None:
            state = state * total[..., i, :, :]
        state = state + updates[..., i, :, :]
        states.append(state)
    return torch.stack(states, dim=-3)
