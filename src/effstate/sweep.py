"""From a scale to the list of runs: baseline, axes multiplied out, changes, constraints.

Nothing here imports torch: the workflow reads it on every start.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from effstate.config import Change, ConfigError, RunConfig, SweepConfig, TraceConfig, merge, parse
from effstate.registry import nearest


@dataclass(frozen=True)
class ExpandedSweep:
    """The runs of one study, how many combinations each constraint dropped, and each run's grids."""

    study: str
    runs: tuple[RunConfig, ...]
    trace: TraceConfig
    total_over: str
    dropped: Mapping[str, int] = field(default_factory=dict)
    grids: tuple[str, ...] = ()


def _axis_keys(axis: str) -> list[str]:
    """The dotted keys that one axis moves (``"model.width, model.heads"`` moves two)."""
    return [key.strip() for key in axis.split(",")]


def _set(nested: dict[str, Any], dotted: str, value: Any) -> None:
    """Set ``nested["a"]["b"]`` for ``"a.b"``, making the mappings on the way."""
    *parents, last = dotted.split(".")
    for part in parents:
        nested = nested.setdefault(part, {})
    nested[last] = value


def _get(run: RunConfig, dotted: str, source: str) -> Any:
    """The resolved value of a dotted key; raises ConfigError with the nearest known key."""
    value: Any = run
    for part in dotted.split("."):
        known = list(type(value).model_fields) if hasattr(type(value), "model_fields") else []
        if part not in known:
            raise ConfigError(f"{source}: unknown key '{dotted}'{nearest(part, known)}")
        value = getattr(value, part)
    return value


def _copy(nested: Mapping[str, Any]) -> dict[str, Any]:
    return {k: _copy(v) if isinstance(v, Mapping) else v for k, v in nested.items()}


def _combinations(axes: Mapping[str, list[Any]], source: str) -> Iterator[dict[str, Any]]:
    """Every combination of the axes, as dotted key to value."""
    columns: list[list[dict[str, Any]]] = []
    for axis, values in axes.items():
        keys = _axis_keys(axis)
        if not values:
            raise ConfigError(f"{source}: the axis '{axis}' has no values")
        column = []
        for value in values:
            row = [value] if len(keys) == 1 else value
            if not isinstance(row, Sequence) or isinstance(row, str) or len(row) != len(keys):
                raise ConfigError(
                    f"{source}: the axis '{axis}' moves {len(keys)} keys, "
                    f"so each of its values is a list of {len(keys)}; found {value!r}"
                )
            column.append(dict(zip(keys, row, strict=True)))
        columns.append(column)
    for parts in itertools.product(*columns):
        yield {key: value for part in parts for key, value in part.items()}


def _grids(sweep: SweepConfig, source: str) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Name, baseline and axes of every grid; a study without named grids is one without a name."""
    if not sweep.grids:
        yield "", sweep.baseline, sweep.axes
    for name, grid in sweep.grids.items():
        if not name.isidentifier():
            raise ConfigError(f"{source}: the grid's name '{name}' is not a plain word")
        yield name, merge(sweep.baseline, grid.baseline), {**sweep.axes, **grid.axes}


def _changed(raw: dict[str, Any], run: RunConfig, changes: Sequence[Change], source: str) -> RunConfig:
    """The run with the changes whose conditions it meets."""
    touched = False
    for change in changes:
        wanted = {key: v if isinstance(v, list) else [v] for key, v in change.where.items()}
        if all(_get(run, key, source) in values for key, values in wanted.items()):
            for key, value in change.set.items():
                _get(run, key, source)
                _set(raw, key, value)
            touched = True
    return parse(RunConfig, raw, source) if touched else run


def expand(study: str, sweep: SweepConfig, source: str) -> ExpandedSweep:
    """All runs of ``sweep``; combinations that break a task's constraint are dropped and counted.

    Raises ConfigError if a key is unknown, a value is invalid, or a value of an axis (or the baseline
    itself) leaves no run because a constraint drops all of its combinations.
    """
    runs: dict[str, RunConfig] = {}
    grids: dict[str, list[str]] = {}
    dropped: Counter[str] = Counter()
    for name, baseline, axes in _grids(sweep, f"{source}: {study}"):
        where = f"{source}: {study}" + (f", grid {name}" if name else "")
        for run in _expand_grid(baseline, axes, sweep.changes, dropped, where):
            value = run.model_dump_json()
            runs.setdefault(value, run)
            grids.setdefault(value, []).append(name)
    return ExpandedSweep(
        study,
        tuple(runs.values()),
        sweep.trace,
        sweep.total_over,
        dict(dropped),
        tuple("+".join(dict.fromkeys(names)) for names in grids.values()),
    )


def _expand_grid(
    baseline: Mapping[str, Any],
    axes: Mapping[str, list[Any]],
    changes: Sequence[Change],
    dropped: Counter[str],
    source: str,
) -> Iterator[RunConfig]:
    """The runs of one grid; what constraints drop is counted in ``dropped``."""
    reasons: dict[tuple[str, str], str] = {}
    alive: set[tuple[str, str]] = set()
    for combination in _combinations(axes, source):
        raw = _copy(baseline)
        for key, value in combination.items():
            _set(raw, key, value)
        run = _changed(raw, parse(RunConfig, raw, source), changes, source)
        marks = [(key, repr(value)) for key, value in combination.items()] or [("baseline", "")]
        broken = run.task.violations()
        if broken:
            dropped[broken[0].partition(" is broken")[0]] += 1
            for mark in marks:
                reasons.setdefault(mark, broken[0])
        else:
            alive.update(marks)
            yield run
    for (key, value), reason in reasons.items():
        if (key, value) not in alive:
            asked = f"{key} = {value}" if value else "the baseline"
            raise ConfigError(f"{source}: {asked} leaves no run: {reason}")
