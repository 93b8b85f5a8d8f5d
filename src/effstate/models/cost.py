"""What a model costs, from its configuration alone: no torch, so that planning is instant."""

from __future__ import annotations

from effstate.config import ModelConfig

_CHUNK = 64
"""Positions that a recurrent mixer handles as one block (see effstate.operators)."""


def mixer_names(config: ModelConfig) -> list[str]:
    """The featurizer of every layer, first layer first."""
    return list(config.mixers)


def mlp_hidden(config: ModelConfig) -> int:
    """Hidden size of the SwiGLU."""
    return max(1, round(config.mlp_ratio * config.width))


def s6_channels(config: ModelConfig) -> int:
    """Channels of S6, each with an operator of its own."""
    return config.s6_expansion * config.width


def s6_step_rank(config: ModelConfig) -> int:
    """Inner size of S6's projection to steps: ceil(width / 16), as Mamba publishes."""
    return -(-config.width // 16)


def _mixer_weights(config: ModelConfig, name: str) -> int:
    """Weights of the mixer's matrices: C and B, values, output, and gates (S6: steps)."""
    if name == "s6":
        # values, gate and output; what B, C and steps are made of; steps
        return s6_channels(config) * (3 * config.width + 2 * config.d_state + 2 * s6_step_rank(config))
    state = config.width * config.k_expansion
    weights = 2 * config.width * state + 2 * config.width**2
    if name in ("gla", "gla_s6"):
        weights += config.gate_rank * (config.width + state)
    return weights


def _mixer_vectors(config: ModelConfig, name: str) -> int:
    """Parameters of the mixer that stand in no matrix product: norms, biases, decays."""
    if name == "s6":
        return 2 * s6_channels(config) + config.d_state
    normed = config.head_norm == "all" or (config.head_norm == "recurrent" and name != "sa")
    gates = config.width * config.k_expansion if name in ("gla", "gla_s6", "wla") else 0
    return gates + normed * (config.width // config.heads)


def _operator_flops(config: ModelConfig, name: str, seq_len: int) -> float:
    """Floating-point operations of T u on one row, all heads."""
    if name == "s6":
        # per state: its decay (2), the new input (1), the update (2), the readout (2)
        return 7 * seq_len * s6_channels(config) * config.d_state
    width, state = config.width, config.width * config.k_expansion
    if name == "sa":
        return seq_len**2 * (state + width)
    within = seq_len * min(seq_len, _CHUNK) * (state + width)
    between = 4 * seq_len * state * width / config.heads if seq_len > _CHUNK else 0
    return within + between


def training_flops(
    config: ModelConfig,
    vocab_size: int,
    seq_len: int,
    batch_size: int,
    labels: int,
    readout: str = "tokens",
) -> float:
    """Floating-point operations of one training step: forward, and twice that backward.

    ``labels``: label positions per row; after the last mixer only these are computed (for the
    ``"sequence"`` readout the last position, then a decoder for each label). A registered mixer of
    one's own counts as a recurrent one.
    """
    mlp = 6 * config.width * mlp_hidden(config)
    forward = 2.0 * labels * config.width * vocab_size
    for layer, name in enumerate(mixer_names(config)):
        forward += 2 * seq_len * _mixer_weights(config, name)
        forward += _operator_flops(config, name, seq_len)
        if layer < config.num_layers - 1:
            forward += seq_len * mlp
    forward += labels * mlp
    if readout == "sequence":
        forward += mlp
    return 3.0 * batch_size * forward


def parameter_count(config: ModelConfig, vocab_size: int, seq_len: int, readout: str = "tokens") -> int:
    """Trainable parameters of a model of built-in mixers."""
    width, hidden = config.width, mlp_hidden(config)
    count = vocab_size * width * (1 if config.tie_embeddings else 2) + width
    for name in mixer_names(config):
        count += _mixer_weights(config, name) + _mixer_vectors(config, name)
        count += 2 * width + 3 * width * hidden
    if readout == "sequence":
        count += seq_len * width + 3 * width * hidden
    return count
