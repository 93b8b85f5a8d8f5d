"""Linear attention with diagonal decays: exact for any gate, linear in the length.

Positions are handled in chunks; between chunks only the (n, p) state is carried. Inside a chunk

- the *anchored* form decays C_i and B_j to and from the chunk's middle, so that one matrix product
  gives the chunk's operator. One of the two exponents is positive, so this form is taken only while
  no exponent passes :data:`ANCHORED_LIMIT`, which is checked on every call;
- the *levels* form, for all stronger gates, multiplies decays (numbers in [0, 1]) only: each pair of
  positions meets in the middle of the smallest aligned block that holds both, level by level.

Both are the same operator up to rounding.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from effstate.operators import kernels
from effstate.operators.precision import in_full_precision

ANCHORED_LIMIT = 30.0
"""Largest exponent of the anchored form: products stay below e^60, rounding near 30 eps."""


@torch.compiler.disable
@in_full_precision
def linear_attention(
    C: Tensor, B: Tensor, values: Tensor, log_decay: Tensor | None = None, scale: float = 1.0
) -> Tensor:
    """T values with T_ij = scale * C_i . (a_{j+1} * ... * a_i) . B_j, i >= j (METHOD section 3).

    C, B: (batch | 1, heads | 1, L, n); values: (batch, heads, L, p); log_decay: log a <= 0, each
    of its four dimensions full or 1, or None for a = 1. Returns (batch, heads, L, p).

    Gradients of first order only. torch.compile leaves it as it is: which form is taken depends on
    the data.
    """
    if kernels.applies(C):
        return kernels.fla_linear_attention(C, B, values, log_decay, scale)
    batch, heads, L, _ = values.shape
    n = C.shape[-1]
    # Measured: a small state makes small chunks cheaper than the chunk's operator.
    chunk = min(32 if n < 16 else 64, max(2, 1 << (L - 1).bit_length()))
    C, B, values = (_chunks(x.expand(batch, heads, -1, -1), chunk) for x in (C, B, values))
    exponents = None
    if log_decay is not None:
        if log_decay.shape[-2] == 1:
            log_decay = log_decay.unsqueeze(-3).expand(-1, -1, -1, chunk, -1)
        else:
            log_decay = _chunks(log_decay, chunk)
        with torch.no_grad():
            exponents = _anchored_sums(chunk, C.dtype, C.device) @ log_decay
            largest = torch.maximum(exponents[..., 0, :].amax(), -exponents[..., -1, :].amin())
        # Written so that NaN, from infinite log decays, takes the other branch.
        if not float(largest) <= ANCHORED_LIMIT:
            return _levels(C, B, values, log_decay, scale).flatten(2, 3)[..., :L, :]
    mixed = _Anchored.apply(C, B, values, log_decay, exponents, scale)
    return mixed.flatten(2, 3)[..., :L, :]


def _chunks(x: Tensor, chunk: int) -> Tensor:
    """(batch, heads, L, m) to (batch, heads, chunks, chunk, m); the tail is filled with zeros."""
    padding = -x.shape[-2] % chunk
    if padding:
        x = F.pad(x, (0, 0, 0, padding))
    return x.unflatten(-2, (-1, chunk))


# --------------------------------------------------------------------------------- anchored form


@lru_cache(maxsize=64)
@torch.inference_mode(False)
def _anchored_sums(chunk: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Matrix S, (S log a)_i: the sum of log a between the chunk's middle and i, with its sign.

    Sums of segments, not differences of long cumulative sums, which would lose the low bits.
    """
    i = torch.arange(chunk, device=device)[:, None]
    t = torch.arange(chunk, device=device)[None, :]
    middle = chunk // 2 - 1
    after = (t > middle) & (t <= i)
    before = (t <= middle) & (t > i)
    return after.to(dtype) - before.to(dtype)


def _between(log_decay: Tensor) -> Tensor:
    """Decays from the middle of each chunk to the next one's, (batch | 1, heads, chunks - 1 | 1, n)."""
    first, second = log_decay.unflatten(3, (2, -1)).sum(4).unbind(3)
    if log_decay.shape[2] > 1:
        first, second = first[:, :, 1:], second[:, :, :-1]
    return (first + second).exp()


def _at(x: Tensor, index: int) -> Tensor:
    """Entry ``index`` of x's third dimension, which may have length 1 for all of them."""
    return x.select(2, index if x.shape[2] > 1 else 0)


def _flat(x: Tensor) -> Tensor:
    return x.view(-1, *x.shape[-2:])


