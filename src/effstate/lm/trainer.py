"""Train one language model: from its request to its export. Reads top to bottom.

Batches follow from seed and step alone, so a run that is resumed, on however many processes, reads what
an undisturbed one reads. On one CPU process the results are equal to the last bit.
"""

from __future__ import annotations

import contextlib
import functools
import math
import resource
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn import LinearCrossEntropyOptions
from torch.utils.checkpoint import checkpoint

from effstate.artifacts import Artifact, derive_seed, write_json
from effstate.cohorts import Interrupted
from effstate.config import ConfigError
from effstate.lm.checkpoints import EXPORTED, export_model
from effstate.lm.config import LmRunConfig
from effstate.lm.corpus import TOKENIZER, TokenCorpus, TokenRows
from effstate.lm.cost import cost_of
from effstate.lm.parallel import World, joined, parallelise, without_averaging
from effstate.lm.resume import load_resume_point, resume_points, save_resume_point
from effstate.models import SequenceModel, build_model
from effstate.operators.kernels import kernels_in_use
from effstate.training.interruption import StopFlag
from effstate.training.trainer import (
    RESULT,
    Execution,
    Progress,
    learning_rate,
    log_line,
    make_optimizer,
    watched,
)

EXPORT, RESUME = "export", "resume"
LOSS_CHUNK = 512
"""Positions whose logits are held at once. Measured on a CPU: twice as fast as all of them."""

LOOK_EVERY = {"cpu": 1, "cuda": 10}
"""Steps between two looks at losses and signals: each look waits for the GPU."""


class NextTokenLoss(nn.Module):
    """Mean cross-entropy in nats of every token but a row's first, without all logits in memory.

    Under autocast the readout's products are 16-bit ones while training, and so is the loss's value (not
    its gradient); in evaluation mode they are not.
    """

    def __init__(self, model: SequenceModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, rows: Tensor) -> Tensor:
        """rows (batch, L + 1) of int64 to a scalar."""
        hidden = self.model.hidden(rows[:, :-1]).flatten(0, 1)
        weight, kind = self.model.readout_weight, rows.device.type
        if self.training and torch.is_autocast_enabled(kind):
            dtype = torch.get_autocast_dtype(kind)
            hidden, weight = hidden.to(dtype), weight.to(dtype)
        options = LinearCrossEntropyOptions(batch_chunk_size=LOSS_CHUNK, chunking_method=None)
        with torch.autocast(kind, enabled=False):
            return F.linear_cross_entropy(hidden, weight, rows[:, 1:].flatten(), options=options)


class Steps:
    """The model of a run, its optimizer, and one step, on this process of its world."""

    def __init__(self, run: LmRunConfig, corpus: TokenCorpus, world: World, compiled: bool) -> None:
        config = run.training
        self.run, self.world = run, world
        self.rows = TokenRows(corpus, "train", run.context, config.batch_size, run.seed)
        self.held_out = TokenRows(corpus, "validation", run.context)
        self.share = len(self.rows.batch(0, world.rank, world.size))
        self.sharded = world.size > 1 and _sharded(run, corpus.vocab_size, world)
        seed = derive_seed(run.seed, "init")
        self.model = build_model(run.model, corpus.vocab_size, run.context, seed=seed)
        for block in self.model.blocks:
            if compiled:
                block.forward = torch.compile(block.forward, dynamic=False)
            if config.activation_checkpointing:
                block.forward = functools.partial(checkpoint, block.forward, use_reentrant=False)
        self.loss = parallelise(NextTokenLoss(self.model), self.model.blocks, world, self.sharded)
        self.optimizer = make_optimizer(self.model, config)

    @property
    def _micro(self) -> int:
        return min(self.run.training.micro_batch_size or self.share, self.share)

    def _loss(self, rows: Tensor) -> Tensor:
        kind = self.world.device.type
        bf16 = self.run.training.precision == "bf16"
        with torch.autocast(kind, torch.bfloat16, enabled=bf16):
            return self.loss(rows.to(self.world.device))

    def step(self, number: int) -> tuple[Tensor, Tensor]:
        """Update the parameters once; this process's mean loss, and the norm of the whole gradient."""
        config = self.run.training
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(config, number, config.steps)
        self.optimizer.zero_grad(set_to_none=True)
        rows = self.rows.batch(number, self.world.rank, self.world.size)
        *earlier, last = rows.split(self._micro)
        total = torch.zeros((), device=self.world.device)
        with without_averaging(self.loss):
            for part in earlier:
                total += self._accumulate(part)
        total += self._accumulate(last)
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), config.grad_clip)
        self.optimizer.step()
        return total, norm

    def _accumulate(self, rows: Tensor) -> Tensor:
        """Add the gradient of some of the share's rows; their part of its mean loss."""
        loss = self._loss(rows) * (len(rows) / self.share)
        loss.backward()
        return loss.detach()

    @torch.no_grad()
    def evaluate(self) -> float:
        """Mean loss of the first validation rows; collective."""
        self.loss.eval()
        count = min(len(self.held_out), self.run.training.evaluation_rows)
        total = torch.zeros((), dtype=torch.float64, device=self.world.device)
        for rows in torch.arange(count).split(self._micro * self.world.size):
            # A process without rows of its own takes part all the same: parameters may be sharded.
            own = rows[self.world.rank :: self.world.size]
            total += self._loss(self.held_out.read(own if len(own) else rows[:1])) * len(own)
        self.loss.train()
        return float(self.world.mean(total)) * self.world.size / count


