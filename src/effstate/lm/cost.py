"""What a language model costs, from its configuration alone: no torch, so that planning is instant."""

from __future__ import annotations

from dataclasses import dataclass

from effstate.config import ModelConfig
from effstate.lm.config import AnyTokenizer, BpeTokenizer, LmRunConfig
from effstate.models.cost import mixer_names, mlp_hidden, parameter_count, training_flops

GPT2_VOCABULARY = 50_257

# A nominal GPU's sustained speed, to plan with: about half of what an A100 promises in bf16.
FLOPS_PER_SECOND = {"bf16": 1.5e14, "fp32": 1.5e13}

STATE_BYTES = 16
"""Per parameter in fp32: itself, its gradient, and AdamW's two moments."""

# Numbers per token that a block keeps for its backward pass, in widths (besides four times the MLP's
# hidden size), and their mean size in bytes: measured on the CPU, held to by a test.
_KEPT_WIDTHS = {"gla": 18, "gla_s6": 18, "s6": 20}
_KEPT_WIDTHS_ELSE = 12
_KEPT_BYTES = {"fp32": 4.0, "bf16": 3.0}


@dataclass(frozen=True)
class LmCost:
    """Numbers of one run: ``state_bytes`` of all processes together, ``process_bytes`` of one."""

    parameters: int
    tokens: int
    flops: float
    state_bytes: float
    process_bytes: float
    gpu_hours: float


def planned_vocabulary(tokenizer: AnyTokenizer) -> int:
    """The vocabulary's size; GPT-2's stands for those in files that are not opened for a plan."""
    return tokenizer.vocab_size if isinstance(tokenizer, BpeTokenizer) else GPT2_VOCABULARY


def block_bytes(model: ModelConfig, name: str, tokens: int, precision: str) -> float:
    """What a block with the mixer ``name`` keeps of so many tokens for its backward pass."""
    widths = _KEPT_WIDTHS.get(name, _KEPT_WIDTHS_ELSE)
    numbers = widths * model.width + 4 * mlp_hidden(model)
    return tokens * numbers * _KEPT_BYTES[precision]


def activation_bytes(run: LmRunConfig, rows: int) -> float:
    """What a forward pass over so many rows keeps for the backward pass, besides the readout's."""
    training, tokens = run.training, rows * run.context
    blocks = [block_bytes(run.model, n, tokens, training.precision) for n in mixer_names(run.model)]
    if not training.activation_checkpointing:
        return sum(blocks)
    inputs = 4 * tokens * run.model.width * len(blocks)
    return inputs + max(blocks)


def cost_of(run: LmRunConfig, vocab_size: int, processes: int = 1) -> LmCost:
    """Parameters, tokens, operations, memory and hours of a run on so many nominal GPUs."""
    training, model = run.training, run.model
    parameters = parameter_count(model, vocab_size, run.context)
    share = -(-training.batch_size // processes)
    rows = min(training.micro_batch_size or share, share)
    state = STATE_BYTES * parameters
    held = state / processes if training.parallel == "fsdp" else state
    flops = training.steps * training_flops(
        model, vocab_size, run.context, training.batch_size, run.context
    )
    # Blocks are computed once more: four passes instead of three.
    done = flops * 4 / 3 if training.activation_checkpointing else flops
    return LmCost(
        parameters=parameters,
        tokens=training.steps * training.batch_size * run.context,
        flops=flops,
        state_bytes=state,
        process_bytes=held + activation_bytes(run, rows),
        gpu_hours=done / FLOPS_PER_SECOND[training.precision] / 3600,
    )
