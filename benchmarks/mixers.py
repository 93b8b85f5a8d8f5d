"""Forward and backward of every mixer against a plain PyTorch form of it, alternately in one process.

The plain forms below are frozen: the style of small research code (one Linear per projection, the
whole L x L operator, a mask, cumulative sums of the log decays), weights shared with ours. They take
exponentials of positive numbers, so they overflow for strong gates; here the gates are weak.

    OMP_NUM_THREADS=1 python benchmarks/mixers.py [--compile] [--repeats N]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from effstate.config import ModelConfig
from effstate.models import Mixer
from effstate.registry import MIXERS

SIZES = {
    # batch, L, width, heads
    "b32-l64-w16-h4": (32, 64, 16, 4),
    "b32-l64-w32-h1": (32, 64, 32, 1),
    "b32-l64-w32-h4": (32, 64, 32, 4),
    "b64-l64-w64-h8": (64, 64, 64, 8),
    "b4-l1024-w64-h4": (4, 1024, 64, 4),
}


class PlainMixer(nn.Module):
    """The frozen plain form of a built-in mixer, with the weights of ``mixer``."""

    def __init__(self, name: str, mixer: Mixer) -> None:
        super().__init__()
        self.name = name
        self.heads, self.scale = mixer.heads, mixer.scale
        self.beta = mixer.config.gate_logit_norm
        self.theta = mixer.config.rope_theta
        width = mixer.config.width
        parts = [width, width, width, *mixer.parts[2:]]
        weight_q, weight_k, weight_v, weight_gate = mixer.projection.weight.detach().split(parts)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))
        for ours, theirs in (
            (weight_q, self.q),
            (weight_k, self.k),
            (weight_v, self.v),
            (mixer.output_projection.weight, self.o),
        ):
            theirs.weight.data.copy_(ours)
        if name != "sa":
            self.norm_weight = nn.Parameter(mixer.head_norm.weight.detach().clone())
            self.norm_eps = mixer.head_norm.eps
        if name == "gla":
            self.gate = nn.Sequential(
                nn.Linear(width, mixer.config.gate_rank, bias=False),
                nn.Linear(mixer.config.gate_rank, width),
            )
            self.gate[0].weight.data.copy_(weight_gate)
            self.gate[1].weight.data.copy_(mixer.gate_expansion.weight)
            self.gate[1].bias.data.copy_(mixer.gate_expansion.bias)
        if name == "wla":
            self.gate = nn.Parameter(mixer.gates.detach().clone())

    def rope(self, x: Tensor) -> Tensor:
        L, n = x.shape[-2:]
        angle = torch.arange(L)[:, None] * self.theta ** (-torch.arange(0, n, 2) / n)
        cos, sin = (f.repeat_interleave(2, -1) for f in (angle.cos(), angle.sin()))
        rotated = torch.stack([-x[..., 1::2], x[..., ::2]], -1).flatten(-2)
        return x * cos + rotated * sin

    def forward(self, u: Tensor) -> Tensor:
        batch, L, _ = u.shape
        q = self.q(u).view(batch, L, self.heads, -1).transpose(1, 2)
        k = self.k(u).view(batch, L, self.heads, -1).transpose(1, 2)
        v = self.v(u).view(batch, L, self.heads, -1).transpose(1, 2)
        if self.name in ("la", "sa"):
            q, k = self.rope(q), self.rope(k)
        if self.name == "gla":
            log_a = nn.functional.logsigmoid(self.gate(u)) / self.beta
            g = log_a.view(batch, L, self.heads, -1).transpose(1, 2).cumsum(-2)
        if self.name == "wla":
            log_a = nn.functional.logsigmoid(self.gate) / self.beta
            g = log_a[None, :, None, :].expand(1, -1, L, -1).cumsum(-2)
        if self.name in ("gla", "wla"):
            q, k = q * g.exp(), k * (-g).exp()
        T = (q * self.scale) @ k.transpose(-1, -2)
        if self.name == "sa":
            future = torch.ones(L, L, dtype=torch.bool).triu(1)
            T = T.masked_fill(future, float("-inf")).softmax(-1)
        else:
            T = T.tril()
        y = T @ v
        if self.name != "sa":
            variance = y.pow(2).mean(-1, keepdim=True)
            y = y * torch.rsqrt(variance + self.norm_eps) * self.norm_weight
        return self.o(y.transpose(1, 2).reshape(batch, L, -1))


def _step(module: Callable[[Tensor], Tensor], u: Tensor, gradient: Tensor) -> float:
    """Seconds of one forward and backward."""
    start = time.perf_counter()
    module(u).backward(gradient)
    return time.perf_counter() - start


def _error(ours: nn.Module, theirs: nn.Module, u: Tensor, gradient: Tensor) -> float:
    """Largest difference of outputs and of input gradients, over the largest of theirs."""
    found = []
    for module in (ours, theirs):
        x = u.detach().clone().requires_grad_()
        y = module(x)
        y.backward(gradient)
        found.append((y.detach(), x.grad))
    return max(float((a - b).abs().amax() / b.abs().amax()) for a, b in zip(*found, strict=True))


def rows(
    names: tuple[str, ...] = ("la", "wla", "gla", "sa"),
    sizes: tuple[str, ...] = tuple(SIZES),
    repeats: int = 7,
    compiled: bool = False,
) -> list[dict[str, Any]]:
    """One row per mixer and size: name, size, ours_s, theirs_s (medians), ratio (theirs over ours:
    the median over repeats), ratio_min, ratio_max, error (of output and input gradient)."""
    table = []
    for size in sizes:
        batch, L, width, heads = SIZES[size]
        generator = torch.Generator().manual_seed(0)
        u, gradient = (torch.randn(batch, L, width, generator=generator) for _ in range(2))
        u.requires_grad_()
        for name in names:
            # No epsilon-sized rows in the comparison: the gates' bias keeps the plain form finite.
            config = ModelConfig(featurizer=name, width=width, heads=heads, gate_bias=4.0)
            with torch.random.fork_rng(devices=[]):
                torch.default_generator.manual_seed(0)
                ours: Any = MIXERS[name](config)
            theirs: Any = PlainMixer(name, ours)
            error = _error(ours, theirs, u, gradient)
            if compiled:
                ours, theirs = torch.compile(ours), torch.compile(theirs)
            for _ in range(2):
                per_run = max(_step(ours, u, gradient), _step(theirs, u, gradient))
            inner = max(1, min(20, round(0.1 / per_run)))
            pairs = []
            for _ in range(repeats):
                # Alternating call by call: a busy neighbour slows both alike.
                steps = [(_step(ours, u, gradient), _step(theirs, u, gradient)) for _ in range(inner)]
                pairs.append(tuple(statistics.median(s) for s in zip(*steps, strict=True)))
            ratios = [b / a for a, b in pairs]
            table.append(
                {
                    "name": name,
                    "size": size,
                    "ours_s": statistics.median(a for a, _ in pairs),
                    "theirs_s": statistics.median(b for _, b in pairs),
                    "ratio": statistics.median(ratios),
                    "ratio_min": min(ratios),
                    "ratio_max": max(ratios),
                    "error": error,
                }
            )
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--compile", action="store_true", help="torch.compile both sides")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--sizes", nargs="+", default=list(SIZES), choices=list(SIZES))
    parser.add_argument("--names", nargs="+", default=["la", "wla", "gla", "sa"])
    arguments = parser.parse_args()
    print(
        f"torch {torch.__version__}, {torch.get_num_threads()} thread(s), "
        f"{'compiled' if arguments.compile else 'eager'}; forward + backward; ratio: plain / ours"
    )
    print(f"{'mixer':6}{'size':18}{'ours ms':>9}{'plain ms':>9}{'min':>7}{'median':>8}{'max':>7}  error")
    for row in rows(
        tuple(arguments.names), tuple(arguments.sizes), arguments.repeats, arguments.compile
    ):
        print(
            f"{row['name']:6}{row['size']:18}{1e3 * row['ours_s']:9.2f}{1e3 * row['theirs_s']:9.2f}"
            f"{row['ratio_min']:7.2f}{row['ratio']:8.2f}{row['ratio_max']:7.2f}  {row['error']:.1e}"
        )


if __name__ == "__main__":
    main()
