"""State modulation of a trained language model: total ESS along sentences (METHOD section 5, figure 42).

The sentences are joined once by EOS and once by full stops, in every order, so that a dip can be told
from what a particular pair of sentences does.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import permutations

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from effstate.artifacts import Artifact, write_json, write_table
from effstate.config import ConfigError
from effstate.ess import EssError, tolerance_ess
from effstate.lm.checkpoints import LoadedModel, load_model
from effstate.lm.config import LmTraceConfig
from effstate.lm.evaluation import exported, seal_diverged
from effstate.lm.tokenization import Encoder
from effstate.models import SequenceModel
from effstate.operators import Features
from effstate.training.interruption import StopFlag
from effstate.training.trainer import RESULT, Execution

TOTALS, TOKENS = "totals.parquet", "tokens.parquet"
SEPARATORS = ("eos", ".")


@dataclass(frozen=True)
class Prompt:
    """Sentences joined by a separator: ``ids`` (L,), and where the separators stand."""

    text: int
    separator: str
    ids: list[int]
    marked: list[int]


def prompt(encoder: Encoder, sentences: Sequence[str], separator: str, text: int) -> Prompt:
    """Sentences without full stops, each followed by EOS or by a full stop, as tokens."""
    if separator == "eos":
        parts = [encoder.tokenizer.encode(s, add_special_tokens=False).ids for s in sentences]
        ids = [token for part in parts for token in (*part, encoder.eos)]
        marked = np.cumsum([len(part) + 1 for part in parts]) - 1
        return Prompt(text, separator, ids, marked.tolist())
    whole = " ".join(f"{sentence}." for sentence in sentences)
    found = encoder.tokenizer.encode(whole, add_special_tokens=False)
    marked = [place for place, (a, b) in enumerate(found.offsets) if "." in whole[a:b]]
    return Prompt(text, separator, found.ids, marked)


def prompts(encoder: Encoder, contexts: Sequence[str]) -> list[Prompt]:
    """Every order of the contexts with either separator; the first order is the given one."""
    return [
        prompt(encoder, order, separator, text)
        for separator in SEPARATORS
        for text, order in enumerate(permutations(contexts))
    ]


def total_ess(features: Features, width: int, tolerances: Sequence[float]) -> Tensor:
    """Total tolerance-ESS over the ``width`` channels of a layer: (tolerances, L - 1) in float64.

    ``features`` are of one sample. Raises EssError where an operator is not finite.
    """
    operator = features.recurrence() if hasattr(features, "recurrence") else features.operator()
    found = tolerance_ess(operator, tolerances)
    per_head = torch.stack([found[t][0].double() for t in tolerances])
    return per_head.sum(1) * (width / per_head.shape[1])


@torch.no_grad()
def totals_along(model: SequenceModel, ids: list[int], tolerances: Sequence[float]) -> Tensor:
    """Total ESS of every layer of a float64 model along tokens: (layers, tolerances, L - 1)."""
    device = model.embedding.weight.device
    layers = []
    for layer, features in enumerate(model.features(torch.tensor([ids], device=device))):
        try:
            layers.append(total_ess(features, model.config.width, tolerances).cpu())
        except EssError as error:
            raise EssError(f"layer {layer}: {error}") from None
    return torch.stack(layers)


def make_lm_trace(
    artifact: Artifact,
    trained: Artifact,
    execution: Execution,
    *,
    on_step: Callable[[int, int], None] = lambda step, steps: None,
    flag: StopFlag | None = None,
) -> None:
    """Measure a trained model along its texts, and seal the artifact.

    Writes ``totals.parquet`` (a row per text, separator, layer, tolerance and index: ``total_ess`` over
    channels) and ``tokens.parquet`` (a row per text, separator and token, with its ``mark``). A model
    that diverged gives an artifact that says so. Raises ConfigError if a text is longer
    than the model's context, Interrupted when ``flag`` is set.
    """
    started = time.monotonic()
    config = artifact.request.config
    assert isinstance(config, LmTraceConfig)
    if seal_diverged(artifact, trained, started):
        return
    torch.set_num_threads(execution.threads)
    loaded = load_model(exported(trained), execution.resolve_device(), torch.float64)
    asked = prompts(loaded.encoder, config.contexts)
    _check_length(asked, loaded, artifact.request.slug)
    totals, tokens = [], []
    for place, one in enumerate(asked):
        if flag is not None:
            flag.check()
        values = totals_along(loaded.model, one.ids, config.tolerances).numpy()
        layer, tolerance, index = (grid.ravel() for grid in np.indices(values.shape, np.int32))
        columns = {
            "layer": layer,
            "tolerance": np.asarray(config.tolerances)[tolerance],
            "index": index + 1,
            "total_ess": values.ravel(),
        }
        totals.append(pd.DataFrame(columns).assign(text=one.text, separator=one.separator))
        tokens.append(_token_table(one, loaded.encoder))
        on_step(place + 1, len(asked))
    write_table(artifact.path(TOTALS), pd.concat(totals, ignore_index=True))
    write_table(artifact.path(TOKENS), pd.concat(tokens, ignore_index=True))
    write_json(artifact.path(RESULT), {"layers": len(values), "texts": len(asked)})
    facts = {"dtype": "float64", "device": str(loaded.model.embedding.weight.device)}
    outputs = (TOTALS, TOKENS, RESULT)
    artifact.finish("done", outputs, seconds=time.monotonic() - started, facts=facts)


def _check_length(asked: list[Prompt], loaded: LoadedModel, slug: str) -> None:
    longest, context = max(len(one.ids) for one in asked), loaded.config.context
    if longest > context:
        raise ConfigError(
            f"{slug}: the contexts of trace make {longest} tokens, but the model's context holds "
            f"{context}; shorten trace.contexts, or set context to {longest} or more"
        )


def _token_table(one: Prompt, encoder: Encoder) -> pd.DataFrame:
    tokenizer, marked = encoder.tokenizer, set(one.marked)
    places = range(len(one.ids))
    return pd.DataFrame(
        {
            "text": one.text,
            "separator": one.separator,
            "index": places,
            "token": [tokenizer.decode([token], skip_special_tokens=False) for token in one.ids],
            "mark": ["separator" if place in marked else "" for place in places],
        }
    )
