"""A corpus as flat shards of tokens, and rows cut from them (METHOD section 5, table 9).

``build_corpus`` tokenizes every document once. A unit of the source (a range of documents) becomes one
shard per split and a record with their digests; whatever the number of workers, the bytes are the
same, and a build that was stopped goes on behind its last record. Every document ends with EOS.

    plan.json  tokenizer.json  parts/00000.json  train/00000.bin  validation/...  test/...  index.json
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from effstate.artifacts import (
    DEEP_CHECK_BYTES,
    ArtifactError,
    atomic_path,
    file_digest,
    read_json,
    write_json,
)
from effstate.config import ConfigError
from effstate.lm.config import SHARD_DTYPES, BpeTokenizer, CorpusConfig
from effstate.lm.sources import Source, Unit, open_source, plan_units, read_unit
from effstate.lm.tokenization import (
    Encoder,
    eos_of,
    load_encoder,
    make_encoder,
    one_thread_per_call,
    shard_dtype,
)
from effstate.registry import nearest
from effstate.tasks.base import SPLITS
from effstate.training.data import RowOrder
from effstate.training.interruption import StopFlag, stop_flag

PLAN, INDEX, TOKENIZER = "plan.json", "index.json", "tokenizer.json"
FORMAT = 1
"""Raise it when equal configurations begin to give other bytes."""

REMEDY = "build the corpus again, which remakes only what is damaged"


def split_of(text: str, seed: int, validation: float, test: float) -> str:
    """The split of a document: a hash of its text and the seed, against the shares of documents."""
    key = seed.to_bytes(8, "little")
    digest = hashlib.blake2b(text.encode(), digest_size=8, key=key).digest()
    place = int.from_bytes(digest, "little") / 2**64
    if place < test:
        return "test"
    return "validation" if place < test + validation else "train"


# --------------------------------------------------------------------------------------- building


def _training_texts(source: Source, units: list[Unit], config: CorpusConfig) -> Iterator[str]:
    """Texts of the training split among the first documents that the tokenizer may read."""
    assert isinstance(config.tokenizer, BpeTokenizer)
    left = config.tokenizer.documents
    for unit in units:
        for texts in read_unit(source, unit):
            for text in texts[:left]:
                if split_of(text, config.seed, config.validation, config.test) == "train":
                    yield text
            left -= len(texts)
            if left <= 0:
                return


def _make_plan(folder: Path, config: CorpusConfig, source: Source) -> dict[str, Any]:
    """Units and tokenizer of a new corpus; what later calls must agree with."""
    units = plan_units(source, config.documents_per_shard, config.max_documents)
    texts = _training_texts(source, units, config) if config.tokenizer.kind == "bpe" else ()
    encoder = make_encoder(config.tokenizer, texts)
    dtype = shard_dtype(encoder.vocab_size, config.dtype)
    with atomic_path(folder / TOKENIZER) as temporary:
        encoder.tokenizer.save(str(temporary))
    plan = {
        "format": FORMAT,
        "config": config.model_dump(mode="json"),
        "source": source.describe,
        "units": [unit.as_json() for unit in units],
        "vocab_size": encoder.vocab_size,
        "eos": encoder.eos,
        "dtype": dtype,
        "tokenizer_sha256": file_digest(folder / TOKENIZER),
    }
    write_json(folder / PLAN, plan)
    return plan


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    """Dotted keys of nested mappings."""
    if not isinstance(value, Mapping):
        return {prefix: value}
    found: dict[str, Any] = {}
    for key, inner in value.items():
        found |= _flat(inner, f"{prefix}.{key}" if prefix else str(key))
    return found


def _require_same(folder: Path, plan: Mapping[str, Any], config: CorpusConfig) -> None:
    """Raise ConfigError, naming the first key that differs, if the folder holds another corpus."""
    there = _flat({"format": plan["format"], **plan["config"]})
    here = _flat({"format": FORMAT, **config.model_dump(mode="json")})
    for key in sorted({*there, *here}):
        if there.get(key) != here.get(key):
            raise ConfigError(
                f"{folder}: holds a corpus with {key} = {there.get(key)!r}, not {here.get(key)!r}; "
                "name another folder, or remove this one"
            )


def _problem(path: Path, shard: Mapping[str, Any], deep: bool) -> str | None:
    """What is wrong with a shard, or None; without ``deep`` large ones are judged by size."""
    if not path.is_file():
        return "the shard is missing"
    size = path.stat().st_size
    if size != shard["bytes"]:
        return f"the shard has {size} bytes where {shard['bytes']} were written"
    if (deep or size <= DEEP_CHECK_BYTES) and file_digest(path) != shard["sha256"]:
        return "the shard's bytes are not the ones that were written (wrong digest)"
    return None


def _finished(folder: Path, number: int) -> bool:
    """Whether a unit's record and all of its shards are there and undamaged."""
    path = folder / f"parts/{number:05d}.json"
    if not path.exists():
        return False
    try:
        shards = read_json(path)
    except ArtifactError:
        return False
    return not any(_problem(folder / shard["file"], shard, deep=True) for shard in shards.values())


