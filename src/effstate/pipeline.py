"""What a configuration asks for: studies, runs, requests, cohorts. The workflow and the CLI share it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from effstate.artifacts import Request, RunStore
from effstate.cluster import filling
from effstate.cohorts import Cohort, group
from effstate.config import (
    ConfigError,
    ProjectConfig,
    load_project,
    merge,
    read_yaml,
)
from effstate.registry import load_plugins, nearest
from effstate.scales import ScaleConfig, load_scale
from effstate.studies import Study, SweepStudy, make_study, unique
from effstate.sweep import ExpandedSweep


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
        for study in pipeline.studies.values():
            study.check()
        return pipeline

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
    def studies(self) -> dict[str, Study]:
        """Every study of the scale."""
        studies = self.scale.studies()
        return {name: make_study(name, config, self._source) for name, config in studies.items()}

    @cached_property
    def sweeps(self) -> dict[str, ExpandedSweep]:
        """Every study that is a sweep, expanded."""
        found = self.studies.items()
        return {name: study.sweep for name, study in found if isinstance(study, SweepStudy)}

    @property
    def _source(self) -> str:
        """Where the sweeps are written, for messages."""
        source = f"config/scales/{self.scale.name}.yaml"
        return source + " with the overrides" if self.project.overrides else source

    def study(self, name: str) -> Study:
        """One study; raises ConfigError if the scale does not run it."""
        if name not in self.studies:
            raise ConfigError(
                f"config/scales/{self.scale.name}.yaml: the study '{name}' is not part of this "
                f"scale{nearest(name, self.studies)}"
            )
        return self.studies[name]

    def sweep(self, study: str) -> ExpandedSweep:
        """The expanded sweep of one study; raises ConfigError if the scale does not run it."""
        self.study(study)
        return self.sweeps[study]

    def stages(self, study: str) -> tuple[str, ...]:
        """The stages of a study, in order."""
        return self.study(study).stages

    def requests(self, study: str, stage: str) -> list[Request]:
        """The study's requests of one stage, each once, in the order of its runs."""
        return unique(self.study(study).requests(stage))

    @cached_property
    def _cohorts(self) -> dict[tuple[str, str], dict[str, Cohort]]:
        found: dict[tuple[str, str], dict[str, Cohort]] = {}
        for name, study in self.studies.items():
            for stage in study.stages:
                size = self._members_per_job(study, stage)
                cohorts = group(name, self.requests(name, stage), size, study.shape)
                found[name, stage] = {cohort.name: cohort for cohort in cohorts}
        return found

    def _members_per_job(self, study: Study, stage: str) -> int | Callable[[Sequence[Request]], int]:
        """On a cluster a job is filled up to its hours; elsewhere it has a fixed number of members."""
        cluster = self.project.cluster
        if cluster is None:
            return study.members_per_job(stage, self.project)
        return partial(filling, cluster)

    def cohorts(self, study: str, stage: str) -> dict[str, Cohort]:
        """Cohorts of a study and stage, by name."""
        self.study(study)
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
