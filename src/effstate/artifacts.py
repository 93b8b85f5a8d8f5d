"""Reading and writing artifacts: atomic, verified, with provenance; and the run store that holds them.

An artifact is a folder ``results/runs/<stage>/<slug>-<digest>/``. Its digest names the *request*:
the stage, the stage's version, the resolved configuration and the digests of the inputs. Its
``provenance.json``, written last, names every output file with size and SHA-256.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from filelock import FileLock, Timeout
from pydantic import BaseModel

import effstate
from effstate.registry import nearest

if TYPE_CHECKING:
    import pandas as pd
    import torch

STAGE_VERSIONS = {
    "data": 1,
    "train": 1,
    "trace": 2,
    "distill": 1,
    "weights": 1,
    "collect": 2,
    "corpus": 1,
    "lmtrain": 1,
    "lmcounts": 1,
    "lmeval": 1,
    "lmtrace": 1,
}
"""Raise a stage's number when its results change: its artifacts, and what follows, are made anew."""

DEEP_CHECK_BYTES = 64 * 2**20
"""Files up to this size are checked by digest on reading, larger ones by size (verify checks all)."""

PROVENANCE = "provenance.json"
REQUEST = "request.json"

State = Literal["missing", "running", "interrupted", "done", "diverged", "failed"]


class ArtifactError(RuntimeError):
    """One sentence: the file, what is wrong with it, and what remakes it."""


# --------------------------------------------------------------------------------------- digests


def canonical_json(value: Any) -> str:
    """JSON with sorted keys and no spaces: equal values give equal text in every process."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def digest_of(value: Any) -> str:
    """The first 12 hex digits of the SHA-256 of a JSON-like value's canonical text."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()[:12]


def file_digest(path: Path) -> str:
    """SHA-256 of a file's bytes, in hex."""
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def derive_seed(*parts: Any) -> int:
    """A 63-bit seed from readable parts, e.g. ``derive_seed(run.seed, "order", 3)``."""
    text = canonical_json([str(part) for part in parts])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


# ---------------------------------------------------------------------------------------- writing


@contextlib.contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """A temporary path beside ``path`` that replaces it when the block ends without an error."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}-", suffix=path.suffix)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        # mkstemp makes files that only their owner reads; results are for the whole group.
        temporary.chmod(0o644)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    """Write readable JSON atomically; equal values give equal bytes."""
    write_text(path, json.dumps(value, indent=1, sort_keys=True, allow_nan=False) + "\n")


def read_json(path: Path) -> Any:
    """Read JSON; raises ArtifactError if the file is missing or cut off."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ArtifactError(f"{path}: the file does not exist") from None
    except (json.JSONDecodeError, UnicodeDecodeError):
        raise ArtifactError(f"{path}: not complete JSON; delete it and run again") from None


def write_tensors(
    path: Path, tensors: Mapping[str, torch.Tensor], notes: Mapping[str, str] | None = None
) -> None:
    """Write tensors as safetensors, atomically, with string notes in the header."""
    from safetensors.torch import save_file

    with atomic_path(path) as temporary:
        contiguous = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
        save_file(contiguous, temporary, metadata=dict(notes or {}))


def read_tensors(
    path: Path, prefixes: tuple[str, ...] = ("",)
) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Tensors (those whose names have one of the prefixes) and notes of a safetensors file.

    Raises ArtifactError if it cannot be read.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as opened:
            names = [name for name in opened.keys() if name.startswith(prefixes)]  # noqa: SIM118
            tensors = {name: opened.get_tensor(name) for name in names}
            return tensors, dict(opened.metadata() or {})
    except FileNotFoundError:
        raise ArtifactError(f"{path}: the file does not exist") from None
    except SafetensorError:
        raise ArtifactError(f"{path}: not a complete safetensors file") from None


def write_table(path: Path, table: pd.DataFrame) -> None:
    """Write a tidy table as Parquet, atomically."""
    with atomic_path(path) as temporary:
        table.to_parquet(temporary, index=False)


# ------------------------------------------------------------------------------------- provenance


@lru_cache(maxsize=1)
def git_commit() -> str:
    """The commit of the package's checkout, ``unknown`` outside one; '+' where files differ."""
    here = Path(__file__).parent
    commands = (["rev-parse", "HEAD"], ["status", "--porcelain", "--untracked-files=no"])
    answers = []
    for command in commands:
        try:
            done = subprocess.run(
                ["git", "-C", str(here), *command], capture_output=True, text=True, check=True
            )
        except (OSError, subprocess.CalledProcessError):
            return "unknown"
        answers.append(done.stdout.strip())
    return answers[0] + ("+" if answers[1] else "")