@dataclass(frozen=True)
class _Tokenizing:
    """What turns a unit into shards."""

    folder: Path
    config: CorpusConfig
    source: Source
    encoder: Encoder
    dtype: np.dtype[Any]
    stop: StopFlag

    def __call__(self, number: int, unit: Unit) -> int:
        """Write the shards of a unit and then its record; returns its documents."""
        names = {split: f"{split}/{number:05d}.bin" for split in SPLITS}
        counts = {split: {"documents": 0, "tokens": 0} for split in SPLITS}
        shares = self.config.validation, self.config.test
        with contextlib.ExitStack() as stack:
            paths = {
                split: stack.enter_context(atomic_path(self.folder / name))
                for split, name in names.items()
            }
            files = {split: stack.enter_context(path.open("wb")) for split, path in paths.items()}
            for texts in read_unit(self.source, unit):
                self.stop.check()
                for text, tokens in zip(texts, self.encoder.encode(texts, self.dtype), strict=True):
                    split = split_of(text, self.config.seed, *shares)
                    files[split].write(tokens.tobytes())
                    counts[split]["documents"] += 1
                    counts[split]["tokens"] += len(tokens)
        written = {split: self.folder / name for split, name in names.items()}
        record = {
            split: {
                "file": names[split],
                **counts[split],
                "bytes": path.stat().st_size,
                "sha256": file_digest(path),
            }
            for split, path in written.items()
        }
        write_json(self.folder / f"parts/{number:05d}.json", record)
        return unit.documents


