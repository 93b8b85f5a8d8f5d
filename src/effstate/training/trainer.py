"""Train one run: from its request to checkpoints, evaluations and provenance. Reads top to bottom."""

from __future__ import annotations

import contextlib
import json
import math
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from effstate.artifacts import (
    Artifact,
    ArtifactError,
    derive_seed,
    read_tensors,
    write_json,
    write_tensors,
)
from effstate.config import OptimizerConfig, RunConfig, TrainingConfig
from effstate.models import SequenceModel, build_model
from effstate.operators.kernels import Kernels, kernels, kernels_in_use
from effstate.tasks.base import IGNORE
from effstate.tasks.metrics import Accuracy
from effstate.training.data import RowOrder, Split, load_data, readout_of
from effstate.training.interruption import StopFlag, stop_flag

RESUME = "resume.safetensors"
RESULT = "result.json"
LOG = "log.jsonl"
COMPILE_PAYS_AFTER_STEPS = 20_000


@dataclass(frozen=True)
class Execution:
    """On what a run is computed; never part of its digest, always in its provenance."""

    device: str = "auto"
    threads: int = 1
    compile: str = "auto"
    kernels: Kernels = "own"

    def resolve_device(self) -> torch.device:
        """The torch device; raises ArtifactError if CUDA is asked for where there is none."""
        if self.device == "cuda" and not torch.cuda.is_available():
            raise ArtifactError("device = cuda, but this machine has no CUDA device; use cpu or auto")
        if self.device == "auto":
            return torch.device("cuda" if torch.cuda.is_available() else "cpu")
        return torch.device(self.device)

    def compiles(self, steps: int) -> bool:
        """Whether a run of ``steps`` steps is compiled (auto: long runs earn the compile time)."""
        return self.compile == "yes" or (self.compile == "auto" and steps >= COMPILE_PAYS_AFTER_STEPS)


@dataclass
class Progress:
    """Everything a resumed run needs beside tensors."""

    step: int = 0
    evaluations: list[dict[str, Any]] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)  # since the last evaluation
    seconds: float = 0.0


def checkpoint_name(epoch: int) -> str:
    """File name of an evaluated epoch's weights."""
    return f"checkpoints/epoch-{epoch:05d}.safetensors"


def learning_rate(config: OptimizerConfig, step: int, steps: int) -> float:
    """The rate at step 0 .. ``steps`` - 1: linear warm-up, cosine to ``min_learning_rate_ratio``."""
    warmup = round(config.warmup_fraction * steps)
    if step < warmup:
        return config.learning_rate * (step + 1) / warmup
    done = (step - warmup) / max(steps - warmup, 1)
    low = config.min_learning_rate_ratio
    return config.learning_rate * (low + (1 - low) * 0.5 * (1 + math.cos(math.pi * done)))