def environment() -> dict[str, str]:
    """Versions that a result may depend on."""
    versions = {name: metadata.version(name) for name in ("torch", "numpy")}
    return {
        "effstate": effstate.__version__,
        "commit": git_commit(),
        "python": platform.python_version(),
        "machine": platform.machine(),
        **versions,
    }


@dataclass(frozen=True)
class Request:
    """What an artifact is asked to be. Equal requests have equal digests, on every machine."""

    stage: str
    slug: str
    config: BaseModel
    inputs: tuple[Request, ...] = ()

    @cached_property
    def resolved(self) -> dict[str, Any]:
        """The request as JSON-like data: stage, version, configuration, inputs' digests."""
        return {
            "stage": self.stage,
            "version": STAGE_VERSIONS[self.stage],
            "config": self.config.model_dump(mode="json"),
            "inputs": [request.digest for request in self.inputs],
        }

    @cached_property
    def digest(self) -> str:
        """12 hex digits; the same request has the same, in every process."""
        return digest_of(self.resolved)

    @property
    def name(self) -> str:
        """The folder's name: readable slug and digest."""
        return f"{self.slug}-{self.digest}"

    def __hash__(self) -> int:
        return hash((self.stage, self.digest))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Request) and (self.stage, self.digest) == (
            other.stage,
            other.digest,
        )


class Artifact:
    """One folder of the run store, opened for one request."""

    def __init__(self, store: RunStore, request: Request) -> None:
        self.store = store
        self.request = request
        self.folder = store.runs / request.stage / request.name

    def path(self, name: str) -> Path:
        """A file inside the folder."""
        return self.folder / name

    @property
    def remedy(self) -> str:
        """What a user types to have this artifact made anew."""
        return f"run `effstate discard {self.request.name}`, then the target again"

    def provenance(self) -> dict[str, Any] | None:
        """The provenance if the artifact is finished, else None."""
        path = self.path(PROVENANCE)
        return read_json(path) if path.exists() else None

    @property
    def state(self) -> State:
        """missing, running, interrupted (resumable), done, diverged or failed."""
        if not self.folder.exists():
            return "missing"
        provenance = self.provenance()
        if provenance is not None:
            return provenance["state"]
        if self.store.is_locked(self):
            return "running"
        if self.path("failure.json").exists():
            return "failed"
        return "interrupted"

    @property
    def finished(self) -> bool:
        """Whether there is a result (a diverged run is one)."""
        return self.path(PROVENANCE).exists()

    def begin(self) -> None:
        """Make the folder and write the request into it; removes the mark of an earlier failure."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if not self.path(REQUEST).exists():
            write_json(self.path(REQUEST), self.request.resolved)
        self.path("failure.json").unlink(missing_ok=True)

    def fail(self, message: str) -> None:
        """Record a failure (not a result: the next attempt tries again)."""
        write_json(self.path("failure.json"), {"message": message})

    def finish(
        self,
        state: Literal["done", "diverged"],
        outputs: Iterable[str],
        *,
        seconds: float,
        facts: Mapping[str, Any] | None = None,
    ) -> None:
        """Seal the artifact: provenance with the outputs' sizes and digests, written last."""
        described = {name: describe_file(self.path(name)) for name in sorted(outputs)}
        write_json(
            self.path(PROVENANCE),
            {
                "state": state,
                "request": self.request.resolved,
                "digest": self.request.digest,
                "inputs": {request.name: request.digest for request in self.request.inputs},
                "outputs": described,
                "environment": environment(),
                "seconds": round(seconds, 3),
                "facts": dict(facts or {}),
            },
        )

    def checked(self, name: str) -> Path:
        """The path of an output after checking size and digest.

        Raises ArtifactError naming the file and what remakes it.
        """
        provenance = self.provenance()
        if provenance is None:
            raise ArtifactError(f"{self.folder}: the artifact is not finished; run its target again")
        described = provenance["outputs"].get(name)
        if described is None:
            raise ArtifactError(f"{self.path(name)}: not an output of this artifact")
        problem = file_problem(self.path(name), described)
        if problem:
            raise ArtifactError(f"{self.path(name)}: {problem}; {self.remedy}")
        return self.path(name)

    def output_digest(self) -> str:
        """One digest over all outputs: equal exactly if every output's bytes are."""
        provenance = self.provenance() or {}
        return digest_of({k: v["sha256"] for k, v in provenance.get("outputs", {}).items()})


