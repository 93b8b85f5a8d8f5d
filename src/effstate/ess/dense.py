"""Operators given as a dense lower triangular T: validation, and the plain way to all spectra."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from .errors import EssError, check_real_floating, first_true, operator_name

WORKSPACE_BYTES = 128 * 2**20
"""Operators are converted to float64 and handled in groups of about this many bytes."""

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
            # a column-major view spares LAPACK's own copy of the transpose
            sigma = svdvals(block, operator.shape[:-2], flat, i)
            yield flat, i, i + 1, sigma.unsqueeze(1)


def svdvals(block: Tensor, lead: tuple[int, ...], flat: Tensor, index: int) -> Tensor:
    """torch.linalg.svdvals, or one sentence about the first operator of the batch that fails."""
    try:
        sigma = torch.linalg.svdvals(block)
    except torch.linalg.LinAlgError as error:
        sigma, cause = block.new_full((len(block), 1), float("nan")), str(error)
    else:
        cause = "its singular values are not finite"
    bad = first_true(~torch.isfinite(sigma).all(dim=-1))
    if bad is None:
        return sigma
    where = operator_name(
        tuple(int(k) for k in torch.unravel_index(flat[bad[0]], lead)) if lead else ()
    )
    raise EssError(f"{where} has no spectrum at index {index}: {cause.splitlines()[0]}.")
