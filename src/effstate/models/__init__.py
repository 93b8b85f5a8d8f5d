"""Mixers, the sequence model, and what they cost (METHOD section 3).

Names are imported on first use: :mod:`effstate.models.cost` is read where torch is not loaded.
"""

from __future__ import annotations

import importlib
from typing import Any

_HOME = {
    "Mixer": "base",
    "register_mixer": "base",
    "SequenceModel": "sequence",
    "build_model": "sequence",
    "MixerCheckError": "checks",
    "check_operator": "checks",
    "parameter_count": "cost",
    "training_flops": "cost",
}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'effstate.models' has no attribute '{name}'")
    return getattr(importlib.import_module(f"effstate.models.{_HOME[name]}"), name)
