"""RMSNorm with its gradient by hand: small models on a CPU spend a fifth of a step in it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable


class _Normalise(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        inverse = (x * x).mean(-1, keepdim=True).add_(eps).rsqrt_()
        normalised = x * inverse
        ctx.save_for_backward(normalised, weight, inverse)
        return normalised * weight

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        normalised, weight, inverse = ctx.saved_tensors
        product = gradient * normalised
        # The part of the gradient along x is lost to the normalisation.
        along = (product @ weight).mul_(1 / weight.shape[0]).unsqueeze(-1)
        dx = (gradient * weight).addcmul_(normalised, along, value=-1).mul_(inverse)
        return dx, product.flatten(0, -2).sum(0), None


class RMSNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension (..., size), as nn.RMSNorm.

    Gradients of first order only.
    """

    def __init__(self, size: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        """x (..., size) to the same shape."""
        return _Normalise.apply(x, self.weight, self.eps)
