"""What the pipeline costs beside the work: traces against the training that they accompany, and the
workflow's own time (graph of the paper scale, a run with nothing to do, a job).

    python benchmarks/pipeline.py [--repeats N]
"""

from __future__ import annotations

import argparse
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from effstate.analysis.trace import kind_means, layer_profiles
from effstate.config import MQARConfig, RunConfig, TraceConfig
from effstate.pipeline import Pipeline
from effstate.training.trainer import build, make_loss, make_optimizer

ROOT = Path(__file__).parents[1]
Row = dict[str, Any]


def step_seconds(run: RunConfig, repeats: int) -> float:
    """Median wall time of one training step on random rows, eager, on the CPU."""
    generator = torch.Generator().manual_seed(0)
    shape = (run.training.batch_size, run.task.seq_len)
    inputs = torch.randint(0, run.task.vocab_size, shape, generator=generator)
    task = run.task
    labels = task.kv if isinstance(task, MQARConfig) else task.seq_len // 2
    positions = torch.arange(labels).expand(shape[0], -1)
    model = build(run)
    optimizer, loss = make_optimizer(model, run.training), make_loss(model, run.training)
    times = []
    for _ in range(repeats + 1):
        started = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        loss(inputs, positions, inputs[:, :labels]).backward()
        optimizer.step()
        times.append(time.perf_counter() - started)
    return statistics.median(times[1:])


def trace_seconds(run: RunConfig, trace: TraceConfig) -> float:
    """Wall time of the trace of one checkpoint."""
    generator = torch.Generator().manual_seed(0)
    shape = (trace.samples, run.task.seq_len)
    tokens = torch.randint(0, run.task.vocab_size, shape, generator=generator)
    model = build(run)
    started = time.perf_counter()
    for _, profile in layer_profiles(model, tokens, trace.tolerances):
        kind_means(profile, trace)
    return time.perf_counter() - started


def traces(scale: str, repeats: int) -> Iterator[Row]:
    """Trace of a checkpoint against the steps between two, for each recurrent mixer of a scale's MQAR.

    The run is the one in the middle of the sweep; ``ratio`` is training over trace.
    """
    sweep = Pipeline.from_config({"scale": scale}, ROOT).sweep("mqar")
    for featurizer in ("la", "wla", "gla"):
        runs = [run for run in sweep.runs if run.model.featurizer == featurizer]
        run = runs[len(runs) // 2]
        between = run.training.evaluate_every * run.training.steps_per_epoch
        ours, theirs = trace_seconds(run, sweep.trace), between * step_seconds(run, repeats)
        yield {
            "name": f"trace against training, {scale}: {featurizer}",
            "size": f"L={run.task.seq_len} width={run.model.width} heads={run.model.heads}",
            "ours_s": ours,
            "theirs_s": theirs,
            "ratio": theirs / ours,
            "error": float("nan"),
        }


def _snakemake(folder: Path, *arguments: str) -> tuple[float, str]:
    """Wall time and output of a Snakemake call in a copy of the project; raises if it fails."""
    command = [sys.executable, "-m", "snakemake", *arguments, "--cores", "1"]
    started = time.perf_counter()
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    return time.perf_counter() - started, done.stdout + done.stderr


def workflow() -> Iterator[Row]:
    """The graph of the paper scale; figure 1 (one small job); the same with nothing to do."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        for name in ("Snakefile", "workflow", "profiles", "config"):
            (place / name).symlink_to(ROOT / name)
        graph, said = _snakemake(place, "figures", "-n", "--quiet", "--config", "scale=paper")
        counted = re.search(r"^total +(\d+)$", said, re.MULTILINE)
        first, _ = _snakemake(place, "fig1")
        again, _ = _snakemake(place, "fig1")
    jobs = f"{counted[1]} jobs" if counted else "jobs not counted"
    for name, size, took in (
        ("workflow: graph of the paper scale", jobs, graph),
        ("workflow: figure 1", "1 job", first),
        ("workflow: nothing to do", "0 jobs", again),
    ):
        missing = dict.fromkeys(("theirs_s", "ratio", "error"), float("nan"))
        yield {"name": name, "size": size, "ours_s": took, **missing}


def rows(repeats: int = 5) -> Iterator[Row]:
    """One row a case, as :func:`benchmarks.ess.rows`; no ``theirs_s`` for the workflow's own time."""
    for scale in ("small", "paper"):
        yield from traces(scale, repeats)
    yield from workflow()


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    for row in rows(parser.parse_args().repeats):
        print(
            f"{row['name']:40} {row['size']:28} {row['ours_s']:9.3f} {row['theirs_s']:11.3f} "
            f"{row['ratio']:8.1f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
