"""Log determinants of every H_i as in :mod:`dissection`, on triangular factors, to full precision.

For a shift t, K_i / t = [[I, H_i / t], [H_i^T / t, -I]]. The rows' block of a node stays positive
definite and the columns' block negative definite. Forming them squares H_i, and what is smaller than
1e-8 of the largest singular value drowns in rounding. So a node holds triangles instead: its blocks
are R R^T and -C^T C, with R and C upper triangular. Eliminating the last rows or the first columns
then leaves a part of the same triangle, and what elimination adds to the other block is one QR. Every
log(1 + sigma^2 / t^2) comes out with an error of a few roundings of sigma_max / t.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .batches import in_parallel
from .dissection import Plan, _by_index, _padded, _shift_groups, plan


def _triangle(matrices: Tensor) -> Tensor:
    """Upper triangular R (..., n, n) with R^T R = M^T M for M (..., p, n), p >= n."""
    flat = matrices.flatten(0, -3)
    out = in_parallel(lambda x: torch.linalg.qr(x, mode="r").R, flat)
    return out.view(*matrices.shape[:-2], *out.shape[-2:])


def _log_diagonal(triangle: Tensor) -> Tensor:
    """log det of R^T R: (...)."""
    return 2.0 * triangle.diagonal(dim1=-2, dim2=-1).abs().log().sum(-1)


def exact_log_determinants(operator: Tensor, shifts: Tensor, block_size: int = 1) -> Tensor:
    """sum log(1 + sigma^2 / t^2) over the singular values sigma of every H_i, for every shift t.

    Args, returns: as :func:`dissection.log_determinants`; small shifts lose nothing to squaring.
    """
    tree = plan(operator.shape[-1] // block_size, block_size)
    padded = _padded(operator, tree)
    each = shifts.expand(len(operator), -1)
    parts = [_dissect(padded, part, tree) for part in _shift_groups(each, operator)]
    return torch.cat(parts, dim=1)


def _dissect(padded: Tensor, shifts: Tensor, tree: Plan) -> Tensor:
    k, s = shifts.shape
    width = padded.shape[-1]
    cross = (padded.unsqueeze(1) / shifts.view(k, s, 1, 1)).reshape(1, k * s, width, width)
    rows = torch.eye(width, dtype=cross.dtype, device=cross.device).expand(1, k * s, width, width)
    columns, account = rows, cross.new_zeros(1, k * s)
    for level in range(tree.depth):
        rows, cross, columns, account = _halve(rows, cross, columns, account, level == 0)
    found = _leaves(rows, cross, columns, account, tree)
    return _by_index(found, k, tree.length)


def _halve(
    rows: Tensor, cross: Tensor, columns: Tensor, account: Tensor, root: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Nodes (nodes, k, w, w) into (2 nodes, k, w / 2, w / 2), the left child before the right one.

    At the root both triangles are the identity.
    """
    h = rows.shape[-1] // 2
    rows_1, rows_12, rows_2 = rows[..., :h, :h], rows[..., :h, h:], rows[..., h:, h:]
    columns_1, columns_12, columns_2 = columns[..., :h, :h], columns[..., :h, h:], columns[..., h:, h:]
    low = cross[..., h:, :h]
    left, right = cross[..., :h, :h], cross[..., h:, h:]
    by_rows, by_columns = low, low.mT
    left_account = right_account = account
    if not root:
        by_rows = torch.linalg.solve_triangular(rows_2, low, upper=True)
        by_columns = torch.linalg.solve_triangular(columns_1.mT, low.mT, upper=False)
        left, right = left - rows_12 @ by_rows, right - by_columns.mT @ columns_12
        left_account = account + _log_diagonal(rows_2)
        right_account = account + _log_diagonal(columns_1)
    # R R^T with R upper triangular is R'^T R' of the reversed order
    stacked = low.new_empty(len(rows), 2, rows.shape[1], 2 * h, h)
    stacked[:, 0, :, :h], stacked[:, 0, :, h:] = columns_1, by_rows
    stacked[:, 1, :, :h], stacked[:, 1, :, h:] = rows_2.mT.flip(-1), by_columns.flip(-1)
    added = _triangle(stacked)
    new_rows = torch.stack([rows_1, added[:, 1].mT.flip(-1, -2)], dim=1)
    new_columns = torch.stack([added[:, 0], columns_2], dim=1)
    new_cross = torch.stack([left, right], dim=1)
    new_account = torch.stack([left_account, right_account], dim=1)
    rows, cross, columns, account = (
        x.flatten(0, 1) for x in (new_rows, new_cross, new_columns, new_account)
    )
    return rows, cross, columns, account


def _leaves(rows: Tensor, cross: Tensor, columns: Tensor, account: Tensor, tree: Plan) -> Tensor:
    """The log determinant of every index, (leaves, leaf, k): index t keeps rows t.., columns ..t-1."""
    found = []
    for t in range(0, tree.leaf * tree.block, tree.block):
        rest = rows[..., t:, t:]
        here = account + _log_diagonal(rest)
        if t:
            solved = torch.linalg.solve_triangular(rest, cross[..., t:, :t], upper=True)
            here = here + _log_diagonal(_triangle(torch.cat([columns[..., :t, :t], solved], dim=-2)))
        found.append(here)
    return torch.stack(found, dim=1)
