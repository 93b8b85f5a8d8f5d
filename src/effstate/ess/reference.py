"""The definition, slowly: an SVD of H_i = T[i:, :i] for every i. About L^4 / 6 multiplications.

Every fast path of this layer is held against these few lines. All values are float64.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .errors import check_tolerance
from .recurrent import Recurrence
from .summary import entropy_of, spectrum_sizes


def _operator(op: Tensor | Recurrence, block_size: int) -> tuple[Tensor, int]:
    if isinstance(op, Recurrence):
        return op.operator(), op.block_size
    return op.double(), block_size


def reference_singular_values(op: Tensor | Recurrence, *, block_size: int = 1) -> Tensor:
    """Singular values of every H_i, descending, zero padded: (..., L-1, d (L // 2))."""
    operator, d = _operator(op, block_size)
    length = operator.shape[-1] // d
    out = operator.new_zeros(*operator.shape[:-2], length - 1, d * (length // 2))
    for i in range(1, length):
        sigma = torch.linalg.svdvals(operator[..., i * d :, : i * d])
        out[..., i - 1, : sigma.shape[-1]] = sigma
    return out


def reference_tolerance_ess(op: Tensor | Recurrence, tolerance: float, *, block_size: int = 1) -> Tensor:
    """Number of singular values of every H_i strictly above ``tolerance`` (eq. 2): (..., L-1)."""
    sigma = reference_singular_values(op, block_size=block_size)
    return (sigma > check_tolerance(tolerance)).sum(dim=-1)


def reference_entropy_ess(op: Tensor | Recurrence, *, block_size: int = 1) -> Tensor:
    """exp(-sum p log p) over the normalised singular values of every H_i: (..., L-1)."""
    operator, d = _operator(op, block_size)
    sigma = reference_singular_values(operator, block_size=d)
    return entropy_of(sigma, spectrum_sizes(operator.shape[-1] // d, d).to(sigma.device))


def reference_causal_ess(op: Recurrence, tolerance: float) -> Tensor:
    """Number of singular values of K_i above ``tolerance``, K_i built step by step: (..., L-1)."""
    lead, n, d = op.batch_shape, op.state_size, op.block_size
    (a, _), (b, _) = op._parts()[:2]
    a = a.double() if op.dense else torch.diag_embed(a.double())
    b = b.double() if op.mimo else b.double().unsqueeze(-1)
    state, out = b.new_zeros(*lead, n, 0), []
    for i in range(op.length):
        if i:
            out.append((torch.linalg.svdvals(state) > check_tolerance(tolerance)).sum(dim=-1))
        state = torch.cat([a[..., i, :, :] @ state, b[..., i, :, :].expand(*lead, n, d)], dim=-1)
    return torch.stack(out, dim=-1)
