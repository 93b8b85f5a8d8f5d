"""S6's operator: decays and inputs scaled by a step per channel, B and C shared by the channels.

Every channel has its own operator, so the state is (channels, n) at every position. Only a chunk of
positions of it is ever held: the forward pass keeps the state before each chunk, the backward pass
makes the chunk again from there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from effstate.ess import EssError, Recurrence
from effstate.ess.errors import first_true, operator_name
from effstate.ess.recurrent import WORKSPACE_BYTES
from effstate.operators.features import Features
from effstate.operators.precision import in_full_precision
from effstate.operators.reference import linear_attention_naive, operator_naive

CHUNK = 16
"""Positions between two states that are kept for the backward pass."""

GROUP_ELEMENTS = 2**19
"""Entries of a chunk's states held at once: rows are taken in groups. Measured: fits the caches."""


@in_full_precision
def selective_scan(C: Tensor, B: Tensor, values: Tensor, steps: Tensor, rates: Tensor) -> Tensor:
    """T values with T_ij = C_i . (a_{j+1} * ... * a_i) . (steps_j B_j), a_i = exp(-steps_i rates).

    C, B: (batch | 1, 1, L, n); values: (batch, channels, L, p); steps: (batch | 1, channels, L), none
    negative; rates: (n,), positive. Returns (batch, channels, L, p).

    Memory of both passes is (channels, L) and (channels, n, L / chunk) per row, and a fixed number of
    chunks. Gradients of first order only. Under torch.compile it is one opaque operator.
    """
    batch = values.shape[0]
    C, B = (x.squeeze(1).expand(batch, -1, -1) for x in (C, B))
    return _scan(C, B, values, steps.expand(batch, -1, -1), rates)[0]


def selective_scan_naive(C: Tensor, B: Tensor, values: Tensor, steps: Tensor, rates: Tensor) -> Tensor:
    """The slow twin of :func:`selective_scan`, position by position: same arguments, same result."""
    steps = steps.unsqueeze(-1)
    return linear_attention_naive(C, steps * B, values, -steps * rates)


# Inside: position first, so that one position is one piece of memory. With p inputs per channel:
# states (L, rows, channels, p, n), decays (L, rows, channels, 1, n).


