"""A study as the workflow sees it: its stages, what each stage is asked to make, its tables.

Most studies are sweeps of trained runs. Another kind of study is one more subclass of :class:`Study`
and one more entry of :data:`KINDS`. Nothing here imports torch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Generic, TypeVar

from effstate.artifacts import Request
from effstate.config import ConfigError, DistillationConfig, ProjectConfig, Strict, SweepConfig
from effstate.lm.config import LmEvaluationConfig, LmRunConfig, LmStudyConfig
from effstate.lm.requests import (
    corpus_request,
    lm_counts_request,
    lm_evaluation_request,
    lm_trace_request,
    lm_train_request,
)
from effstate.openweights.config import FIGURE_SUITES, OpenWeightsConfig, WeightsConfig
from effstate.requests import (
    check_students,
    data_request,
    run_of,
    student_requests,
    trace_request,
    train_request,
)
from effstate.sweep import ExpandedSweep, expand
from effstate.workload import lm_cost

C = TypeVar("C", bound=Strict)


class Study(ABC, Generic[C]):
    """One study of one scale.

    Attributes:
        stages: in the order in which they are made; each makes artifacts by requests.
        run_stages: those whose artifacts ``status`` lists as runs.
        tables: names of the tables made in the end, without the study's own.
    """

    stages: tuple[str, ...]
    run_stages: tuple[str, ...]
    tables: tuple[str, ...]

    def __init__(self, name: str, config: C, source: str) -> None:
        self.name, self.config, self.source = name, config, source

    @property
    def total_over(self) -> str:
        """What the study's total ESS sums over: "heads" or "channels" (METHOD section 2)."""
        return "channels"

    @abstractmethod
    def check(self) -> None:
        """Raise ConfigError for what cannot be made; called before anything runs."""

    @abstractmethod
    def requests(self, stage: str) -> Sequence[Request]:
        """The requests of one stage, in the order of the study's runs; repetitions are allowed."""

    @abstractmethod
    def shape(self, request: Request) -> str:
        """Readable key of what costs the same: jobs are made of requests of one shape."""

    def members_per_job(self, stage: str, project: ProjectConfig) -> int:
        """How many requests of a stage one Snakemake job makes, at the most."""
        return project.cohort_size

    def plan_lines(self) -> list[str]:
        """What the study would cost, for ``plan``, beside the counts of runs and jobs."""
        return []


class SweepStudy(Study[SweepConfig]):
    """Runs of a sweep: data -> train -> trace."""

    stages = ("data", "train", "trace")
    run_stages = ("train",)
    tables = ("runs", "checkpoints", "layers")

    @cached_property
    def sweep(self) -> ExpandedSweep:
        """Every run, expanded; raises ConfigError for a key or value that is wrong."""
        return expand(self.name, self.config, self.source)

    @property
    def total_over(self) -> str:
        return self.sweep.total_over

    def check(self) -> None:
        """Expands the sweep, which refuses what is wrong in it."""
        assert self.sweep.runs

    def requests(self, stage: str) -> Sequence[Request]:
        sweep = self.sweep
        if stage == "data":
            return [data_request(run) for run in sweep.runs]
        if stage == "train":
            return [train_request(run) for run in sweep.runs]
        return [trace_request(run, sweep.trace) for run in sweep.runs]

    def shape(self, request: Request) -> str:
        """Data by task and length; training, tracing and students by the model's shape."""
        if request.stage == "data":
            task = request.config.task  # type: ignore[attr-defined]
            return f"{task.name}-l{task.seq_len}"
        run = run_of(request)
        model = run.model
        # Orders of the same mixers cost much the same; a job for each would start Python for each.
        name = (
            model.slug
            if model.pattern is None
            else f"hybrid{model.num_layers}-w{model.width}-h{model.heads}"
        )
        return f"{name}-l{run.task.seq_len}"


class DistillationStudy(SweepStudy):
    """A sweep of teachers, and students of their layers: ... train -> distill (section 5.2)."""

    stages = (*SweepStudy.stages, "distill")
    run_stages = ("train", "distill")
    tables = (*SweepStudy.tables, "students", "curves")
    config: DistillationConfig

    def check(self) -> None:
        for run in self.sweep.runs:
            try:
                check_students(run, self.config)
            except ConfigError as error:
                raise ConfigError(f"{self.source}: {self.name}: {error}") from None

    def requests(self, stage: str) -> Sequence[Request]:
        if stage == "distill":
            return [r for run in self.sweep.runs for r in student_requests(run, self.config)]
        return super().requests(stage)

    def members_per_job(self, stage: str, project: ProjectConfig) -> int:
        return project.student_cohort_size if stage == "distill" else project.cohort_size


