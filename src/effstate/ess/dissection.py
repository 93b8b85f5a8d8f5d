"""Nested dissection over the index: every H_i of a dense operator in O(L^3) altogether.

Both fast dense paths look at a symmetric matrix whose variables are the rows r >= i and the columns
c < i of T:

    K_i = [[p I, H_i], [H_i^T, q I]].

With p = q = -tau it has one positive eigenvalue for every singular value above tau. With p = t and
q = -t its determinant is, up to sign, t^(variables - 2s) prod (t^2 + sigma^2) over the s singular
values. Inertia and determinant both survive Schur complements (Haynsworth), and from i to i + 1 one
row leaves and one column enters. So a node of a binary tree stands for the indices [a, b): it
holds the Schur complement onto rows a..b-1 and columns a..b-1, everything that all its indices
share (rows >= b, columns < a) being eliminated and accounted for. Its left half eliminates the rows
of the right half as well, and its right half the columns of the left half.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

LEAF = 8
"""Leaves hold at least this many variables of each kind and are finished one index at a time."""

WORKSPACE_BYTES = 64 * 2**20
"""Shifts are treated together as long as their nodes fit into about this many bytes."""

NODES_PER_ENTRY = 6
"""float64 numbers that a tree needs at a time, per entry of its operator and shift."""

ONE_BY_ONE = 64
"""From this size matrices are factorised one at a time: there is nothing left to gain by batching,
and batched LU of larger matrices by several threads is wrong or hangs in some builds of MKL."""

TRUST = 100.0
"""A count by inertia is used where rounding would have to be this much larger to change it."""

_EPS = torch.finfo(torch.float64).eps
_MOVE = 4 * _EPS
_TINY = 1e-300


@dataclass(frozen=True)
class Plan:
    """How ``length`` indices of ``block`` variables each are halved: leaves of ``leaf`` indices."""

    length: int
    block: int
    leaf: int
    depth: int

    @property
    def padded(self) -> int:
        """Number of indices after padding with empty ones."""
        return self.leaf << self.depth


def plan(length: int, block: int) -> Plan:
    """The halving with the least padding."""
    smallest = max(1, math.ceil(LEAF / block))
    choices = [
        Plan(length, block, leaf, depth)
        for depth in range(length.bit_length())
        for leaf in [math.ceil(length / (1 << depth))]
        if smallest <= leaf <= 2 * smallest + 1
    ]
    if not choices:
        choices = [Plan(length, block, length, 0)]
    return min(choices, key=lambda p: (p.padded, p.leaf))


Eliminate = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor, Tensor, Tensor]]
"""(E, G, Z) -> G^T E^-1 G, G^T E^-1 Z, Z^T E^-1 Z, what to account per matrix, where it broke."""


@dataclass
class Leaves:
    """The leaves of the tree: nodes (leaves, k, ...) over k matrices.

    rows, cross, columns: the three blocks, each (leaves, k, leaf d, leaf d).
    account: (leaves, k, items), the sum of what :data:`Eliminate` accounted for on the way down.
    broken: (leaves, k), whether it broke down on the way.
    """

    rows: Tensor
    cross: Tensor
    columns: Tensor
    account: Tensor
    broken: Tensor


def dissect(
    rows: Tensor,
    cross: Tensor,
    columns: Tensor,
    account: Tensor,
    broken: Tensor,
    depth: int,
    eliminate: Eliminate,
    sign: float,
) -> Leaves:
    """Halve nodes (nodes, k, w, w) ``depth`` times; the left child comes before the right one.

    ``columns`` is stored with ``sign``: -1 as the K block itself, +1 as minus that block, so that
    with +1 both stored blocks stay positive definite.
    """
    for _ in range(depth):
        nodes, k, width, _ = rows.shape
        h = width // 2

        def quarter(x: Tensor, i: int, j: int, h: int = h) -> Tensor:
            return x[..., i * h : (i + 1) * h, j * h : (j + 1) * h]

        coupling = quarter(cross, 1, 0)
        # first halves: rows of the second half go; second halves: columns of the first half go
        pivot = torch.stack([quarter(rows, 1, 1), quarter(columns, 0, 0)], dim=1)
        same = torch.stack([quarter(rows, 1, 0), quarter(columns, 0, 1)], dim=1)
        other = torch.stack([coupling, coupling.mT], dim=1)
        flat = [x.reshape(-1, h, h) for x in (pivot, same, other)]
        ss, so, oo, found, bad = eliminate(*flat)
        ss, so, oo = (x.view(nodes, 2, k, h, h) for x in (ss, so, oo))
        new_rows = torch.stack(
            [quarter(rows, 0, 0) - ss[:, 0], quarter(rows, 1, 1) + sign * oo[:, 1]], dim=1
        )
        new_columns = torch.stack(
            [quarter(columns, 0, 0) + sign * oo[:, 0], quarter(columns, 1, 1) - ss[:, 1]], dim=1
        )
        new_cross = torch.stack(
            [quarter(cross, 0, 0) - so[:, 0], quarter(cross, 1, 1) - so[:, 1].mT], dim=1
        )
        rows, cross, columns = (x.flatten(0, 1) for x in (new_rows, new_cross, new_columns))
        account = (account.unsqueeze(1) + found.view(nodes, 2, k, -1)).flatten(0, 1)
        broken = (broken.unsqueeze(1) | bad.view(nodes, 2, k)).flatten(0, 1)
    return Leaves(rows, cross, columns, account, broken)


def index_matrices(leaves: Leaves, plan_: Plan, sign: float) -> Tensor:
    """K of every index after elimination, (leaves, leaf, k, w, w) with w = leaf d.

    Index t of a leaf keeps its rows t.. and columns ..t-1: w variables whatever t.
    """
    d, q = plan_.block, plan_.leaf
    w = q * d
    both = torch.cat(
        [
            torch.cat([leaves.rows, leaves.cross], dim=-1),
            torch.cat([leaves.cross.mT, -sign * leaves.columns], dim=-1),
        ],
        dim=-2,
    )
    picked = []
    for t in range(q):
        keep = torch.cat([torch.arange(t * d, w), torch.arange(w, w + t * d)]).to(both.device)
        picked.append(both[..., keep.unsqueeze(1), keep])
    return torch.stack(picked, dim=1)


def _padded(operator: Tensor, plan_: Plan) -> Tensor:
    """``operator`` (k, L d, L d) with empty indices behind, strictly causal between blocks."""
    d = plan_.block
    missing = (plan_.padded - plan_.length) * d
    return torch.nn.functional.pad(operator, (0, missing, 0, missing))


class _Root:
    """The first halving, where the pivots are multiples of the identity.

    It only needs the two Gram matrices of T[m:, :m], which all shifts share.
    """

    def __init__(self, operator: Tensor, plan_: Plan) -> None:
        self.plan = plan_
        self.operator = _padded(operator, plan_)
        size = self.operator.shape[-1]
        if plan_.depth:
            self.h = size // 2
            low = self.operator[:, self.h :, : self.h]
            self.past, self.future = low.mT @ low, low @ low.mT
        else:
            self.h = size

    def nodes(self, diagonal: Tensor) -> tuple[Tensor, Tensor, Tensor, int]:
        """rows, cross, columns (nodes, k s, h, h) and the depth that is left.

        Args:
            diagonal: (k, s), p = -tau or p = t; shift j of operator o is matrix o s + j.
        """
        h, (k, s) = self.h, diagonal.shape
        eye = torch.eye(h, dtype=diagonal.dtype, device=diagonal.device)
        bare = diagonal.view(k, s, 1, 1) * eye
        if not self.plan.depth:
            cross = self.operator.unsqueeze(1).expand(k, s, h, h)
            parts = [x.unsqueeze(0) for x in (bare, cross, bare)]
            depth = 0
        else:
            weight = 1.0 / diagonal.abs().view(k, s, 1, 1)
            first = self.operator[:, None, :h, :h].expand(k, s, h, h)
            second = self.operator[:, None, h:, h:].expand(k, s, h, h)
            parts = [
                torch.stack([bare, bare + weight * self.future.unsqueeze(1)]),
                torch.stack([first, second]),
                torch.stack([bare + weight * self.past.unsqueeze(1), bare]),
            ]
            depth = self.plan.depth - 1
        rows, cross, columns = (x.reshape(len(x), k * s, h, h) for x in parts)
        return rows, cross, columns, depth


def _solve(e: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """E^-1 G (k, h, ...), not finite where E is singular, and the sizes of E's pivots (k, h)."""
    if e.shape[-1] < ONE_BY_ONE:
        lu, order, _ = torch.linalg.lu_factor_ex(e)
        return torch.linalg.lu_solve(lu, order, g), lu.diagonal(dim1=-2, dim2=-1).abs()
    out, pivots = torch.empty_like(g), g.new_empty(g.shape[:-1])
    for k, one in enumerate(e):
        lu, order, _ = torch.linalg.lu_factor_ex(one)
        out[k], pivots[k] = torch.linalg.lu_solve(lu, order, g[k]), lu.diagonal().abs()
    return out, pivots


