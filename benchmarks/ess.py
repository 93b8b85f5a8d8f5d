"""ESS against its definition (an SVD for every index): times, ratios and errors.

    python benchmarks/ess.py [--threads N] [--repeats N] [--only WORD]

Each line times both sides in the same process, one after the other, and prints medians. Where the
definition would take too long it is timed on evenly spread indices and scaled to all of them; the
name then says ``reference sampled``. Errors are taken at the same indices: for spectra relative to
the largest singular value, for entropy-ESS relative, for tolerance-ESS the number of unequal counts.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from effstate.ess import Recurrence, entropy_ess, singular_values, tolerance_ess

Row = dict[str, object]

REPEATS = 5
SAMPLED_ABOVE = 512
SAMPLE = 24
STATE_SIZE = 16
OPERATORS = 4
TAU = 1e-3


def recurrence(length: int, operators: int = OPERATORS, n: int = STATE_SIZE) -> Recurrence:
    """Random features with decays near 1, float64."""
    generator = torch.Generator().manual_seed(length)
    shape = (operators, length, n)
    b, c = (torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(2))
    a = torch.sigmoid(torch.randn(shape, generator=generator, dtype=torch.float64) + 3)
    return Recurrence(a, b, c)


def attention(length: int, operators: int = 1, width: int = 16, seed: int = 0) -> Tensor:
    """Causal softmax attention of random features, (operators, length, length), float64."""
    generator = torch.Generator().manual_seed(seed)
    shape = (operators, length, width)
    q, k = (torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(2))
    future = torch.ones(length, length, dtype=torch.bool).triu(1)
    scores = (q @ k.mT) / math.sqrt(width) * 2
    return scores.masked_fill(future, float("-inf")).softmax(-1)


def seconds(work: Callable[[], object], repeats: int) -> list[float]:
    """Wall time of each of ``repeats`` calls."""
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return times


def chosen_indices(length: int) -> list[int]:
    """All indices, or for long sequences the middles of ``SAMPLE`` equal stretches."""
    if length <= SAMPLED_ABOVE:
        return list(range(1, length))
    return [round((k + 0.5) * length / SAMPLE) for k in range(SAMPLE)]


def definition(operator: Tensor, indices: list[int]) -> list[Tensor]:
    """Singular values of H_i for the given indices."""
    return [torch.linalg.svdvals(operator[..., i:, :i]) for i in indices]


def entropy(sigma: Tensor) -> Tensor:
    """The definition of entropy-ESS on one spectrum."""
    p = (sigma / sigma.sum(-1, keepdim=True)).clamp_min(1e-12)
    return (-p * p.log()).sum(-1).exp()


def spectrum_error(found: Tensor, true: list[Tensor], indices: list[int]) -> float:
    """Largest difference of singular values relative to the largest of the operators."""
    worst = 0.0
    for i, sigma in zip(indices, true, strict=True):
        width = min(found.shape[-1], sigma.shape[-1])
        difference = (found[:, i - 1, :width] - sigma[:, :width]).abs().max()
        worst = max(worst, float(difference))
    return worst / max(float(sigma.max()) for sigma in true)


def entropy_error(found: Tensor, true: list[Tensor], indices: list[int]) -> float:
    """Largest relative difference of entropy-ESS."""
    pairs = zip(indices, true, strict=True)
    return max(float((found[:, i - 1] / entropy(s) - 1).abs().max()) for i, s in pairs)


def unequal_counts(found: Tensor, true: list[Tensor], indices: list[int]) -> float:
    """Number of tolerance-ESS values that are not those of the definition."""
    pairs = zip(indices, true, strict=True)
    return float(sum(int((found[:, i - 1] != (s > TAU).sum(-1)).sum()) for i, s in pairs))


Case = tuple[str, str, Tensor, Callable[[], Tensor], Callable[..., float]]


def cases() -> Iterator[Case]:
    """Name, size, operator for the definition, our call, and how their difference is measured."""
    for length in (128, 256, 512, 1024, 2048):
        op = recurrence(length)
        size = f"L={length} n={STATE_SIZE} operators={OPERATORS}"
        ours = lambda op=op: singular_values(op)  # noqa: E731
        yield "recurrence: spectra", size, op.operator(), ours, spectrum_error
    for length, operators in ((64, 704), (256, 8), (512, 1), (1024, 1), (2048, 1)):
        op = attention(length, operators)
        size = f"L={length} operators={operators}"
        ours = lambda op=op: tolerance_ess(op, TAU)  # noqa: E731
        yield "attention: tolerance-ESS", size, op, ours, unequal_counts
    for length, operators in ((64, 704), (256, 8), (512, 1), (1024, 1)):
        op = attention(length, operators)
        size = f"L={length} operators={operators}"
        ours = lambda op=op: entropy_ess(op)  # noqa: E731
        yield "attention: entropy-ESS", size, op, ours, entropy_error
    for length in (512, 1024):
        op = attention(length)
        ours = lambda op=op: entropy_ess(op, method="determinants")  # noqa: E731
        yield "attention: entropy-ESS to 1e-8", f"L={length} operators=1", op, ours, entropy_error
    op = attention(512)
    ours = lambda: entropy_ess(op, method="svd")  # noqa: E731
    yield "attention: entropy-ESS, by SVD", "L=512 operators=1", op, ours, entropy_error


def rows(repeats: int = REPEATS, only: str = "") -> list[Row]:
    """One row a case: name, size, ours_s, theirs_s, ratio (of medians, and its extremes), error."""
    return list(measured(repeats, only))


def measured(repeats: int, only: str) -> Iterator[Row]:
    """:func:`rows`, each as soon as it is there."""
    for name, size, operator, ours, difference in cases():
        if only not in name:
            continue
        length = operator.shape[-1]
        indices = chosen_indices(length)
        scale = (length - 1) / len(indices)
        error = difference(ours(), definition(operator, indices), indices)
        ours_s = seconds(ours, repeats)
        theirs_s = seconds(lambda o=operator, i=indices: definition(o, i), repeats)
        theirs_s = [scale * one for one in theirs_s]
        yield {
            "name": name + ("" if scale == 1 else " (reference sampled)"),
            "size": size,
            "ours_s": statistics.median(ours_s),
            "theirs_s": statistics.median(theirs_s),
            "ratio": statistics.median(theirs_s) / statistics.median(ours_s),
            "ratio_min": min(theirs_s) / max(ours_s),
            "ratio_max": max(theirs_s) / min(ours_s),
            "error": error,
        }


def time_recurrence(length: int) -> Callable[[], Tensor]:
    """All spectra of one recurrence, to be timed."""
    op = recurrence(length, 1)
    return lambda: singular_values(op)


def time_attention(length: int) -> Callable[[], Tensor]:
    """Tolerance-ESS of one attention operator, to be timed."""
    op = attention(length)
    return lambda: tolerance_ess(op, TAU)


def time_precise_entropy(length: int) -> Callable[[], Tensor]:
    """Entropy-ESS to 1e-8 of one attention operator, to be timed."""
    op = attention(length)
    return lambda: entropy_ess(op, method="determinants")


def growth(repeats: int = REPEATS) -> Iterator[tuple[str, float]]:
    """Exponents of the growth of our own time with L."""
    sides: tuple[tuple[str, tuple[int, ...], Callable[[int], Callable[[], Tensor]]], ...] = (
        ("recurrence: spectra, one operator", (1024, 4096, 16384), time_recurrence),
        ("attention: tolerance-ESS", (512, 1024, 2048), time_attention),
        ("attention: entropy-ESS to 1e-8", (256, 512, 1024), time_precise_entropy),
    )
    for name, lengths, make in sides:
        times = [statistics.median(seconds(make(length), repeats)) for length in lengths]
        exponent = math.log(times[-1] / times[0]) / math.log(lengths[-1] / lengths[0])
        yield f"{name}, L = {lengths[0]} to {lengths[-1]}", exponent


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument("--only", default="", help="part of a name")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    print(f"{arguments.threads} threads, medians of {arguments.repeats}")
    print(f"{'name':48} {'size':28} {'ours s':>9} {'theirs s':>9} {'ratio':>8} {'error':>8}")
    for row in measured(arguments.repeats, arguments.only):
        print(
            f"{row['name']:48} {row['size']:28} {row['ours_s']:9.4f} {row['theirs_s']:9.3f} "
            f"{row['ratio']:8.1f} {row['error']:8.1e}",
            flush=True,
        )
    if not arguments.only:
        for name, exponent in growth(arguments.repeats):
            print(f"time grows like L^{exponent:.2f}: {name}", flush=True)


if __name__ == "__main__":
    main()
