"""ESS of every layer of a causal language model along one text (METHOD sections 2, 5 and 7)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from tqdm import tqdm

from effstate.artifacts import write_table, write_text
from effstate.ess import EssError, Recurrence, causal_ess, measure, tolerance_ess
from effstate.ess.errors import check_tolerance
from effstate.measuring import loading, report
from effstate.operators import Features
from effstate.operators.huggingface import LayerOperator, MambaFeatures, read_operators

CHANNEL_GROUPS = 16
"""Rows of the table per index and layer for mixers with an operator per channel: groups of channels."""

CHANNELS_TOGETHER = 64
"""Channels whose recurrences are held at once."""


@dataclass(frozen=True)
class LayerEss:
    """One layer: ESS (kinds, heads, L-1) per channel, and the channels that each head stands for.

    A head of a mixer with an operator per channel is a group of channels, and its ESS their mean.
    """

    layer: int
    mixer: str
    values: np.ndarray
    channels: np.ndarray
    tss: np.ndarray


@dataclass(frozen=True)
class Measurement:
    """ESS of a model on a text.

    Attributes:
        name: the model, as the user named it.
        tokens: ``index``, ``id``, ``token`` and ``separator`` ("eos", "." or "") of every token.
        kinds: (kind, tolerance) in the order of the values: "entropy", whose tolerance is NaN,
            "tolerance", and "causal", the causal ESS at that tolerance.
        layers: one after the other.
        facts: dtype, device, code paths, channels measured of those that exist.
    """

    name: str
    tokens: pd.DataFrame
    kinds: list[tuple[str, float]]
    layers: list[LayerEss]
    facts: dict[str, Any] = field(default_factory=dict)

    def totals(self) -> np.ndarray:
        """Total ESS over channels, (kinds, layers, L-1) (METHOD section 2)."""
        sums = [np.einsum("khi,h->ki", entry.values, entry.channels) for entry in self.layers]
        return np.stack(sums, axis=1)

    def table(self) -> pd.DataFrame:
        """The tidy table: a row per layer, head, index and kind.

        ``value`` is ESS per channel, ``channels`` how many channels the head stands for, ``tss`` the
        theoretical state-size per channel there, ``token`` the first of those that H_i maps to.
        """
        return pd.concat([self._rows(entry) for entry in self.layers], ignore_index=True)

    def _rows(self, entry: LayerEss) -> pd.DataFrame:
        kinds, heads, rows = entry.values.shape
        names, tolerances = zip(*self.kinds, strict=True)
        kind, head, index = (
            grid.ravel() for grid in np.indices((kinds, heads, rows), dtype=np.int32, sparse=False)
        )
        tokens = self.tokens["token"].to_numpy()
        return pd.DataFrame(
            {
                "layer": np.full(kind.shape, entry.layer, dtype=np.int16),
                "mixer": entry.mixer,
                "head": head,
                "channels": entry.channels[head],
                "index": index + 1,
                "token": tokens[index + 1],
                "kind": np.asarray(names)[kind],
                "tolerance": np.asarray(tolerances)[kind],
                "value": entry.values.ravel(),
                "tss": entry.tss[index],
            }
        )

    def write(self, folder: Path) -> list[Path]:
        """Write ``ess.parquet``, ``tokens.parquet``, ``ess.png`` and ``summary.txt``; their paths."""
        paths = [folder / name for name in ("ess.parquet", "tokens.parquet", "ess.png", "summary.txt")]
        write_table(paths[0], self.table())
        write_table(paths[1], self.tokens)
        report.write_picture(paths[2], self)
        write_text(paths[3], report.summary_text(self))
        return paths


class _EnoughError(Exception):
    """The last layer that was asked for has been measured: the rest of the forward is not needed."""


def measure_model(
    model: Any,
    text: str,
    *,
    tolerances: Sequence[float] = (1e-3,),
    layers: Sequence[int] | None = None,
    revision: str | None = None,
    dtype: str = "float32",
    device: str = "cpu",
    tokenizer: Any = None,
    max_channels: int | None = None,
    kinds: Sequence[str] = ("entropy", "tolerance"),
    progress: bool = False,
) -> Measurement:
    """Entropy-ESS and tolerance-ESS of every layer, head and index of a causal language model.

    Layers are measured one after the other while the model runs: memory stays at the model plus
    one layer. Singular values are in float64; attention weights are made in float32 at least.

    Args:
        model: a folder, GGUF file or hub name (see :func:`load_model`, for ``revision``, ``dtype``
            and ``device``), or a Hugging Face model, with its ``tokenizer``.
        text: of at least 2 tokens and at most the model's context.
        layers: only these, from 0; all by default.
        max_channels: measure at most so many channels, evenly spaced, of mixers with an operator per
            channel (Mamba): totals are then estimates.
        kinds: of "entropy", "tolerance" and "causal" (section C.2.2); attention without entropy-ESS
            is much cheaper.
        progress: show a bar on a terminal.

    Raises:
        MeasureError, HuggingFaceError, EssError: one sentence each.
    """
    if max_channels is not None and max_channels < 1:
        raise loading.MeasureError(f"max_channels must be at least 1, not {max_channels}")
    taus = tuple(dict.fromkeys(check_tolerance(t) for t in tolerances))
    measured = [("entropy", float("nan"))] if "entropy" in kinds else []
    measured += [(kind, t) for kind in kinds if kind != "entropy" for t in taus]
    name, model, tokenizer = _loaded(model, tokenizer, revision, dtype, device)
    ids = loading.tokenize(text, tokenizer, model.config, name)
    chosen = loading.choose_layers(layers, model.config.num_hidden_layers, name)
    found: list[LayerEss] = []
    facts: dict[str, Any] = {"dtype": str(model.dtype).removeprefix("torch."), "channels": {}}
    with tqdm(
        total=len(chosen),
        desc=f"ESS of {ids.shape[-1]} tokens",
        bar_format="{desc} |{bar}| {n:.0f}/{total} layers, {elapsed}<{remaining}",
        disable=None if progress else True,
    ) as bar:

        def see(operator: LayerOperator) -> None:
            picked = _picked_channels(operator.features, max_channels)
            try:
                found.append(_layer_ess(operator, picked, measured, bar))
            except EssError as error:
                raise EssError(f"{name}, layer {operator.layer}: {error}") from None
            if picked is not None:
                facts["channels"][operator.layer] = (len(picked), operator.values.shape[1])
            if len(found) == len(chosen):
                raise _EnoughError

        stop = contextlib.suppress(_EnoughError)
        with stop, torch.no_grad(), read_operators(model, see, chosen):
            model.base_model(ids.to(model.device), use_cache=False)
    missing = sorted(set(chosen) - {entry.layer for entry in found})
    if missing:
        raise loading.MeasureError(
            f"{name}: layer {missing[0]} did not run as plain attention or a plain scan, so it has no "
            "operator to read (a fused kernel?)"
        )
    tokens = _token_table(ids[0], tokenizer)
    return Measurement(name, tokens, measured, found, facts)


def measure_texts(
    model: Any,
    texts: Mapping[str, str],
    *,
    revision: str | None = None,
    dtype: str = "float32",
    device: str = "cpu",
    tokenizer: Any = None,
    **options: Any,
) -> Iterator[tuple[str, Measurement]]:
    """:func:`measure_model` of each of the ``texts``, with their names; the model is loaded once.

    One text is in memory at a time. All of them are tokenised before the first is measured.

    Args:
        texts: by name. The other arguments are those of :func:`measure_model`.

    Raises:
        MeasureError, HuggingFaceError, EssError: one sentence each, with the text's name.
    """
    name, model, tokenizer = _loaded(model, tokenizer, revision, dtype, device)
    for key, text in texts.items():
        try:
            loading.tokenize(text, tokenizer, model.config, name)
        except loading.MeasureError as error:
            raise loading.MeasureError(f"{key}: {error}") from None
    for key, text in texts.items():
        found = measure_model(model, text, tokenizer=tokenizer, **options)
        yield key, replace(found, name=name)


def _loaded(
    model: Any, tokenizer: Any, revision: str | None, dtype: str, device: str
) -> tuple[str, Any, Any]:
    """Name, model and tokenizer of what :func:`measure_model` is given."""
    if isinstance(model, (str, Path)):
        return str(model), *loading.load_model(str(model), revision=revision, dtype=dtype, device=device)
    name = type(model).__name__
    loading.check_finite(model, name)
    if tokenizer is None:
        raise loading.MeasureError(f"{name}: a model that is loaded already needs tokenizer=")
    return name, model, tokenizer


def _token_table(ids: Tensor, tokenizer: Any) -> pd.DataFrame:
    texts = [tokenizer.decode([token]) for token in ids.tolist()]
    marks = [
        "eos" if token == tokenizer.eos_token_id else "." if text.strip() == "." else ""
        for token, text in zip(ids.tolist(), texts, strict=True)
    ]
    columns = {"index": range(len(texts)), "id": ids.tolist(), "token": texts, "separator": marks}
    return pd.DataFrame(columns)


def _picked_channels(features: Features, most: int | None) -> Tensor | None:
    """Evenly spaced channels of a mixer with an operator per channel; None for other mixers."""
    if not isinstance(features, MambaFeatures):
        return None
    count = features.steps.shape[1]
    return torch.linspace(0, count - 1, min(count, most or count)).round().long()


def _layer_ess(
    operator: LayerOperator,
    picked: Tensor | None,
    kinds: list[tuple[str, float]],
    bar: tqdm,
) -> LayerEss:
    """ESS of a layer of batch size 1, channels in groups."""
    parts = list(_parts(operator.features, picked))
    values = []
    for part in parts:
        op = part.recurrence() if isinstance(part, MambaFeatures) else part.operator()
        values.append(torch.stack([kind[0].double() for kind in _values(op, kinds)]).cpu())
        bar.update(1 / len(parts))
    whole = torch.cat(values, dim=1).numpy()
    _, heads, _, width = operator.values.shape
    channels = np.full(heads, float(width))
    if picked is not None:
        groups = np.array_split(np.arange(len(picked)), min(CHANNEL_GROUPS, len(picked)))
        whole = np.stack([whole[:, group].mean(axis=1) for group in groups], axis=1)
        channels = np.array([heads * len(group) / len(picked) for group in groups])
    return LayerEss(operator.layer, operator.mixer, whole, channels, operator.tss.cpu().numpy())


def _values(op: Tensor | Recurrence, kinds: list[tuple[str, float]]) -> Iterator[Tensor]:
    """ESS of every kind, (1, heads, L-1) each."""
    taus = [tolerance for kind, tolerance in kinds if kind == "tolerance"]
    if kinds[0][0] == "entropy":
        profile = measure(op, taus)
        yield profile.entropy
        yield from profile.tolerance.values()
    elif taus:
        yield from tolerance_ess(op, taus).values()
    for kind, tolerance in kinds:
        if kind == "causal":
            yield causal_ess(op, tolerance)


def _parts(features: Features, picked: Tensor | None) -> Iterator[Features]:
    if picked is None:
        yield features
        return
    assert isinstance(features, MambaFeatures)
    for channels in picked.to(features.steps.device).split(CHANNELS_TOGETHER):
        yield features.take(channels)
