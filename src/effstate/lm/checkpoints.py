"""A trained language model as a folder that is enough to use it: weights, configuration, tokenizer."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

from effstate.artifacts import (
    ArtifactError,
    atomic_path,
    describe_file,
    file_problem,
    read_json,
    read_tensors,
    write_json,
    write_tensors,
)
from effstate.config import parse
from effstate.lm.config import LmRunConfig
from effstate.lm.tokenization import Encoder, eos_of, load_encoder
from effstate.models import SequenceModel

WEIGHTS, TOKENIZER, CONFIG = "model.safetensors", "tokenizer.json", "config.json"
EXPORTED = (WEIGHTS, TOKENIZER, CONFIG)


@dataclass(frozen=True)
class LoadedModel:
    """A language model ready to use: ``model`` in evaluation mode, ``encoder`` from text to tokens."""

    model: SequenceModel
    config: LmRunConfig
    encoder: Encoder


def export_model(folder: Path, model: SequenceModel, config: LmRunConfig, tokenizer_path: Path) -> None:
    """Write weights, tokenizer and configuration; the configuration comes last and names the others.

    Of several processes, all must call it, as parameters may be sharded; the first one writes.
    """
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    weights = get_model_state_dict(model, options=options)
    if torch.distributed.is_initialized() and torch.distributed.get_rank() != 0:
        return
    write_tensors(folder / WEIGHTS, weights)
    with atomic_path(folder / TOKENIZER) as temporary:
        shutil.copyfile(tokenizer_path, temporary)
    described = {name: describe_file(folder / name) for name in (WEIGHTS, TOKENIZER)}
    vocab_size = model.embedding.num_embeddings
    run = config.model_dump(mode="json")
    write_json(folder / CONFIG, {"vocab_size": vocab_size, "files": described, "run": run})


def load_model(
    folder: Path, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32
) -> LoadedModel:
    """The model that :func:`export_model` wrote to ``folder``, verified.

    Raises ArtifactError or ConfigError, naming the file, if the folder is incomplete or damaged.
    """
    described = read_json(folder / CONFIG)
    if not isinstance(described, dict) or not {"vocab_size", "files", "run"} <= set(described):
        raise ArtifactError(f"{folder / CONFIG}: not the configuration of an exported model")
    config = parse(LmRunConfig, described["run"], str(folder / CONFIG))
    for name, file in described["files"].items():
        problem = file_problem(folder / name, file)
        if problem:
            raise ArtifactError(f"{folder / name}: {problem}; export the model again")
    weights, _ = read_tensors(folder / WEIGHTS)
    model = SequenceModel(config.model, described["vocab_size"], config.context)
    try:
        model.load_state_dict(weights)
    except RuntimeError:
        raise ArtifactError(
            f"{folder / WEIGHTS}: the weights are not those of the model in {CONFIG}; export it again"
        ) from None
    encoder = load_encoder(folder / TOKENIZER, eos_of(config.corpus.tokenizer))
    return LoadedModel(model.to(device, dtype).eval().requires_grad_(False), config, encoder)
