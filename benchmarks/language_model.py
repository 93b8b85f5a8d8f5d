"""Training steps of language models against a plain GPT of the same size, and forward passes at 32k.

The plain GPT is frozen: torch's scaled_dot_product_attention, LayerNorm, GELU, learnt positions, all
logits at once, AdamW. Both sides train on the same tokens, alternately in one process.

    OMP_NUM_THREADS=1 python benchmarks/language_model.py [--repeats N] [--long]
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from effstate.config import ModelConfig
from effstate.lm.config import LmTrainingConfig
from effstate.lm.trainer import NextTokenLoss
from effstate.models import build_model
from effstate.registry import MIXERS
from effstate.training.trainer import make_optimizer

MIXER_NAMES = ("la", "wla", "gla", "sa")
LAYERS, WIDTH, HEADS, CONTEXT, VOCABULARY, BATCH = 4, 128, 4, 256, 4096, 8
LONG, LONG_WIDTH, LONG_HEADS = 32_768, 2048, 16
Row = dict[str, Any]


class PlainBlock(nn.Module):
    """Attention and MLP; its matrices have as many numbers as those of our block."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.up = nn.Linear(width, 3 * width, bias=False)
        self.down = nn.Linear(3 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class PlainGPT(nn.Module):
    """A GPT whose call is the mean loss of rows (batch, L + 1)."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.ModuleList(PlainBlock(WIDTH, HEADS) for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, rows: Tensor) -> Tensor:
        x = self.tokens(rows[:, :-1]) + self.positions.weight
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), rows[:, 1:].flatten())


def _step(loss: nn.Module, optimizer: torch.optim.Optimizer, rows: Tensor) -> float:
    """Seconds of one training step."""
    started = time.perf_counter()
    optimizer.zero_grad(set_to_none=True)
    loss(rows).backward()
    nn.utils.clip_grad_norm_(loss.parameters(), 1.0)
    optimizer.step()
    return time.perf_counter() - started


def rows(repeats: int = 7, names: tuple[str, ...] = MIXER_NAMES) -> Iterator[Row]:
    """A row per mixer: seconds of a step (medians), ratio plain / ours, parameters of ours / plain."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, VOCABULARY, (BATCH, CONTEXT + 1), generator=generator)
    for name in names:
        config = ModelConfig(featurizer=name, num_layers=LAYERS, width=WIDTH, heads=HEADS)
        plain = PlainGPT()
        sides = []
        for loss in (NextTokenLoss(build_model(config, VOCABULARY, CONTEXT)), plain):
            sides.append((loss, make_optimizer(loss, LmTrainingConfig())))
        counts = [sum(p.numel() for p in loss.parameters()) for loss, _ in sides]
        for side in sides * 2:
            _step(*side, tokens)
        pairs = [tuple(_step(*side, tokens) for side in sides) for _ in range(repeats)]
        ratios = [theirs / ours for ours, theirs in pairs]
        yield {
            "name": name,
            "size": f"b{BATCH}-l{CONTEXT}-w{WIDTH}-d{LAYERS}-v{VOCABULARY}",
            "ours_s": statistics.median(ours for ours, _ in pairs),
            "theirs_s": statistics.median(theirs for _, theirs in pairs),
            "ratio": statistics.median(ratios),
            "ratio_min": min(ratios),
            "ratio_max": max(ratios),
            "tokens_per_s": BATCH * CONTEXT / statistics.median(ours for ours, _ in pairs),
            "parameters": counts[0] / counts[1],
        }


@torch.no_grad()
def long_forward(name: str) -> None:
    """One layer at 32k tokens in this process; prints seconds and the process' peak in GiB."""
    mixer = MIXERS[name](ModelConfig(featurizer=name, width=LONG_WIDTH, heads=LONG_HEADS))
    u = torch.randn(1, LONG, LONG_WIDTH, generator=torch.Generator().manual_seed(0))
    started = time.perf_counter()
    finite = bool(mixer(u).isfinite().all())
    seconds = time.perf_counter() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"{name:6}{seconds:9.1f} s{peak:8.2f} GiB{'' if finite else '  NOT FINITE'}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--long", action="store_true", help="one layer over 32,768 tokens instead")
    parser.add_argument("--only", choices=sorted(MIXERS), help="with --long: this mixer, here")
    arguments = parser.parse_args()
    if arguments.only:
        return long_forward(arguments.only)
    if arguments.long:
        print(f"forward of one layer, width {LONG_WIDTH}, {LONG_HEADS} heads, {LONG} tokens, float32")
        for name in MIXER_NAMES:
            command = [sys.executable, __file__, "--long", "--only", name]
            subprocess.run(command, check=True)
        return None
    print(f"torch {torch.__version__}, {torch.get_num_threads()} thread(s); ratio: plain GPT / ours")
    for row in rows(arguments.repeats):
        print(
            f"{row['name']:5}{1e3 * row['ours_s']:8.0f} ms (plain {1e3 * row['theirs_s']:.0f} ms)  "
            f"ratio {row['ratio_min']:.2f} {row['ratio']:.2f} {row['ratio_max']:.2f}  "
            f"{row['tokens_per_s']:,.0f} tokens/s  parameters {row['parameters']:.3f} of the plain ones"
        )
    return None


if __name__ == "__main__":
    main()