def describe_file(path: Path) -> dict[str, Any]:
    """Size and digest of a file, as :func:`file_problem` checks them."""
    return {"bytes": path.stat().st_size, "sha256": file_digest(path)}


def file_problem(path: Path, described: Mapping[str, Any], deep: bool | None = None) -> str | None:
    """What is wrong with a file, or None; ``deep=None`` takes the digest of small files only."""
    if not path.exists():
        return "the file is missing"
    size = path.stat().st_size
    if size != described["bytes"]:
        return f"it has {size} bytes where {described['bytes']} were written"
    check = size <= DEEP_CHECK_BYTES if deep is None else deep
    if check and file_digest(path) != described["sha256"]:
        return "its bytes are not the ones that were written (wrong digest)"
    return None


class RunStore:
    """``results/runs``: every artifact of every stage, shared by scales and figures."""

    def __init__(self, results: Path) -> None:
        self.results = results
        self.runs = results / "runs"

    def artifact(self, request: Request) -> Artifact:
        """The (possibly missing) artifact of a request."""
        return Artifact(self, request)

    def lock(self, stage: str, name: str) -> FileLock:
        """The lock (not yet held) of the artifact ``name`` of a stage, whether it exists or not."""
        # Locks lie beside the folders, so that discarding a folder cannot remove a held lock.
        path = self.runs / ".locks" / f"{stage}-{name}"
        path.parent.mkdir(parents=True, exist_ok=True)
        return FileLock(path)

    def is_held(self, stage: str, name: str) -> bool:
        """Whether another process works on the artifact ``name`` of a stage at this moment."""
        try:
            with self.lock(stage, name).acquire(timeout=0):
                return False
        except Timeout:
            return True

    def is_locked(self, artifact: Artifact) -> bool:
        """Whether another process works on the artifact at this moment."""
        return self.is_held(artifact.request.stage, artifact.request.name)

    @contextlib.contextmanager
    def claim(self, artifact: Artifact) -> Iterator[Artifact]:
        """Hold the artifact's lock; waits for whoever holds it (who then has finished it)."""
        with self.lock(artifact.request.stage, artifact.request.name).acquire():
            artifact.begin()
            yield artifact

    def folders(self) -> Iterator[Path]:
        """Every artifact folder in the store."""
        if self.runs.is_dir():
            for stage in sorted(p for p in self.runs.iterdir() if not p.name.startswith(".")):
                yield from sorted(p for p in stage.iterdir() if p.is_dir())

    def verify(self, folder: Path) -> list[str]:
        """Every problem of a finished artifact, by a full check of all its outputs."""
        provenance = read_json(folder / PROVENANCE)
        problems = []
        for name, described in provenance["outputs"].items():
            problem = file_problem(folder / name, described, deep=True)
            if problem:
                problems.append(f"{folder / name}: {problem}")
        return problems

    def manifests(self) -> dict[Path, set[str]]:
        """Every cohort's manifest, with the digests of its members."""
        paths = sorted((self.results / "cohorts").glob("*/*/*.json"))
        return {path: {member["digest"] for member in read_json(path)["members"]} for path in paths}

    def discard(self, name: str) -> list[Path]:
        """Remove the artifact ``name`` and every artifact made from it.

        Returns what was removed; raises ArtifactError if there is no such artifact.
        """
        folders = list(self.folders())
        chosen = [folder for folder in folders if folder.name == name]
        if not chosen:
            hint = nearest(name, [folder.name for folder in folders])
            raise ArtifactError(f"{self.runs}: there is no artifact '{name}'{hint}")
        inputs = {
            folder: set(read_json(folder / REQUEST)["inputs"])
            for folder in folders
            if (folder / REQUEST).exists()
        }
        doomed = list(chosen)
        digests = {folder.name.rpartition("-")[2] for folder in chosen}
        while found := [f for f in inputs if f not in doomed and digests & inputs[f]]:
            doomed += found
            digests |= {folder.name.rpartition("-")[2] for folder in found}
        removed = []
        for manifest, members in self.manifests().items():
            if digests & members:
                manifest.unlink()
                removed.append(manifest)
        for folder in doomed:
            shutil.rmtree(folder)
            removed.append(folder)
        return removed
