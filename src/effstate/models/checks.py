"""Does a mixer's operator describe what the mixer computes? A check for mixers of one's own."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from effstate.models.base import Mixer
from effstate.operators import DecayFeatures, Features

LENGTHS = (1, 2, 3, 17, 64, 65, 200)

_GATES: dict[str, float | None] = {"own": None, "a -> 0": -1e4, "a -> 1": -1e-9}
"""Gates as the mixer makes them, and log decays that stand for both ends."""


class MixerCheckError(AssertionError):
    """One sentence: what does not fit, at which length, in which dtype, and by how much."""


Project = Callable[[Tensor], tuple[Features, Tensor]]


def _drive(project: Project, log_decay: float) -> Project:
    """``project`` with every decay replaced, for mixers that have decays."""

    def driven(u: Tensor) -> tuple[Features, Tensor]:
        features, values = project(u)
        if isinstance(features, DecayFeatures) and features.log_decay is not None:
            driven_decay = torch.full_like(features.log_decay, log_decay)
            features = dataclasses.replace(features, log_decay=driven_decay)
        return features, values

    return driven


def _forward_mixes(mixer: Mixer, u: Tensor) -> Tensor | None:
    """What ``forward`` hands to ``output``; None if its result is not what ``output`` returns."""
    seen: list[Tensor] = []

    def record(mixed: Tensor, u: Tensor) -> Tensor:
        seen.append(mixed)
        return mixed

    mixer.output = record  # type: ignore[method-assign]
    try:
        result = mixer(u)
    finally:
        del mixer.output
    return result if seen and result is seen[-1] else None


def check_operator(
    mixer: Mixer,
    lengths: Iterable[int] = LENGTHS,
    dtypes: Iterable[torch.dtype] = (torch.float32, torch.float64),
    batch: int = 2,
    seed: int = 0,
) -> None:
    """T of ``mixer.features`` is what ``mixer.forward`` mixes: causal, finite, equal to rounding.

    Random inputs, small and large (large ones drive gates and softmax to their ends), and decays
    replaced by both ends (a -> 0, a -> 1). ``mixer`` itself is left as it is.

    Raises:
        MixerCheckError: with the first length, dtype and gate at which something does not fit.
    """
    lengths = list(lengths)
    for dtype in dtypes:
        for gate, log_decay in _GATES.items():
            checked = copy.deepcopy(mixer).to(dtype).eval()
            if log_decay is not None:
                checked.project = _drive(checked.project, log_decay)  # type: ignore[method-assign]
            generator = torch.Generator().manual_seed(seed)
            for length in lengths:
                for size in (1.0, 30.0):
                    u = size * torch.randn(
                        batch, length, mixer.config.width, dtype=dtype, generator=generator
                    )
                    problem = _problem(checked, u)
                    if problem:
                        raise MixerCheckError(
                            f"{type(mixer).__name__}: {problem} (length {length}, "
                            f"{str(dtype).removeprefix('torch.')}, gates {gate}, "
                            f"inputs of size {size:g})"
                        )


@torch.no_grad()
def _problem(mixer: Mixer, u: Tensor) -> str | None:
    """The first thing that does not fit on the input u (batch, L, width), as half a sentence."""
    features, values = mixer.features(u), mixer.values(u)
    length = u.shape[1]
    T = features.operator()
    if T.shape[-2:] != (length, length):
        return f"the operator has shape {tuple(T.shape)} instead of (..., {length}, {length})"
    if not T.isfinite().all():
        return "the operator has entries that are not finite"
    if T.triu(1).any():
        return "the operator is not causal: it has entries above the diagonal"
    # Rounding grows with the summed magnitudes, not with the result, which may cancel.
    allowed = 1000 * torch.finfo(u.dtype).eps * float((T.abs() @ values.abs()).amax())
    expected = T @ values
    prefix = (length + 1) // 2
    early = mixer.features(u[:, :prefix]).operator()
    error = float((T[..., :prefix, :prefix] - early).abs().amax())
    if not error <= 1000 * torch.finfo(u.dtype).eps * float(T.abs().amax()):
        return f"the operator's first half changes by {error:.3g} with later inputs"
    mixed = _forward_mixes(mixer, u)
    if mixed is None:
        return "forward does not return output(mixed, u), so what it mixes cannot be seen"
    for name, found in (("features.apply(values)", features.apply(values)), ("forward", mixed)):
        if found.shape != expected.shape:
            return f"{name} mixes to {tuple(found.shape)}, the operator to {tuple(expected.shape)}"
        error = float((found - expected).abs().amax())
        if not error <= allowed:
            return f"{name} differs from the operator applied to the values by {error:.3g}"
    return None
