"""The small pretrained model of the package ``glassllm`` as a Hugging Face model.

Its architecture is Llama's; the package keeps adjacent pairs of coordinates together in its rotary
embedding where transformers splits a head in halves.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from effstate.measuring.loading import transformers_or_sentence

PARTS = {
    "norm1.gamma": "input_layernorm.weight",
    "norm2.gamma": "post_attention_layernorm.weight",
    "attn.W_Q": "self_attn.q_proj.weight",
    "attn.W_K": "self_attn.k_proj.weight",
    "attn.W_V": "self_attn.v_proj.weight",
    "attn.W_O": "self_attn.o_proj.weight",
    "ffn.W1": "mlp.gate_proj.weight",
    "ffn.W2": "mlp.down_proj.weight",
    "ffn.W3": "mlp.up_proj.weight",
}
"""Name inside a block to that inside a layer of Llama."""

SPECIAL = ("<pad>", "<unk>", "<bos>", "<eos>")


def load_glass(weights: Path, vocabulary: Path) -> tuple[Any, Any]:
    """The model in float32, in evaluation mode, and its tokenizer, from the package's two files."""
    transformers = transformers_or_sentence()
    with np.load(weights, allow_pickle=False) as data:
        sizes = json.loads(str(data["__config__"]))
        arrays = {name: torch.from_numpy(data[name]).float() for name in data.files if name[0] != "_"}
    config = transformers.LlamaConfig(
        vocab_size=sizes["vocab_size"],
        hidden_size=sizes["d_model"],
        intermediate_size=arrays["blocks.0.ffn.W1"].shape[1],
        num_hidden_layers=sizes["n_layers"],
        num_attention_heads=sizes["n_heads"],
        num_key_value_heads=sizes["n_kv_heads"],
        max_position_embeddings=sizes["max_len"],
        rope_theta=sizes["rope_base"],
        rms_norm_eps=sizes["eps"],
        tie_word_embeddings=True,
    )
    model = transformers.LlamaForCausalLM(config)
    state = {"model.embed_tokens.weight": arrays["E"], "model.norm.weight": arrays["norm_f.gamma"]}
    for layer in range(sizes["n_layers"]):
        for theirs, ours in PARTS.items():
            value = arrays[f"blocks.{layer}.{theirs}"]
            value = value.mT if value.ndim == 2 else value
            if theirs in ("attn.W_Q", "attn.W_K"):
                value = _halves(value, sizes["d_model"] // sizes["n_heads"])
            state[f"model.layers.{layer}.{ours}"] = value
    model.load_state_dict({**state, "lm_head.weight": arrays["E"]})
    return model.eval(), _tokenizer(transformers, vocabulary)


def _halves(weight: Tensor, width: int) -> Tensor:
    """Rows of every head (width) with the even ones first, the odd ones behind."""
    heads = weight.unflatten(0, (-1, width))
    return torch.cat([heads[:, ::2], heads[:, 1::2]], dim=1).flatten(0, 1)


def _tokenizer(transformers: Any, vocabulary: Path) -> Any:
    """Its byte-pair encoding over characters, spaces written as U+2581."""
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    described = json.loads(vocabulary.read_text("utf-8"))
    merges = [tuple(pair) for pair in described["merges"]]
    words = [*SPECIAL, *described["alphabet"], *(a + b for a, b in merges)]
    places = {word: place for place, word in enumerate(words)}
    tokenizer = Tokenizer(models.BPE(vocab=places, merges=merges, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Replace(" ", "\u2581")])
    chunks = Regex("\n|\u2581*[^\u2581\n]+|\u2581+")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(chunks, "isolated")
    tokenizer.decoder = decoders.Replace("\u2581", " ")
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", eos_token="<eos>"
    )
