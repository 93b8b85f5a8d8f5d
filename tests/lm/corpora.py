"""Small corpora in FineWeb's layout, made by the tests."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from effstate.config import parse
from effstate.lm.config import CorpusConfig

README = "---\nconfigs:\n- config_name: sample-10BT\n  data_files: sample/10BT/*\n---\n"
ODD = ["", "größer 東京 🙂\u2028", "one<|endoftext|>two", "\n\n  ", "twice", "twice"]
"""Documents that are easily lost: empty ones, other scripts, EOS written out, blanks, equal ones."""


def documents(count: int = 90) -> list[str]:
    """Sentences of random words, among them the odd ones."""
    rng = np.random.default_rng(7)
    words = ["state", "memory", "linear", "attention", "rank", "of", "the", "a", "past", "1790"]
    texts = [" ".join(rng.choice(words, rng.integers(5, 60))) for _ in range(count - len(ODD))]
    for place, text in enumerate(ODD):
        texts.insert(11 * place, text)
    return texts


def write_fineweb(folder: Path, texts: list[str], files: int = 3, row_group: int = 7) -> Path:
    """Parquet files with FineWeb's columns, in small row groups; returns the folder."""
    place = folder / "sample/10BT"
    place.mkdir(parents=True)
    (folder / "README.md").write_text(README)
    for number, part in enumerate(np.array_split(np.array(texts, object), files)):
        count = len(part)
        table = {
            "text": pa.array(part.tolist(), pa.string()),
            "id": [f"{number}-{i}" for i in range(count)],
            **{name: [""] * count for name in ("dump", "url", "date", "file_path")},
            "language": ["en"] * count,
            "language_score": [0.9] * count,
            "token_count": pa.array([1] * count, pa.int64()),
        }
        pq.write_table(pa.table(table), place / f"{number:03d}_00000.parquet", row_group)
    return folder


def corpus_config(folder: Path, **keys: Any) -> CorpusConfig:
    """Over a folder, with a small trained BPE and shares that leave a few documents everywhere."""
    data = {
        "source": {"kind": "parquet", "folder": str(folder)},
        "tokenizer": {"kind": "bpe", "vocab_size": 300},
        "validation": 0.2,
        "test": 0.2,
        "documents_per_shard": 15,
        **keys,
    }
    return parse(CorpusConfig, data, "corpus")


def contents(folder: Path, names: list[str]) -> dict[str, bytes]:
    """Every file's bytes."""
    return {name: (folder / name).read_bytes() for name in names}
