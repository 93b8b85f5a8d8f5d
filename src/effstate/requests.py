"""Which artifacts a run needs: data set -> trained run -> ESS trace, each named by its request.

Distillation adds students of a trained run, one for each of its layers, checkpoints and sizes.
"""

from __future__ import annotations

from collections.abc import Iterator

from effstate.artifacts import Request
from effstate.config import (
    AnyTask,
    ConfigError,
    DistillationConfig,
    MatchingConfig,
    RunConfig,
    Strict,
    TraceConfig,
)


class DataConfig(Strict):
    """A data set: shared by all runs of a task cell and seed."""

    task: AnyTask
    seed: int


class StudentConfig(Strict):
    """One student: which layer of which checkpoint of its teacher it replaces, and its size."""

    epoch: int
    layer: int
    k_expansion: int
    matching: MatchingConfig


def data_request(run: RunConfig) -> Request:
    """The data set that ``run`` trains on."""
    config = DataConfig(task=run.task, seed=run.seed)
    return Request("data", f"{run.task.slug}-s{run.seed}", config)


def train_request(run: RunConfig) -> Request:
    """The trained run: checkpoints of every evaluated epoch, evaluations, log."""
    return Request("train", run.slug, run, (data_request(run),))


def trace_request(run: RunConfig, trace: TraceConfig) -> Request:
    """ESS over the saved checkpoints of ``run``."""
    return Request("trace", run.slug, trace, (train_request(run),))


def check_students(teacher: RunConfig, distillation: DistillationConfig) -> None:
    """Raise ConfigError if a student would be larger than its teacher, or has no size to change."""
    for name in teacher.model.mixers:
        if name in ("sa", "s6"):
            raise ConfigError(
                f"the teacher {teacher.slug} has a layer '{name}', whose state no k_expansion "
                "changes; take la, wla, gla or gla_s6"
            )
    largest = teacher.model.k_expansion
    for size in distillation.student_k_expansions:
        if not 1 <= size <= largest:
            raise ConfigError(
                f"student_k_expansions: {size} makes a student larger than its teacher "
                f"{teacher.slug} (model.k_expansion = {largest}); take 1 .. {largest}"
                if size > largest
                else f"student_k_expansions: {size} is not a size; take 1 .. {largest}"
            )


def student_requests(teacher: RunConfig, distillation: DistillationConfig) -> Iterator[Request]:
    """Students of every evaluated checkpoint, layer and size of one teacher (section 5.2).

    Raises ConfigError as :func:`check_students` does.
    """
    check_students(teacher, distillation)
    source = train_request(teacher)
    for epoch in teacher.training.evaluated_epochs:
        for layer in range(teacher.model.num_layers):
            for size in distillation.student_k_expansions:
                config = StudentConfig(
                    epoch=epoch, layer=layer, k_expansion=size, matching=distillation.matching
                )
                slug = f"{teacher.slug}-epoch{epoch}-layer{layer}-e{size}"
                yield Request("distill", slug, config, (source,))


def run_of(request: Request) -> RunConfig:
    """The run configuration behind a train, trace or distill request."""
    config = request.config if request.stage == "train" else request.inputs[0].config
    assert isinstance(config, RunConfig)
    return config
