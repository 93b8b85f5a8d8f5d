"""Which artifacts a run needs: data set -> trained run -> ESS trace, each named by its request."""

from __future__ import annotations

from effstate.artifacts import Request
from effstate.config import AnyTask, RunConfig, Strict, TraceConfig


class DataConfig(Strict):
    """A data set: shared by all runs of a task cell and seed."""

    task: AnyTask
    seed: int


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


def run_of(request: Request) -> RunConfig:
    """The run configuration behind a train or trace request."""
    config = request.config if request.stage == "train" else request.inputs[0].config
    assert isinstance(config, RunConfig)
    return config
