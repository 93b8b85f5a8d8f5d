"""Names that configurations may use (mixers, tasks), resolved to code only when it is needed.

Built-in entries are ``"module:attribute"`` paths, so that reading a configuration never imports torch.
A user's own mixer or task is registered by a plugin (a Python file or module named in the
configuration) and takes part without a fork.
"""

from __future__ import annotations

import difflib
import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any


def nearest(name: str, known: Iterable[str]) -> str:
    """``"; did you mean 'x'?"`` for the nearest known name, else the list of all known names."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    if close:
        return f"; the nearest known one is '{close[0]}'"
    return f"; known ones are {', '.join(names)}" if names else ""


class UnknownNameError(ValueError):
    """A configuration names something that no registry holds."""


class Registry:
    """A name-to-object table with lazily imported built-in entries."""

    def __init__(self, kind: str, builtin: dict[str, Any] | None = None) -> None:
        self.kind = kind
        self._entries: dict[str, Any] = dict(builtin or {})

    def register(self, name: str, entry: Any) -> None:
        """Add ``entry`` (an object or a ``"module:attribute"`` path) under ``name``.

        Raises ValueError if the name is taken by something else.
        """
        if name in self._entries and self._entries[name] is not entry:
            raise ValueError(f"the {self.kind} name '{name}' is taken; choose another")
        self._entries[name] = entry

    def check(self, name: str) -> str:
        """``name`` itself if it is known; raises UnknownNameError with the nearest name otherwise."""
        if name not in self._entries:
            raise UnknownNameError(f"unknown {self.kind} '{name}'{nearest(name, self._entries)}")
        return name

    def __getitem__(self, name: str) -> Any:
        entry = self._entries[self.check(name)]
        if isinstance(entry, str):
            module, _, attribute = entry.partition(":")
            entry = getattr(importlib.import_module(module), attribute)
        return entry

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def is_builtin(self, name: str) -> bool:
        """Whether the entry is one of this package's own (its path starts with ``effstate.``)."""
        entry = self._entries[self.check(name)]
        module = entry.partition(":")[0] if isinstance(entry, str) else entry.__module__
        return module.split(".")[0] == "effstate"


MIXERS = Registry(
    "mixer",
    {
        "la": "effstate.models.mixers:LinearAttention",
        "wla": "effstate.models.mixers:WeightedLinearAttention",
        "gla": "effstate.models.mixers:GatedLinearAttention",
        "sa": "effstate.models.mixers:SoftmaxAttention",
        "gla_s6": "effstate.models.selective:GLAS6",
        "s6": "effstate.models.selective:S6",
    },
)

TASK_CONFIGS = Registry("task", {})
"""Task name to its configuration class; filled by :mod:`effstate.config` and by plugins."""

TASKS = Registry(
    "task",
    {
        "mqar": "effstate.tasks.mqar:MQAR",
        "selective_copying": "effstate.tasks.selective_copying:SelectiveCopying",
        "compression": "effstate.tasks.compression:Compression",
    },
)
"""Task name to its task class (see :mod:`effstate.tasks`)."""


def load_plugins(plugins: Iterable[str], base: Path) -> None:
    """Import plugin files (``*.py``, relative to ``base``) or modules, once each.

    Raises ValueError naming the plugin if it does not exist.
    """
    for plugin in plugins:
        if not plugin.endswith(".py"):
            try:
                importlib.import_module(plugin)
            except ModuleNotFoundError as error:
                raise ValueError(f"plugins: no module named '{error.name}'") from error
            continue
        path = (base / plugin).resolve()
        if not path.is_file():
            raise ValueError(f"plugins: the file '{plugin}' does not exist under {base}")
        # The path is part of the name so that two plugins with one file name stay apart.
        name = f"effstate_plugin_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
        if name in sys.modules:
            continue
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
