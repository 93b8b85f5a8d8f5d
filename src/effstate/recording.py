"""ESS of a model in one's own training loop: its operators are recorded as the model runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from effstate.ess import EssError, Profile
from effstate.models import Mixer, SequenceModel
from effstate.operators import Features, profile_of
from effstate.operators.huggingface import LayerOperator, read_operators


@dataclass
class Trace:
    """The last forward inside a :func:`record` block.

    Attributes:
        layers: layer to its operators, detached from the graph and from later optimiser steps.
    """

    layers: dict[int, LayerOperator] = field(default_factory=dict)

    def ess(self, tolerances: Sequence[float] = (1e-3,)) -> dict[int, Profile]:
        """Entropy-ESS and tolerance-ESS (batch, heads, L-1) of each recorded layer, in float64.

        Raises:
            EssError: no forward inside the block, or an operator that is not finite, with its layer.
        """
        if not self.layers:
            raise EssError("nothing is recorded: no forward of the model ran inside the block.")
        found = {}
        for layer, recorded in sorted(self.layers.items()):
            wide = _each_tensor(recorded.features, Tensor.double)
            try:
                found[layer] = profile_of(wide, tuple(tolerances))
            except EssError as error:
                raise EssError(f"layer {layer}: {error}") from None
        return found


@contextmanager
def record(model: nn.Module, layers: Collection[int] | None = None) -> Iterator[Trace]:
    """Record the operators of every forward of ``model`` inside the block; the last one stays.

    Gradients and the training step are not touched, and the model is as before after the block. All
    recorded layers are held: L x L numbers per head for softmax attention.

    Args:
        model: a :class:`~effstate.models.SequenceModel`, or a Hugging Face causal language model,
            whose attention runs in the eager form inside the block.
        layers: only these, all by default.

    Raises:
        TypeError: another kind of model; HuggingFaceError: an architecture that is not known.
    """
    own = getattr(model, "_orig_mod", model)  # what torch.compile wraps
    trace = Trace()

    def keep(operator: LayerOperator) -> None:
        trace.layers[operator.layer] = operator

    if isinstance(own, SequenceModel):
        with ExitStack() as stack:
            for mixer in own.mixers:
                if layers is None or mixer.layer in layers:
                    stack.callback(_watch(mixer, keep))
            yield trace
    elif hasattr(getattr(own, "config", None), "model_type"):
        with read_operators(own, keep, layers):
            yield trace
    else:
        raise TypeError(
            f"{type(own).__name__} is neither a SequenceModel nor a Hugging Face causal language model"
        )


def _watch(mixer: Mixer, keep: Any) -> Any:
    """Show ``keep`` whatever ``mixer.project`` makes; returns what undoes it."""
    project = mixer.project

    def watched(u: Tensor) -> tuple[Features, Tensor]:
        features, values = project(u)
        length = values.shape[-2]
        tss = torch.arange(1, length)
        if mixer.recurrent:
            tss = torch.full((length - 1,), mixer.tss(mixer.config, length))
        kept = _each_tensor(features, _detached)
        keep(LayerOperator(mixer.layer, type(mixer).__name__, kept, values.detach(), tss))
        return features, values

    mixer.project = watched  # type: ignore[method-assign]
    return lambda: mixer.__dict__.pop("project")


def _detached(x: Tensor) -> Tensor:
    """``x`` without its graph; a parameter is copied, since optimisers change it in place."""
    return x.detach().clone() if isinstance(x, nn.Parameter) else x.detach()


def _each_tensor(features: Features, change: Any) -> Features:
    """``features`` with ``change`` of its tensors; features that are no dataclass stay as they are."""
    if not dataclasses.is_dataclass(features):
        return features
    tensors = {
        entry.name: change(value)
        for entry in dataclasses.fields(features)
        if isinstance(value := getattr(features, entry.name), Tensor)
    }
    return dataclasses.replace(features, **tensors)
