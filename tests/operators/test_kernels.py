"""The package flash-linear-attention in place of our chunks: its layout, its refusal, its agreement."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType

import pytest
import torch
from torch import Tensor

from effstate.config import ConfigError
from effstate.operators import kernels as seam
from effstate.operators import linear_attention, linear_attention_naive
from effstate.operators.kernels import kernels, kernels_in_use

CPU = torch.device("cpu")


def features(device: torch.device, decayed: bool) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    generator = torch.Generator().manual_seed(0)
    C, B, values, gates = (torch.randn(2, 3, 70, n, generator=generator) for n in (16, 16, 32, 16))
    decay = torch.nn.functional.logsigmoid(gates + 2) / 16 if decayed else None
    found = (C, B, values, decay)
    return tuple(x if x is None else x.to(device) for x in found)  # type: ignore[return-value]


def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules with the package's functions and layout, computed by the definition."""

    def swapped(x: Tensor) -> Tensor:
        return x.transpose(1, 2)

    def chunk_gla(q: Tensor, k: Tensor, v: Tensor, g: Tensor, scale: float) -> tuple[Tensor, None]:
        mixed = linear_attention_naive(*map(swapped, (q, k, v, g)), scale)
        return swapped(mixed), None

    def chunk_linear_attn(
        q: Tensor, k: Tensor, v: Tensor, scale: float, normalize: bool
    ) -> tuple[Tensor, None]:
        assert not normalize
        return swapped(linear_attention_naive(*map(swapped, (q, k, v)), None, scale)), None

    for name in ("fla", "fla.ops", "fla.ops.gla", "fla.ops.linear_attn"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    sys.modules["fla.ops.gla"].chunk_gla = chunk_gla  # type: ignore[attr-defined]
    sys.modules["fla.ops.linear_attn"].chunk_linear_attn = chunk_linear_attn  # type: ignore[attr-defined]
    monkeypatch.setattr(seam.metadata, "version", lambda name: "0.0")


@pytest.mark.parametrize("decayed", [True, False], ids=["decays", "no decays"])
def test_calls_reach_the_package_in_its_layout(monkeypatch: pytest.MonkeyPatch, decayed: bool) -> None:
    stand_in(monkeypatch)
    C, B, values, decay = features(CPU, decayed)
    ours = linear_attention(C, B, values, decay, 0.5)
    monkeypatch.setattr(seam, "applies", lambda C: True)
    theirs = linear_attention(C[:1, :1], B, values, decay, 0.5)
    assert theirs.shape == ours.shape
    expected = linear_attention_naive(C[:1, :1].expand_as(B), B, values, decay, 0.5)
    assert torch.allclose(theirs, expected, atol=1e-6)
    assert torch.allclose(linear_attention(C, B, values, decay, 0.5), ours, atol=1e-4)


def test_without_cuda_or_the_package_it_is_one_sentence() -> None:
    with pytest.raises(ConfigError, match=r"kernels = fla, but its kernels need CUDA, not cpu"):
        kernels("fla", CPU).__enter__()
    if importlib.util.find_spec("fla") is None:
        with pytest.raises(ConfigError, match=r"'flash-linear-attention' is not installed; pip install"):
            kernels("fla", torch.device("cuda")).__enter__()


def test_the_choice_ends_with_its_block(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch)
    assert kernels_in_use() == "own"
    with kernels("fla", torch.device("cuda")):
        assert kernels_in_use() == "flash-linear-attention 0.0"
        assert not seam.applies(torch.zeros(1, dtype=torch.float64))
        with kernels("own", CPU):
            assert kernels_in_use() == "own"
    assert kernels_in_use() == "own"


@pytest.mark.skipif(
    not torch.cuda.is_available() or importlib.util.find_spec("fla") is None,
    reason="needs a GPU and the package flash-linear-attention",
)
@pytest.mark.parametrize("decayed", [True, False], ids=["decays", "no decays"])
def test_the_package_computes_our_function(decayed: bool) -> None:
    cuda = torch.device("cuda")
    inputs = [x if x is None else x.requires_grad_() for x in features(cuda, decayed)]
    ours = linear_attention(*inputs, 0.5)
    with kernels("fla", cuda):
        theirs = linear_attention(*inputs, 0.5)
    assert torch.allclose(theirs, ours, rtol=2e-2, atol=2e-2)
    wanted = [x for x in inputs if x is not None]
    gradients = [torch.autograd.grad(y.square().sum(), wanted) for y in (ours, theirs)]
    for a, b in zip(*gradients, strict=True):
        assert (a - b).abs().max() <= 5e-2 * a.abs().max()
