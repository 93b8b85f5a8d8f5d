"""The mixers of section 4: LA, WLA, GLA and SA (METHOD section 3)."""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from effstate.config import ModelConfig
from effstate.models.base import Mixer
from effstate.models.rope import rotate
from effstate.operators import DecayFeatures, Features, SoftmaxFeatures


class _ProjectedMixer(Mixer):
    """C_i = W_C u_i and B_i = W_B u_i, with RoPE where the mixer (or the configuration) says so."""

    gated: ClassVar[bool] = False

    def __init__(self, config: ModelConfig, layer: int = 0) -> None:
        super().__init__(config, layer)
        self.rotary = config.rope_on_gated or not self.gated
        # W_C and W_B in one matrix: the step of a small model is dominated by dispatch.
        self.feature_projection = nn.Linear(
            config.width, 2 * self.heads * self.state_size, bias=False
        )

    def projections(self, u: Tensor) -> tuple[Tensor, Tensor]:
        """C and B, each (batch, heads, L, state_size)."""
        both = self.feature_projection(u).unflatten(-1, (2, self.heads, -1)).permute(2, 0, 3, 1, 4)
        if self.rotary:
            both = rotate(both, self.config.rope_theta)
        C, B = both.unbind(0)
        return C, B

    def decay(self, gates: Tensor) -> Tensor:
        """log a = log sigmoid(gates) / beta."""
        return F.logsigmoid(gates) / self.config.gate_logit_norm


class LinearAttention(_ProjectedMixer):
    """LA: no decay, RoPE, no feature map and no normaliser."""

    def features(self, u: Tensor) -> Features:
        C, B = self.projections(u)
        return DecayFeatures(C, B, None, self.scale)


class WeightedLinearAttention(_ProjectedMixer):
    """WLA: a learnt decay per head and state, the same at every position (eq. D.2.6)."""

    gated = True

    def __init__(self, config: ModelConfig, layer: int = 0) -> None:
        super().__init__(config, layer)
        self.gates = nn.Parameter(torch.full((self.heads, self.state_size), config.gate_bias))

    def features(self, u: Tensor) -> Features:
        C, B = self.projections(u)
        return DecayFeatures(C, B, self.decay(self.gates)[None, :, None, :], self.scale)


class GatedLinearAttention(_ProjectedMixer):
    """GLA: decays from the input through a projection of low rank (eq. D.2.7)."""

    gated = True

    def __init__(self, config: ModelConfig, layer: int = 0) -> None:
        super().__init__(config, layer)
        self.gate_reduction = nn.Linear(config.width, config.gate_rank, bias=False)
        self.gate_expansion = nn.Linear(config.gate_rank, self.heads * self.state_size)
        nn.init.constant_(self.gate_expansion.bias, config.gate_bias)

    def features(self, u: Tensor) -> Features:
        C, B = self.projections(u)
        gates = self.split_heads(self.gate_expansion(self.gate_reduction(u)))
        return DecayFeatures(C, B, self.decay(gates), self.scale)


class SoftmaxAttention(_ProjectedMixer):
    """SA: T = causal softmax(c C B^T), with RoPE; its state grows with the position."""

    recurrent = False

    @classmethod
    def tss(cls, config: ModelConfig, seq_len: int) -> int:
        """L on the sweep's axes (at index i the state is i)."""
        return seq_len

    @classmethod
    def total_tss(cls, config: ModelConfig, seq_len: int) -> int:
        """width * L on the sweep's axes (METHOD section 2)."""
        return config.width * seq_len

    def features(self, u: Tensor) -> Features:
        C, B = self.projections(u)
        return SoftmaxFeatures(C, B, self.scale)
