"""Rivals of ESS as a predictor of accuracy (figure B5): the effective window and the unmasked rank."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from effstate.ess.summary import entropy_of
from effstate.operators import DecayFeatures, Features, SoftmaxFeatures, operator_naive

WINDOW_THRESHOLD = 1e-3
"""Above this |ds_i / ds_j| (|T_ij| where there is no recurrence) an earlier position still counts."""

_LOWEST = -1e4
"""Log decays below this are zero decays in every dtype; their sums stay finite."""


def effective_window(features: Features, threshold: float = WINDOW_THRESHOLD) -> Tensor:
    """How many earlier states still move the present one: per head, averaged over samples.

    For a recurrence the number of j < i with |ds_i / ds_j| = a_{j+1} * ... * a_i > threshold, averaged
    over the states and i = 1 .. L-1; otherwise the number of j < i with |T_ij| > threshold.
    Returns (heads,) in float64.
    """
    if not isinstance(features, DecayFeatures):
        above = features.operator().tril(-1).abs() > threshold
        return above.sum(-1)[..., 1:].double().mean((0, 2))
    heads, length = features.B.shape[1:3]
    if features.log_decay is None:
        return torch.full((heads,), length / 2, dtype=torch.float64)
    steps = features.log_decay.double().clamp(_LOWEST, 0)
    fallen = -steps.expand(-1, -1, length, -1).cumsum(2).mT.contiguous()  # ascending along i
    # j counts while its sum lies within -log(threshold) of i's; all before it have fallen too far.
    forgotten = torch.searchsorted(fallen, fallen + math.log(threshold), right=True)
    window = torch.arange(length) - forgotten
    return window[..., 1:].double().mean((0, 2, 3)).expand(heads)


def unmasked_rank(features: Features) -> Tensor:
    """Effective rank of the operator without its causal mask, as earlier work measures attention.

    exp of the entropy of the normalised singular values of the full L x L matrix: softmax over all
    positions, or C_i . B_j with the decays between i and j on either side of the diagonal. Returns
    (heads,) in float64, averaged over samples; NaN for features of another kind.
    """
    if isinstance(features, SoftmaxFeatures):
        full = (features.scale * features.C @ features.B.mT).softmax(-1)
    elif isinstance(features, DecayFeatures):
        future = operator_naive(features.B, features.C, features.log_decay, features.scale).mT
        full = features.operator() + future.triu(1)
    else:
        return torch.full((features.operator().shape[1],), float("nan"), dtype=torch.float64)
    sigma = torch.linalg.svdvals(full.double())
    sizes = torch.tensor([sigma.shape[-1]])
    return entropy_of(sigma.unsqueeze(-2), sizes).squeeze(-1).mean(0)
