"""What the README shows works: its Python block, its commands, its targets."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import ROOT, make_project

README = (ROOT / "README.md").read_text()
EFFSTATE = sorted(set(re.findall(r"^\| `effstate (.+?)`", README, re.MULTILINE)))
SNAKEMAKE = sorted(set(re.findall(r"^snakemake (.+?)(?: +#|$)", README, re.MULTILINE)))


def test_the_readme_is_short_and_names_both_commands() -> None:
    assert len(README.splitlines()) < 150
    for target in ("figures", "test"):
        assert f"make {target}" in README
        assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


def test_ci_runs_the_test_command_and_nothing_else() -> None:
    lines = (ROOT / ".ci/run").read_text().splitlines()
    commands = [line for line in lines if line and not line.startswith(("#", "set ", "cd "))]
    assert commands == ["make test"]


def test_the_python_block_runs() -> None:
    (block,) = re.findall(r"```python\n(.+?)```", README, re.DOTALL)
    done = subprocess.run([sys.executable, "-c", block], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[0].count("torch.Size([1, 4, 127])") == 2


@pytest.mark.parametrize("command", [c for c in EFFSTATE if "NAME" not in c])
def test_effstate_commands_run(command: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "effstate", *command.split()],
        cwd=make_project(tmp_path),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout


@pytest.mark.parametrize("command", SNAKEMAKE)
def test_snakemake_commands_are_accepted(command: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "snakemake", "-n", "--quiet=all", "--cores", "1", *command.split()],
        cwd=make_project(tmp_path),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
