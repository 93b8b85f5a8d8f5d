"""Linear recurrences, and the spectra of all their H_i without ever forming the operator.

H_i = O_i K_i with O_i (L-i, n) and K_i (n, i). With O_i = Q R_O(i) and K_i^T = Q' R_K(i) the
singular values of H_i are those of the n x n matrix R_O(i) R_K(i)^T, and both triangles follow a
recursion over the index (the square-root form of the Gramians: nothing is squared, nothing lost):

    R_K(i+1) = qr([R_K(i) A_i^T ; B_i^T]),      R_O(i) = qr([C_i ; R_O(i+1) A_i]).

The recursion runs over blocks of about n indices. Only the block borders are sequential; inside the
blocks every index is one member of a batched factorisation. Cost O(L n^3), memory O(L n) plus a
fixed workspace.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from .batches import in_parallel
from .errors import EssError, check_real_floating, check_tolerance, first_true, operator_name

_SQUARE_LIMIT = 1e-7
"""Squared condition from which the Gram matrix is not trusted: the error is 1e-12 there."""

_SMALLEST_SQUARE = 1e-250

WORKSPACE_BYTES = 24 * 2**20
"""Upper bound on the float64 workspace of one group of blocks, in bytes."""


def _readings(a: Tensor, b: Tensor, c: Tensor) -> list[tuple[bool, bool]]:
    """All (dense, mimo) readings of the shapes that are consistent in length, state and width."""
    found = []
    for mimo in (False, True):
        for dense in (False, True):
            core_a, core_b = 2 + dense, 2 + mimo
            if a.ndim < core_a or b.ndim < core_b or c.ndim < core_b:
                continue
            length, state = b.shape[b.ndim - core_b], b.shape[b.ndim - core_b + 1]
            width = (b.shape[-1],) if mimo else ()
            want_a = (length, state, state) if dense else (length, state)
            want_c = (length, *width, state)
            if tuple(a.shape[-core_a:]) != want_a or tuple(c.shape[-core_b:]) != want_c:
                continue
            try:
                torch.broadcast_shapes(a.shape[:-core_a], b.shape[:-core_b], c.shape[:-core_b])
            except RuntimeError:
                continue
            found.append((length, dense, mimo))
    long = [reading for reading in found if reading[0] > 1]
    return [(dense, mimo) for _, dense, mimo in long or found]


@dataclass(frozen=True, eq=False)
class Recurrence:
    """A linear recurrence, eq. 1: s_{i+1} = A_i s_i + B_i u_i, y_i = C_i s_i + D_i u_i.

    Its operator is T_ij = C_i A_{i-1} ... A_{j+1} B_j for i > j and D_i for i = j. A mixer that
    reads its current input into the state first (S_i = a_i S_{i-1} + B_i u_i, y_i = C_i S_i) has to
    be brought to this form by the caller: C'_i = C_i a_i, A_i = a_i.

    Args:
        A: ``(..., L, n)`` diagonal, or ``(..., L, n, n)``.
        B: ``(..., L, n)``, or ``(..., L, n, d)`` with d inputs at every index.
        C: ``(..., L, n)``, or ``(..., L, d, n)`` with d outputs at every index.
        D: ``(..., L)``, or ``(..., L, d, d)``; no ESS depends on it. Default: zero.
        dense: whether A is dense; only needed where the shapes fit more than one reading. Without it
            and ``mimo`` the reading whose leading dimensions have equal rank wins, and of two such
            the diagonal one with one input.
        mimo: whether there are d inputs and outputs; likewise.

    The leading dimensions broadcast against each other. No copy is made of any input.

    Raises:
        EssError: shapes that fit no reading or several, L < 2, n < 1, or a non-finite entry.
    """

    A: Tensor
    B: Tensor
    C: Tensor
    D: Tensor | None = None
    dense: bool | None = None
    mimo: bool | None = None
    batch_shape: tuple[int, ...] = field(init=False, default=())

    def __post_init__(self) -> None:
        a, b, c = (check_real_floating(getattr(self, name), name) for name in "ABC")
        shapes = f"A {tuple(a.shape)}, B {tuple(b.shape)}, C {tuple(c.shape)}"
        found = [
            reading
            for reading in _readings(a, b, c)
            if self.dense in (None, reading[0]) and self.mimo in (None, reading[1])
        ]
        if not found:
            raise EssError(
                f"{shapes} are no recurrence: expected A (..., L, n) or (..., L, n, n) with "
                "B and C (..., L, n), or with B (..., L, n, d) and C (..., L, d, n)."
            )
        if len(found) > 1:
            found = [
                (dense, mimo)
                for dense, mimo in found
                if a.ndim - dense == b.ndim - mimo == c.ndim - mimo
            ]
            if not found:
                raise EssError(f"{shapes} can be read in two ways: say dense=... and mimo=....")
        dense, mimo = found[0]
        object.__setattr__(self, "dense", dense)
        object.__setattr__(self, "mimo", mimo)
        lead = torch.broadcast_shapes(a.shape[: -2 - dense], b.shape[: -2 - mimo], c.shape[: -2 - mimo])
        object.__setattr__(self, "batch_shape", tuple(lead))
        if self.length < 2:
            raise EssError(f"a recurrence needs at least 2 indices, {shapes} has {self.length}.")
        if self.state_size < 1 or self.block_size < 1:
            raise EssError(f"{shapes} has no state or no input.")
        named = {"A": (a, 2 + dense), "B": (b, 2 + mimo), "C": (c, 2 + mimo)}
        if self.D is not None:
            core = (self.length, self.block_size, self.block_size) if mimo else (self.length,)
            d = check_real_floating(self.D, "D")
            try:
                fits = tuple(d.shape[-len(core) :]) == core
                torch.broadcast_shapes(d.shape[: -len(core)], lead)
            except RuntimeError:
                fits = False
            if not fits:
                raise EssError(f"D {tuple(d.shape)} does not fit {shapes}.")
            named["D"] = (d, len(core))
        for name, (value, core_ndim) in named.items():
            bad = first_true(~torch.isfinite(value))
            if bad is not None:
                lead_index, time = bad[: value.ndim - core_ndim], bad[value.ndim - core_ndim]
                where = operator_name(lead_index)
                raise EssError(f"{name} of {where} is not finite at time index {time}.")

    @property
    def device(self) -> torch.device:
        """Where B, and so everything computed from the recurrence, lives."""
        return self.B.device

    @property
    def length(self) -> int:
        """L, the number of indices."""
        return int(self.B.shape[-3 if self.mimo else -2])

    @property
    def state_size(self) -> int:
        """n, the size of the state: this realisation's theoretical state-size (TSS)."""
        return int(self.B.shape[-2 if self.mimo else -1])

    @property
    def block_size(self) -> int:
        """d, the number of inputs and outputs at every index; 1 for SISO."""
        return int(self.B.shape[-1]) if self.mimo else 1

    def operator(self) -> Tensor:
        """The operator T ``(..., L d, L d)`` in float64, built state by state (no division)."""
        length, n, d = self.length, self.state_size, self.block_size
        lead = self.batch_shape
        a, b, c = (_core(x.double(), k) for x, k in self._parts())
        out = a.new_zeros(*lead, length * d, length * d)
        state = a.new_zeros(*lead, n, 0)
        for i in range(length):
            out[..., i * d : (i + 1) * d, : i * d] = c[..., i, :, :] @ state
            step = a[..., i, :, :] @ state if self.dense else a[..., i, :, 0:1] * state
            state = torch.cat([step, b[..., i, :, :].expand(*lead, n, d)], dim=-1)
        if self.D is not None:
            direct = self.D.double()
            direct = direct if self.mimo else direct[..., None, None]
            for i in range(length):
                out[..., i * d : (i + 1) * d, i * d : (i + 1) * d] = direct[..., i, :, :]
        return out

    def _parts(self) -> tuple[tuple[Tensor, str], tuple[Tensor, str], tuple[Tensor, str]]:
        """A, B, C with how to bring each to (..., L, rows, columns)."""
        siso = not self.mimo
        return (
            (self.A, "keep" if self.dense else "column"),
            (self.B, "column" if siso else "keep"),
            (self.C, "row" if siso else "keep"),
        )

    def take(self, flat: Tensor, start: int, stop: int) -> tuple[Tensor, Tensor, Tensor]:
        """A, B^T and C of the flattened operators ``flat`` at indices start..stop-1, in float64.

        Returns A ``(k, stop-start, n)`` or ``(k, stop-start, n, n)``, and B^T and C
        ``(k, stop-start, d, n)``. Only this part is converted and copied, whatever the whole is.
        """
        lead = self.batch_shape
        where = torch.unravel_index(flat, lead) if lead else ()
        out = []
        for value, core in (
            (self.A, 2 + self.dense),
            (self.B, 2 + self.mimo),
            (self.C, 2 + self.mimo),
        ):
            window = value.narrow(value.ndim - core, start, stop - start)
            window = window.expand(*lead, *window.shape[value.ndim - core :])
            window = window[where] if lead else window.unsqueeze(0)
            out.append(window.double())
        a, b, c = out
        return (a, b.mT, c) if self.mimo else (a, b.unsqueeze(-2), c.unsqueeze(-2))


