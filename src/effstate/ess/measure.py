"""What a caller uses: spectra, tolerance-ESS, entropy-ESS, causal ESS, and all of them at once."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from .dense import check_operator, dense_spectra
from .errors import EssError, check_tolerance
from .recurrent import Recurrence, controllability_counts, recurrent_spectra
from .reference import reference_singular_values
from .summary import count_above, entropy_of, spectrum_sizes

Operator = Tensor | Recurrence
METHODS = ("auto", "reference", "svd", "qr")


@dataclass(frozen=True, eq=False)
class Profile:
    """The ESS of a batch of operators at every index.

    Attributes:
        entropy: entropy-ESS (..., L-1), float64.
        tolerance: tolerance-ESS (..., L-1), int64, by tolerance.
        zero_blocks: how many H_i, over all operators, are zero (their entropy-ESS is 0).
        method: the code path that ran.
        counters: what that path counts, by name.
    """

    entropy: Tensor
    tolerance: dict[float, Tensor]
    zero_blocks: int
    method: str
    counters: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class _Task:
    """A validated request: what is measured, and by which path."""

    op: Operator
    lead: tuple[int, ...]
    length: int
    block_size: int
    width: int
    method: str

    @property
    def device(self) -> torch.device:
        return self.op.B.device if isinstance(self.op, Recurrence) else self.op.device

    def spectra(self) -> Iterator[tuple[Tensor, int, int, Tensor]]:
        """(flat operators, lo, hi, sigma): see :func:`recurrent_spectra`."""
        if self.method == "reference":
            full = reference_singular_values(self.op, block_size=self.block_size)
            full = full.reshape(-1, *full.shape[-2:])
            yield torch.arange(len(full)), 1, self.length, full
        elif isinstance(self.op, Recurrence) and self.method == "qr":
            yield from recurrent_spectra(self.op)
        else:
            dense = self.op.operator() if isinstance(self.op, Recurrence) else self.op
            yield from dense_spectra(dense, self.block_size)


def _task(op: Operator, block_size: int, method: str) -> _Task:
    if method not in METHODS:
        raise EssError(f"no method {method!r}: choose one of {', '.join(METHODS)}.")
    if isinstance(op, Recurrence):
        if block_size not in (1, op.block_size):
            raise EssError(f"block_size {block_size} is not the recurrence's own {op.block_size}.")
        d, length = op.block_size, op.length
        if method == "auto":
            method = "qr"
        width = min(op.state_size, d * (length // 2)) if method == "qr" else d * (length // 2)
        return _Task(op, op.batch_shape, length, d, width, method)
    if method == "qr":
        raise EssError("method 'qr' needs a Recurrence, not a dense operator.")
    op = check_operator(op, block_size)
    length = op.shape[-1] // block_size
    lead = tuple(op.shape[:-2])
    method = "svd" if method == "auto" else method
    return _Task(op, lead, length, block_size, block_size * (length // 2), method)


def singular_values(op: Operator, *, block_size: int = 1, method: str = "auto") -> Tensor:
    """Singular values of H_i = T[i:, :i] for every i, descending, zero padded.

    Args:
        op: a dense causal operator T (..., L, L), or (..., L d, L d) with ``block_size`` d, or a
            :class:`Recurrence`.
        method: "auto", "qr" (a recurrence: never forms T), "svd", or "reference" (the definition).

    Returns:
        (..., L-1, r) float64 on the operator's device; row k belongs to i = k + 1. r is d (L // 2),
        and for a recurrence by "qr" at most its state size.

    Raises:
        EssError: wrong shapes, L < 2, non-finite or non-causal input, or a failed factorisation.
    """
    task = _task(op, block_size, method)
    count = math.prod(task.lead)
    shape = (count, task.length - 1, task.width)
    out = torch.zeros(shape, dtype=torch.float64, device=task.device)
    for flat, lo, hi, sigma in task.spectra():
        out[int(flat[0]) : int(flat[-1]) + 1, lo - 1 : hi - 1, : sigma.shape[-1]] = sigma
    # beyond min(i, L-i) a factored form leaves rounding, not singular values
    sizes = spectrum_sizes(task.length, task.block_size).to(out.device)
    out.masked_fill_(torch.arange(task.width, device=out.device) >= sizes.unsqueeze(-1), 0.0)
    return out.reshape(*task.lead, *shape[1:])


def measure(
    op: Operator,
    tolerances: Sequence[float] = (1e-1, 1e-3, 1e-5),
    *,
    block_size: int = 1,
    method: str = "auto",
) -> Profile:
    """Entropy-ESS and tolerance-ESS of every operator at every index, from one pass over spectra.

    Memory beyond the input and the result is bounded: spectra are reduced piece by piece.

    Args, raises: as :func:`singular_values`; ``tolerances`` are absolute.
    """
    taus = [check_tolerance(t) for t in tolerances]
    task = _task(op, block_size, method)
    count, rows = math.prod(task.lead), task.length - 1
    device = task.device
    entropy = torch.zeros(count, rows, dtype=torch.float64, device=device)
    counts = {t: torch.zeros(count, rows, dtype=torch.int64, device=device) for t in taus}
    sizes = spectrum_sizes(task.length, task.block_size).to(device)
    zero_blocks = 0
    for flat, lo, hi, sigma in task.spectra():
        first, last = int(flat[0]), int(flat[-1]) + 1
        here = sizes[lo - 1 : hi - 1]
        inside = torch.arange(sigma.shape[-1], device=device) < here.unsqueeze(-1)
        sigma = torch.where(inside, sigma, 0.0)
        entropy[first:last, lo - 1 : hi - 1] = entropy_of(sigma, here)
        for t, out in counts.items():
            out[first:last, lo - 1 : hi - 1] = count_above(sigma, t)
        zero_blocks += int((sigma.amax(dim=-1) == 0).sum())
    shape = (*task.lead, rows)
    tolerance = {t: out.reshape(shape) for t, out in counts.items()}
    return Profile(entropy.reshape(shape), tolerance, zero_blocks, task.method)


def tolerance_ess(
    op: Operator,
    tolerance: float | Sequence[float],
    *,
    block_size: int = 1,
    method: str = "auto",
) -> Tensor | dict[float, Tensor]:
    """Tolerance-ESS (eq. 2): how many singular values of H_i lie strictly above ``tolerance``.

    Returns:
        (..., L-1) int64; for a sequence of tolerances a dictionary of such tensors.
    """
    several = isinstance(tolerance, Sequence)
    taus = list(tolerance) if several else [tolerance]
    found = measure(op, taus, block_size=block_size, method=method).tolerance
    return found if several else found[float(taus[0])]


def entropy_ess(op: Operator, *, block_size: int = 1, method: str = "auto") -> Tensor:
    """Entropy-ESS exp(-sum p log p), p = sigma / sum sigma: (..., L-1) float64, 0 for H_i = 0."""
    return measure(op, (), block_size=block_size, method=method).entropy


def causal_ess(op: Operator, tolerance: float, *, block_size: int = 1) -> Tensor:
    """Causal ESS: what a causal realisation can tell, (..., L-1) int64.

    For a recurrence the number of singular values of K_i above ``tolerance``; for a dense operator,
    whose state is its whole past, the number of past inputs, d i.
    """
    check_tolerance(tolerance)
    if isinstance(op, Recurrence):
        return controllability_counts(op, tolerance)
    task = _task(op, block_size, "auto")
    past = torch.arange(1, task.length, device=task.device) * task.block_size
    return past.expand(*task.lead, task.length - 1).clone()
