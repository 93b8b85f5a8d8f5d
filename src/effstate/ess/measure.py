"""What a caller uses: spectra, tolerance-ESS, entropy-ESS, causal ESS, and all of them at once."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from .dense import (
    check_operator,
    dense_spectra,
    fast_counts,
    fast_entropy,
    operator_groups,
    scaled_past,
    settle,
)
from .errors import EssError, check_tolerance
from .recurrent import Recurrence, controllability_counts, recurrent_spectra
from .reference import reference_singular_values
from .summary import count_above, entropy_of, spectrum_sizes

Operator = Tensor | Recurrence
METHODS = ("auto", "reference", "svd", "qr", "dissection", "determinants")
_WITHOUT_SPECTRA = ("dissection", "determinants")

DISSECTION_FROM = {"counts": 48, "entropy": 192}
"""method="auto" leaves dense operators with at least this many rows to "dissection": "counts" where
only tolerance-ESS is asked for, "entropy" else (one pass of SVDs serves every tolerance and it)."""


@dataclass(frozen=True, eq=False)
class Profile:
    """The ESS of a batch of operators at every index.

    Attributes:
        entropy: entropy-ESS (..., L-1), float64.
        tolerance: tolerance-ESS (..., L-1), int64, by tolerance.
        zero_blocks: how many H_i, over all operators, are zero (their entropy-ESS is 0).
        method: the code path that ran.
        counters: what that path counts, by name. "dissection" and "determinants" count the
            (operator, index) pairs that they were not sure of and settled by SVD:
            "counts_settled", "entropies_settled".
        entropy_bound: proven bound of the relative error of ``entropy`` apart from rounding; 0
            where it comes from spectra.
    """

    entropy: Tensor
    tolerance: dict[float, Tensor]
    zero_blocks: int
    method: str
    counters: dict[str, int] = field(default_factory=dict)
    entropy_bound: float = 0.0


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
        return self.op.device

    def spectra(self) -> Iterator[tuple[Tensor, int, int, Tensor]]:
        """(flat operators, lo, hi, sigma): see :func:`recurrent_spectra`."""
        if self.method == "reference":
            full = reference_singular_values(self.op, block_size=self.block_size)
            full = full.reshape(-1, *full.shape[-2:])
            yield torch.arange(len(full)), 1, self.length, full
        elif isinstance(self.op, Recurrence) and self.method == "qr":
            yield from recurrent_spectra(self.op)
        else:
            yield from dense_spectra(self.dense(), self.block_size)

    def dense(self) -> Tensor:
        """The operator as a matrix; refused where a recurrence's transitions overflow."""
        if isinstance(self.op, Recurrence):
            return check_operator(self.op.operator(), self.block_size)
        return self.op


