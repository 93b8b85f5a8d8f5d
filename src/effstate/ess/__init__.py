"""Effective state-size: the metric, exact and fast. Needs nothing but torch.

Operators are causal, T (..., L, L) lower triangular, or given by a :class:`Recurrence`. Index i is
1 .. L-1, and H_i = T[i:, :i] is what the past does to the present and the future.
"""

from .errors import EssError
from .measure import Profile, causal_ess, entropy_ess, measure, singular_values, tolerance_ess
from .realization import Realization, minimal_realization, reduce_recurrence
from .recurrent import Recurrence
from .reference import (
    reference_causal_ess,
    reference_entropy_ess,
    reference_singular_values,
    reference_tolerance_ess,
)
from .summary import average_ess, geometric_ceiling, total_ess, utilisation

__all__ = [
    "EssError",
    "Profile",
    "Realization",
    "Recurrence",
    "average_ess",
    "causal_ess",
    "entropy_ess",
    "geometric_ceiling",
    "measure",
    "minimal_realization",
    "reduce_recurrence",
    "reference_causal_ess",
    "reference_entropy_ess",
    "reference_singular_values",
    "reference_tolerance_ess",
    "singular_values",
    "tolerance_ess",
    "total_ess",
    "utilisation",
]
