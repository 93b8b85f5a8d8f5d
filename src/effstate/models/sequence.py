"""The sequence model: embedding, blocks of mixer and MLP, and the readout (METHOD section 3)."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from effstate.config import ModelConfig
from effstate.models.base import Mixer
from effstate.models.cost import mixer_names, mlp_hidden
from effstate.models.norm import RMSNorm
from effstate.models.regularisation import decay_distance
from effstate.operators import Features
from effstate.registry import MIXERS

Readout = Literal["tokens", "sequence"]


class SwiGLU(nn.Module):
    """W_3 (silu(W_1 x) * W_2 x), bias-free, W_1 and W_2 in one matrix."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.expansion = nn.Linear(width, 2 * hidden, bias=False)
        self.contraction = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """x (..., width) to the same shape."""
        gate, value = self.expansion(x).chunk(2, dim=-1)
        return self.contraction(F.silu(gate) * value)


def options_of(config: ModelConfig, name: str) -> dict[str, float | int | str | bool]:
    """The configuration's options, for a registered mixer of one's own; built-in ones take none."""
    return {} if MIXERS.is_builtin(name) else config.options


class Block(nn.Module):
    """x + mixer(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, config: ModelConfig, name: str, layer: int) -> None:
        super().__init__()
        self.mixer_norm = RMSNorm(config.width)
        self.mixer: Mixer = MIXERS[name](config, layer, **options_of(config, name))
        self.mlp_norm = RMSNorm(config.width)
        self.mlp = SwiGLU(config.width, mlp_hidden(config))

    def mix(self, x: Tensor, seen: list[Features] | None = None) -> Tensor:
        """The first half: x + mixer(norm(x)), (batch, L, width); adds the features to ``seen``."""
        if seen is None:
            return x + self.mixer(self.mixer_norm(x))
        mixed, features = self.mixer.mix(self.mixer_norm(x))
        seen.append(features)
        return x + mixed

    def transform(self, x: Tensor) -> Tensor:
        """The second half, position by position: x + mlp(norm(x)), (batch, any, width)."""
        return x + self.mlp(self.mlp_norm(x))

    def forward(
        self, x: Tensor, seen: list[Features] | None = None, positions: Tensor | None = None
    ) -> Tensor:
        """x (batch, L, width) to the same shape, or to (batch, k, width) at ``positions`` (batch, k).

        The mixer's features are added to ``seen``.
        """
        x = self.mix(x, seen)
        if positions is not None:
            x = x.gather(1, positions.unsqueeze(-1).expand(-1, -1, x.shape[-1]))
        return self.transform(x)


class SequenceModel(nn.Module):
    """A stack of mixers between an embedding and a readout.

    Args:
        config: the model's configuration.
        vocab_size: size of the input and output vocabulary.
        seq_len: L; the compression readout decodes this many positions.
        readout: ``"tokens"``: a label at a position is read from that position; ``"sequence"``: all
            positions are read from the last one (compression, METHOD section 4).
    """

    def __init__(
        self, config: ModelConfig, vocab_size: int, seq_len: int, readout: Readout = "tokens"
    ) -> None:
        super().__init__()
        if readout not in ("tokens", "sequence"):
            raise ValueError(f"readout = {readout!r}: known ones are 'tokens' and 'sequence'")
        self.config = config
        self.seq_len = seq_len
        self.readout = readout
        self.embedding = nn.Embedding(vocab_size, config.width)
        nn.init.normal_(self.embedding.weight, std=config.embedding_std)
        self.blocks = nn.ModuleList(
            Block(config, name, layer) for layer, name in enumerate(mixer_names(config))
        )
        self.final_norm = RMSNorm(config.width)
        if readout == "sequence":
            self.position_codes = nn.Parameter(torch.randn(seq_len, config.width))
            self.decoder = SwiGLU(config.width, mlp_hidden(config))
        # A tied head has no entry of its own: checkpoint formats refuse tensors that share memory.
        self.head = None if config.tie_embeddings else nn.Linear(config.width, vocab_size, False)

    @property
    def mixers(self) -> list[Mixer]:
        """The mixers, first layer first."""
        return [block.mixer for block in self.blocks]

    def hidden(
        self,
        tokens: Tensor,
        positions: Tensor | None = None,
        seen: list[Features] | None = None,
    ) -> Tensor:
        """Normalised last hidden states, (batch, L, width), or (batch, k, width) at ``positions``.

        tokens: (batch, L) of int64; positions: (batch, k) of int64. What follows the last mixer works
        position by position, so with ``positions`` it is computed there only. Every mixer's features
        are added to ``seen``, first layer first.
        """
        x = self.embedding(tokens)
        for block in self.blocks[:-1]:
            x = block(x, seen)
        return self.final_norm(self.blocks[-1](x, seen, positions))

    @property
    def readout_weight(self) -> Tensor:
        """What turns hidden states into logits, (vocabulary, width)."""
        return self.embedding.weight if self.head is None else self.head.weight

    def read(self, hidden: Tensor) -> Tensor:
        """Logits (..., vocabulary) of hidden states (..., width)."""
        return F.linear(hidden, self.readout_weight)

    def logits_at(self, tokens: Tensor, positions: Tensor, seen: list[Features] | None = None) -> Tensor:
        """Logits (batch, k, vocabulary) of the labels at ``positions`` (batch, k), and only those.

        Every mixer's features are added to ``seen``.
        """
        if self.readout == "tokens":
            return self.read(self.hidden(tokens, positions, seen))
        return self._decode(tokens, self.position_codes[positions], seen)

    def logits_and_penalty(
        self, tokens: Tensor, positions: Tensor, layers: tuple[int, ...], reduction: str
    ) -> tuple[Tensor, Tensor]:
        """:meth:`logits_at`, and the sum of ||A - I||_F of the mixers in ``layers`` (appendix A)."""
        seen: list[Features] = []
        logits = self.logits_at(tokens, positions, seen)
        penalties = [decay_distance(seen[layer], reduction) for layer in layers]
        return logits, torch.stack(penalties).sum()

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits (batch, L, vocabulary) of all positions of ``tokens`` (batch, L)."""
        if self.readout == "tokens":
            return self.read(self.hidden(tokens))
        return self._decode(tokens, self.position_codes)

    def _decode(self, tokens: Tensor, codes: Tensor, seen: list[Features] | None = None) -> Tensor:
        """Logits at the codes' positions from the last position's hidden state alone."""
        last = torch.full_like(tokens[:, :1], tokens.shape[1] - 1)
        return self.read(self.decoder(self.hidden(tokens, last, seen) + codes))

    def features(self, tokens: Tensor) -> list[Features]:
        """Every mixer's features on ``tokens`` (batch, L), first layer first: what ESS is computed of.

        The model's dtype decides theirs: ``model.double().features(tokens)`` for float64.
        """
        seen: list[Features] = []
        self.hidden(tokens, seen=seen)
        return seen


def build_model(
    config: ModelConfig, vocab_size: int, seq_len: int, readout: Readout = "tokens", seed: int = 0
) -> SequenceModel:
    """A new model on the CPU whose parameters depend on the arguments only.

    The global random state is neither read nor moved.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return SequenceModel(config, vocab_size, seq_len, readout)
