"""The ``effstate`` command as a user calls it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from effstate.config import default_yaml

from .conftest import ROOT


def effstate(*arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "effstate", *arguments], cwd=cwd, capture_output=True, text=True
    )


def test_config_prints_the_default_file() -> None:
    assert effstate("config").stdout == default_yaml()


def test_data_prints_annotated_rows() -> None:
    done = effstate("data", "mqar", "--set", "kv=2", "--set", "seq_len=12", "--rows", "2")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("role") == 2
    assert done.stdout.count("?") == 4


def test_plan_of_the_paper_counts_what_the_constraint_dropped(tmp_path: Path) -> None:
    done = effstate("plan", "--scale", "paper", "--results", str(tmp_path))
    assert "mqar: 768 runs (768 not there yet)" in done.stdout
    assert "dropped by 4 * kv <= seq_len: 192 combinations" in done.stdout


BAD = {
    "too many pairs": (
        ["data", "mqar", "--set", "kv=9", "--set", "seq_len=16"],
        "4 * kv <= seq_len is broken: 4 * 9 > 16 (kv is at most 4 here)",
    ),
    "unknown task": (["data", "mqr"], "unknown task 'mqr'; the nearest known one is 'mqar'"),
    "unknown key": (["data", "mqar", "--set", "kvs=2"], "unknown key 'kvs'; the nearest known"),
    "no value": (["data", "mqar", "--set", "kv"], "write KEY=VALUE"),
    "unknown scale": (["plan", "--scale", "dmo"], "the nearest known one is 'demo'"),
    "no file": (["plan", "--config", "none.yaml"], "none.yaml: the file does not exist"),
    "unknown artifact": (["discard", "x", "--results", "nowhere"], "there is no artifact 'x'"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_sentence_and_an_exit_code(case: str) -> None:
    arguments, expected = BAD[case]
    done = effstate(*arguments)
    assert done.returncode == 1
    assert expected in done.stderr
    assert done.stderr.startswith("effstate: ") and done.stderr.count("\n") == 1
