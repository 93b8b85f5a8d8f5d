"""From a mixer's features to its operator T, to T u, and to its recurrence (METHOD sections 1, 3)."""

from effstate.operators.features import (
    DecayFeatures,
    Features,
    SoftmaxFeatures,
    profile_of,
    recurrence_from_qk,
    softmax_operator,
)
from effstate.operators.linear_attention import linear_attention
from effstate.operators.reference import linear_attention_naive, operator_naive
from effstate.operators.selective import SelectiveFeatures, selective_scan, selective_scan_naive

__all__ = [
    "DecayFeatures",
    "Features",
    "SelectiveFeatures",
    "SoftmaxFeatures",
    "linear_attention",
    "linear_attention_naive",
    "operator_naive",
    "profile_of",
    "recurrence_from_qk",
    "selective_scan",
    "selective_scan_naive",
    "softmax_operator",
]