def make_optimizer(model: nn.Module, config: OptimizerConfig) -> torch.optim.AdamW:
    """AdamW with decay on matrices only: gains and biases of fewer dimensions are left alone."""
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    vectors = [p for p in model.parameters() if p.ndim < 2]
    groups = [
        {"params": matrices, "weight_decay": config.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=config.learning_rate,
        betas=(config.beta1, config.beta2),
        fused=True,
    )


def label_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy over labels; logits (batch, k, V), targets (batch, k) with -100 ignored."""
    return functional.cross_entropy(logits.flatten(0, -2).float(), targets.flatten())


def make_loss(model: SequenceModel, config: TrainingConfig) -> Callable[..., Tensor]:
    """The loss of (inputs, positions, targets): cross-entropy, and lambda * ||A - I||_F where asked."""

    def plain(inputs: Tensor, positions: Tensor, targets: Tensor) -> Tensor:
        return label_loss(model.logits_at(inputs, positions), targets)

    def regularised(inputs: Tensor, positions: Tensor, targets: Tensor) -> Tensor:
        logits, penalty = model.logits_and_penalty(
            inputs, positions, config.regularised_layers, config.regulariser_reduction
        )
        return label_loss(logits, targets) + config.regularisation * penalty

    return regularised if config.regularisation > 0 else plain


@torch.no_grad()
def evaluate(model: SequenceModel, split: Split, vocab_size: int, batch_size: int) -> dict[str, float]:
    """Loss, accuracy (share of right labels, averaged per row) and macro accuracy on a split."""
    model.eval()
    accuracy = Accuracy(vocab_size)
    total, count = 0.0, 0
    for rows in torch.arange(len(split), device=split.inputs.device).split(batch_size):
        inputs, positions, targets = split.batch(rows)
        logits = model.logits_at(inputs, positions)
        labels = int((targets != IGNORE).sum())
        total += float(label_loss(logits, targets)) * labels
        count += labels
        accuracy.update(logits.argmax(-1), targets)
    model.train()
    return {
        "loss": total / max(count, 1),
        "accuracy": accuracy.token,
        "macro_accuracy": accuracy.macro,
    }


def build(run: RunConfig) -> SequenceModel:
    """The run's model with its initial parameters (a pure function of configuration and seed)."""
    return build_model(
        run.model,
        vocab_size=run.task.vocab_size,
        seq_len=run.task.seq_len,
        readout=readout_of(run),
        seed=derive_seed(run.seed, "init"),
    )


def save_resume(
    path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, progress: Progress
) -> None:
    """One file with parameters, moments, generator states and progress, written atomically."""
    tensors = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    for index, state in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{index}.{name}": value for name, value in state.items()}
    tensors["generator.cpu"] = torch.get_rng_state()
    if torch.cuda.is_available():
        tensors["generator.cuda"] = torch.cuda.get_rng_state()
    write_tensors(path, tensors, {"progress": json.dumps(asdict(progress))})


def load_resume(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> Progress:
    """Put a resume point back; raises ArtifactError if the file is damaged."""
    tensors, notes = read_tensors(path)
    model.load_state_dict(
        {k.removeprefix("model."): v for k, v in tensors.items() if k.startswith("model.")}
    )
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        if key.startswith("optimizer."):
            _, index, name = key.split(".", 2)
            state.setdefault(int(index), {})[name] = value
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
    torch.set_rng_state(tensors["generator.cpu"])
    if "generator.cuda" in tensors and torch.cuda.is_available():
        torch.cuda.set_rng_state(tensors["generator.cuda"])
    return Progress(**json.loads(notes["progress"]))


def log_line(artifact: Artifact, **values: Any) -> None:
    """Append one JSON line to the run's log (a log, not an output: it holds times)."""
    with artifact.path(LOG).open("a", encoding="utf-8") as handle:
        handle.write(json.dumps(values, allow_nan=True) + "\n")


@contextlib.contextmanager
def watched(execution: Execution, flag: StopFlag | None) -> Iterator[StopFlag]:
    """Threads and kernels as configured, signals caught in ``flag`` (or a new one).

    The global random state is put back.
    """
    if execution.threads != torch.get_num_threads():
        torch.set_num_threads(execution.threads)
    flagged = stop_flag() if flag is None else contextlib.nullcontext(flag)
    chosen = kernels(execution.kernels, execution.resolve_device())
    with flagged as stop, chosen, torch.random.fork_rng():
        yield stop


def train(
    artifact: Artifact,
    data: Artifact,
    execution: Execution,
    *,
    on_step: Callable[[int, int], None] = lambda step, steps: None,
    flag: StopFlag | None = None,
) -> None:
    """Train the requested run to its end, or on from its resume point, and seal the artifact.

    ``on_step(step, steps)`` is called after every step. A non-finite loss seals the run as
    ``diverged``. SIGTERM or SIGINT writes a resume point and raises Interrupted.
    Raises ArtifactError if the data or the resume point is damaged.
    """
    run = artifact.request.config
    assert isinstance(run, RunConfig)
    with watched(execution, flag) as stop:
        _train(artifact, data, run, execution, on_step, stop)


def _train(
    artifact: Artifact,
    data: Artifact,
    run: RunConfig,
    execution: Execution,
    on_step: Callable[[int, int], None],
    flag: StopFlag,
) -> None:
    config = run.training
    device = execution.resolve_device()
    started = time.monotonic()
    torch.manual_seed(derive_seed(run.seed, "train"))
    splits = load_data(data, device)
    order = RowOrder(run.seed, len(splits["train"]), config.batch_size)
    model = build(run).to(device)
    optimizer = make_optimizer(model, config)
    progress = Progress()
    if artifact.path(RESUME).exists():
        progress = load_resume(artifact.path(RESUME), model, optimizer)
        log_line(artifact, event="resumed", step=progress.step)
    before = progress.seconds
    compiled = execution.compiles(config.steps)
    step_loss: Callable[..., Tensor] = make_loss(model, config)
    if compiled:
        step_loss = torch.compile(step_loss, dynamic=False)

    def pause() -> None:
        progress.seconds = before + time.monotonic() - started
        save_resume(artifact.path(RESUME), model, optimizer, progress)

    def measure(split: str) -> dict[str, float]:
        return evaluate(model, splits[split], run.task.vocab_size, config.batch_size)

    def record(epoch: int) -> bool:
        """Evaluate on validation rows and checkpoint the weights; False if they diverged."""
        measured = measure("validation")
        if not math.isfinite(measured["loss"]):
            return False
        write_tensors(artifact.path(checkpoint_name(epoch)), model.state_dict())
        losses, progress.losses = progress.losses, []
        train_loss = math.fsum(losses) / len(losses) if losses else None
        entry = {"epoch": epoch, "step": progress.step, "train_loss": train_loss, **measured}
        progress.evaluations.append(entry)
        log_line(artifact, event="evaluated", seconds=before + time.monotonic() - started, **entry)
        return True

    state = "done"
    if progress.step == 0 and not progress.evaluations and not record(0):
        state = "diverged"
    pending: list[Tensor] = []  # losses not yet looked at: reading each one would stall a GPU

    def settle() -> bool:
        """Look at the pending losses; True if all were finite."""
        values = torch.stack(pending).tolist() if pending else []
        pending.clear()
        for value in values:
            if not math.isfinite(value):
                return False
            progress.losses.append(value)
        return True

    look_every = 1 if device.type == "cpu" else 50
    while state == "done" and progress.step < config.steps:
        rate = learning_rate(config, progress.step, config.steps)
        for group in optimizer.param_groups:
            group["lr"] = rate
        inputs, positions, targets = splits["train"].batch(order(progress.step).to(device))
        loss = step_loss(inputs, positions, targets)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), config.grad_clip)
        optimizer.step()
        pending.append(loss.detach())
        progress.step += 1
        epoch, within = divmod(progress.step, config.steps_per_epoch)
        if (within == 0 or progress.step % look_every == 0 or flag) and not settle():
            state = "diverged"
            break
        if within == 0:
            log_line(
                artifact,
                event="epoch",
                epoch=epoch,
                step=progress.step,
                loss=progress.losses[-1],
                learning_rate=rate,
                grad_norm=float(norm),
                seconds=before + time.monotonic() - started,
            )
            if epoch in config.evaluated_epochs and not record(epoch):
                state = "diverged"
                break
            if epoch % config.resume_every == 0 and epoch < config.epochs:
                pause()
        on_step(progress.step, config.steps)
        if flag:
            pause()
            log_line(artifact, event="interrupted", step=progress.step)
            flag.check()

    result: dict[str, Any] = {"state": state, "evaluations": progress.evaluations}
    if state == "done":
        result["test"] = measure("test")
    else:
        last = progress.losses[-1] if progress.losses else None
        result["diverged"] = {"step": progress.step, "last_finite_loss": last}
    write_json(artifact.path(RESULT), result)
    seconds = before + time.monotonic() - started
    log_line(artifact, event=state, step=progress.step, seconds=seconds)
    checkpoints = [checkpoint_name(entry["epoch"]) for entry in progress.evaluations]
    artifact.finish(
        state,  # type: ignore[arg-type]
        [*checkpoints, RESULT],
        seconds=seconds,
        facts={
            "device": str(device),
            "threads": torch.get_num_threads(),
            "dtype": "float32",
            "path": "compiled" if compiled else "eager",
            "kernels": kernels_in_use(),
            "parameters": sum(p.numel() for p in model.parameters()),
            "steps": progress.step,
            "host_cpus": os.cpu_count(),
        },
    )
    artifact.path(RESUME).unlink(missing_ok=True)


def load_model(artifact: Artifact, epoch: int) -> SequenceModel:
    """The model of a finished run at an evaluated epoch, on the CPU; verified on reading."""
    run = artifact.request.config
    assert isinstance(run, RunConfig)
    model = build(run)
    tensors, _ = read_tensors(artifact.checked(checkpoint_name(epoch)))
    model.load_state_dict(tensors)
    return model
