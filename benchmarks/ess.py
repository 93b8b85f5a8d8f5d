"""Time of the recurrent ESS path against the definition (an SVD per index), in one process.

Run ``python benchmarks/ess.py``. Above ``SAMPLED_ABOVE`` the reference is timed on a sample of indices
and scaled to all of them; the table marks those rows.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

from effstate.ess import Recurrence, singular_values

LENGTHS = (128, 256, 512, 1024)
STATE_SIZE = 16
OPERATORS = 4
REPEATS = 5
SAMPLED_ABOVE = 512
SAMPLE = 32


def recurrence(length: int) -> Recurrence:
    """Random features with decays near 1, float64, four operators."""
    generator = torch.Generator().manual_seed(length)
    shape = (OPERATORS, length, STATE_SIZE)
    B, C = (torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(2))
    A = torch.sigmoid(torch.randn(shape, generator=generator, dtype=torch.float64) + 3)
    return Recurrence(A=A, B=B, C=C)


def definition(T: Tensor, indices: list[int]) -> list[Tensor]:
    """Singular values of T[i:, :i] for the given indices."""
    return [torch.linalg.svdvals(T[..., i:, :i]) for i in indices]


def seconds(work: Callable[[], object], repeats: int) -> list[float]:
    """Wall times of ``repeats`` calls."""
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return sorted(times)


def rows(lengths: tuple[int, ...] = LENGTHS, repeats: int = REPEATS) -> list[dict[str, object]]:
    """One row a length: name, size, ours_s, theirs_s, ratio (of medians), error over sigma_max."""
    found = []
    for length in lengths:
        op = recurrence(length)
        T = op.operator()
        step = 1 if length <= SAMPLED_ABOVE else length // SAMPLE
        indices = list(range(1, length, step))
        ours = singular_values(op)
        error = max(
            float(
                (
                    ours[:, i - 1, : min(i, length - i, STATE_SIZE)]
                    - s[:, : min(i, length - i, STATE_SIZE)]
                )
                .abs()
                .max()
                / s.max()
            )
            for i, s in zip(indices, definition(T, indices), strict=True)
        )
        scale = (length - 1) / len(indices)
        theirs = [t * scale for t in seconds(lambda T=T, i=indices: definition(T, i), repeats)]
        fast = seconds(lambda op=op: singular_values(op), repeats)
        found.append(
            {
                "name": "recurrent singular values" + ("" if step == 1 else " (reference sampled)"),
                "size": f"L={length} n={STATE_SIZE} operators={OPERATORS}",
                "ours_s": statistics.median(fast),
                "theirs_s": statistics.median(theirs),
                "ratio": statistics.median(theirs) / statistics.median(fast),
                "error": error,
            }
        )
    return found


def main() -> None:
    """Print the table."""
    print(f"{'name':44} {'size':26} {'ours s':>9} {'theirs s':>9} {'ratio':>8}  error / sigma_max")
    for length in LENGTHS:
        for row in rows((length,)):
            print(
                f"{row['name']:44} {row['size']:26} {row['ours_s']:9.4f} {row['theirs_s']:9.3f} "
                f"{row['ratio']:8.1f}  {row['error']:.1e}",
                flush=True,
            )


if __name__ == "__main__":
    main()
