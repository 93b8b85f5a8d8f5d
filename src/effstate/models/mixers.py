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
from effstate.operators.precision import widened


class _ProjectedMixer(Mixer):
    """C_i = W_C u_i, B_i = W_B u_i and v_i = W_V u_i, with RoPE on C and B where there is no gate.

    W_C, W_B, W_V and what a gate reads are one matrix, ``projection``: the step of a small model is
    dominated by the number of operations.
    """

    gated: ClassVar[bool] = False

    def __init__(self, config: ModelConfig, layer: int = 0, gate_size: int = 0) -> None:
        super().__init__(config, layer)
        self.rotary = config.rope_on_gated or not self.gated
        self.parts = [2 * self.heads * self.state_size, config.width, gate_size]
        self.projection = nn.Linear(config.width, sum(self.parts), bias=False)

    def project(self, u: Tensor) -> tuple[Features, Tensor]:
        both, values, gate = self.projection(u).split(self.parts, dim=-1)
        if self.rotary:
            both = rotate(both, self.state_size, self.config.rope_theta)
        C, B = (self.split_heads(x) for x in both.chunk(2, dim=-1))
        return self.operator_features(C, B, gate), self.split_heads(values)

    def operator_features(self, C: Tensor, B: Tensor, gate: Tensor) -> Features:
        """Features from C and B (batch, heads, L, state_size) and the gate's input."""
        raise NotImplementedError

    def log_decay(self, gates: Tensor) -> Tensor:
        """log a = log sigmoid(gates) / beta, never in 16 bits: a decay near 1 would become 1."""
        return F.logsigmoid(widened(gates)) / self.config.gate_logit_norm


class LinearAttention(_ProjectedMixer):
    """LA: no decay, RoPE, no feature map and no normaliser."""

    def operator_features(self, C: Tensor, B: Tensor, gate: Tensor) -> Features:
        return DecayFeatures(C, B, None, self.scale)


class WeightedLinearAttention(_ProjectedMixer):
    """WLA: a learnt decay per head and state, the same at every position (eq. D.2.6)."""

    gated = True

    def __init__(self, config: ModelConfig, layer: int = 0) -> None:
        super().__init__(config, layer)
        self.gates = nn.Parameter(torch.full((self.heads, self.state_size), config.gate_bias))

    def operator_features(self, C: Tensor, B: Tensor, gate: Tensor) -> Features:
        return DecayFeatures(C, B, self.log_decay(self.gates)[None, :, None, :], self.scale)


class GatedLinearAttention(_ProjectedMixer):
    """GLA: decays from the input through a projection of low rank (eq. D.2.7)."""

    gated = True

    def __init__(self, config: ModelConfig, layer: int = 0) -> None:
        super().__init__(config, layer, gate_size=config.gate_rank)
        self.gate_expansion = nn.Linear(config.gate_rank, self.heads * self.state_size)
        nn.init.constant_(self.gate_expansion.bias, config.gate_bias)

    def operator_features(self, C: Tensor, B: Tensor, gate: Tensor) -> Features:
        log_decay = self.split_heads(self.log_decay(self.gate_expansion(gate)))
        return DecayFeatures(C, B, log_decay, self.scale)


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

    def operator_features(self, C: Tensor, B: Tensor, gate: Tensor) -> Features:
        return SoftmaxFeatures(C, B, self.scale)
