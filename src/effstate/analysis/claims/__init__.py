"""What the paper says, judged by a program: each claim a function from tables to a judgement.

A claim is registered in one of this package's modules by
:func:`~effstate.analysis.claims.base.claim`; :func:`judge` runs them all. Its outcome is

- ``reproduced`` if every part is: the claimed side of the threshold holds the whole 95% bootstrap
  interval of the part's statistic,
- ``not reproduced`` if some part's interval lies on the other side,
- ``inconclusive`` otherwise: an interval contains its threshold, or there is none (one seed),
- ``not run`` if the scale has no such study, or the table is absent.
"""

from __future__ import annotations

import importlib

from effstate.analysis.claims.base import CLAIMS, OUTCOMES, Claim, Evidence, Part, claim
from effstate.analysis.claims.judging import Judgements, judge
from effstate.analysis.claims.report import claims_markdown, claims_text

for _chapter in ("sweep", "initialisation", "decay", "distillation", "hybrids", "language"):
    importlib.import_module(f"{__name__}.{_chapter}")  # in the order of the paper, which sorting breaks

__all__ = [
    "CLAIMS",
    "OUTCOMES",
    "Claim",
    "Evidence",
    "Judgements",
    "Part",
    "claim",
    "claims_markdown",
    "claims_text",
    "judge",
]
