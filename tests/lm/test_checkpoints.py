"""Exported language models: enough to be used alone, and refused in one sentence when damaged."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from corpora import corpus_config, documents, write_fineweb

from effstate.artifacts import ArtifactError
from effstate.config import ConfigError, ModelConfig
from effstate.lm.checkpoints import EXPORTED, export_model, load_model
from effstate.lm.config import LmRunConfig
from effstate.lm.corpus import TOKENIZER, TokenCorpus, build_corpus
from effstate.models import SequenceModel, build_model


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> TokenCorpus:
    folder = tmp_path_factory.mktemp("corpus")
    source = write_fineweb(folder / "source", documents())
    return build_corpus(folder / "tokens", corpus_config(source))


def exported(folder: Path, corpus: TokenCorpus, **model: object) -> SequenceModel:
    run = LmRunConfig(
        corpus=corpus.config, model=ModelConfig(**{"width": 8, "heads": 2, **model}), context=16
    )
    built = build_model(run.model, corpus.vocab_size, run.context)
    export_model(folder, built, run, corpus.folder / TOKENIZER)
    return built


@pytest.mark.parametrize("tied", [False, True])
def test_a_folder_is_enough_to_use_the_model(tied: bool, corpus: TokenCorpus, tmp_path: Path) -> None:
    model = exported(tmp_path, corpus, featurizer="gla", tie_embeddings=tied)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(EXPORTED)
    loaded = load_model(tmp_path)
    assert loaded.config.corpus == corpus.config and loaded.config.model == model.config
    (tokens,) = loaded.encoder.encode(["the state of the past"], np.dtype("<u2"))
    assert tokens[-1] == corpus.eos
    row = torch.from_numpy(tokens.astype(np.int64))[None]
    assert torch.equal(loaded.model(row), model(row))
    assert load_model(tmp_path, dtype=torch.float64).model(row).dtype == torch.float64


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(bytes(content))


def _other_width(path: Path) -> None:
    described = json.loads(path.read_text())
    described["run"]["model"]["width"] = 16
    path.write_text(json.dumps(described))


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        *((name, Path.unlink) for name in EXPORTED),
        *((name, _cut) for name in EXPORTED),
        ("model.safetensors", _flip),
        ("tokenizer.json", _flip),
        ("config.json", lambda path: path.write_text("{}")),
    ],
)
def test_a_damaged_folder_is_named(
    name: str, damage: Callable[[Path], object], corpus: TokenCorpus, tmp_path: Path
) -> None:
    exported(tmp_path, corpus)
    damage(tmp_path / name)
    with pytest.raises((ArtifactError, ConfigError), match=name):
        load_model(tmp_path)


def test_weights_of_another_model_are_refused(corpus: TokenCorpus, tmp_path: Path) -> None:
    exported(tmp_path, corpus)
    _other_width(tmp_path / "config.json")
    with pytest.raises(ArtifactError, match="the weights are not those of the model"):
        load_model(tmp_path)