def _task(op: Operator, block_size: int, method: str, want: str) -> _Task:
    if method not in METHODS:
        raise EssError(f"no method {method!r}: choose one of {', '.join(METHODS)}.")
    if method in _WITHOUT_SPECTRA and want == "spectra":
        raise EssError(f"method {method!r} has no singular values, only ESS.")
    if isinstance(op, Recurrence):
        if block_size not in (1, op.block_size):
            raise EssError(f"block_size {block_size} is not the recurrence's own {op.block_size}.")
        d, length = op.block_size, op.length
        if method == "auto":
            method = "svd" if 2 * op.state_size >= d * length else "qr"
        width = min(op.state_size, d * (length // 2)) if method == "qr" else d * (length // 2)
        return _Task(op, op.batch_shape, length, d, width, method)
    if method == "qr":
        raise EssError("method 'qr' needs a Recurrence, not a dense operator.")
    op = check_operator(op, block_size)
    length = op.shape[-1] // block_size
    lead = tuple(op.shape[:-2])
    if method == "auto":
        smallest = DISSECTION_FROM.get(want, math.inf)
        method = "dissection" if op.shape[-1] >= smallest else "svd"
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
    task = _task(op, block_size, method, "spectra")
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
    """Entropy-ESS and tolerance-ESS of every operator at every index.

    Methods:
        "qr": a recurrence, by the recursion over triangles; exact up to rounding.
        "svd": an SVD for every index; exact up to rounding. From spectra, both ESS in one pass.
        "dissection": a dense operator in O(L^3): counts by inertia, the same as by SVD wherever no
            singular value lies within 1e-12 of the tolerance (relative to the largest one), and
            entropies by determinants, fitted with a proven relative error of at most 1e-3, about
            1e-5 in practice (see ``Profile.entropy_bound``). Where it is not sure, an SVD decides.
        "determinants": the same counts; entropies with a relative error of at most 1e-8, proven
            apart from rounding; where that cannot be proven, an SVD decides. In O(L^3), but slower
            than "dissection".
        "reference": the definition.
        "auto": "qr" for a recurrence (its operator's "svd" where the state is as large as half the
            operator); for dense operators of at least 192 rows (48 where only counts are asked
            for, as by :func:`tolerance_ess`) "dissection", else "svd".

    Memory beyond the input and the result is bounded, whatever the number of operators.

    Args, raises: as :func:`singular_values`; ``tolerances`` are absolute.
    """
    return _measure(op, tolerances, block_size, method, entropy=True)


def _measure(
    op: Operator, tolerances: Sequence[float], block_size: int, method: str, *, entropy: bool
) -> Profile:
    taus = [check_tolerance(t) for t in tolerances]
    task = _task(op, block_size, method, "entropy" if entropy else "counts")
    count, rows = math.prod(task.lead), task.length - 1
    out = _Sheet(
        torch.zeros(count, rows, dtype=torch.float64, device=task.device),
        {t: torch.zeros(count, rows, dtype=torch.int64, device=task.device) for t in taus},
    )
    fill = _by_dissection if task.method in _WITHOUT_SPECTRA else _by_spectra
    fill(task, out, entropy)
    shape = (*task.lead, rows)
    tolerance = {t: x.reshape(shape) for t, x in out.counts.items()}
    return Profile(
        out.entropy.reshape(shape),
        tolerance,
        out.zero_blocks,
        task.method,
        out.counters,
        out.entropy_bound,
    )


@dataclass
class _Sheet:
    """What is being filled in: entropy and counts, (operators, L-1) each."""

    entropy: Tensor
    counts: dict[float, Tensor]
    zero_blocks: int = 0
    counters: dict[str, int] = field(default_factory=dict)
    entropy_bound: float = 0.0


def _by_spectra(task: _Task, out: _Sheet, entropy: bool) -> None:
    sizes = spectrum_sizes(task.length, task.block_size).to(task.device)
    for flat, lo, hi, sigma in task.spectra():
        first, last = int(flat[0]), int(flat[-1]) + 1
        here = sizes[lo - 1 : hi - 1]
        # beyond min(i, L-i) a factored form leaves rounding, not singular values
        inside = torch.arange(sigma.shape[-1], device=sigma.device) < here.unsqueeze(-1)
        sigma = torch.where(inside, sigma, 0.0)
        if entropy:
            out.entropy[first:last, lo - 1 : hi - 1] = entropy_of(sigma, here)
        for t, counts in out.counts.items():
            counts[first:last, lo - 1 : hi - 1] = count_above(sigma, t)
        out.zero_blocks += int((sigma.amax(dim=-1) == 0).sum())


def _by_dissection(task: _Task, out: _Sheet, entropy: bool) -> None:
    d, taus = task.block_size, list(out.counts)
    sizes = spectrum_sizes(task.length, d).to(task.device)
    out.counters = {"counts_settled": 0, "entropies_settled": 0}
    for first, last, group in operator_groups(task.dense()):
        past, norm, zero = scaled_past(group, d)
        out.zero_blocks += int(zero.sum())
        open_counts = open_entropy = torch.zeros_like(zero)
        if taus:
            scaled = torch.tensor(taus, dtype=torch.float64, device=norm.device) / norm.view(-1, 1)
            counts, unsure = fast_counts(past, scaled, d)
            open_counts = unsure.any(1) & ~zero
            for j, t in enumerate(taus):
                out.counts[t][first:last] = torch.where(zero, 0, counts[:, j])
        if entropy:
            values, bound, open_entropy = fast_entropy(
                past, zero, d, precise=task.method == "determinants"
            )
            out.entropy[first:last] = values
            certain = bound[~open_entropy]
            if certain.numel():
                out.entropy_bound = max(out.entropy_bound, float(certain.max()))
        out.counters["counts_settled"] += int(open_counts.sum())
        out.counters["entropies_settled"] += int(open_entropy.sum())
        either = open_counts | open_entropy
        for chosen, i, sigma in settle(group, either, d, task.lead, first):
            for t in taus:
                out.counts[t][first + chosen, i - 1] = count_above(sigma, t)
            if entropy:
                exact = entropy_of(sigma.unsqueeze(1), sizes[i - 1 : i])
                out.entropy[first + chosen, i - 1] = exact.squeeze(1)


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
    found = _measure(op, taus, block_size, method, entropy=False).tolerance
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
    task = _task(op, block_size, "auto", "spectra")
    past = torch.arange(1, task.length, device=task.device) * task.block_size
    return past.expand(*task.lead, task.length - 1).clone()
