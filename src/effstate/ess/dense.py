"""Operators given as a dense lower triangular T: validation, the plain way, and the fast ways.

The plain way is one SVD for every index. The fast ways (:mod:`dissection`, :mod:`quadrature`) know
when they are not sure, and then leave the index to the plain way.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from .batches import in_parallel
from .dissection import TRUST, counts_above
from .errors import EssError, check_real_floating, first_true, operator_name
from .quadrature import PRECISE_BOUND, entropy_by_determinants, precise_entropy
from .summary import spectrum_sizes

WORKSPACE_BYTES = 128 * 2**20
"""Operators are converted to float64 and handled in groups of about this many bytes."""

ENTROPY_BOUND = 1e-3
"""The fast entropy-ESS is used where the proven relative error of its fit is at most this."""

_SMALLEST_TOLERANCE = 1e-9
_CAUSAL_ROUNDING = 64.0


def check_operator(value: object, block_size: int) -> Tensor:
    """Return a valid dense operator (..., L d, L d) as given, or raise :class:`EssError`.

    Checked: real floating point, square, at least 2 blocks of ``block_size``, finite, and zero
    above the diagonal (between blocks) up to 64 roundings of its own dtype at its largest entry.
    """
    operator = check_real_floating(value, "an operator")
    shape = tuple(operator.shape)
    if isinstance(block_size, bool) or not isinstance(block_size, int) or block_size < 1:
        raise EssError(f"a block size must be an integer of at least 1, not {block_size!r}.")
    if operator.ndim < 2 or shape[-1] != shape[-2]:
        raise EssError(f"an operator must be square, (..., L, L), not {shape}.")
    if shape[-1] % block_size:
        raise EssError(f"an operator {shape} has no whole number of blocks of {block_size}.")
    length = shape[-1] // block_size
    if length < 2:
        raise EssError(f"an operator needs at least 2 indices, {shape} has {length}.")
    bad = first_true(~torch.isfinite(operator))
    if bad is not None:
        *lead, row, column = bad
        where = operator_name(tuple(lead))
        raise EssError(f"{where} is not finite at row {row}, column {column}.")
    largest = operator.abs().amax(dim=(-2, -1), keepdim=True) if operator.numel() else operator
    block = torch.arange(shape[-1], device=operator.device) // block_size
    above = block.unsqueeze(0) > block.unsqueeze(1)
    limit = _CAUSAL_ROUNDING * torch.finfo(operator.dtype).eps * largest
    bad = first_true((operator.abs() > limit) & above)
    if bad is not None:
        *lead, row, column = bad
        where = operator_name(tuple(lead))
        raise EssError(f"{where} is not causal: row {row}, column {column} is not zero.")
    return operator


def operator_groups(operator: Tensor) -> Iterator[tuple[int, int, Tensor]]:
    """(first, last, float64 operators (last-first, N, N)) over the flattened leading dimensions."""
    size = operator.shape[-1]
    count = math.prod(operator.shape[:-2])
    together = max(1, WORKSPACE_BYTES // (8 * size * size))
    flat = operator.reshape(count, size, size)
    for first in range(0, count, together):
        last = min(first + together, count)
        yield first, last, flat[first:last].double()


def dense_spectra(operator: Tensor, block_size: int) -> Iterator[tuple[Tensor, int, int, Tensor]]:
    """Singular values of all H_i, one index at a time, batched over operators.

    Yields (flat, i, i+1, sigma (len(flat), 1, d min(i, L-i))), descending.
    """
    d, length = block_size, operator.shape[-1] // block_size
    for first, last, group in operator_groups(operator):
        flat = torch.arange(first, last)
        for i in range(1, length):
            block = group[:, i * d :, : i * d]
            sigma = svdvals(block, operator.shape[:-2], flat, i)
            yield flat, i, i + 1, sigma.unsqueeze(1)


def svdvals(block: Tensor, lead: tuple[int, ...], flat: Tensor, index: int) -> Tensor:
    """torch.linalg.svdvals, or one sentence about the first operator of the batch that fails."""
    try:
        sigma = in_parallel(torch.linalg.svdvals, block)
    except torch.linalg.LinAlgError as error:
        sigma, cause = block.new_full((len(block), 1), float("nan")), str(error)
    else:
        cause = "its singular values are not finite"
    bad = first_true(~torch.isfinite(sigma).all(dim=-1))
    if bad is None:
        return sigma
    where = operator_name(tuple(int(k) for k in torch.unravel_index(flat[bad[0]], lead)) if lead else ())
    raise EssError(f"{where} has no spectrum at index {index}: {cause.splitlines()[0]}.")


def scaled_past(operator: Tensor, block_size: int) -> tuple[Tensor, Tensor, Tensor]:
    """The strictly causal part of (k, N, N) at norm at most 1, its scale, and which H_i are 0.

    The scale sqrt(||T||_1 ||T||_inf) bounds every singular value of every H_i. Returns
    ``(k, N, N)``, ``(k,)`` and ``(k, L-1)`` bool.
    """
    d = block_size
    length = operator.shape[-1] // d
    block = torch.arange(length, device=operator.device).repeat_interleave(d)
    past = torch.where(block.unsqueeze(1) > block, operator, 0.0)
    absolute = past.abs()
    norm = absolute.sum(-1).amax(-1).sqrt() * absolute.sum(-2).amax(-1).sqrt()
    norm = torch.where(norm > 0, norm, 1.0)
    # H_i is zero unless a row at i or later has its first nonzero column before i
    first = torch.where(past != 0, block, length).amin(-1).unflatten(-1, (length, d)).amin(-1)
    reach = first.flip(-1).cummin(-1).values.flip(-1)
    index = torch.arange(1, length, device=operator.device)
    return past / norm.view(-1, 1, 1), norm, reach[:, 1:] >= index


def fast_counts(past: Tensor, tolerances: Tensor, block_size: int) -> tuple[Tensor, Tensor]:
    """Tolerance-ESS by inertia, and where it is not sure.

    Args:
        past: (k, N, N) from :func:`scaled_past`; tolerances: (k, s) on the same scale.

    Returns:
        counts (k, s, L-1) int64, and a mask (k, s, L-1): these have to be settled by SVD.
    """
    counts, trust = counts_above(past, tolerances.clamp_min(_SMALLEST_TOLERANCE), block_size)
    unsure = (trust < TRUST) | (tolerances < _SMALLEST_TOLERANCE).unsqueeze(-1)
    return counts, unsure


def fast_entropy(
    past: Tensor, zero: Tensor, block_size: int, *, precise: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """Entropy-ESS by determinants, its proven relative error, and where that is too large.

    Args:
        past: (k, N, N) and zero: (k, L-1) from :func:`scaled_past`.
        precise: with the fit of about 1e-9 instead of the one of about 1e-5.

    Returns:
        entropy, bound, and the mask of those to be settled by SVD, all (k, L-1).
    """
    sizes = spectrum_sizes(zero.shape[-1] + 1, block_size).to(past.device)
    work, limit = (
        (precise_entropy, PRECISE_BOUND) if precise else (entropy_by_determinants, ENTROPY_BOUND)
    )
    entropy, bound = work(past, sizes, block_size)
    entropy, bound = (torch.where(zero, 0.0, x) for x in (entropy, bound))
    return entropy, bound, ~(bound <= limit)


def settle(
    group: Tensor, open_: Tensor, block_size: int, lead: tuple[int, ...], first: int
) -> Iterator[tuple[Tensor, int, Tensor]]:
    """Spectra of the H_i that ``open_`` (k, L-1) marks: (operators, i, sigma), index by index.

    group: (k, N, N) float64, the operators first.. of the flattened ``lead``.
    """
    d = block_size
    for i in (torch.nonzero(open_.any(0)).squeeze(-1) + 1).tolist():
        chosen = torch.nonzero(open_[:, i - 1]).squeeze(-1)
        sigma = svdvals(group[chosen, i * d :, : i * d], lead, chosen.cpu() + first, i)
        yield chosen, i, sigma
