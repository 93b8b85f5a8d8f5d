"""Packages of the optional extra ``lm``, imported only where they are used."""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from types import ModuleType

from effstate.config import ConfigError


def _missing(distribution: str) -> ConfigError:
    return ConfigError(f"the package '{distribution}' is not installed; pip install 'effstate[lm]'")


def extra(module: str) -> ModuleType:
    """The imported module; raises ConfigError with what to install if it is absent."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError:
        raise _missing(module) from None


def package_folder(module: str, distribution: str) -> Path:
    """Where a package's files lie, without importing it; raises ConfigError if it is absent."""
    spec = importlib.util.find_spec(module)
    if spec is None or not spec.submodule_search_locations:
        raise _missing(distribution)
    return Path(next(iter(spec.submodule_search_locations)))