def _tokenize(tokenizing: _Tokenizing, units: dict[int, Unit], done: int, workers: int) -> None:
    """Tokenize the given units with so many threads (tokenizing and reading release the GIL)."""
    total = done + sum(unit.documents for unit in units.values())
    bar = tqdm(total=total, initial=done, desc="tokenize", unit=" documents", disable=None)
    with bar, one_thread_per_call(), ThreadPoolExecutor(workers) as pool:
        futures = [pool.submit(tokenizing, number, unit) for number, unit in units.items()]
        try:
            for future in futures:
                bar.update(future.result())
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def build_corpus(folder: Path, config: CorpusConfig, workers: int = 1) -> TokenCorpus:
    """Tokenize a corpus into ``folder``, or go on where an earlier call was stopped.

    The bytes do not depend on ``workers``. Damaged shards are made again; a finished, undamaged
    corpus is only checked and needs its source no more. Two processes must not build into one folder
    at once (the run store's lock sees to that).

    Raises ConfigError if a source, package or file is missing or the folder holds another corpus,
    Interrupted after SIGTERM or SIGINT.
    """
    for leftover in folder.glob("*/.*.bin"):  # of a process that was killed outright
        leftover.unlink()
    source = None
    if (folder / PLAN).exists():
        plan = read_json(folder / PLAN)
        _require_same(folder, plan, config)
    else:
        source = open_source(config.source)
        with one_thread_per_call():
            plan = _make_plan(folder, config, source)
    if not _tokenizer_is(folder, plan):
        raise ArtifactError(
            f"{folder / TOKENIZER}: not the tokenizer that the shards were made with; remove the "
            f"folder {folder} and build the corpus again"
        )
    units = [Unit(**unit) for unit in plan["units"]]
    missing = {n: unit for n, unit in enumerate(units) if not _finished(folder, n)}
    if missing:
        if source is None:
            source = open_source(config.source)
            if plan_units(source, config.documents_per_shard, config.max_documents) != units:
                raise ConfigError(
                    f"{folder}: the files of its source are not those that it was begun with; put "
                    "them back, or name another folder"
                )
        with stop_flag() as stop:
            encoder = load_encoder(folder / TOKENIZER, eos_of(config.tokenizer))
            dtype = np.dtype(SHARD_DTYPES[plan["dtype"]])
            tokenizing = _Tokenizing(folder, config, source, encoder, dtype, stop)
            done = sum(unit.documents for n, unit in enumerate(units) if n not in missing)
            _tokenize(tokenizing, missing, done, workers)
    _write_index(folder, plan)
    return TokenCorpus(folder)


def _tokenizer_is(folder: Path, plan: Mapping[str, Any]) -> bool:
    path = folder / TOKENIZER
    return path.is_file() and file_digest(path) == plan["tokenizer_sha256"]


def _write_index(folder: Path, plan: Mapping[str, Any]) -> None:
    """One table of all shards; raises ArtifactError if a document of the plan is in none of them."""
    records = [read_json(folder / f"parts/{n:05d}.json") for n in range(len(plan["units"]))]
    for unit, record in zip(plan["units"], records, strict=True):
        found = sum(record[split]["documents"] for split in SPLITS)
        if found != unit["documents"]:
            raise ArtifactError(
                f"{folder}: {found} of the {unit['documents']} documents of {unit['file']} are in its "
                f"shards; remove the folder and build the corpus again"
            )
    kept = {key: value for key, value in plan.items() if key != "units"}
    shards = {split: [record[split] for record in records] for split in SPLITS}
    write_json(folder / INDEX, {**kept, "shards": shards})


# ---------------------------------------------------------------------------------------- reading


