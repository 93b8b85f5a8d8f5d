"""From singular values to the two ESS, and from ESS to averages, totals, ceilings and utilisation.

ESS tensors are ordered (layers, heads, batch, index); the index axis holds i = 1 .. L-1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from .errors import EssError, check_tolerance

PROBABILITY_FLOOR = 1e-12
"""p is clipped from below at this value, as in the paper's listing."""

FLOOR_TERM = -PROBABILITY_FLOOR * math.log(PROBABILITY_FLOOR)
"""What a clipped p adds to the entropy."""


def spectrum_sizes(length: int, block_size: int = 1) -> Tensor:
    """Number of singular values of H_i, d min(i, L - i), for i = 1 .. L-1: (L-1,) int64."""
    index = torch.arange(1, length)
    return block_size * torch.minimum(index, length - index)


def count_above(sigma: Tensor, tolerance: float) -> Tensor:
    """Tolerance-ESS (eq. 2): how many of ``sigma`` (..., r) lie strictly above: (...) int64."""
    return (sigma > check_tolerance(tolerance)).sum(dim=-1)


def entropy_of(sigma: Tensor, sizes: Tensor) -> Tensor:
    """Entropy-ESS exp(-sum p log p), p = sigma / sum sigma clipped from below at 1e-12.

    Args:
        sigma: (..., indices, r), not negative, descending, float64.
        sizes: (indices,), how many singular values each H_i has; those beyond r are zeros (they
            count: a clipped zero adds 2.8e-11 to the entropy), entries of sigma beyond it do not.

    Returns:
        (..., indices) float64; 0 where all singular values are zero.
    """
    r = sigma.shape[-1]
    top = sigma.amax(dim=-1, keepdim=True) if r else sigma.new_zeros(*sigma.shape[:-1], 1)
    safe = torch.where(top > 0, top, 1.0)
    # dividing by the largest first keeps the sum of huge or tiny spectra inside float64
    scaled = sigma / safe
    total = scaled.sum(dim=-1, keepdim=True)
    p = (scaled / torch.where(total > 0, total, 1.0)).clamp_min(PROBABILITY_FLOOR)
    terms = -torch.special.xlogy(p, p)
    inside = torch.arange(r, device=sigma.device) < sizes.unsqueeze(-1)
    entropy = torch.where(inside, terms, 0.0).sum(dim=-1)
    entropy = entropy + (sizes - r).clamp_min(0).to(sigma.dtype) * FLOOR_TERM
    return torch.where(top.squeeze(-1) > 0, entropy.exp(), 0.0)


def average_ess(values: Tensor, dims: int | Sequence[int] | None = None) -> Tensor:
    """Mean of ESS ``values`` over ``dims`` (default: all). Over the index it divides by L-1.

    Raises:
        EssError: nothing to average over.
    """
    if values.numel() == 0:
        raise EssError(f"no ESS to average in a tensor of shape {tuple(values.shape)}.")
    values = values.double()
    return values.mean() if dims is None else values.mean(dim=dims)


def total_ess(
    values: Tensor,
    over: Literal["heads", "channels"] = "heads",
    *,
    channels_per_head: int | None = None,
    head_dim: int = -3,
    layers: Literal["mean", "sum"] | None = None,
    layer_dim: int = 0,
) -> Tensor:
    """Total ESS: the sum over heads, or over channels (all channels of a head share its ESS).

    Args:
        values: ESS (layers, heads, batch, index), or whatever has its heads at ``head_dim``.
        over: "heads" (figures 3-5, 11-25) or "channels" (9a, 35-46; the paper's average times d).
        channels_per_head: d / h; needed for "channels", refused for "heads".
        layers: also reduce ``layer_dim``: "mean" (9a, 35-41) or "sum" (42-46). Default: keep it.

    Returns:
        ``values`` without the head axis (and without the layer axis, if reduced), float64.
    """
    if over == "channels":
        if channels_per_head is None or channels_per_head < 1:
            raise EssError("a total over channels needs channels_per_head, at least 1.")
        factor = channels_per_head
    elif over == "heads":
        if channels_per_head is not None:
            raise EssError("a total over heads takes no channels_per_head.")
        factor = 1
    else:
        raise EssError(f"a total is over 'heads' or 'channels', not {over!r}.")
    if not -values.ndim <= head_dim < values.ndim:
        raise EssError(f"ESS of shape {tuple(values.shape)} has no head axis {head_dim}.")
    head, layer = head_dim % values.ndim, layer_dim % values.ndim
    total = values.double().sum(dim=head, keepdim=True) * factor
    if layers is None:
        return total.squeeze(head)
    if layers not in ("mean", "sum"):
        raise EssError(f"layers are reduced by 'mean' or 'sum', not {layers!r}.")
    if layer == head:
        raise EssError(f"axis {head_dim} cannot hold both the layers and the heads.")
    total = total.mean(dim=layer, keepdim=True) if layers == "mean" else total.sum(layer, True)
    return total.squeeze((head, layer))


def geometric_ceiling(tss: float | Tensor, length: int) -> Tensor:
    """mean_i min(TSS, i, L - i) over i = 1 .. L-1: no average ESS of a SISO operator is above it.

    Args:
        tss: one theoretical state-size, or one per index ``(..., L-1)`` (softmax attention: i).
        length: L, at least 2.

    Returns:
        float64, scalar or ``(...)``.
    """
    if length < 2:
        raise EssError(f"a sequence of length {length} has no index with a past and a future.")
    limit = spectrum_sizes(length).double()
    size = torch.as_tensor(tss, dtype=torch.float64)
    if size.ndim and size.shape[-1] != length - 1:
        shape = tuple(size.shape)
        raise EssError(f"TSS of shape {shape} is not one per index, (..., {length - 1}).")
    return torch.minimum(size, limit.to(size.device)).mean(dim=-1)


def utilisation(ess: Tensor, tss: float | Tensor) -> Tensor:
    """State utilisation ESS / TSS, broadcast; near 1 a state is saturated, near 0 collapsed.

    Raises:
        EssError: a TSS that is not positive.
    """
    size = torch.as_tensor(tss, dtype=torch.float64, device=ess.device)
    if not bool((size > 0).all()):
        raise EssError("utilisation needs a theoretical state-size above 0.")
    return ess.double() / size