def _sharded(run: LmRunConfig, vocab_size: int, world: World) -> bool:
    """Whether parameters are split over the processes (the key ``parallel``)."""
    if run.training.parallel != "auto" or world.device.type != "cuda":
        return run.training.parallel == "fsdp"
    memory = torch.cuda.get_device_properties(world.device).total_memory
    return cost_of(run, vocab_size).state_bytes > memory / 2


def _peak_bytes(device: torch.device) -> int:
    """The most memory that was in use: of the GPU, or of the process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


@contextlib.contextmanager
def explained_memory(run: LmRunConfig, vocab_size: int, processes: int) -> Iterator[None]:
    """Running out of memory becomes a ConfigError with the estimate and the keys to change."""
    try:
        yield
    except RuntimeError as error:  # CUDA's error is one, the CPU allocator's has no type of its own
        if not isinstance(error, torch.OutOfMemoryError) and "allocate memory" not in str(error):
            raise
        cost = cost_of(run, vocab_size, processes)
        raise ConfigError(
            f"{run.slug}: out of memory; a process needs about {cost.process_bytes / 2**30:.1f} GiB "
            f"({cost.state_bytes / 2**30:.1f} of weights, gradients and moments), so lower "
            "training.micro_batch_size, set training.activation_checkpointing: true, or take more "
            "processes with training.parallel: fsdp"
        ) from None


def train_language_model(
    artifact: Artifact,
    corpus: TokenCorpus,
    execution: Execution,
    *,
    on_step: Callable[[int, int], None] = lambda step, steps: None,
    flag: StopFlag | None = None,
) -> None:
    """Train the requested model to its end, or on from its last resume point; export and seal it.

    Started by torchrun, all processes work on it, and the first writes; alone, one does. ``on_step(step,
    steps)`` is called after every step. A non-finite loss seals the run as ``diverged``. SIGTERM or
    SIGINT writes a resume point and raises Interrupted. Raises ArtifactError if the corpus or the resume
    point is damaged, ConfigError if the batch does not divide or memory runs out.

    Outputs: ``export/`` (see :func:`~effstate.lm.checkpoints.load_model`) and ``result.json`` with the
    validation losses (nats per token) over the steps.
    """
    run = artifact.request.config
    assert isinstance(run, LmRunConfig)
    with (
        watched(execution, flag) as stop,
        joined(execution) as world,
        explained_memory(run, corpus.vocab_size, world.size),
    ):
        _train(artifact, run, corpus, execution, world, on_step, stop)


def _train(
    artifact: Artifact,
    run: LmRunConfig,
    corpus: TokenCorpus,
    execution: Execution,
    world: World,
    on_step: Callable[[int, int], None],
    flag: StopFlag,
) -> None:
    config, started = run.training, time.monotonic()
    compiled = execution.compiles(config.steps)
    steps = Steps(run, corpus, world, compiled)
    resume, progress = artifact.path(RESUME), Progress()
    log = functools.partial(log_line, artifact) if world.first else lambda **values: None
    points = resume_points(resume)
    if points:
        progress = load_resume_point(points[-1], steps.model, steps.optimizer, world)
        log(event="resumed", step=progress.step)
    before, tokens_per_step = progress.seconds, config.batch_size * run.context
    pending: list[Tensor] = []  # losses not yet looked at
    looked = time.monotonic()

    def settle() -> tuple[bool, bool]:
        """Look at the pending losses: whether all are finite, and whether a process shall stop."""
        asked = torch.tensor(float(bool(flag)), device=world.device)
        *losses, stopping = world.mean(torch.stack([*pending, asked])).tolist()
        pending.clear()
        progress.losses += losses
        progress.seconds = before + time.monotonic() - started
        return all(map(math.isfinite, losses)), stopping > 0

    def record() -> bool:
        """Measure the validation loss; whether it is finite."""
        loss = steps.evaluate()
        if not math.isfinite(loss):
            return False
        losses, progress.losses = progress.losses, []
        train_loss = math.fsum(losses) / len(losses) if losses else None
        tokens = progress.step * tokens_per_step
        entry = {"step": progress.step, "tokens": tokens, "loss": loss, "train_loss": train_loss}
        progress.evaluations.append(entry)
        log(event="evaluated", **entry)
        return True

    finite = bool(progress.evaluations) or record()
    while finite and progress.step < config.steps:
        loss, norm = steps.step(progress.step)
        pending.append(loss)
        progress.step += 1
        last = progress.step == config.steps
        saves = progress.step % config.checkpoint_every == 0
        evaluates = progress.step % config.evaluate_every == 0 or last
        on_step(progress.step, config.steps)
        if not (saves or evaluates or progress.step % LOOK_EVERY[world.device.type] == 0):
            continue
        count = len(pending)
        finite, stopping = settle()
        now = time.monotonic()
        log(
            event="step",
            step=progress.step,
            loss=progress.losses[-1],
            grad_norm=float(norm),
            tokens_per_second=count * tokens_per_step / (now - looked),
            peak_bytes=_peak_bytes(world.device),
            seconds=progress.seconds,
        )
        if finite and evaluates:
            finite = record()
        if finite and not last and (saves or stopping):
            save_resume_point(resume, steps.model, steps.optimizer, progress, world)
        if finite and not last and stopping:
            log(event="interrupted", step=progress.step)
            raise Interrupted(flag.signal_number or signal.SIGTERM)
        looked = time.monotonic()

    outputs = [RESULT]
    if finite:
        export_model(artifact.path(EXPORT), steps.model, run, corpus.folder / TOKENIZER)
        outputs += [f"{EXPORT}/{name}" for name in EXPORTED]
    facts = {
        "device": str(world.device),
        "processes": world.size,
        "parallel": ("fsdp" if steps.sharded else "ddp") if world.size > 1 else "none",
        "threads": torch.get_num_threads(),
        "dtype": config.precision,
        "path": "compiled" if compiled else "eager",
        "kernels": kernels_in_use(),
        "parameters": sum(p.numel() for p in steps.model.parameters()),
        "steps": progress.step,
        "tokens": progress.step * tokens_per_step,
    }
    if world.first:
        _seal(artifact, progress, "done" if finite else "diverged", outputs, facts)


def _seal(
    artifact: Artifact, progress: Progress, state: str, outputs: list[str], facts: dict[str, Any]
) -> None:
    result: dict[str, Any] = {"state": state, "evaluations": progress.evaluations}
    if state == "diverged":
        finite = [loss for loss in progress.losses if math.isfinite(loss)]
        last = finite[-1] if finite else None
        result["diverged"] = {"step": progress.step, "last_finite_loss": last}
    write_json(artifact.path(RESULT), result)
    log_line(artifact, event=state, step=progress.step, seconds=progress.seconds)
    artifact.finish(state, outputs, seconds=progress.seconds, facts=facts)  # type: ignore[arg-type]
    shutil.rmtree(artifact.path(RESUME), ignore_errors=True)
