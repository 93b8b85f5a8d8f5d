"""Theorems 3.1 and 3.2, constructively: the recurrence with the smallest state at every index.

A *time-varying* realisation has a state of its own size n_i at every index:
s_{i+1} = A_i s_i + B_i u_i, y_i = C_i s_i + D_i u_i. Its n_i is at least rank(H_i), and the ones
built here reach the tolerance-ESS.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .dense import check_operator, svdvals
from .errors import EssError, check_tolerance
from .recurrent import Recurrence


@dataclass(frozen=True, eq=False)
class Realization:
    """A recurrence whose state has its own size at every index, for one operator; all float64.

    Attributes:
        A: L matrices (n_{i+1}, n_i); B: L of (n_{i+1}, d); C: L of (d, n_i); D: L of (d, d).
        tolerance: singular values of H_i up to here were left out.
        error: the largest absolute entry of (this operator - the given one).
        relative_error: the Frobenius norm of that difference over that of the given operator.
    """

    A: list[Tensor]
    B: list[Tensor]
    C: list[Tensor]
    D: list[Tensor]
    tolerance: float
    error: float
    relative_error: float

    @property
    def state_sizes(self) -> Tensor:
        """n_i for i = 1 .. L-1: (L-1,) int64."""
        return torch.tensor([c.shape[-1] for c in self.C[1:]])

    def operator(self) -> Tensor:
        """The operator (L d, L d) of this recurrence."""
        return _rebuild(self.A, self.B, self.C, self.D)


def _rebuild(a: list[Tensor], b: list[Tensor], c: list[Tensor], d: list[Tensor]) -> Tensor:
    size = len(d[0])
    out = d[0].new_zeros(len(d) * size, len(d) * size)
    state = d[0].new_zeros(0, 0)
    for i, direct in enumerate(d):
        here = slice(i * size, (i + 1) * size)
        out[here, : i * size] = c[i] @ state
        out[here, here] = direct
        state = torch.cat([a[i] @ state, b[i]], dim=-1)
    return out


def _finish(
    a: list[Tensor], b: list[Tensor], c: list[Tensor], d: list[Tensor], tau: float, given: Tensor
) -> Realization:
    difference = _rebuild(a, b, c, d) - given
    norm = float(torch.linalg.matrix_norm(given))
    relative = float(torch.linalg.matrix_norm(difference)) / norm if norm > 0 else 0.0
    return Realization(a, b, c, d, tau, float(difference.abs().max()), relative)


def _rounding(largest: float, size: int) -> float:
    return size * torch.finfo(torch.float64).eps * largest


def minimal_realization(
    op: Tensor, tolerance: float | None = None, *, block_size: int = 1
) -> Realization:
    """The realisation of one dense operator with state size tolerance-ESS_i at every index.

    The state at i holds the inputs' components along the right singular vectors V_i of H_i:
    A_i = V_{i+1}[:i]^T V_i, B_i = V_{i+1}[i]^T, C_i = T[i, :i] V_i. All A_i are contractions, and no
    small singular value is divided by, so that nothing grows.

    Args:
        op: (L, L), or (L d, L d) with ``block_size`` d.
        tolerance: absolute. Default: rounding (N eps sigma_max), which gives T back up to rounding.

    Raises:
        EssError: as :func:`effstate.ess.measure`, or an operator with leading dimensions.
    """
    operator = check_operator(op, block_size).double()
    if operator.ndim != 2:
        raise EssError(f"one operator at a time: (L, L), not {tuple(operator.shape)}.")
    d, length = block_size, operator.shape[-1] // block_size
    if tolerance is None:
        largest = max(
            float(svdvals(operator[None, i * d :, : i * d], (), torch.zeros(1), i).max())
            for i in range(1, length)
        )
        tau = _rounding(largest, operator.shape[-1])
    else:
        tau = check_tolerance(tolerance)
    bases = [operator.new_zeros(0, 0)]
    for i in range(1, length):
        try:
            _, sigma, right = torch.linalg.svd(operator[i * d :, : i * d], full_matrices=False)
        except torch.linalg.LinAlgError:
            raise EssError(f"the operator has no singular vectors at index {i}.") from None
        bases.append(right[sigma > tau].mT)
    bases.append(operator.new_zeros(length * d, 0))
    a, b, c, direct = [], [], [], []
    for i in range(length):
        here, following = slice(i * d, (i + 1) * d), bases[i + 1]
        a.append(following[: i * d].mT @ bases[i])
        b.append(following[here].mT)
        c.append(operator[here, : i * d] @ bases[i])
        direct.append(operator[here, here])
    return _finish(a, b, c, direct, tau, operator)


def reduce_recurrence(op: Recurrence, tolerance: float | None = None) -> Realization:
    """The realisation of one recurrence with state size tolerance-ESS_i, without its operator's SVDs.

    Time-varying balanced truncation by square roots: with R_O(i) R_K(i)^T = U S W^T the state is
    projected on both sides by S^{-1/2} U^T R_O(i) and R_K(i)^T W S^{-1/2}, restricted to the
    singular values of H_i above ``tolerance``.

    Args:
        op: a recurrence without leading dimensions.
        tolerance: absolute. Default: rounding (N eps sigma_max).

    Raises:
        EssError: leading dimensions, or a transition that overflows.
    """
    if op.batch_shape:
        raise EssError(f"one recurrence at a time, not a batch {op.batch_shape}.")
    n, d, length = op.state_size, op.block_size, op.length
    a, bt, c = (x[0] for x in op.take(torch.zeros(1, dtype=torch.int64), 0, length))
    a = a if op.dense else torch.diag_embed(a)
    observed = [a.new_zeros(n, n)] * (length + 1)
    for i in range(length - 1, 0, -1):
        observed[i] = torch.linalg.qr(torch.cat([observed[i + 1] @ a[i], c[i]]), mode="r").R
    reached, pieces = a.new_zeros(n, n), []
    for i in range(1, length):
        reached = torch.linalg.qr(torch.cat([reached @ a[i - 1].mT, bt[i - 1]]), mode="r").R
        product = observed[i] @ reached.mT
        if not bool(torch.isfinite(product).all()):
            raise EssError(f"the recurrence overflows float64 at index {i}.")
        pieces.append((*torch.linalg.svd(product), reached))
    largest = max(float(sigma[0]) for _, sigma, _, _ in pieces)
    tau = _rounding(largest, length * d) if tolerance is None else check_tolerance(tolerance)
    into, out_of = [a.new_zeros(0, n)], [a.new_zeros(n, 0)]
    for i, (left, sigma, right, reach) in enumerate(pieces, start=1):
        size = min(int((sigma > tau).sum()), d * min(i, length - i))
        root = sigma[:size].rsqrt()
        into.append(root.unsqueeze(1) * (left[:, :size].mT @ observed[i]))
        out_of.append(reach.mT @ right[:size].mT * root)
    into.append(a.new_zeros(0, n))
    given = op.operator()
    blocks = [slice(i * d, (i + 1) * d) for i in range(length)]
    return _finish(
        [into[i + 1] @ a[i] @ out_of[i] for i in range(length)],
        [into[i + 1] @ bt[i].mT for i in range(length)],
        [c[i] @ out_of[i] for i in range(length)],
        [given[k, k] for k in blocks],
        tau,
        given,
    )
