"""The penalty that keeps decays near 1 (appendix A): lambda * ||A - I||_F."""

from __future__ import annotations

import torch
from torch import Tensor

from effstate.operators import DecayFeatures, Features

_TINY = 1e-12
"""Under the square root, so that the gradient at A = I is 0 instead of NaN."""


def decay_distance(features: Features, reduction: str) -> Tensor:
    """||A - I||_F of one mixer, A the diagonal decays (batch | 1, heads | 1, L | 1, n); a scalar.

    The paper leaves the reduction over samples and positions open. ``"rms"``: root mean square over
    all entries times sqrt(heads * n), which is the same number for an input-invariant A and for one
    that repeats it at every position; ``"mean"``: mean over samples and positions of the norm over
    heads and states; ``"sum"``: the norm over everything.

    Raises ValueError for features without decays, or an unknown reduction.
    """
    decays = features.log_decay if isinstance(features, DecayFeatures) else None
    if decays is None:
        raise ValueError(f"{type(features).__name__} without decays have no ||A - I|| to regularise")
    squares = torch.expm1(decays).square()
    heads, states = decays.shape[1], decays.shape[3]
    if reduction == "rms":
        return (squares.mean() * (heads * states) + _TINY).sqrt()
    if reduction == "mean":
        return (squares.sum((1, 3)) + _TINY).sqrt().mean()
    if reduction == "sum":
        return (squares.sum() + _TINY).sqrt()
    raise ValueError(f"reduction = {reduction!r}: known ones are 'rms', 'mean' and 'sum'")
