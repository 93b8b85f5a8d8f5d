"""From what a user names to a model, a tokenizer and tokens; everything wrong is one sentence.

Nothing that a checkpoint brings is executed: no remote code, no pickle, hub names pinned to a commit.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor

from effstate.operators.huggingface import check_family
from effstate.registry import nearest

DTYPES = ("float32", "float64", "bfloat16", "float16")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_HUB_NAME = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?")


class MeasureError(ValueError):
    """One sentence: the model, text or option, what is wrong with it, and the nearest right thing."""


def _existing(path: Path, what: str) -> Path:
    if path.exists():
        return path
    siblings = [p.name for p in path.parent.iterdir()] if path.parent.is_dir() else []
    hint = nearest(path.name, siblings) if siblings else ""
    raise MeasureError(f"{path}: the {what} does not exist{hint if 'nearest' in hint else ''}")


def read_text(path: Path) -> str:
    """The text of a file in UTF-8.

    Raises:
        MeasureError: no such file, not UTF-8, or nothing but white space.
    """
    try:
        text = _existing(path, "text").read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise MeasureError(f"{path}: not UTF-8 at byte {error.start}") from None
    except IsADirectoryError:
        raise MeasureError(f"{path}: a folder, not a text file") from None
    if not text.strip():
        raise MeasureError(f"{path}: the text is empty")
    return text


def parse_layers(text: str) -> list[int]:
    """``"0-3,7"`` as [0, 1, 2, 3, 7]: sorted, each once.

    Raises:
        MeasureError: anything else.
    """
    layers: set[int] = set()
    for part in text.split(","):
        found = re.fullmatch(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?", part)
        first, last = (int(found[1]), int(found[2] or found[1])) if found else (1, 0)
        if last < first:
            raise MeasureError(f"layers '{text}': '{part}' is no layer or range; write e.g. 0-3,7")
        layers.update(range(first, last + 1))
    return sorted(layers)


def choose_layers(layers: Sequence[int] | None, count: int, name: str) -> list[int]:
    """The layers to measure of ``count``, all by default; raises MeasureError for one beyond."""
    chosen = sorted(set(range(count) if layers is None else layers))
    beyond = [layer for layer in chosen if not 0 <= layer < count]
    if beyond or not chosen:
        asked = f"layer {beyond[0]}" if beyond else "an empty list of layers"
        raise MeasureError(f"{name} has no {asked}: its layers are 0 to {count - 1}")
    return chosen


def _source(name: str, revision: str | None) -> tuple[str, dict[str, Any]]:
    """What transformers is to load, and how: a folder, a GGUF file, or a hub name."""
    path = Path(name)
    if path.is_file() or name.endswith(".gguf"):
        if path.suffix != ".gguf":
            raise MeasureError(f"{path}: a model is a folder, a GGUF file or a hub name, not this file")
        return str(_existing(path, "GGUF file").parent), {"gguf_file": path.name}
    if path.is_dir():
        if not (path / "config.json").exists():
            raise MeasureError(f"{path}: the folder has no config.json, so it is no Hugging Face model")
        return str(path), {}
    if not _HUB_NAME.fullmatch(name) or name.startswith("."):
        _existing(path, "model")
    if revision is None:
        raise MeasureError(
            f"{name}: no such folder, and a hub name needs its commit: add --revision with 40 hex digits"
        )
    if not _COMMIT.fullmatch(revision):
        raise MeasureError(
            f"{name}: the revision '{revision}' is no commit of 40 hex digits (branches and tags move)"
        )
    return name, {"revision": revision}


def _dtype(name: str) -> torch.dtype:
    if name not in DTYPES:
        raise MeasureError(f"unknown dtype '{name}'{nearest(name, DTYPES)}")
    return getattr(torch, name)


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError):
        raise MeasureError(f"the device '{name}' is not available here; 'cpu' is") from None
    return device


def transformers_or_sentence() -> Any:
    """The ``transformers`` package; raises MeasureError that says which extra to install."""
    try:
        import transformers
    except ImportError as error:
        raise MeasureError(
            f"the package '{error.name}' is missing; install it with `pip install effstate[hub]`"
        ) from None
    return transformers


def load_model(
    name: str, *, revision: str | None = None, dtype: str = "float32", device: str = "cpu"
) -> tuple[Any, Any]:
    """A causal language model in evaluation mode, and its tokenizer.

    Args:
        name: a folder in the Hugging Face layout, a GGUF file, or a hub name.
        revision: the commit of a hub name, 40 hex digits.
        dtype: float32, float64, bfloat16 or float16; singular values are in float64 anyway.

    Raises:
        MeasureError: whatever cannot be loaded; HuggingFaceError: an encoder, or an architecture
            whose operators are not known.
    """
    transformers = transformers_or_sentence()
    where, options = _source(name, revision)
    wanted, target = _dtype(dtype), _device(device)
    options |= {"trust_remote_code": False}
    weights = {"dtype": wanted, **({} if "gguf_file" in options else {"use_safetensors": True})}
    try:
        config = transformers.AutoConfig.from_pretrained(where, **options)
        check_family(config, name)
        # given along, or a GGUF file's header would be parsed again (seconds each time)
        options["config"] = config
        tokenizer = transformers.AutoTokenizer.from_pretrained(where, **options)
        model = transformers.AutoModelForCausalLM.from_pretrained(where, **weights, **options)
    except ImportError as error:
        missing = f" ('{error.name}')" if error.name else ""
        raise MeasureError(
            f"{name}: a package{missing} is missing; install them with `pip install effstate[hub]`"
        ) from error
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        # the check of the family has a sentence of its own
        if type(error).__module__.startswith("effstate"):
            raise
        if "revision" in options and _unreachable(error):
            raise MeasureError(
                f"{name}: not in the local cache and the hub cannot be reached; name a local folder"
            ) from error
        raise MeasureError(f"{name}: cannot be loaded: {_first_sentence(error)}") from error
    model = model.to(target).eval()
    check_finite(model, name)
    return model, tokenizer


def _unreachable(error: BaseException) -> bool:
    words = ("connect", "offline", "resolve", "network", "timed out")
    chain: BaseException | None = error
    while chain is not None:
        if any(word in str(chain).lower() for word in words):
            return True
        chain = chain.__cause__ or chain.__context__
    return False


def _first_sentence(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return re.split(r"(?<=[^.])\. ", text)[0].rstrip(".") or type(error).__name__


def check_finite(model: Any, name: str) -> None:
    """Raises MeasureError naming the first parameter of ``model`` that holds NaN or infinity."""
    for key, parameter in model.named_parameters():
        if not bool(torch.isfinite(parameter).all()):
            raise MeasureError(f"{name}: the weights '{key}' hold NaN or infinity")


def tokenize(text: str, tokenizer: Any, config: Any, name: str) -> Tensor:
    """Token ids (1, L), with the tokenizer's own <bos> if it uses one (METHOD section 7).

    Raises:
        MeasureError: fewer than 2 tokens, or more than the model's context.
    """
    ids = tokenizer(text, return_tensors="pt", verbose=False)["input_ids"]
    length = ids.shape[-1]
    if length < 2:
        raise MeasureError(f"the text has {length} token(s); ESS needs at least 2")
    context = getattr(config, "max_position_embeddings", None)
    if context is not None and length > context:
        raise MeasureError(f"the text has {length} tokens, but the context of {name} holds {context}")
    return ids
