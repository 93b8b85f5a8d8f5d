"""What making an artifact costs: seconds and memory from its request alone. No torch.

Planning, the filling of jobs and what they ask a cluster for all come from here.
"""

from __future__ import annotations

from typing import Literal

from effstate.artifacts import Request
from effstate.config import RunConfig, TaskConfig
from effstate.lm.config import LmEvaluationConfig, LmRunConfig
from effstate.lm.cost import LmCost, cost_of, planned_vocabulary
from effstate.models.cost import parameter_count, training_flops
from effstate.registry import TASKS
from effstate.requests import DataConfig, StudentConfig, run_of

Device = Literal["cpu", "gpu"]

# Nominal speeds for estimates where the store holds no finished run of the same shape; they are
# assumptions to plan with, not measurements of the reader's machine.
CPU_STEP_OVERHEAD = 4e-3
CPU_FLOPS_PER_SECOND = 1e10
GPU_STEP_OVERHEAD = 5e-3
GPU_FLOPS_PER_SECOND = 2e13
_SPEEDS: dict[Device, tuple[float, float]] = {
    "cpu": (CPU_STEP_OVERHEAD, CPU_FLOPS_PER_SECOND),
    "gpu": (GPU_STEP_OVERHEAD, GPU_FLOPS_PER_SECOND),
}

# Of its run's training; recurrent mixers were measured below a tenth at small and paper settings.
TRACE_SHARE = 0.25
ROWS_PER_SECOND = 2e4
"""Rows of 64 tokens that a task draws in a second."""

UNKNOWN_SECONDS = 1800.0
"""Of a job whose size its request does not tell: a hub model, a corpus, counts of its bigrams."""

PROCESS_BYTES = 2 * 2**30
"""A Python process with torch, and the Snakemake that started it."""


def labels_per_row(task: TaskConfig) -> int:
    """Label positions in one row of a built-in task (all but one for an unknown one)."""
    for key in ("kv", "num_tokens_to_copy"):
        if hasattr(task, key):
            return int(getattr(task, key))
    return task.seq_len - 1


def run_flops(run: RunConfig) -> float:
    """Floating-point operations of the whole training."""
    per_step = training_flops(
        run.model,
        run.task.vocab_size,
        run.task.seq_len,
        run.training.batch_size,
        labels_per_row(run.task),
        TASKS[run.task.name].readout,
    )
    return per_step * run.training.steps


def _student_seconds(request: Request, overhead: float, speed: float) -> float:
    """One student: a teacher's and a student's layer on every step."""
    config, run = request.config, run_of(request)
    assert isinstance(config, StudentConfig)
    matching, length = config.matching, run.task.seq_len
    # The operator phase applies a layer to all L unit vectors: L / head width as many channels.
    unit = length * run.model.heads / run.model.width
    layer = training_flops(run.model, 1, length, matching.batch_size, 1) / run.model.num_layers
    steps = matching.steps_operator + matching.steps_activation
    work = layer * (matching.steps_operator * max(unit, 1) + matching.steps_activation)
    return steps * overhead + work / speed


def lm_cost(run: LmRunConfig) -> LmCost:
    """What a language model costs on one nominal GPU."""
    return cost_of(run, planned_vocabulary(run.corpus.tokenizer))


def _lm_seconds(request: Request, device: Device) -> float:
    """Of a language model's training or evaluation."""
    trained = request if request.stage == "lmtrain" else request.inputs[0]
    run = trained.config
    assert isinstance(run, LmRunConfig)
    cost = lm_cost(run)
    # A nominal GPU per process; a CPU is slower by the ratio of the two speeds above.
    slower = GPU_FLOPS_PER_SECOND / CPU_FLOPS_PER_SECOND if device == "cpu" else 1.0
    whole = cost.gpu_hours * 3600 * slower
    if request.stage == "lmtrain":
        return whole
    assert isinstance(request.config, LmEvaluationConfig)
    # Forward only: a third of what the training spends on a token.
    return whole * request.config.sequences * request.config.window / cost.tokens / 3


def seconds(request: Request, device: Device) -> float:
    """Estimated wall time of making one artifact on one CPU thread or one GPU."""
    overhead, speed = _SPEEDS[device]
    match request.stage:
        case "data":
            config = request.config
            assert isinstance(config, DataConfig)
            task = config.task
            rows = task.num_train + task.num_validation + task.num_test
            return rows * max(task.seq_len, 64) / 64 / ROWS_PER_SECOND
        case "train" | "trace":
            run = run_of(request)
            whole = run.training.steps * overhead + run_flops(run) / speed
            return whole if request.stage == "train" else TRACE_SHARE * whole
        case "distill":
            return _student_seconds(request, overhead, speed)
        case "lmtrain" | "lmeval":
            return _lm_seconds(request, device)
        case _:
            return UNKNOWN_SECONDS


def memory_bytes(request: Request) -> float:
    """Estimated memory of a job that makes the artifact, in bytes, on the host or the GPU."""
    match request.stage:
        case "train" | "trace" | "distill":
            run = run_of(request)
            model, task = run.model, run.task
            weights = 16 * parameter_count(model, task.vocab_size, task.seq_len)
            tokens = run.training.batch_size * task.seq_len
            kept = 4 * tokens * model.num_layers * (20 * model.width + task.seq_len * model.heads)
            logits = 12 * run.training.batch_size * labels_per_row(task) * task.vocab_size
            rows = task.num_train + task.num_validation + task.num_test
            return PROCESS_BYTES + weights + kept + logits + 12 * rows * task.seq_len
        case "lmtrain":
            run_config = request.config
            assert isinstance(run_config, LmRunConfig)
            return PROCESS_BYTES + lm_cost(run_config).process_bytes
        case "lmeval" | "lmtrace":
            run_config = request.inputs[0].config
            assert isinstance(run_config, LmRunConfig)
            return PROCESS_BYTES + lm_cost(run_config).process_bytes
        case "data":
            return PROCESS_BYTES
        case _:
            return 8 * PROCESS_BYTES


def checkpoint_seconds(request: Request, device: Device) -> float:
    """Estimated wall time between two resume points of a training run; 0 for other artifacts."""
    if request.stage == "train":
        training = run_of(request).training
        between = training.resume_every * training.steps_per_epoch / training.steps
    elif request.stage == "lmtrain":
        config = request.config
        assert isinstance(config, LmRunConfig)
        between = config.training.checkpoint_every / config.training.steps
    else:
        return 0.0
    return min(between, 1.0) * seconds(request, device)