def _eliminate_indefinite(e: Tensor, g: Tensor, z: Tensor) -> tuple[Tensor, ...]:
    """Eliminate e; account its positive eigenvalues and log |det e|; say where it broke down."""
    h = e.shape[-1]
    factor, pivots, _ = torch.linalg.ldl_factor_ex(e)
    single = pivots > 0
    # a 2 x 2 pivot of Bunch and Kaufman is indefinite: one eigenvalue of either sign
    positive = (single & (factor.diagonal(dim1=-2, dim2=-1) > 0)).sum(-1) + (~single).sum(-1) // 2
    solved, sizes = _solve(e, torch.cat([g, z], dim=-1))
    gt, zt, sg, sz = g.mT, z.mT, solved[..., :h], solved[..., h:]
    ss, so, oo = gt @ sg, gt @ sz, zt @ sz
    # a sum is not finite if one of its terms is not, and costs a fraction of testing each
    broken = ~torch.isfinite(ss.sum((-2, -1)) + so.sum((-2, -1)) + oo.sum((-2, -1)))
    log_det = sizes.log().sum(-1)
    # what is left of E behind its largest entries has to be more than their rounding
    largest = torch.maximum(e.amax((-2, -1)), -e.amin((-2, -1)))
    broken |= ~(sizes.amin(-1) > TRUST * _EPS * largest)
    if bool(broken.any()):
        keep = (~broken).view(-1, 1, 1)
        ss, so, oo = (torch.where(keep, x, 0.0) for x in (ss, so, oo))
        log_det = torch.where(broken, 0.0, log_det)
    return ss, so, oo, torch.stack([positive.to(e.dtype), log_det], dim=-1), broken


