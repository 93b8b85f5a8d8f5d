"""Operators of Hugging Face causal language models, read off their own forward (METHOD sections 1, 2).

A *reader* knows one kind of mixer and attaches to the modules of a model that are of that kind; a
*family* is the readers of one architecture (``model_type``). Layers are handed out one after the
other, while the model runs, so that no more than one layer's operators need to be held.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from effstate.ess import Recurrence
from effstate.operators.features import DecayFeatures, Features

ROW_SUM_ERROR = 1e-3
"""Rows of attention weights, computed in float32 or better, sum to 1 up to this."""


class HuggingFaceError(ValueError):
    """One sentence: the model or the layer, and why no operator can be read off it."""


@dataclass(frozen=True)
class AttentionFeatures(Features):
    """T given as attention weights (batch, query heads, L, L), causal, with rows that sum to 1."""

    weights: Tensor

    def operator(self) -> Tensor:
        """The weights themselves."""
        return self.weights

    def apply(self, values: Tensor) -> Tensor:
        """T values (batch, query heads, L, p)."""
        return self.weights @ values


@dataclass(frozen=True)
class MambaFeatures(Features):
    """T_ij = C_i . (a_{j+1} * ... * a_i) . (steps_j B_j) + skip [i = j], a_i = exp(-steps_i rates).

    C, B: (batch, 1, L, n), shared by the channels; steps: (batch, channels, L) >= 0; rates:
    (channels, n) > 0, which S6 of section 3 has only one of; skip: (channels,) or None.
    """

    C: Tensor
    B: Tensor
    steps: Tensor
    rates: Tensor
    skip: Tensor | None = None

    def take(self, channels: Tensor | slice) -> MambaFeatures:
        """The features of some channels."""
        skip = None if self.skip is None else self.skip[channels]
        return replace(self, steps=self.steps[:, channels], rates=self.rates[channels], skip=skip)

    def decayed(self) -> DecayFeatures:
        """The same without the skip in float64: decays and B (batch, channels, L, n) of their own."""
        steps = self.steps.double().unsqueeze(-1)
        rates = self.rates.double().unsqueeze(-2)
        return DecayFeatures(self.C.double(), steps * self.B.double(), -steps * rates)

    def operator(self) -> Tensor:
        """The dense operators (batch, channels, L, L) in float64, for plots and small tests."""
        T = self.decayed().operator()
        return T if self.skip is None else T + torch.diag_embed(self._skip().expand(T.shape[:-1]))

    def apply(self, values: Tensor) -> Tensor:
        """T values (batch, channels, L, 1), in float64."""
        values = values.double()
        mixed = self.decayed().apply(values)
        return mixed if self.skip is None else mixed + self._skip().unsqueeze(-1) * values

    def recurrence(self) -> Recurrence:
        """The recurrence (eq. 1) of every channel; :meth:`take` few at once for long texts."""
        return self.decayed().recurrence()

    def _skip(self) -> Tensor:
        return self.skip.double().unsqueeze(-1)


@dataclass(frozen=True)
class LayerOperator:
    """What one layer did in one forward.

    Attributes:
        layer: its place in the model, from 0.
        mixer: ``"attention"`` or ``"mamba"``.
        features: its operators, (batch, heads, L, L) in dense form; a channel of Mamba is a head.
        values: what they mix, (batch, heads, L, channels per head).
        tss: theoretical state-size per channel (METHOD section 2) at i = 1 .. L-1, (L-1,) int64.
    """

    layer: int
    mixer: str
    features: Features
    values: Tensor
    tss: Tensor


See = Callable[[LayerOperator], None]
Reader = Callable[[nn.Module, Callable[[int], bool], See], Any]
"""(model, whether a layer is wanted, what is called with it) to a context in which it is called."""

FAMILIES: dict[str, tuple[Reader, ...]] = {}
"""``model_type`` to its readers."""


def register_family(model_type: str, *readers: Reader) -> None:
    """Say which readers see all mixers of an architecture; a reader of one's own is a context manager.

    Raises ValueError if the name is taken.
    """
    if model_type in FAMILIES:
        raise ValueError(f"the architecture '{model_type}' is taken; choose another name")
    FAMILIES[model_type] = readers


def check_family(config: Any, name: str = "the model") -> str:
    """``config.model_type`` if its operators can be read, of the Hugging Face configuration ``config``.

    Raises:
        HuggingFaceError: an encoder, or an architecture that is not known (with those that are).
    """
    from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

    kind = config.model_type
    if kind in FAMILIES:
        return kind
    if config.is_encoder_decoder or kind in MODEL_FOR_MASKED_LM_MAPPING_NAMES:
        raise HuggingFaceError(
            f"{name} is an encoder ({kind}), which has no causal operator; name a causal language model"
        )
    known = ", ".join(sorted(FAMILIES))
    raise HuggingFaceError(f"{name} has the unknown architecture '{kind}'; known ones are {known}")


@contextmanager
def read_operators(model: nn.Module, see: See, layers: Collection[int] | None = None) -> Iterator[None]:
    """Call ``see`` with the operators of each layer of every forward inside the block.

    Args:
        model: a Hugging Face causal language model; its attention runs in the eager form meanwhile.
        see: called in the order of the forward; what it does not keep is freed.
        layers: only these, all by default.

    Raises:
        HuggingFaceError: an architecture that is not known; during a forward, attention weights
            that are not causal or whose rows do not sum to 1 (attention sinks, padding).
    """
    readers = FAMILIES[check_family(model.config)]
    with ExitStack() as stack:
        for reader in readers:
            stack.enter_context(reader(model, lambda k: layers is None or k in layers, see))
        yield


# ------------------------------------------------------------------------------- softmax attention

_ATTENTION = "effstate_eager"
_WATCHED: WeakKeyDictionary[nn.Module, See] = WeakKeyDictionary()


@contextmanager
def attention(model: Any, wanted: Callable[[int], bool], see: See) -> Iterator[None]:
    """Reader of softmax attention: the weights of the family's own eager attention.

    Grouped and multi-query heads count as query heads, a sliding window is part of the weights.
    """
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import eager_mask

    AttentionInterface.register(_ATTENTION, _watched_attention)
    AttentionMaskInterface.register(_ATTENTION, eager_mask)
    before = model.config._attn_implementation
    modules = [
        module
        for module in model.modules()
        if type(module).__name__.endswith("Attention") and hasattr(module, "layer_idx")
    ]
    model.set_attn_implementation(_ATTENTION)
    _WATCHED.update({module: see for module in modules if wanted(module.layer_idx)})
    try:
        yield
    finally:
        for module in modules:
            _WATCHED.pop(module, None)
        model.set_attn_implementation(before)


def _watched_attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **options: Any
) -> tuple[Tensor, Tensor]:
    """The module's eager attention, and its weights shown to whoever watches the module."""
    eager = sys.modules[type(module).__module__].eager_attention_forward
    output, weights = eager(module, query, key, value, mask, **options)
    see = _WATCHED.get(module)
    if see is not None:
        with torch.no_grad():
            low = torch.finfo(query.dtype).bits < 32
            if low or options.get("dropout"):
                # what is rounded to 16 bits, or dropped, is not the operator
                wide = (x.detach().float() if low else x.detach() for x in (query, key, value))
                _, weights = eager(module, *wide, mask, **(options | {"dropout": 0.0}))
            see(_attention_layer(module.layer_idx, weights.detach(), value.detach(), options))
    return output, weights if see is None else weights.to(query.dtype)


