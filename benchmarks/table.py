"""Every benchmark in one table, printed and written with machine, versions and threads.

python benchmarks/table.py [--repeats N] [--output results/benchmarks.parquet]
"""

from __future__ import annotations

import argparse
import importlib.metadata
import platform
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import ess
import language_model
import mixers
import pandas as pd
import pipeline
import torch
from tqdm import tqdm

from effstate.artifacts import write_table

Row = dict[str, Any]


def every(repeats: int) -> Iterator[Row]:
    """The rows of all benchmarks, each named after its part."""
    parts: Iterable[tuple[str, Iterable[Row]]] = (
        ("ess", ess.measured(repeats, "")),
        ("step", mixers.rows(repeats=repeats)),
        ("language model", language_model.rows(repeats)),
        ("pipeline", pipeline.rows(repeats)),
    )
    for part, found in parts:
        for row in found:
            yield {"part": part, **row}


def circumstances() -> Row:
    """On what the numbers were measured."""
    versions = {name: importlib.metadata.version(name) for name in ("effstate", "torch", "snakemake")}
    machine = f"{platform.machine()} {platform.processor()}".strip()
    return {"machine": machine, "threads": torch.get_num_threads(), **versions}


def main() -> None:
    """Measure, write the table, and print it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--output", type=Path, default=Path("results/benchmarks.parquet"))
    arguments = parser.parse_args()
    found = list(tqdm(every(arguments.repeats), desc="benchmarks", unit="case"))
    table = pd.DataFrame(found).assign(repeats=arguments.repeats, **circumstances())
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    write_table(arguments.output, table)
    columns = ["part", "name", "size", "ours_s", "theirs_s", "ratio", "ratio_min", "ratio_max", "error"]
    print(table[columns].to_string(index=False, float_format=lambda x: f"{x:.4g}", na_rep="-"))


if __name__ == "__main__":
    main()