def _core(value: Tensor, how: str) -> Tensor:
    if how == "column":
        return value.unsqueeze(-1)
    return value.unsqueeze(-2) if how == "row" else value


def _triangle(rows: Tensor) -> Tensor:
    """R of the QR factorisation of ``rows`` (..., p >= n, n)."""
    n = rows.shape[-1]
    # geqrf without forming Q costs half of linalg.qr(mode="r") at these sizes.
    return torch.geqrf(rows)[0][..., :n, :].triu_()


def _advance(rows: Tensor, a: Tensor, dense: bool, *, transpose: bool) -> Tensor:
    """rows A^T (towards later indices) or rows A (towards earlier ones)."""
    if not dense:
        return rows * a.unsqueeze(-2)
    return rows @ (a.mT if transpose else a)


def _block_length(n: int, d: int) -> int:
    """Indices in a block: its rows then are about n, so a step costs no more than a plain one."""
    return max(2, math.ceil(n / d))


def _blocks(op: Recurrence, flat: Tensor, first: int, last: int, m: int) -> tuple[Tensor, ...]:
    """A, B^T, C of the blocks first..last-1 as (k, last-first, m, ...); the tail is padded."""
    start, stop = first * m, min(last * m, op.length)
    missing = last * m - stop
    out = []
    for k, value in enumerate(op.take(flat, start, stop)):
        if missing:
            pad = value.new_zeros(value.shape[0], missing, *value.shape[2:])
            if k == 0:
                # identity steps keep the padded tail neutral
                pad = pad + (torch.eye(op.state_size, dtype=pad.dtype) if op.dense else 1.0)
            value = torch.cat([value, pad], dim=1)
        out.append(value.unflatten(1, (last - first, m)))
    return tuple(out)


