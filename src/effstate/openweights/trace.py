"""ESS of one model along a suite of prompts (figures 9a, 35-41, 43-46)."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

import pandas as pd
import torch

from effstate.artifacts import Artifact, write_json, write_table
from effstate.config import ConfigError
from effstate.ess import EssError
from effstate.measuring import MeasureError, Measurement, measure_model
from effstate.openweights.config import CodeSuite, ShotsSuite, WeightsConfig
from effstate.openweights.models import load_open_model
from effstate.openweights.prompts import Prompt, prompts_of, questions_of, shot_prompt
from effstate.operators.huggingface import HuggingFaceError

TOTALS, TOKENS, RESULT = "totals.parquet", "tokens.parquet", "result.json"


def make_weights(
    artifact: Artifact,
    device: str = "cpu",
    *,
    on_step: Callable[[int, int], None] = lambda step, steps: None,
) -> None:
    """Measure the request's model on its suite, and seal the artifact.

    Writes ``totals.parquet`` (a row per prompt, kind, tolerance and index: total ESS over channels,
    its mean and its sum over layers), ``tokens.parquet`` (a row per prompt and token, with its mark) and
    ``result.json`` (parameters, mixers, accuracies by shots).

    Raises ConfigError, in one sentence, for a model or prompt that cannot be measured.
    """
    started = time.monotonic()
    config = artifact.request.config
    assert isinstance(config, WeightsConfig)
    _quiet()
    model, tokenizer = load_open_model(config.model, _device(device))
    suite = config.suite
    prompts = prompts_of(suite, tokenizer)
    layers = range(0, model.config.num_hidden_layers, suite.layer_step)
    totals, tokens, mixers = [], [], set()
    for place, prompt in enumerate(prompts):
        on_step(place, len(prompts))
        _check_length(prompt, tokenizer, suite.max_tokens)
        try:
            found = measure_model(
                model,
                prompt.text,
                tokenizer=tokenizer,
                tolerances=suite.tolerances,
                layers=layers,
                max_channels=config.model.max_channels,
                kinds=("tolerance", "causal") if prompt.separator else ("tolerance",),
            )
        except (EssError, HuggingFaceError, MeasureError) as error:
            raise ConfigError(f"{artifact.request.slug}, {prompt.name}: {error}") from None
        totals.append(_labelled(_totals(found), prompt))
        marked = _marked(found, prompt, tokenizer, isinstance(suite, CodeSuite))
        tokens.append(_labelled(marked, prompt))
        mixers |= {entry.mixer for entry in found.layers}
    write_table(artifact.path(TOTALS), pd.concat(totals, ignore_index=True))
    write_table(artifact.path(TOKENS), pd.concat(tokens, ignore_index=True))
    accuracy = _accuracies(model, tokenizer, suite) if isinstance(suite, ShotsSuite) else {}
    parameters = sum(parameter.numel() for parameter in model.parameters())
    result = {"parameters": parameters, "mixers": sorted(mixers), "layers": list(layers)}
    write_json(artifact.path(RESULT), {**result, "accuracy": accuracy})
    artifact.finish(
        "done",
        (TOTALS, TOKENS, RESULT),
        seconds=time.monotonic() - started,
        facts={"dtype": config.model.dtype, "device": str(model.device), **found.facts},
    )


def _quiet() -> None:
    from transformers import logging as transformers_logging

    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)


def _device(name: str) -> str:
    if name != "auto":
        return name
    return "cuda" if torch.cuda.is_available() else "cpu"


def _check_length(prompt: Prompt, tokenizer: Any, most: int | None) -> None:
    length = len(tokenizer(prompt.text, verbose=False)["input_ids"])
    if most is not None and length > most:
        raise ConfigError(
            f"the prompt '{prompt.name}' with {prompt.shots} shots has {length} tokens, but max_tokens "
            f"is {most}; raise it"
        )


def _totals(found: Measurement) -> pd.DataFrame:
    """A row per kind, tolerance and index: total ESS over channels, mean and sum over layers."""
    totals = found.totals()
    index = range(1, totals.shape[-1] + 1)
    return pd.concat(
        [
            pd.DataFrame(
                {
                    "kind": kind,
                    "tolerance": tolerance,
                    "index": index,
                    "mean_total_ess": totals[k].mean(axis=0),
                    "sum_total_ess": totals[k].sum(axis=0),
                }
            )
            for k, (kind, tolerance) in enumerate(found.kinds)
        ],
        ignore_index=True,
    )


def _marked(found: Measurement, prompt: Prompt, tokenizer: Any, code: bool) -> pd.DataFrame:
    """Tokens with ``mark``: "separator", "closing brace", "question" (all from its first) or ""."""
    tokens = found.tokens.drop(columns="separator")
    if prompt.separator:
        # a tokenizer may write the full stop together with the word before it; sentences hold no other
        full_stop = tokens["token"].str.contains(".", regex=False)
        here = full_stop if prompt.separator == "." else found.tokens["separator"].eq("eos")
        mark = here.map({True: "separator", False: ""})
    elif code:
        mark = tokens["token"].str.contains("}", regex=False).map({True: "closing brace", False: ""})
    else:
        spans = tokenizer(prompt.text, return_offsets_mapping=True, verbose=False)["offset_mapping"]
        mark = pd.Series(["question" if end > prompt.start else "" for _, end in spans])
    return tokens.assign(mark=mark)


def _labelled(rows: pd.DataFrame, prompt: Prompt) -> pd.DataFrame:
    return rows.assign(prompt=prompt.name, separator=prompt.separator, shots=prompt.shots)


@torch.no_grad()
def _accuracies(model: Any, tokenizer: Any, suite: ShotsSuite) -> dict[str, float]:
    """Share of asked questions whose right letter is the likeliest of the letters, by shots."""
    examples, asked = questions_of(suite)
    found = {}
    for shots in suite.shots:
        right = 0
        for question in asked:
            prompt = shot_prompt("", examples[:shots], question)
            letters = [
                tokenizer(f" {letter}", add_special_tokens=False)["input_ids"][-1]
                for letter in "ABCDEFGHIJKLMNOPQRSTUVWXYZ"[: len(question.choices)]
            ]
            ids = tokenizer(prompt.text, return_tensors="pt", verbose=False)["input_ids"]
            logits = model(ids.to(model.device), use_cache=False).logits[0, -1]
            right += int(logits[letters].argmax()) == question.answer
        found[str(shots)] = right / len(asked)
    return found