def counts_above(operator: Tensor, tolerances: Tensor, block_size: int = 1) -> tuple[Tensor, Tensor]:
    """Number of singular values of every H_i above each tolerance by inertia, and how sure it is.

    Everything is computed twice, the second time with every entry of T moved by a few roundings.
    Elimination amplifies rounding where pivots are small beside what they couple (small tolerances,
    or one next to a singular value of a shared part), and it amplifies these changes alike. So the
    two runs tell how far a count is from being changed by rounding.

    Args:
        operator: (k, L d, L d) float64, zero above the block diagonal.
        tolerances: (k, s) float64, positive: each operator has its own.

    Returns:
        counts (k, s, L-1) int64, and trust (k, s, L-1) float64: one over the relative difference of
        the two runs, the largest of any eigenvalue of the last form and of the determinant of what
        was eliminated before. 0 where the runs disagree or a pivot was nearly singular.
    """
    tree = plan(operator.shape[-1] // block_size, block_size)
    # fixed, so that the same operator has the same result
    noise = torch.rand(operator.shape[-2:], generator=torch.Generator().manual_seed(0)).to(operator)
    moved = operator * (1.0 + _MOVE * (noise - 0.5))
    roots = _Root(operator, tree), _Root(moved, tree)
    parts = []
    for group in _shift_groups(tolerances, operator):
        first, second = (_inertia(root, group) for root in roots)
        counts, values, eliminated, broken = first
        other_counts, other_values, other_eliminated, _ = second
        trust = (values.abs() / ((values - other_values).abs() + _TINY)).amin(-1)
        # a pivot's smallest eigenvalue that moves by a factor moves the determinant by that factor
        trust = torch.minimum(trust, 1.0 / ((eliminated - other_eliminated).abs() + _TINY))
        # both runs may lose the same in the rounding of much larger entries
        trust = torch.minimum(trust, values.abs().amin(-1) / (_EPS * values.abs().amax(-1)))
        agreed = (counts == other_counts) & ~broken & trust.isfinite()
        both = counts, torch.where(agreed, trust, 0.0)
        parts.append([_by_index(x, len(operator), tree.length) for x in both])
    counts, trust = (torch.cat(x, dim=1) for x in zip(*parts, strict=True))
    return counts, trust


def _shift_groups(shifts: Tensor, operator: Tensor) -> tuple[Tensor, ...]:
    """Shifts (k, s) in groups (k, some) whose nodes fit into the workspace, at least one each."""
    bytes_per_shift = 8 * NODES_PER_ENTRY * operator.numel()
    return shifts.split(max(1, WORKSPACE_BYTES // max(1, bytes_per_shift)), dim=1)


def _by_index(x: Tensor, k: int, length: int) -> Tensor:
    """(leaves, leaf, k s) of all padded indices as (k, s, L-1)."""
    return x.flatten(0, 1).T.reshape(k, -1, x.shape[0] * x.shape[1])[..., 1:length]


def _inertia(root: _Root, tolerances: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Counts (leaves, leaf, k s), eigenvalues of the last forms, log |det| of all that was eliminated
    before them, and whether a pivot broke down."""
    rows, cross, columns, depth = root.nodes(-tolerances)
    account = rows.new_zeros(*rows.shape[:2], 2)
    broken = torch.zeros(rows.shape[:2], dtype=torch.bool, device=rows.device)
    leaves = dissect(rows, cross, columns, account, broken, depth, _eliminate_indefinite, -1.0)
    values = torch.linalg.eigvalsh(index_matrices(leaves, root.plan, -1.0))
    positive, log_det = leaves.account.unsqueeze(1).unbind(-1)
    counts = positive.round().to(torch.int64) + (values > 0).sum(-1)
    broken = leaves.broken.unsqueeze(1).expand_as(counts)
    return counts, values, log_det.expand_as(counts), broken


def _eliminate_definite(e: Tensor, g: Tensor, z: Tensor) -> tuple[Tensor, ...]:
    """Eliminate e; account log det e; report where e is not numerically positive."""
    h = e.shape[-1]
    right = torch.cat([g, z], dim=-1)
    if h < ONE_BY_ONE:
        factor, info = torch.linalg.cholesky_ex(e)
        solved = torch.linalg.solve_triangular(factor, right, upper=False)
    else:
        factor, info = torch.empty_like(e), torch.empty(len(e), dtype=torch.int32, device=e.device)
        solved = torch.empty_like(right)
        for k, one in enumerate(e):
            factor[k], info[k] = torch.linalg.cholesky_ex(one)
            solved[k] = torch.linalg.solve_triangular(factor[k], right[k], upper=False)
    log_det = 2.0 * factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    sg, sz = solved[..., :h], solved[..., h:]
    ss, so, oo = sg.mT @ sg, sg.mT @ sz, sz.mT @ sz
    broken = (info != 0) | ~torch.isfinite(log_det)
    if bool(broken.any()):
        keep = (~broken).view(-1, 1, 1)
        ss, so, oo = (torch.where(keep, x, 0.0) for x in (ss, so, oo))
        log_det = torch.where(broken, 0.0, log_det)
    return ss, so, oo, log_det, broken


def log_determinants(operator: Tensor, shifts: Tensor, block_size: int = 1) -> Tensor:
    """sum log(1 + sigma^2 / t^2) over the singular values sigma of every H_i, for every shift t.

    Args:
        operator: (k, L d, L d) float64, zero above the block diagonal, entries of order 1.
        shifts: (s,) float64, positive.

    Returns:
        (k, s, L-1); not finite where t^2 vanishes beside the largest sigma^2 in float64.
    """
    tree = plan(operator.shape[-1] // block_size, block_size)
    root = _Root(operator, tree)
    each = shifts.expand(len(operator), -1)
    parts = [_log_determinants(root, part) for part in _shift_groups(each, operator)]
    return torch.cat(parts, dim=1)


def _log_determinants(root: _Root, shifts: Tensor) -> Tensor:
    tree, (k, s) = root.plan, shifts.shape
    rows, cross, columns, depth = root.nodes(shifts)
    variables = tree.padded * tree.block
    account = (variables - rows.shape[-1]) * shifts.log().reshape(1, k * s, 1)
    account = account.expand(len(rows), k * s, 1)
    broken = torch.zeros(rows.shape[:2], dtype=torch.bool, device=rows.device)
    leaves = dissect(rows, cross, columns, account, broken, depth, _eliminate_definite, 1.0)
    last = index_matrices(leaves, tree, 1.0)
    if last.shape[-1] < ONE_BY_ONE:
        log_det = torch.linalg.slogdet(last).logabsdet
    else:
        flat = last.flatten(0, -3)
        log_det = torch.stack([torch.linalg.slogdet(x).logabsdet for x in flat])
        log_det = log_det.view(last.shape[:-2])
    total = leaves.account.squeeze(-1).unsqueeze(1) + log_det
    total = torch.where(leaves.broken.unsqueeze(1), float("nan"), total)
    # K_i has as many variables as T has rows; each adds log t that no singular value stands for
    return _by_index(total, k, tree.length) - variables * shifts.log().view(k, s, 1)
