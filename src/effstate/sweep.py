"""From a scale to the list of runs: baseline, axes multiplied out, changes, constraints.

Nothing here imports torch: the workflow reads it on every start.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from effstate.config import Change, ConfigError, RunConfig, SweepConfig, TraceConfig, parse
from effstate.registry import nearest


@dataclass(frozen=True)
class ExpandedSweep:
    """The runs of one study, and how many combinations each constraint dropped."""

    study: str
    runs: tuple[RunConfig, ...]
    trace: TraceConfig
    total_over: str
    dropped: Mapping[str, int] = field(default_factory=dict)


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


def _combinations(sweep: SweepConfig, source: str) -> Iterator[dict[str, Any]]:
    """Every combination of the axes, as dotted key to value."""
    columns: list[list[dict[str, Any]]] = []
    for axis, values in sweep.axes.items():
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
    source = f"{source}: {study}"
    runs: dict[str, RunConfig] = {}
    dropped: Counter[str] = Counter()
    reasons: dict[tuple[str, str], str] = {}
    alive: set[tuple[str, str]] = set()
    for combination in _combinations(sweep, source):
        raw = _copy(sweep.baseline)
        for key, value in combination.items():
            _set(raw, key, value)
        run = _changed(raw, parse(RunConfig, raw, source), sweep.changes, source)
        marks = [(key, repr(value)) for key, value in combination.items()] or [("baseline", "")]
        broken = run.task.violations()
        if broken:
            dropped[broken[0].partition(" is broken")[0]] += 1
            for mark in marks:
                reasons.setdefault(mark, broken[0])
        else:
            alive.update(marks)
            runs.setdefault(run.model_dump_json(), run)
    for (key, value), reason in reasons.items():
        if (key, value) not in alive:
            asked = f"{key} = {value}" if value else "the baseline"
            raise ConfigError(f"{source}: {asked} leaves no run: {reason}")
    return ExpandedSweep(study, tuple(runs.values()), sweep.trace, sweep.total_over, dict(dropped))
