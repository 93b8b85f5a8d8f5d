"""The definition beside the fast path: the recurrence, one position after the other."""

from __future__ import annotations

import torch
from torch import Tensor


def linear_attention_naive(
    C: Tensor, B: Tensor, values: Tensor, log_decay: Tensor | None = None, scale: float = 1.0
) -> Tensor:
    """S_i = a_i * S_{i-1} + B_i v_i^T and y_i = scale * C_i S_i, step by step (METHOD section 1).

    The slow twin of :func:`effstate.operators.linear_attention`: same arguments, same result.
    """
    state = torch.zeros((), dtype=values.dtype, device=values.device)
    outputs = []
    for i in range(values.shape[-2]):
        if log_decay is not None:
            step = log_decay[..., min(i, log_decay.shape[-2] - 1), :]
            state = step.exp().unsqueeze(-1) * state
        state = state + B[..., i, :, None] * values[..., i, None, :]
        outputs.append(scale * (C[..., i, None, :] @ state).squeeze(-2))
    return torch.stack(outputs, dim=-2)


def operator_naive(C: Tensor, B: Tensor, log_decay: Tensor | None = None, scale: float = 1.0) -> Tensor:
    """T_ij = scale * C_i . (a_{j+1} * ... * a_i) . B_j for i >= j, row by row (METHOD section 3).

    C and B are (..., L, n), log_decay (..., L | 1, n); leading dimensions broadcast. Returns
    (..., L, L). Only products of decays, so that no gate overflows.
    """
    L = B.shape[-2]
    rows = []
    carried = None  # the past inputs' B_j, decayed to the row's position
    for i in range(L):
        new = B[..., i : i + 1, :]
        if carried is None:
            carried = new
        else:
            if log_decay is not None:
                step = log_decay[..., min(i, log_decay.shape[-2] - 1), :]
                carried = carried * step.exp().unsqueeze(-2)
                new = new.expand(*carried.shape[:-2], 1, -1)
            carried = torch.cat([carried, new], dim=-2)
        row = scale * (carried @ C[..., i, :, None]).squeeze(-1)
        rows.append(torch.nn.functional.pad(row, (0, L - 1 - i)))
    return torch.stack(torch.broadcast_tensors(*rows), dim=-2)