class _Anchored(torch.autograd.Function):
    """The anchored form with its gradient by hand: a third of the passes over memory."""

    @staticmethod
    def forward(
        ctx: Any,
        C: Tensor,
        B: Tensor,
        values: Tensor,
        log_decay: Tensor | None,
        exponents: Tensor | None,
        scale: float,
    ) -> Tensor:
        values = values.contiguous()
        weights = inverse = decay = None
        if exponents is None:
            q, k = C.contiguous(), B.contiguous()
        else:
            weights = exponents.exp()
            inverse = weights.reciprocal()
            # Written into new memory: the inputs are often transposed views of a projection.
            q = torch.mul(C, weights, out=C.new_empty(C.shape))
            k = torch.mul(B, inverse, out=B.new_empty(B.shape))
            decay = _between(log_decay)
        T = torch.bmm(_flat(q), _flat(k).mT).tril_()
        mixed = torch.bmm(T, _flat(values)).view(values.shape)
        states: list[Tensor] = []  # before chunk 1, 2, ..., decayed to that chunk's middle
        for i in range(1, values.shape[2]):
            state = k[:, :, i - 1].mT @ values[:, :, i - 1]
            if states:
                state += states[-1]
            if decay is not None:
                state *= _at(decay, i - 1).unsqueeze(-1)
            mixed[:, :, i] += q[:, :, i] @ state
            states.append(state)
        ctx.scale = scale
        ctx.decay_shape = None if log_decay is None else log_decay.shape
        ctx.save_for_backward(q, k, values, T, weights, inverse, decay, *states)
        return mixed.mul_(scale)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        q, k, values, T, weights, inverse, decay, *states = ctx.saved_tensors
        dy = torch.mul(gradient, ctx.scale, out=torch.empty_like(values))
        dT = torch.bmm(_flat(dy), _flat(values).mT).tril_()
        dq = torch.bmm(dT, _flat(k)).view_as(q)
        dk = torch.bmm(dT.mT, _flat(q)).view_as(k)
        dvalues = torch.bmm(T.mT, _flat(dy)).view_as(values)
        dupdate = None
        dbetween: list[Tensor] = []
        for i in range(values.shape[2] - 1, 0, -1):
            state = states[i - 1]
            dq[:, :, i] += dy[:, :, i] @ state.mT
            dstate = q[:, :, i].mT @ dy[:, :, i]
            if dupdate is not None:
                dstate += dupdate
            dupdate = dstate
            if decay is not None:
                dbetween.insert(0, (dstate * state).sum(-1))
                dupdate = dstate * _at(decay, i - 1).unsqueeze(-1)
            dk[:, :, i - 1] += values[:, :, i - 1] @ dupdate.mT
            dvalues[:, :, i - 1] += k[:, :, i - 1] @ dupdate
        if weights is None:
            return dq, dk, dvalues, None, None, None
        # Exponents enter only as C_i e^(x_i) and B_j e^(-x_j), so dx = q dq - k dk.
        dx = torch.addcmul(dq * q, dk, k, value=-1)
        if ctx.decay_shape[0] == 1:
            dx = dx.sum(0, keepdim=True)
        chunk = values.shape[3]
        dlog = _anchored_sums(chunk, q.dtype, q.device).mT @ dx
        if dbetween:
            # A decay between two middles: the second half of one chunk, the first of the next.
            between = torch.stack(dbetween, 2).unsqueeze(3)
            if ctx.decay_shape[0] == 1:
                between = between.sum(0, keepdim=True)
            dlog[:, :, 1:, : chunk // 2] += between
            dlog[:, :, :-1, chunk // 2 :] += between
        dlog = dlog.sum_to_size(ctx.decay_shape)
        return dq.mul_(weights), dk.mul_(inverse), dvalues, dlog, None, None


# ----------------------------------------------------------------------------------- levels form


def _levels(C: Tensor, B: Tensor, values: Tensor, log_decay: Tensor, scale: float) -> Tensor:
    """Any gate; C, B, values and log_decay are (batch | 1, heads, chunks | 1, chunk, m)."""
    chunk = values.shape[-2]
    a = log_decay.exp()
    C = scale * C
    outputs = (C * B).sum(-1, keepdim=True) * values
    # C decayed from the start of its block of size `half`, B to the end of its own.
    C, total, half = C * a, a, 1
    while half < chunk:
        blocks = (chunk // (2 * half), 2)
        C0, C1 = C.unflatten(-2, (*blocks, half)).unbind(-3)
        B0, B1 = B.unflatten(-2, (*blocks, half)).unbind(-3)
        v0 = values.unflatten(-2, (*blocks, half)).select(-3, 0)
        y0, y1 = outputs.unflatten(-2, (*blocks, half)).unbind(-3)
        a0, a1 = total.unflatten(-2, (*blocks, 1)).unbind(-3)
        outputs = torch.stack([y0, y1 + (C1 @ B0.mT) @ v0], -3).flatten(-4, -2)
        C = torch.stack([C0, C1 * a0], -3).flatten(-4, -2)
        B = torch.stack([B0 * a1, B1], -3).flatten(-4, -2)
        total = (a0 * a1).flatten(-3, -2)
        half *= 2
    updates, total = B.mT @ values, total.mT
    state = torch.zeros_like(updates[:, :, 0])
    states = [state]
    for i in range(updates.shape[2] - 1):
        state = state * total[:, :, min(i, total.shape[2] - 1)] + updates[:, :, i]
        states.append(state)
    return outputs + C @ torch.stack(states, 2)