def _border_rows(a: Tensor, x: Tensor, dense: bool, *, forward: bool) -> tuple[Tensor, Tensor]:
    """What a block adds to a border: its own rows carried to the border, and its total transition.

    x is B^T or C (..., m, d, n). Returns rows (..., m d, n) and the transition (..., n) or
    (..., n, n), ready for :func:`_advance` of the rows that come from the other border.
    """
    m, d, n = x.shape[-3:]
    rows = x.new_zeros(*x.shape[:-3], m * d, n)
    order = range(m) if forward else range(m - 1, -1, -1)
    total = torch.ones_like(a[..., 0, :])
    if dense:
        total = torch.eye(n, dtype=a.dtype, device=a.device).expand(a[..., 0, :, :].shape)
    for t in order:
        step = a[..., t, :, :] if dense else a[..., t, :]
        rows = _advance(rows, step, dense, transpose=forward)
        rows[..., t * d : (t + 1) * d, :] = x[..., t, :, :]
        left, right = (step, total) if forward else (total, step)
        total = left @ right if dense else left * right
    return rows, total


def _inner_rows(border: Tensor, a: Tensor, x: Tensor, dense: bool, *, forward: bool) -> Tensor:
    """Rows of K_i^T (forward) or O_i at every index of the blocks: (..., m, n + m d, n).

    Forward: border is R_K at the block's first index, and index t sees the inputs before it.
    Backward: border is R_O at the index after the block, and index t sees its own output and later.
    """
    m, d, n = x.shape[-3:]
    # column by column in memory, which is how LAPACK wants them
    rows = x.new_zeros(*x.shape[:-3], n, n + m * d).mT
    rows[..., :n, :] = border
    out = x.new_empty(*x.shape[:-3], m, n, n + m * d).mT
    for t in range(m) if forward else range(m - 1, -1, -1):
        step = a[..., t, :, :] if dense else a[..., t, :]
        if forward:
            out[..., t, :, :] = rows
        rows = _advance(rows, step, dense, transpose=forward)
        rows[..., n + t * d : n + (t + 1) * d, :] = x[..., t, :, :]
        if not forward:
            out[..., t, :, :] = rows
    return out


