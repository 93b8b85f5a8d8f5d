"""What a configuration asks for: studies, runs, requests, cohorts. The workflow and the CLI share it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from effstate.artifacts import Request, RunStore
from effstate.cohorts import Cohort, group
from effstate.config import (
    ConfigError,
    ProjectConfig,
    ScaleConfig,
    load_project,
    load_scale,
    merge,
    read_yaml,
)
from effstate.registry import load_plugins, nearest
from effstate.requests import (
    check_students,
    data_request,
    student_requests,
    trace_request,
    train_request,
)
from effstate.sweep import ExpandedSweep, expand

STAGES = ("data", "train", "trace")
"""Stages of every sweep study; the distillation study has ``distill`` besides."""

TABLES = ("runs", "checkpoints", "layers")
"""Tables that every sweep study makes, called ``<study>_<table>``."""

STUDENT_TABLES = ("students", "curves")
"""Tables that the distillation study makes besides."""


def tables_of(study: str) -> tuple[str, ...]:
    """Names of a study's tables, without the study's own."""
    return TABLES + (STUDENT_TABLES if study == "distillation" else ())


@dataclass(frozen=True)
class Pipeline:
    """A resolved project: its scale, its studies' runs, and the store they live in."""

    project: ProjectConfig
    scale: ScaleConfig
    base: Path

    @classmethod
    def from_config(cls, config: Mapping[str, Any], base: Path) -> Pipeline:
        """From a mapping (Snakemake's ``config``) and the folder that holds ``config/scales``.

        Raises ConfigError with one sentence for anything that is wrong in either.
        """
        project = load_project(config)
        try:
            load_plugins(project.plugins, base)
        except ValueError as error:
            raise ConfigError(f"config/config.yaml: {error}") from None
        scale = load_scale(project.scale, base / "config" / "scales", project.overrides)
        pipeline = cls(project, scale, base)
        pipeline._check()
        return pipeline

    def _check(self) -> None:
        """Every sweep is expanded, and every student checked, before anything runs."""
        for study, sweep in self.sweeps.items():
            if study == "distillation" and self.scale.distillation is not None:
                try:
                    for run in sweep.runs:
                        check_students(run, self.scale.distillation)
                except ConfigError as error:
                    raise ConfigError(f"{self._source}: distillation: {error}") from None

    @classmethod
    def from_file(cls, path: Path, changes: Mapping[str, Any] | None = None) -> Pipeline:
        """From ``<base>/config/config.yaml``, with ``changes`` laid over it."""
        data = merge(read_yaml(path), changes or {})
        return cls.from_config(data, path.resolve().parent.parent)

    @property
    def results(self) -> Path:
        """The results folder, relative to the working directory unless the key says otherwise."""
        return Path(self.project.results)

    @property
    def store(self) -> RunStore:
        """The run store under the results folder."""
        return RunStore(self.results)

    @cached_property
    def sweeps(self) -> dict[str, ExpandedSweep]:
        """Every study of the scale, expanded."""
        studies = self.scale.studies()
        return {name: expand(name, sweep, self._source) for name, sweep in studies.items()}

    @property
    def _source(self) -> str:
        """Where the sweeps are written, for messages."""
        source = f"config/scales/{self.scale.name}.yaml"
        return source + " with the overrides" if self.project.overrides else source

    def sweep(self, study: str) -> ExpandedSweep:
        """The expanded sweep of one study; raises ConfigError if the scale does not run it."""
        if study not in self.sweeps:
            raise ConfigError(
                f"config/scales/{self.scale.name}.yaml: the study '{study}' is not part of this "
                f"scale{nearest(study, self.sweeps)}"
            )
        return self.sweeps[study]

    def stages(self, study: str) -> tuple[str, ...]:
        """The stages of a study, in order."""
        return (*STAGES, "distill") if study == "distillation" else STAGES

    def requests(self, study: str, stage: str) -> list[Request]:
        """The study's requests of one stage, each once, in the order of its runs."""
        sweep = self.sweep(study)
        if stage == "data":
            found: Iterable[Request] = (data_request(run) for run in sweep.runs)
        elif stage == "train":
            found = (train_request(run) for run in sweep.runs)
        elif stage == "distill":
            assert self.scale.distillation is not None
            distillation = self.scale.distillation
            found = (r for run in sweep.runs for r in student_requests(run, distillation))
        else:
            found = (trace_request(run, sweep.trace) for run in sweep.runs)
        return list(dict.fromkeys(found))

    @cached_property
    def _cohorts(self) -> dict[tuple[str, str], dict[str, Cohort]]:
        return {
            (study, stage): {
                cohort.name: cohort
                for cohort in group(study, self.requests(study, stage), self._cohort_size(stage))
            }
            for study in self.sweeps
            for stage in self.stages(study)
        }

    def _cohort_size(self, stage: str) -> int:
        project = self.project
        return project.student_cohort_size if stage == "distill" else project.cohort_size

    def cohorts(self, study: str, stage: str) -> dict[str, Cohort]:
        """Cohorts of a study and stage, by name."""
        self.sweep(study)
        return self._cohorts[study, stage]

    def cohort(self, study: str, stage: str, name: str) -> Cohort:
        """One cohort; raises ConfigError if the configuration holds none of that name."""
        cohorts = self.cohorts(study, stage)
        if name not in cohorts:
            raise ConfigError(f"{study}: there is no {stage} cohort '{name}'{nearest(name, cohorts)}")
        return cohorts[name]

    def manifests(self, study: str, stage: str) -> list[str]:
        """Paths of all manifests of a study and stage."""
        return [str(c.manifest(self.results)) for c in self.cohorts(study, stage).values()]

    @cached_property
    def _home(self) -> dict[tuple[str, str, str], str]:
        """(study, stage, request digest) to the manifest of the cohort that makes it."""
        return {
            (study, stage, request.digest): str(cohort.manifest(self.results))
            for (study, stage), cohorts in self._cohorts.items()
            for cohort in cohorts.values()
            for request in cohort.requests
        }

    def upstream(self, study: str, stage: str, name: str) -> list[str]:
        """Manifests of the cohorts that make the inputs of one cohort's members."""
        cohort = self.cohort(study, stage, name)
        needed = {
            self._home[study, source.stage, source.digest]
            for request in cohort.requests
            for source in request.inputs
        }
        return sorted(needed)
