"""Operators read off Hugging Face models: T values is what each layer itself computes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from effstate.ess import measure
from effstate.operators.huggingface import (
    FAMILIES,
    AttentionFeatures,
    HuggingFaceError,
    LayerOperator,
    MambaFeatures,
    _attention_layer,
    read_operators,
    register_family,
)

transformers = pytest.importorskip("transformers")

LENGTH, VOCABULARY = 12, 40
COMMON = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
GROUPED = {**COMMON, "num_key_value_heads": 2, "intermediate_size": 48, "head_dim": 8}
MAMBA = {"vocab_size": VOCABULARY, "hidden_size": 16, "num_hidden_layers": 2, "state_size": 4}

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("gpt2", COMMON),
    "gpt_neox": ("gpt_neox", {**COMMON, "intermediate_size": 48}),
    "phi": ("phi", {**COMMON, "intermediate_size": 48}),
    "phi3": ("phi3", {**COMMON, "intermediate_size": 48, "num_key_value_heads": 2, "pad_token_id": 0}),
    "llama": ("llama", GROUPED),
    "llama, multi-query": ("llama", {**GROUPED, "num_key_value_heads": 1}),
    "mistral": ("mistral", {**GROUPED, "sliding_window": None}),
    "mistral, window": ("mistral", {**GROUPED, "sliding_window": 4}),
    "qwen2": ("qwen2", GROUPED),
    "qwen3": ("qwen3", GROUPED),
    "gemma2": ("gemma2", {**GROUPED, "query_pre_attn_scalar": 8}),
    "mamba": ("mamba", MAMBA),
    "falcon_mamba": ("falcon_mamba", MAMBA),
    "jamba": (
        "jamba",
        {
            **GROUPED,
            "attn_layer_period": 2,
            "attn_layer_offset": 1,
            "num_experts": 1,
            "num_experts_per_tok": 1,
            "mamba_d_state": 4,
            "use_mamba_kernels": False,
        },
    ),
}
AFTER = ("c_proj", "o_proj", "dense", "out_proj")
"""Projections that follow T, by the families' names."""


def small_model(case: str, dtype: torch.dtype = torch.float32) -> Any:
    """A random model of a case, on the CPU, with weights large enough for attention to be uneven."""
    model_type, options = CASES[case]
    config = transformers.AutoConfig.for_model(model_type, **options)
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("weight") and parameter.ndim == 2 and parameter.std() > 0:
                parameter.mul_(0.3 / parameter.std())
    return model


def tokens(batch: int = 2) -> Tensor:
    return torch.randint(1, VOCABULARY, (batch, LENGTH), generator=torch.Generator().manual_seed(1))


def mixers(model: nn.Module) -> list[nn.Module]:
    """The modules that hold T, first layer first."""
    found = [m for m in model.modules() if hasattr(m, "layer_idx") and hasattr(m, "forward")]
    return [m for m in found if any(hasattr(m, name) for name in AFTER)]


def read(model: Any, inputs: Tensor, **options: Any) -> tuple[list[LayerOperator], list[Tensor], Tensor]:
    """Operators, what goes into each layer's last projection, and the logits of one forward."""
    layers: list[LayerOperator] = []
    mixed: list[Tensor] = []
    gates: list[Tensor] = []
    for mixer in mixers(model):
        name = next(name for name in AFTER if hasattr(mixer, name))
        getattr(mixer, name).register_forward_pre_hook(lambda _, given: mixed.append(given[0]))
        if hasattr(mixer, "in_proj"):
            mixer.in_proj.register_forward_hook(lambda _, __, out: gates.append(out.chunk(2, -1)[1]))
    with torch.no_grad(), read_operators(model, layers.append, **options):
        logits = model(inputs, use_cache=False).logits
    for layer in layers:
        if layer.mixer == "mamba":
            # the scan's result goes through its gate before it is projected
            mixed[layer.layer] = mixed[layer.layer] / nn.functional.silu(gates.pop(0))
    return layers, mixed, logits


@pytest.mark.parametrize("case", CASES)
def test_the_operator_times_the_values_is_what_the_layer_computes(case: str) -> None:
    model, inputs = small_model(case), tokens()
    with torch.no_grad():
        expected = model(inputs, use_cache=False).logits
    before = model.config._attn_implementation
    layers, mixed, logits = read(model, inputs)
    assert [layer.layer for layer in layers] == [0, 1]
    assert torch.allclose(logits, expected, atol=1e-4)
    assert model.config._attn_implementation == before
    for layer, computed in zip(layers, mixed, strict=True):
        T = layer.features.operator()
        assert T.shape[:2] == layer.values.shape[:2] and T.shape[-1] == LENGTH
        assert not T.triu(1).any()
        found = (T @ layer.values.to(T.dtype)).transpose(1, 2).flatten(2).to(computed.dtype)
        scale = float(computed.abs().max())
        assert torch.allclose(found, computed, atol=1e-4 * scale)
        applied = layer.features.apply(layer.values).transpose(1, 2).flatten(2)
        assert torch.allclose(applied.to(computed.dtype), computed, atol=1e-4 * scale)
        assert (measure(T, (1e-6,)).tolerance[1e-6] <= layer.tss).all()


