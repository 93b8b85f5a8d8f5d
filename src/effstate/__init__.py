"""effstate: the effective state-size of causal sequence mixers.

The metric alone is in :mod:`effstate.ess`, which imports nothing else of this package.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from effstate.measuring import measure_model as measure_model
    from effstate.measuring import measure_texts as measure_texts
    from effstate.recording import record as record

__version__ = "0.1.0"

_LAZY = {
    "measure_model": "effstate.measuring",
    "measure_texts": "effstate.measuring",
    "record": "effstate.recording",
}


def __getattr__(name: str) -> Any:
    """The names of ``_LAZY`` on first use: importing the package does not import torch."""
    if name not in _LAZY:
        raise AttributeError(f"module 'effstate' has no attribute '{name}'")
    return getattr(importlib.import_module(_LAZY[name]), name)
