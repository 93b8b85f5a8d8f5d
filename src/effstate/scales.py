"""A scale: the configuration of every study that it runs. Scales differ in numbers only."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from effstate.config import (
    STUDIES,
    ConfigError,
    DistillationConfig,
    Strict,
    SweepConfig,
    merge,
    parse,
    read_yaml,
)
from effstate.lm.config import LmStudyConfig
from effstate.openweights.config import OpenWeightsConfig
from effstate.registry import nearest


class ScaleConfig(Strict):
    """The sweeps of one scale; scales differ in numbers only."""

    name: str
    description: str
    cells: dict[str, dict[Literal["width", "heads", "seq_len", "kv"], int]] = Field(
        {}, description="which cell of the MQAR sweep stands for the paper's in figures 26 and 29"
    )
    mqar: SweepConfig | None = None
    copying: SweepConfig | None = None
    compression: SweepConfig | None = None
    init: SweepConfig | None = None
    regularisation: SweepConfig | None = None
    distillation: DistillationConfig | None = None
    hybrids: SweepConfig | None = None
    lm: LmStudyConfig | None = None
    openweights: OpenWeightsConfig | None = None

    def studies(self) -> dict[str, Strict]:
        """The studies that this scale runs, in the order of :data:`~effstate.config.STUDIES`."""
        found = {name: getattr(self, name, None) for name in STUDIES}
        return {name: study for name, study in found.items() if study is not None}


def load_scale(name: str, directory: Path, overrides: Mapping[str, Any] | None = None) -> ScaleConfig:
    """The scale ``name`` from ``directory``, with the project's overrides laid over it.

    Raises ConfigError for a scale that does not exist, naming the ones that do.
    """
    path = directory / f"{name}.yaml"
    if not path.is_file():
        known = [p.stem for p in directory.glob("*.yaml")]
        raise ConfigError(f"the scale '{name}' does not exist in {directory}{nearest(name, known)}")
    data = read_yaml(path)
    source = str(path)
    if overrides:
        data = merge(data, overrides)
        source += " with the overrides"
    scale = parse(ScaleConfig, data, source)
    if scale.name != name:
        raise ConfigError(f"{path}: name is '{scale.name}', but the file is called '{name}'")
    return scale
