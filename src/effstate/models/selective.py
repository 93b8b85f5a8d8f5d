"""The mixers of the initialisation study: S6 and GLA with S6's decays (METHOD section 3)."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from effstate.config import ModelConfig
from effstate.models.base import Mixer
from effstate.models.cost import s6_channels, s6_step_rank
from effstate.models.mixers import GatedLinearAttention
from effstate.operators import Features, SelectiveFeatures
from effstate.operators.precision import widened

STEP_RANGE = (1e-3, 1e-1)
"""Steps at the start, where the input says nothing: drawn log-uniformly per channel."""

STEP_FLOOR = 1e-4


class GLAS6(GatedLinearAttention):
    """GLA-S6: GLA with a = exp(-[1 .. n] / alpha * softplus(.)) per head, alpha = ``arange_alpha``."""

    def __init__(self, config: ModelConfig, layer: int = 0) -> None:
        super().__init__(config, layer)
        states = torch.arange(1.0, self.state_size + 1).repeat(self.heads)
        self.register_buffer("states", states, persistent=False)

    def log_decay(self, gates: Tensor) -> Tensor:
        """log a of gates (batch, L, heads * state_size): the n-th state forgets n times as fast."""
        return F.softplus(widened(gates)) * (self.states / -self.config.arange_alpha)


class S6(Mixer):
    """S6: the Mamba block without its short convolution (and that convolution's SiLU).

    From x = W_x u, ``s6_expansion`` * width channels: a step Delta = softplus(W_2 W_1 x + b) per
    channel; one C = W_C x and one B = W_B x for all channels; one vector of rates that starts at
    [1 .. n], n = ``d_state``. Every channel has its own operator T, with a = exp(-rates * Delta) and
    Delta * B for B_i, and is a head of width 1; ``heads``, ``k_expansion``, ``scale_factor`` and
    ``head_norm`` of the configuration have no effect. Mamba's skip is kept: it adds to T's diagonal,
    which no H_i holds, so ESS does not see it. After T: y * silu(W_z u), then the output projection.
    """

    def __init__(self, config: ModelConfig, layer: int = 0) -> None:
        super().__init__(config, layer)
        self.heads, self.head_width = s6_channels(config), 1
        self.state_size, self.scale = config.d_state, 1.0
        self.head_norm = None  # of one channel: it would leave the sign only
        self.output_projection = nn.Linear(self.heads, config.width, bias=False)
        self.parts = [self.state_size, self.state_size, s6_step_rank(config)]
        self.value_projection = nn.Linear(config.width, self.heads, bias=False)
        self.gate_projection = nn.Linear(config.width, self.heads, bias=False)
        self.selection = nn.Linear(self.heads, sum(self.parts), bias=False)
        # torch's own start of the matrix, uniform within rank^(-1/2), is the published one.
        self.step_expansion = nn.Linear(self.parts[2], self.heads)
        low, high = (math.log(step) for step in STEP_RANGE)
        steps = torch.empty(self.heads).uniform_(low, high).exp_().clamp_min_(STEP_FLOOR)
        with torch.no_grad():
            # softplus^(-1), written for small steps
            self.step_expansion.bias.copy_(steps + (-torch.expm1(-steps)).log())
        self.log_rates = nn.Parameter(torch.arange(1.0, self.state_size + 1).log())
        self.skip = nn.Parameter(torch.ones(self.heads))

    @classmethod
    def tss(cls, config: ModelConfig, seq_len: int) -> int:
        """n, ``d_state`` (METHOD section 2)."""
        return config.d_state

    @classmethod
    def total_tss(cls, config: ModelConfig, seq_len: int) -> int:
        """n times the channels."""
        return config.d_state * s6_channels(config)

    def project(self, u: Tensor) -> tuple[Features, Tensor]:
        x = self.value_projection(u)
        C, B, step = self.selection(x).split(self.parts, dim=-1)
        steps = F.softplus(widened(self.step_expansion(step))).transpose(1, 2)
        features = SelectiveFeatures(
            C.unsqueeze(1), B.unsqueeze(1), steps, self.log_rates.exp(), self.skip
        )
        return features, x.transpose(1, 2).unsqueeze(-1)

    def output(self, mixed: Tensor, u: Tensor) -> Tensor:
        """From T's result (batch, channels, L, 1) to (batch, L, width), through the gate."""
        y = mixed.squeeze(-1).transpose(1, 2) * F.silu(self.gate_projection(u))
        return self.output_projection(y)
