"""Mixers: operator = forward for ours and for a user's own, state sizes, initialisation."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from effstate.config import ModelConfig
from effstate.models import Mixer, build_model, check_operator, parameter_count, register_mixer
from effstate.models.checks import MixerCheckError
from effstate.operators import DecayFeatures, Features
from effstate.registry import MIXERS

CONFIGS = {
    "la": ModelConfig(featurizer="la", width=16, heads=2),
    "wla": ModelConfig(featurizer="wla", width=16, heads=4),
    "gla": ModelConfig(featurizer="gla", width=16, heads=2),
    "gla expanded": ModelConfig(featurizer="gla", width=16, heads=2, k_expansion=3),
    "gla with RoPE": ModelConfig(featurizer="gla", width=16, heads=2, rope_on_gated=True),
    "gla_s6": ModelConfig(featurizer="gla_s6", width=16, heads=2, k_expansion=2, arange_alpha=10.0),
    "s6": ModelConfig(featurizer="s6", width=16, heads=2, d_state=5),
    "s6 expanded": ModelConfig(featurizer="s6", width=20, heads=2, d_state=3, s6_expansion=3),
    "sa": ModelConfig(featurizer="sa", width=16, heads=2),
    "sa normed": ModelConfig(featurizer="sa", width=16, heads=1, head_norm="all"),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_the_operator_is_what_the_forward_mixes(name: str) -> None:
    torch.manual_seed(0)
    config = CONFIGS[name]
    check_operator(MIXERS[config.featurizer](config))


@pytest.mark.parametrize("name", CONFIGS)
def test_a_model_depends_on_its_seed_only(name: str) -> None:
    first = build_model(CONFIGS[name], 10, 16, seed=1).state_dict()
    torch.manual_seed(5)
    state = torch.get_rng_state()
    second = build_model(CONFIGS[name], 10, 16, seed=1).state_dict()
    assert torch.equal(torch.get_rng_state(), state)
    other = build_model(CONFIGS[name], 10, 16, seed=2).state_dict()
    assert all(torch.equal(first[key], second[key]) for key in first)
    assert not torch.equal(first["embedding.weight"], other["embedding.weight"])


HYBRIDS = {
    "gsgg": ModelConfig(pattern="gsgg", num_layers=4, width=16, heads=2),
    "s6 and others": ModelConfig(
        pattern=("s6", "gla_s6", "sa", "wla"), num_layers=4, width=16, heads=2, head_norm="all"
    ),
}


@pytest.mark.parametrize("name", [*CONFIGS, *HYBRIDS])
def test_the_parameter_count_is_known_without_building(name: str) -> None:
    config = (CONFIGS | HYBRIDS)[name]
    for readout in ("tokens", "sequence"):
        model = build_model(config, 10, 16, readout)  # type: ignore[arg-type]
        assert sum(p.numel() for p in model.parameters()) == parameter_count(config, 10, 16, readout)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_model_is_causal(name: str) -> None:
    model = build_model(CONFIGS[name], 10, 16, seed=0).double()
    tokens = torch.randint(0, 10, (2, 16), generator=torch.Generator().manual_seed(0))
    changed = tokens.clone()
    changed[:, 9] = (changed[:, 9] + 1) % 10
    before, after = model(tokens), model(changed)
    torch.testing.assert_close(before[:, :9], after[:, :9])
    assert not torch.allclose(before[:, 9:], after[:, 9:])


@pytest.mark.parametrize("readout", ["tokens", "sequence"])
def test_logits_at_positions_are_those_of_the_whole_row(readout: str) -> None:
    model = build_model(CONFIGS["gla"], 10, 16, readout, seed=0).double()  # type: ignore[arg-type]
    tokens = torch.randint(0, 10, (3, 16), generator=torch.Generator().manual_seed(0))
    positions = torch.tensor([[3, 7], [0, 15], [2, 2]])
    expected = torch.take_along_dim(model(tokens), positions[..., None], 1)
    torch.testing.assert_close(model.logits_at(tokens, positions), expected)


@pytest.mark.parametrize(
    ("featurizer", "tss", "total"),
    [
        ("la", 8, 16),
        ("gla", 8, 16),
        ("wla", 8, 16),
        ("gla_s6", 8, 16),
        ("s6", 5, 160),
        ("sa", 64, 1024),
    ],
)
def test_state_sizes_on_the_axes_of_the_sweep(featurizer: str, tss: int, total: int) -> None:
    config = ModelConfig(featurizer=featurizer, width=16, heads=2, d_state=5)
    mixer = MIXERS[featurizer]
    assert (mixer.tss(config, 64), mixer.total_tss(config, 64)) == (tss, total)


class _Halved(MIXERS["gla"]):  # type: ignore[misc]
    """A mixer whose operator is not what its forward mixes."""

    def features(self, u: Tensor) -> Features:
        found = super().features(u)
        assert isinstance(found, DecayFeatures)
        return DecayFeatures(found.C * 0.5, found.B, found.log_decay, found.scale)


def test_a_wrong_operator_is_found() -> None:
    torch.manual_seed(0)
    mixer = MIXERS["gla"](CONFIGS["gla"])
    right = mixer.forward
    wrong = _Halved(CONFIGS["gla"])
    wrong.load_state_dict(mixer.state_dict())
    wrong.forward = right  # type: ignore[method-assign]
    with pytest.raises(MixerCheckError):
        check_operator(wrong)


def test_a_registered_mixer_takes_part_without_a_fork() -> None:
    if "test_gla_twin" not in MIXERS:
        register_mixer("test_gla_twin")(type("Twin", (MIXERS["gla"],), {}))
    config = ModelConfig(featurizer="test_gla_twin", width=16, heads=2)
    model = build_model(config, 10, 16, seed=0)
    assert isinstance(model.mixers[0], Mixer)
    check_operator(model.mixers[0])