class OpenWeightsStudy(Study[OpenWeightsConfig]):
    """Open-weight models along prompts: weights (sections 5.3, E.5, E.6)."""

    stages = ("weights",)
    run_stages = ("weights",)
    tables = ("runs", "curves", "dips", "causal", "code", "shots", "accuracies")

    def check(self) -> None:
        """Nothing beyond the configuration: the rule ``models`` finds out which models can be had."""

    @cached_property
    def by_suite(self) -> dict[tuple[str, str], Request]:
        """(model, suite) to its request, without the models that are skipped."""
        found = {}
        for name, suite in self.config.asked():
            model = self.config.models[name]
            if not model.skip:
                config = WeightsConfig(model=model, suite=getattr(self.config, suite))
                found[name, suite] = Request("weights", f"{name}-{suite}", config)
        return found

    def requests(self, stage: str) -> Sequence[Request]:
        return list(self.by_suite.values())

    def shape(self, request: Request) -> str:
        """A model on a suite costs what no other does."""
        return request.slug

    def plan_lines(self) -> list[str]:
        skipped = sorted({name for name, _ in self.config.asked()} - {name for name, _ in self.by_suite})
        lines = [f"{len(self.config.figures)} of {len(FIGURE_SUITES)} figures have a model"]
        return lines + [f"skipped: {', '.join(skipped)}"] * bool(skipped)


class LanguageStudy(Study[LmStudyConfig]):
    """Language models: corpus -> counts, training -> evaluation, trace (section 5.3)."""

    stages = ("corpus", "lmcounts", "lmtrain", "lmeval", "lmtrace")
    run_stages = ("lmtrain",)
    tables = ("runs", "losses", "curves", "dips", "layers", "recall", "distances", "smoothed")

    def check(self) -> None:
        """Nothing beyond the configuration."""

    @cached_property
    def models(self) -> list[tuple[LmRunConfig, tuple[Request, Request, Request]]]:
        """Each model with its training, evaluation and trace."""
        config = self.config
        evaluation = LmEvaluationConfig(window=config.recall.window, sequences=config.sequences)
        return [
            (
                run,
                (
                    lm_train_request(run),
                    lm_evaluation_request(run, evaluation),
                    lm_trace_request(run, config.trace),
                ),
            )
            for run in config.runs()
        ]

    def requests(self, stage: str) -> Sequence[Request]:
        if stage == "corpus":
            return [corpus_request(self.config.corpus)]
        if stage == "lmcounts":
            return [lm_counts_request(self.config.corpus)]
        place = ("lmtrain", "lmeval", "lmtrace").index(stage)
        return [requests[place] for _, requests in self.models]

    def shape(self, request: Request) -> str:
        """A job for each model and seed."""
        return request.slug

    def plan_lines(self) -> list[str]:
        """Parameters, tokens, operations, memory and hours of each model."""
        lines = []
        for run, _ in self.models:
            cost = lm_cost(run)
            lines.append(
                f"{run.slug}: {cost.parameters / 1e6:,.1f}M parameters, {cost.tokens / 1e9:,.3g}B "
                f"tokens, {cost.flops:.2g} FLOPs; {cost.process_bytes / 2**30:,.1f} GiB on one GPU "
                f"({cost.state_bytes / 2**30:,.1f} of weights, gradients and moments), "
                f"{cost.gpu_hours:,.2g} GPU-hours at a nominal speed"
            )
        return lines


KINDS: dict[type[Strict], type[Study]] = {
    SweepConfig: SweepStudy,
    DistillationConfig: DistillationStudy,
    LmStudyConfig: LanguageStudy,
    OpenWeightsConfig: OpenWeightsStudy,
}
"""Type of a study's configuration to the kind of study."""


def make_study(name: str, config: Strict, source: str) -> Study:
    """The study ``name`` of a scale; ``source`` names the scale's file in messages."""
    return KINDS[type(config)](name, config, source)


def unique(requests: Iterable[Request]) -> list[Request]:
    """Each request once, at its first place."""
    return list(dict.fromkeys(requests))
