"""What a featurizer makes of its input, and the operator that follows from it.

A mixer is y = T u with T given by its *features* (C, B, decays). The same features give the dense
operator T (for plots, dense ESS and distillation), the fast product T u (for training) and the
recurrence (for the fast ESS).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from effstate.operators.linear_attention import linear_attention
from effstate.operators.reference import operator_naive

if TYPE_CHECKING:
    from effstate.ess import Profile, Recurrence


class Features(ABC):
    """Features of one mixer on one batch; subclass it for an operator of one's own."""

    @abstractmethod
    def operator(self) -> Tensor:
        """The dense causal operator T, (batch | 1, heads, L, L), zero above the diagonal."""

    @abstractmethod
    def apply(self, values: Tensor) -> Tensor:
        """T values in the fastest form; values and result are (batch, heads, L, p)."""


@dataclass(frozen=True)
class DecayFeatures(Features):
    """T_ij = scale * C_i . (a_{j+1} * ... * a_i) . B_j for i >= j (METHOD section 3).

    C, B: (batch | 1, heads | 1, L, n). log_decay: log a <= 0, each of its dimensions full or 1;
    None for a = 1.
    """

    C: Tensor
    B: Tensor
    log_decay: Tensor | None = None
    scale: float = 1.0

    def operator(self) -> Tensor:
        """The dense operator from its definition, row by row: O(L^2 n) time, O(L^2) memory."""
        return operator_naive(self.C, self.B, self.log_decay, self.scale)

    def apply(self, values: Tensor) -> Tensor:
        """T values in time and memory linear in L."""
        return linear_attention(self.C, self.B, values, self.log_decay, self.scale)

    def decay_sum(self) -> Tensor:
        """log of a_1 * ... * a_L, the product of all A, (batch | 1, heads, n) in float64."""
        if self.log_decay is None:
            return torch.zeros_like(self.B[:1, :, 0], dtype=torch.float64)
        steps = self.log_decay.double()
        repeats = self.B.shape[-2] if steps.shape[-2] == 1 else 1
        total = repeats * steps.sum(-2)
        return total.expand(*total.shape[:-1], self.B.shape[-1])

    def recurrence(self) -> Recurrence:
        """The recurrence s_{i+1} = A_i s_i + B_i u_i, y_i = C_i s_i + D_i u_i (eq. 1).

        Linear attention adds its input before it reads, eq. 1 after: C becomes scale * C_i a_i,
        and the diagonal D_i = scale * C_i B_i is no part of any H_i.
        """
        from effstate.ess import Recurrence

        if self.log_decay is None:
            A = torch.ones_like(self.B[:1, :1])
            return Recurrence(A=A, B=self.B, C=self.scale * self.C)
        A = self.log_decay.exp()
        C = self.scale * self.C * A
        return Recurrence(A=A.expand(*A.shape[:-2], *self.B.shape[-2:]), B=self.B, C=C)


@dataclass(frozen=True)
class SoftmaxFeatures(Features):
    """T = causal softmax(scale * C B^T); C, B: (batch | 1, heads, L, n)."""

    C: Tensor
    B: Tensor
    scale: float = 1.0

    def operator(self) -> Tensor:
        """The dense operator; rows sum to 1."""
        return softmax_operator(self.C, self.B, self.scale)

    def apply(self, values: Tensor) -> Tensor:
        """T values, by PyTorch's attention kernel."""
        return F.scaled_dot_product_attention(self.C, self.B, values, is_causal=True, scale=self.scale)


def profile_of(features: Features, tolerances: tuple[float, ...]) -> Profile:
    """ESS (batch, heads, L - 1) by the fastest exact path: from the recurrence where there is one."""
    from effstate.ess import measure

    operator = features.recurrence() if hasattr(features, "recurrence") else features.operator()
    return measure(operator, tolerances)


def _default_scale(q: Tensor, scale: float | None) -> float:
    return q.shape[-1] ** -0.5 if scale is None else scale


def recurrence_from_qk(
    q: Tensor, k: Tensor, log_decay: Tensor | None = None, scale: float | None = None
) -> Recurrence:
    """The recurrence (eq. 1) of a linear attention layer, to hand to :mod:`effstate.ess`.

    q, k: (batch | 1, heads | 1, L, n), as the layer uses them (after RoPE, feature maps and
    normalisation). log_decay: log of the decay applied at each position, broadcastable to k; None
    for no decay. scale: the factor on q k^T, n^(-1/2) by default.
    """
    return DecayFeatures(q, k, log_decay, _default_scale(q, scale)).recurrence()


def softmax_operator(q: Tensor, k: Tensor, scale: float | None = None) -> Tensor:
    """T = causal softmax(scale * q k^T), (batch, heads, L, L), of a softmax attention layer.

    q, k: (batch | 1, heads, L, n) as the layer uses them (after RoPE; repeat the keys of grouped
    heads first). scale: n^(-1/2) by default.
    """
    scores = _default_scale(q, scale) * (q @ k.mT)
    future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
    return scores.masked_fill(future, float("-inf")).softmax(-1)