@dataclass(frozen=True)
class _Chunk:
    """One chunk of one group of rows."""

    rows: slice
    positions: slice
    index: int
    C: Tensor
    B: Tensor
    values: Tensor
    steps: Tensor

    def driven(self) -> Tensor:
        """What goes into the states through B, (L, rows, channels, p)."""
        return self.steps.unsqueeze(-1) * self.values

    def rollout(
        self, state: Tensor, rates: Tensor, decays: Tensor, states: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Decays and states of the chunk, from the state before it, written into the two buffers."""
        length = len(self.steps)
        decays, states = decays[:length], states[:length]
        torch.mul(self.steps[..., None, None], -rates, out=decays).exp_()
        torch.mul(self.driven().unsqueeze(-1), self.B[:, :, None, None], out=states)
        for here, decay in zip(states.unbind(0), decays.unbind(0), strict=True):
            state = here.addcmul_(decay, state)
        return decays, states


def _read(states: Tensor, weights: Tensor) -> Tensor:
    """states . weights, (L, rows, channels, p), of weights (L, rows, n)."""
    columns = weights.reshape(-1, weights.shape[-1], 1)
    found = torch.bmm(states.reshape(len(columns), -1, states.shape[-1]), columns)
    return found.view(states.shape[:-1])


def _mix(weights: Tensor, states: Tensor) -> Tensor:
    """(L, rows, n): the sum of states over channels and inputs, weights (L, rows, channels, p)."""
    rows = weights.flatten(0, 1).flatten(1).unsqueeze(1)
    found = torch.bmm(rows, states.reshape(len(rows), -1, states.shape[-1]))
    return found.view(*weights.shape[:2], -1)


def _group_rows(values: Tensor, n: int) -> int:
    _, channels, L, p = values.shape
    return max(1, GROUP_ELEMENTS // (min(CHUNK, L) * channels * p * n))


def _chunks(
    C: Tensor, B: Tensor, values: Tensor, steps: Tensor, *, backward: bool = False
) -> Iterator[tuple[_Chunk, bool]]:
    """The chunks of every group of rows in order, and whether one is the first of its group."""
    batch, _, L, _ = values.shape
    group = _group_rows(values, C.shape[-1])
    order = range(0, L, CHUNK)
    for first in range(0, batch, group):
        rows = slice(first, first + group)
        c, b, v, s = (
            C[rows].transpose(0, 1).contiguous(),
            B[rows].transpose(0, 1).contiguous(),
            values[rows].permute(2, 0, 1, 3).contiguous(),
            steps[rows].permute(2, 0, 1).contiguous(),
        )
        for start in reversed(order) if backward else order:
            at = slice(start, start + CHUNK)
            yield (
                _Chunk(rows, at, start // CHUNK, c[at], b[at], v[at], s[at]),
                start == (order[-1] if backward else 0),
            )


def _buffer(like: Tensor, n: int, p: int) -> Tensor:
    batch, channels, L, _ = like.shape
    rows = min(batch, _group_rows(like, n))
    return like.new_empty(min(CHUNK, L), rows, channels, p, n)


@torch.library.custom_op("effstate::selective_scan", mutates_args=())
def _scan(C: Tensor, B: Tensor, values: Tensor, steps: Tensor, rates: Tensor) -> tuple[Tensor, Tensor]:
    """Outputs, and the states before the chunks (chunks, batch, channels, p, n)."""
    outputs, borders = _scan_outputs(C, values)
    decays, states = _buffer(values, C.shape[-1], 1), _buffer(values, C.shape[-1], values.shape[-1])
    for chunk, first in _chunks(C, B, values, steps):
        rows = chunk.steps.shape[1]
        border = borders[chunk.index, chunk.rows]
        if first:
            border.zero_()
        _, held = chunk.rollout(border, rates, decays[:, :rows], states[:, :rows])
        if chunk.index + 1 < len(borders):
            borders[chunk.index + 1, chunk.rows] = held[-1]
        outputs[chunk.rows, :, chunk.positions] = _read(held, chunk.C).permute(1, 2, 0, 3)
    return outputs, borders


@torch.library.custom_op("effstate::selective_scan_backward", mutates_args=())
def _scan_backward(
    gradient: Tensor, C: Tensor, B: Tensor, values: Tensor, steps: Tensor, rates: Tensor, borders: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    dC, dB, dvalues, dsteps, drates = (_empty(x) for x in (C, B, values, steps, rates))
    drates.zero_()
    n, p = C.shape[-1], values.shape[-1]
    buffers = _buffer(values, n, 1), _buffer(values, n, p), _buffer(values, n, p)
    carried = torch.zeros(())
    for chunk, first in _chunks(C, B, values, steps, backward=True):
        rows, length = chunk.steps.shape[1], len(chunk.steps)
        border = borders[chunk.index, chunk.rows]
        decays, states, adjoint = (x[:length, :rows] for x in buffers)
        decays, states = chunk.rollout(border, rates, decays, states)
        dy = gradient[chunk.rows, :, chunk.positions].permute(2, 0, 1, 3)
        torch.mul(dy.unsqueeze(-1), chunk.C[:, :, None, None], out=adjoint)
        # What later positions ask of the state, one decay further back at every step.
        if not first:
            adjoint[-1] += carried
        for t in range(length - 2, -1, -1):
            adjoint[t].addcmul_(decays[t + 1], adjoint[t + 1])
        carried = decays[0] * adjoint[0]
        dC[chunk.rows, chunk.positions] = _mix(dy, states).transpose(0, 1)
        dB[chunk.rows, chunk.positions] = _mix(chunk.driven(), adjoint).transpose(0, 1)
        ddriven = _read(adjoint, chunk.B)
        at = (chunk.rows, slice(None), chunk.positions)
        dvalues[at] = (chunk.steps.unsqueeze(-1) * ddriven).permute(1, 2, 0, 3)
        # d log a_i = a_i * state_{i-1} * adjoint_i
        adjoint[1:].mul_(states[:-1])
        adjoint[0].mul_(border)
        dlog = (adjoint if p == 1 else adjoint.sum(-2, keepdim=True)).mul_(decays).reshape(-1, n)
        dstep = (dlog @ -rates).view(chunk.steps.shape) + (chunk.values * ddriven).sum(-1)
        dsteps[at] = dstep.permute(1, 2, 0)
        drates -= chunk.steps.view(-1) @ dlog
    return dC, dB, dvalues, dsteps, drates


def _empty(x: Tensor) -> Tensor:
    """Unset memory, dense and in x's order where x is dense."""
    return torch.empty_like(x, memory_format=torch.preserve_format)


def _scan_outputs(C: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    batch, channels, L, p = values.shape
    return _empty(values), values.new_empty(-(-L // CHUNK), batch, channels, p, C.shape[-1])


@_scan.register_fake
def _(C: Tensor, B: Tensor, values: Tensor, steps: Tensor, rates: Tensor) -> tuple[Tensor, Tensor]:
    return _scan_outputs(C, values)


@_scan_backward.register_fake
def _(
    gradient: Tensor, C: Tensor, B: Tensor, values: Tensor, steps: Tensor, rates: Tensor, borders: Tensor
) -> tuple[Tensor, ...]:
    return tuple(_empty(x) for x in (C, B, values, steps, rates))


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs, output[1])
    ctx.mark_non_differentiable(output[1])


def _gradients(ctx: Any, gradient: Tensor, _: Tensor | None) -> tuple[Tensor, ...]:
    return _scan_backward(gradient, *ctx.saved_tensors)


_scan.register_autograd(_gradients, setup_context=_save)


# ------------------------------------------------------------------------------------- features


@dataclass(frozen=True)
class SelectiveFeatures(Features):
    """T_ij = C_i . (a_{j+1} * ... * a_i) . (steps_j B_j) + skip [i = j], a_i = exp(-steps_i rates).

    C, B: (batch | 1, 1, L, n), shared by the channels; steps: (batch, channels, L) >= 0; rates: (n,)
    > 0; skip: (channels,) or None. Only :meth:`operator` and :attr:`log_decay` make the channels'
    own decays.
    """

    C: Tensor
    B: Tensor
    steps: Tensor
    rates: Tensor
    skip: Tensor | None = None

    @property
    def log_decay(self) -> Tensor:
        """log a, (batch, channels, L, n)."""
        return -self.steps.unsqueeze(-1) * self.rates

    def decay_sum(self) -> Tensor:
        """log of a_1 * ... * a_L, (batch, channels, n) in float64."""
        return -self.steps.double().sum(-1, keepdim=True) * self.rates.double()

    def operator(self) -> Tensor:
        """The dense operator from its definition, (batch, channels, L, L)."""
        T = operator_naive(self.C, self.steps.unsqueeze(-1) * self.B, self.log_decay)
        if self.skip is None:
            return T
        return T + torch.diag_embed(self.skip.unsqueeze(-1).expand(-1, T.shape[-1]))

    def apply(self, values: Tensor) -> Tensor:
        """T values, without any channel's operator or state over all positions."""
        mixed = selective_scan(self.C, self.B, values, self.steps, self.rates)
        return mixed if self.skip is None else mixed + self.skip[:, None, None] * values

    def recurrence(self) -> SelectiveRecurrence:
        """The recurrence (eq. 1), with C_i a_i for C_i as in :class:`DecayFeatures`; made when read."""
        return SelectiveRecurrence(self)


class SelectiveRecurrence(Recurrence):
    """The recurrence of :class:`SelectiveFeatures`, whose A, B and C are made where they are read.

    A and B of all channels are (batch, channels, L, n), too large to hold for long rows.

    Raises:
        EssError: fewer than 2 positions, or a non-finite entry.
    """

    features: SelectiveFeatures

    def __init__(self, features: SelectiveFeatures) -> None:
        for name in ("steps", "B", "C"):
            bad = first_true(~torch.isfinite(getattr(features, name)))
            if bad is not None:
                where = operator_name(tuple(bad[:2]))
                raise EssError(f"{name} of {where} is not finite at time index {bad[2]}.")
        *lead, length = features.steps.shape
        if length < 2:
            raise EssError(f"a recurrence needs at least 2 indices, this one has {length}.")
        direct = (features.C * features.B).sum(-1) * features.steps
        if features.skip is not None:
            direct = direct + features.skip.unsqueeze(-1)
        known = {"D": direct, "dense": False, "mimo": False, "batch_shape": tuple(lead)}
        for name, value in {"features": features, **known}.items():
            object.__setattr__(self, name, value)

    @property
    def A(self) -> Tensor:  # type: ignore[override]
        return self._whole(0)

    @property
    def B(self) -> Tensor:  # type: ignore[override]
        return self._whole(1).squeeze(-2)

    @property
    def C(self) -> Tensor:  # type: ignore[override]
        return self._whole(2).squeeze(-2)

    @property
    def length(self) -> int:
        return self.features.steps.shape[-1]

    @property
    def state_size(self) -> int:
        return self.features.rates.shape[0]

    @property
    def block_size(self) -> int:
        return 1

    @property
    def device(self) -> torch.device:
        return self.features.steps.device

    def take(self, flat: Tensor, start: int, stop: int) -> tuple[Tensor, Tensor, Tensor]:
        """As :meth:`Recurrence.take`; only this part is made."""
        row, channel = torch.unravel_index(flat, self.batch_shape)
        at, rows = slice(start, stop), self.batch_shape[0]
        C, B = (
            x[:, 0, at].expand(rows, -1, -1)[row].double() for x in (self.features.C, self.features.B)
        )
        steps = self.features.steps[row, channel, at].double().unsqueeze(-1)
        decays = (-steps * self.features.rates.double()).exp()
        return decays, (steps * B).unsqueeze(-2), (C * decays).unsqueeze(-2)

    def operator(self) -> Tensor:
        """The operators (batch, channels, L, L) in float64, a few channels at once."""
        length, n = self.length, self.state_size
        count = math.prod(self.batch_shape)
        out = torch.empty(count, length, length, dtype=torch.float64, device=self.device)
        together = max(1, WORKSPACE_BYTES // (8 * length * (length + 4 * n)))
        for flat in torch.arange(count, device=self.device).split(together):
            A, B, C = self.take(flat, 0, length)
            part = Recurrence(A, B.squeeze(-2), C.squeeze(-2), dense=False, mimo=False)
            out[flat] = part.operator()
        out.diagonal(dim1=-2, dim2=-1).copy_(self.D.flatten(0, 1))
        return out.unflatten(0, self.batch_shape)

    def _whole(self, which: int) -> Tensor:
        every = torch.arange(math.prod(self.batch_shape), device=self.device)
        return self.take(every, 0, self.length)[which].unflatten(0, self.batch_shape)