def _attention_layer(
    layer: int, weights: Tensor, value: Tensor, options: dict[str, Any]
) -> LayerOperator:
    if weights.shape[-2] != weights.shape[-1]:
        raise HuggingFaceError(
            f"layer {layer}: attention weights {tuple(weights.shape)} are not square; run the model "
            "without a cache (use_cache=False)"
        )
    if not weights.isfinite().all():
        raise HuggingFaceError(f"layer {layer}: attention weights are not finite")
    if weights.triu(1).any():
        raise HuggingFaceError(f"layer {layer}: attention weights are not causal")
    error = float((weights.sum(-1) - 1).abs().max())
    if error > ROW_SUM_ERROR:
        raise HuggingFaceError(
            f"layer {layer}: rows of attention weights miss a sum of 1 by up to {error:.2g}, so they "
            "are not the whole operator (attention sinks?)"
        )
    tss = torch.arange(1, weights.shape[-1])
    if options.get("sliding_window") is not None:
        # a window holds the current token too
        tss = tss.clamp_max(options["sliding_window"] - 1)
    repeated = value.repeat_interleave(weights.shape[1] // value.shape[1], dim=1)
    return LayerOperator(layer, "attention", AttentionFeatures(weights), repeated, tss)


# ------------------------------------------------------------------------------------------- Mamba


@contextmanager
def mamba(model: nn.Module, wanted: Callable[[int], bool], see: See) -> Iterator[None]:
    """Reader of Mamba's selective scan: one operator per channel, from the projection that selects."""
    with ExitStack() as stack:
        for module in model.modules():
            if hasattr(module, "A_log") and hasattr(module, "x_proj") and wanted(module.layer_idx):
                handle = module.x_proj.register_forward_hook(_selection_hook(module, see))
                stack.callback(handle.remove)
        yield


def _selection_hook(mixer: Any, see: See) -> Callable[[nn.Module, Any, Tensor], None]:
    @torch.no_grad()
    def hook(_: nn.Module, inputs: tuple[Tensor], selected: Tensor) -> None:
        sizes = [mixer.time_step_rank, mixer.ssm_state_size, mixer.ssm_state_size]
        # Falcon-Mamba normalises all three
        step, B, C = (
            getattr(mixer, f"{name}_layernorm", nn.Identity())(part)
            for name, part in zip(("dt", "b", "c"), selected.detach().split(sizes, dim=-1), strict=True)
        )
        steps = F.softplus(F.linear(step, mixer.dt_proj.weight).float() + mixer.dt_proj.bias.float())
        rates = mixer.A_log.detach().float().exp()
        features = MambaFeatures(
            C.unsqueeze(1),
            B.unsqueeze(1),
            steps.transpose(1, 2),
            rates,
            mixer.D.detach().float().clone(),
        )
        bad = [name for name in ("C", "B", "steps") if not getattr(features, name).isfinite().all()]
        if bad:
            raise HuggingFaceError(f"layer {mixer.layer_idx}: {bad[0]} of the scan is not finite")
        tss = torch.full((steps.shape[1] - 1,), rates.shape[1])
        values = inputs[0].detach().transpose(1, 2).unsqueeze(-1)
        see(LayerOperator(mixer.layer_idx, "mamba", features, values, tss))

    return hook


for _name in ("gpt2", "gpt_neox", "phi", "phi3", "llama", "mistral", "qwen2", "qwen3", "gemma2"):
    register_family(_name, attention)
for _name in ("mamba", "falcon_mamba"):
    register_family(_name, mamba)
register_family("jamba", attention, mamba)
