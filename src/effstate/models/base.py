"""What every mixer is: features, values, and what happens after T; and how to register one."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, TypeVar

from torch import Tensor, nn

from effstate.config import ModelConfig
from effstate.models.norm import RMSNorm
from effstate.operators import Features
from effstate.registry import MIXERS

M = TypeVar("M", bound=type)


def register_mixer(name: str) -> Callable[[M], M]:
    """Class decorator: configurations may then say ``featurizer: name``.

    Raises ValueError if the name is taken.
    """

    def add(cls: M) -> M:
        MIXERS.register(name, cls)
        return cls

    return add


class Mixer(nn.Module):
    """Causal sequence mixer y = T u per head, T from the input's features (METHOD sections 1, 3).

    A mixer of one's own defines :meth:`project`; options of the configuration arrive as keyword
    arguments of its constructor. :func:`effstate.models.check_operator` checks that its operator
    describes what it computes.

    Args:
        config: the model's configuration.
        layer: index of the mixer in the stack, for mixers that differ by layer.

    Attributes:
        recurrent: whether T is a recurrence of bounded state (all but softmax attention).
        heads, head_width, state_size: h, the channels p = width / h of a head, and n, the size of
            C_i and B_i (for recurrent mixers: TSS per channel).
        scale: the factor c of T_ij.
    """

    recurrent: ClassVar[bool] = True

    def __init__(self, config: ModelConfig, layer: int = 0) -> None:
        super().__init__()
        self.config = config
        self.layer = layer
        self.heads = config.heads
        self.head_width = config.width // config.heads
        self.state_size = self.head_width * config.k_expansion
        self.scale = self.state_size**-0.5 if config.scale_factor == "inverse_sqrt" else 1.0
        normed = config.head_norm == "all" or (config.head_norm == "recurrent" and self.recurrent)
        self.head_norm = RMSNorm(self.head_width) if normed else None
        self.output_projection = nn.Linear(config.width, config.width, bias=False)

    @classmethod
    def tss(cls, config: ModelConfig, seq_len: int) -> int:
        """Theoretical state-size per channel, on the sweep's axes (METHOD section 2)."""
        return config.width // config.heads * config.k_expansion

    @classmethod
    def total_tss(cls, config: ModelConfig, seq_len: int) -> int:
        """Total TSS on the sweep's axes: TSS * h for recurrent mixers (METHOD section 2)."""
        return cls.tss(config, seq_len) * config.heads

    def project(self, u: Tensor) -> tuple[Features, Tensor]:
        """From the input u (batch, L, width): features, and values (batch, heads, L, head_width)."""
        raise NotImplementedError(f"{type(self).__name__} does not define project(u)")

    def features(self, u: Tensor) -> Features:
        """The features of u (batch, L, width), from which T follows."""
        return self.project(u)[0]

    def values(self, u: Tensor) -> Tensor:
        """What T mixes: (batch, heads, L, head_width)."""
        return self.project(u)[1]

    def output(self, mixed: Tensor, u: Tensor) -> Tensor:
        """From T's result (batch, heads, L, head_width) to (batch, L, width): no part of T."""
        mixed = mixed.transpose(1, 2)
        if self.head_norm is not None:
            mixed = self.head_norm(mixed)
        return self.output_projection(mixed.flatten(-2))

    def forward(self, u: Tensor) -> Tensor:
        """u (batch, L, width) to (batch, L, width)."""
        return self.mix(u)[0]

    def mix(self, u: Tensor) -> tuple[Tensor, Features]:
        """What ``forward`` returns, and the features behind it."""
        features, values = self.project(u)
        return self.output(features.apply(values), u), features

    def split_heads(self, x: Tensor) -> Tensor:
        """(batch, L, heads * m) to (batch, heads, L, m)."""
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)