def _groups(op: Recurrence, m: int) -> tuple[int, int]:
    """How many operators, and how many blocks of each, to hold at once within the workspace."""
    n, d = op.state_size, op.block_size
    per_block = 8 * (3 * m * (n + m * d) * n + 6 * m * n * (n if op.dense else d) + 2 * n * n)
    blocks = math.ceil(op.length / m)
    together = max(1, WORKSPACE_BYTES // per_block)
    per_operator = 8 * n * n * blocks
    count = math.prod(op.batch_shape)
    operators = max(1, min(count, together, WORKSPACE_BYTES // per_operator))
    return operators, max(1, min(blocks, together // operators))


def _observability_borders(op: Recurrence, flat: Tensor, m: int, group: int) -> Tensor:
    """R_O at the index after each block: (k, blocks, n, n). The backward pass."""
    n, blocks = op.state_size, math.ceil(op.length / m)
    out = torch.empty(len(flat), blocks, n, n, dtype=torch.float64, device=op.device)
    border = out.new_zeros(len(flat), n, n)
    for first in range(group * ((blocks - 1) // group), -1, -group):
        last = min(first + group, blocks)
        a, _, c = _blocks(op, flat, first, last, m)
        rows, total = _border_rows(a, c, bool(op.dense), forward=False)
        for k in range(last - 1, first - 1, -1):
            out[:, k] = border
            carried = _advance(border, total[:, k - first], bool(op.dense), transpose=False)
            border = _triangle(torch.cat([carried, rows[:, k - first]], dim=-2))
    return out


def _controllability_borders(border: Tensor, a: Tensor, b: Tensor, dense: bool) -> tuple[Tensor, Tensor]:
    """R_K at the first index of each block (k, blocks, n, n), and R_K after the last block."""
    rows, total = _border_rows(a, b, dense, forward=True)
    out = []
    for k in range(b.shape[1]):
        out.append(border)
        carried = _advance(border, total[:, k], dense, transpose=True)
        border = _triangle(torch.cat([carried, rows[:, k]], dim=-2))
    return torch.stack(out, dim=1), border


def recurrent_spectra(op: Recurrence) -> Iterator[tuple[Tensor, int, int, Tensor]]:
    """Singular values of all H_i of a recurrence, piece by piece in bounded memory.

    Yields (flat, lo, hi, sigma): sigma ``(len(flat), hi-lo, r)`` belongs to the flattened operators
    ``flat`` and to the indices i = lo .. hi-1, descending, r = min(n, d (L // 2)).

    Raises:
        EssError: a transition that overflows float64, or a factorisation that fails.
    """
    n, d, length, dense = op.state_size, op.block_size, op.length, bool(op.dense)
    m = _block_length(n, d)
    operators, group = _groups(op, m)
    blocks = math.ceil(length / m)
    keep = min(n, d * (length // 2))
    for flat in torch.arange(math.prod(op.batch_shape)).split(operators):
        observed = _observability_borders(op, flat, m, group)
        border = observed.new_zeros(len(flat), n, n)
        for first in range(0, blocks, group):
            last = min(first + group, blocks)
            a, b, c = _blocks(op, flat, first, last, m)
            starts, border = _controllability_borders(border, a, b, dense)
            k_rows = _inner_rows(starts, a, b, dense, forward=True)
            o_rows = _inner_rows(observed[:, first:last], a, c, dense, forward=False)
            # the O side needs no triangle of its own: the SVD below takes tall matrices as they are
            product = (o_rows @ _triangle(k_rows).mT).flatten(1, 2)
            lo, hi = max(1, first * m), min(length, last * m)
            product = product[:, lo - first * m : hi - first * m]
            yield flat, lo, hi, _checked_svdvals(product, op, flat, lo)[..., :keep]


def controllability_counts(op: Recurrence, tolerance: float) -> Tensor:
    """Causal ESS: the number of singular values of K_i above ``tolerance``, (..., L-1), int64.

    K_i (n, i d) maps the inputs before i to the state at i: all that a causal realisation can tell.
    """
    tolerance = check_tolerance(tolerance)
    n, d, length, dense = op.state_size, op.block_size, op.length, bool(op.dense)
    m = _block_length(n, d)
    operators, group = _groups(op, m)
    blocks = math.ceil(length / m)
    out = torch.zeros(math.prod(op.batch_shape), length, dtype=torch.int64, device=op.device)
    for flat in torch.arange(len(out)).split(operators):
        border = torch.zeros(len(flat), n, n, dtype=torch.float64, device=op.device)
        for first in range(0, blocks, group):
            last = min(first + group, blocks)
            a, b, _ = _blocks(op, flat, first, last, m)
            starts, border = _controllability_borders(border, a, b, dense)
            k_rows = _inner_rows(starts, a, b, dense, forward=True).flatten(1, 2)
            lo, hi = first * m, min(length, last * m)
            sigma = _checked_svdvals(k_rows[:, : hi - lo], op, flat, lo)
            out[int(flat[0]) : int(flat[-1]) + 1, lo:hi] = (sigma > tolerance).sum(dim=-1)
    limit = torch.arange(length, device=out.device) * d
    return torch.minimum(out, limit)[:, 1:].reshape(*op.batch_shape, length - 1)


def _small_svdvals(matrices: Tensor) -> Tensor:
    """Singular values of many small matrices (k, p, n), p >= n, to about 1e-12 of the largest.

    Eigenvalues of M^T M cost less than half of an SVD. Squaring leaves an error of eps sigma_max^2 /
    sigma, which is harmless where the smallest sigma is not small; all other matrices get an SVD.
    """
    return in_parallel(_by_gram, matrices)


def _by_gram(matrices: Tensor) -> Tensor:
    gram = matrices.mT @ matrices
    # huge entries overflow when squared, tiny ones vanish: neither is trusted below
    gram = torch.where(torch.isfinite(gram.sum((-2, -1), keepdim=True)), gram, 0.0)
    squares = torch.linalg.eigvalsh(gram).flip(-1)
    largest, smallest = squares[:, 0], squares[:, -1]
    weak = ~((smallest > _SQUARE_LIMIT * largest) & (largest > _SMALLEST_SQUARE))
    sigma = squares.clamp_min(0.0).sqrt()
    if bool(weak.any()):
        sigma[weak] = torch.linalg.svdvals(matrices[weak])
    return sigma


def _checked_svdvals(matrices: Tensor, op: Recurrence, flat: Tensor, lo: int) -> Tensor:
    """svdvals of (k, indices, p, n), or one sentence about the first operator that has none."""
    # the sum of the entries of a matrix is finite only if all of them are
    bad = first_true(~torch.isfinite(matrices.sum(dim=(-2, -1))))
    if bad is None:
        try:
            return _small_svdvals(matrices.flatten(0, 1)).unflatten(0, matrices.shape[:2])
        except torch.linalg.LinAlgError:
            bad = (0, 0)
            reason = "the singular value decomposition did not converge"
    else:
        reason = "its transitions overflow float64"
    lead = op.batch_shape
    index = torch.unravel_index(flat[bad[0]], lead) if lead else ()
    where = operator_name(tuple(int(k) for k in index))
    raise EssError(f"{where} has no spectrum at time index {lo + bad[1]}: {reason}.")