def test_every_family_has_a_case() -> None:
    assert {model_type for model_type, _ in CASES.values()} == set(FAMILIES)


def test_grouped_heads_count_as_query_heads() -> None:
    layers, _, _ = read(small_model("llama"), tokens())
    assert layers[0].features.operator().shape == (2, 4, LENGTH, LENGTH)
    assert layers[0].values.shape == (2, 4, LENGTH, 8)


def test_a_window_bounds_the_state() -> None:
    layers, _, _ = read(small_model("mistral, window"), tokens())
    assert layers[0].tss.tolist() == [1, 2] + [3] * (LENGTH - 3)
    counts = measure(layers[0].features.operator(), (1e-7,)).tolerance[1e-7]
    assert int(counts.max()) == 3


def test_mamba_goes_the_recurrent_way_to_the_same_ess() -> None:
    layers, _, _ = read(small_model("mamba"), tokens())
    features = layers[0].features
    assert isinstance(features, MambaFeatures)
    fast = measure(features.recurrence(), (1e-3, 1e-6), method="qr")
    slow = measure(features.operator(), (1e-3, 1e-6), method="reference")
    assert torch.allclose(fast.entropy, slow.entropy, rtol=1e-6)
    for tolerance in (1e-3, 1e-6):
        assert torch.equal(fast.tolerance[tolerance], slow.tolerance[tolerance])
    some = measure(features.take(slice(3, 5)).recurrence(), (1e-3,), method="qr")
    assert torch.equal(some.tolerance[1e-3], fast.tolerance[1e-3][:, 3:5])


def test_only_the_asked_layers_are_read() -> None:
    for case in ("llama", "mamba"):
        model, seen = small_model(case), []
        with torch.no_grad(), read_operators(model, seen.append, layers=[1]):
            model(tokens(), use_cache=False)
        assert [layer.layer for layer in seen] == [1]
        with torch.no_grad():
            model(tokens(), use_cache=False)
        assert len(seen) == 1


def test_a_model_of_16_bits_has_operators_in_32() -> None:
    wide, _, _ = read(small_model("llama"), tokens())
    narrow, _, logits = read(small_model("llama", torch.bfloat16), tokens())
    T = narrow[0].features.operator()
    assert logits.dtype == torch.bfloat16 and T.dtype == torch.float32
    assert float((T.sum(-1) - 1).abs().max()) < 1e-5
    assert torch.allclose(T, wide[0].features.operator(), atol=0.1)


def test_dropout_is_no_part_of_the_operator() -> None:
    model = small_model("gpt2").train()
    seen: list[LayerOperator] = []
    with read_operators(model, seen.append):
        model(tokens(), use_cache=False).logits.sum().backward()
    assert float((seen[1].features.operator().sum(-1) - 1).abs().max()) < 1e-5
    assert model.transformer.wte.weight.grad is not None


def test_what_cannot_be_read_is_refused() -> None:
    bert = transformers.BertLMHeadModel(
        transformers.BertConfig(**COMMON, intermediate_size=8, is_decoder=True)
    )
    with (
        pytest.raises(HuggingFaceError, match=r"is an encoder \(bert\)"),
        read_operators(bert, print),
    ):
        pass
    bert.config = transformers.AutoConfig.for_model("rwkv")
    with (
        pytest.raises(HuggingFaceError, match="architecture 'rwkv'; known ones are falcon_mamba"),
        read_operators(bert, print),
    ):
        pass
    with pytest.raises(ValueError, match="is taken"):
        register_family("llama")


BAD_WEIGHTS = {
    "not causal": (torch.full((1, 1, 2, 2), 0.5), "layer 3: attention weights are not causal"),
    "sinks": (torch.eye(2).view(1, 1, 2, 2) / 2, "miss a sum of 1 by up to 0.5"),
    "not finite": (torch.full((1, 1, 2, 2), float("nan")), "layer 3: .* not finite"),
    "cache": (torch.ones(1, 1, 1, 4), "not square; run the model without a cache"),
}


@pytest.mark.parametrize("case", BAD_WEIGHTS)
def test_weights_that_are_no_operator_are_refused(case: str) -> None:
    weights, message = BAD_WEIGHTS[case]
    with pytest.raises(HuggingFaceError, match=message):
        _attention_layer(3, weights, torch.zeros(1, 1, weights.shape[-1], 2), {})


def test_attention_features_apply_their_weights() -> None:
    weights = torch.rand(1, 2, 3, 3).tril()
    values = torch.rand(1, 2, 3, 4)
    assert torch.equal(AttentionFeatures(weights).apply(values), weights @ values)