class TokenCorpus:
    """A finished corpus, opened for reading: every shard is a memory map, checked when opened."""

    def __init__(self, folder: Path) -> None:
        """Open the corpus in ``folder``; raises ArtifactError if it is not finished."""
        if not (folder / INDEX).exists():
            raise ArtifactError(f"{folder}: there is no finished corpus; build it (again)")
        self.folder = folder
        self.index: dict[str, Any] = read_json(folder / INDEX)
        if not _tokenizer_is(folder, self.index):
            raise ArtifactError(f"{folder / TOKENIZER}: damaged or missing; {REMEDY}")
        self.eos: int = self.index["eos"]
        self.vocab_size: int = self.index["vocab_size"]
        self._maps: dict[str, list[np.ndarray]] = {}

    @cached_property
    def config(self) -> CorpusConfig:
        """The configuration that it was built from."""
        return CorpusConfig.model_validate(self.index["config"])

    @property
    def outputs(self) -> list[str]:
        """Every file below the folder that reading needs."""
        shards = [shard["file"] for split in SPLITS for shard in self.index["shards"][split]]
        return [INDEX, TOKENIZER, *shards]

    @property
    def labels(self) -> dict[str, str]:
        """Source and tokenizer as text, to stand beside numbers."""
        source, kind = self.index["source"], self.config.tokenizer.kind
        details = [value for key, value in source.items() if key not in ("kind", "revision")]
        return {
            "corpus": "/".join([source["kind"], *details]),
            "tokenizer": f"{kind}-{self.vocab_size}",
        }

    def count(self, split: str, what: str = "tokens") -> int:
        """Tokens (or ``documents``) of a split."""
        return sum(shard[what] for shard in self._described(split))

    def encoder(self) -> Encoder:
        """The tokenizer that made the shards."""
        return load_encoder(self.folder / TOKENIZER, eos_of(self.config.tokenizer))

    def _described(self, split: str) -> list[dict[str, Any]]:
        if split not in SPLITS:
            raise ConfigError(f"unknown split '{split}'{nearest(split, SPLITS)}")
        return self.index["shards"][split]

    def shards(self, split: str) -> list[np.ndarray]:
        """Memory maps (tokens,) of a split's shards that hold any, checked on the first call.

        Raises ArtifactError naming a damaged shard.
        """
        if split not in self._maps:
            described = self._described(split)
            for shard in described:
                path = self.folder / shard["file"]
                problem = _problem(path, shard, deep=False)
                if problem:
                    raise ArtifactError(f"{path}: {problem}; {REMEDY}")
            dtype = np.dtype(SHARD_DTYPES[self.index["dtype"]])
            self._maps[split] = [
                np.memmap(self.folder / shard["file"], dtype, "r")
                for shard in described
                if shard["tokens"]
            ]
        return self._maps[split]


class TokenRows:
    """Rows of L + 1 tokens of a split: L inputs, and the same shifted by one as targets.

    Row r starts at token r * L of the split's shards one after the other, so that every token but the
    first is predicted once. Which rows a step reads is a pure function of (seed, step): see RowOrder.
    """

    def __init__(
        self, corpus: TokenCorpus, split: str, length: int, batch_size: int = 1, seed: int = 0
    ) -> None:
        """``length`` is L; raises ConfigError if the split has fewer than L + 1 tokens."""
        self.length, self.batch_size = length, batch_size
        self._shards = corpus.shards(split)
        self._ends = np.cumsum([len(shard) for shard in self._shards], dtype=np.int64)
        total = int(self._ends[-1]) if len(self._ends) else 0
        if total < length + 1:
            raise ConfigError(
                f"{corpus.folder}: the split '{split}' has {total} tokens, too few for a row of "
                f"{length} + 1; take a larger share of documents, or a length of at most {total - 1}"
            )
        self.order = RowOrder(seed, (total - 1) // length, batch_size)

    def __len__(self) -> int:
        return self.order.rows

    def _row(self, row: int) -> np.ndarray:
        start, wanted = row * self.length, self.length + 1
        shard = int(np.searchsorted(self._ends, start, side="right"))
        offset = start - int(self._ends[shard]) + len(self._shards[shard])
        parts = []
        while wanted:
            part = self._shards[shard][offset : offset + wanted]
            parts.append(part)
            wanted -= len(part)
            shard, offset = shard + 1, 0
        return np.concatenate(parts).astype(np.int64)

    def read(self, rows: Sequence[int] | Tensor) -> Tensor:
        """The given rows as int64 (rows, L + 1)."""
        return torch.from_numpy(np.stack([self._row(int(row)) for row in rows]))

    def batch(self, step: int, rank: int = 0, world_size: int = 1) -> Tensor:
        """What ``rank`` reads in a step, int64 (batch_size / world_size, L + 1).

        The batches of all ranks one after the other are that of a single process. Raises ConfigError
        if the world size does not divide the batch size.
        """
        if self.batch_size % world_size:
            raise ConfigError(
                f"batch_size = {self.batch_size} is no multiple of the world size {world_size}; the "
                f"nearest that is: {max(1, round(self.batch_size / world_size)) * world_size}"
            )
        share = self.batch_size // world_size
        return self.read(self.order(step)[rank * share : (rank + 1) * share])
