"""Open choices: each stands once, and each key is one of the configuration."""

from __future__ import annotations

from effstate.choices import CHOICES, default_of


def test_every_key_has_a_default_and_every_constant_none() -> None:
    names = [choice.name for choice in CHOICES]
    assert len(names) == len(set(names))
    for choice in CHOICES:
        assert (default_of(choice) is None) == (not choice.key)
        assert choice.question.endswith(".") and choice.ours.endswith(".")


def test_the_choices_that_are_to_be_varied_are_keys() -> None:
    varied = {"scale_factor", "rope_on_gated", "filler", "kv_dist_const", "head_norm"}
    varied |= {"regulariser_reduction", "total_over", "gate_bias", "tie_embeddings"}
    assert varied <= {choice.key.rpartition(".")[2] for choice in CHOICES}
