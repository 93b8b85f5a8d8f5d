"""Moving a study's artifacts between machines as one verified archive, and clearing what no scale needs.

The archive is a plain tar: ``manifest.json`` first, then the files of every artifact under
``runs/<stage>/<slug>-<digest>/`` as they lie in the run store. Nothing here imports torch.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import re
import shutil
import sys
import tarfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any, Literal

from filelock import FileLock, Timeout
from tqdm import tqdm

import effstate
from effstate.artifacts import (
    PROVENANCE,
    REQUEST,
    STAGE_VERSIONS,
    Artifact,
    ArtifactError,
    Request,
    RunStore,
    atomic_path,
    digest_of,
    file_problem,
    read_json,
)
from effstate.config import ConfigError, Strict, parse
from effstate.pipeline import Pipeline
from effstate.registry import UnknownNameError, nearest

FORMAT = 1
"""Raise it when an archive's layout or manifest changes."""

MANIFEST = "manifest.json"

CHUNK_BYTES = 2**20

STAGING = ".import"
"""Where an import unpacks, inside the run store; the store does not look into folders with a dot."""


class ArchivedFile(Strict):
    """One file of an artifact: its path inside the artifact's folder, size and digest."""

    path: str
    bytes: int
    sha256: str


class ArchivedArtifact(Strict):
    """One finished artifact and its files: outputs, request, provenance."""

    stage: str
    name: str
    digest: str
    state: Literal["done", "diverged"]
    files: list[ArchivedFile]

    @property
    def key(self) -> tuple[str, str]:
        """Stage and name, which tell artifacts of a store apart."""
        return self.stage, self.name

    @property
    def folder(self) -> str:
        """The folder inside the archive, and inside the results."""
        return f"runs/{self.stage}/{self.name}"

    @property
    def outputs(self) -> dict[str, str]:
        """Output file to its SHA-256."""
        return {f.path: f.sha256 for f in self.files if f.path not in (REQUEST, PROVENANCE)}


class Manifest(Strict):
    """What an archive holds, and what it was asked to hold."""

    format: int
    effstate: str
    scale: str
    study: str
    without: list[str]
    requested: int
    missing: int
    artifacts: list[ArchivedArtifact]

    @property
    def bytes(self) -> int:
        """Size of all artifacts' files."""
        return sum(file.bytes for artifact in self.artifacts for file in artifact.files)


@dataclass(frozen=True)
class Imported:
    """What an import did."""

    manifest: Manifest
    imported: int
    present: int
    outdated: int


@dataclass(frozen=True)
class Unneeded:
    """An artifact folder that no scale names.

    Attributes:
        folder: where it lies.
        bytes: size of everything in it.
        note: what else is known of it, e.g. that its stage has a newer version.
        kept: why it must stay for now; empty if it may be removed.
    """

    folder: Path
    bytes: int
    note: str
    kept: str


def size_text(count: float) -> str:
    """``1234`` bytes are ``1.2 kB``."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:,.1f} TB"


def _lock(store: RunStore, stage: str, name: str) -> FileLock:
    """The lock that the run store holds while it makes an artifact (a test keeps the two in step)."""
    path = store.runs / ".locks" / f"{stage}-{name}"
    path.parent.mkdir(parents=True, exist_ok=True)
    return FileLock(path)


@contextlib.contextmanager
def _held(lock: FileLock, message: str) -> Iterator[None]:
    """Hold a lock that must be free; raises ArtifactError with the message if it is not."""
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise ArtifactError(message) from None
    try:
        yield
    finally:
        lock.release()


@contextlib.contextmanager
def _one_sentence(path: Path) -> Iterator[None]:
    """An error of the file system (no space, no permission) as an ArtifactError."""
    try:
        yield
    except OSError as error:
        raise ArtifactError(f"{error.filename or path}: {error.strerror or error}") from None


def _bar(label: str, total: int) -> Any:
    """A progress bar over bytes, on a terminal only."""
    shown = sys.stderr.isatty()
    return tqdm(desc=label, total=total, unit="B", unit_scale=True, leave=False, disable=not shown)


# ----------------------------------------------------------------------------------------- export


class _Hashed:
    """A file whose bytes are hashed as they are read."""

    def __init__(self, raw: IO[bytes], bar: Any) -> None:
        self._raw, self._bar, self._hash = raw, bar, hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        """As a file's ``read``."""
        data = self._raw.read(size)
        self._hash.update(data)
        self._bar.update(len(data))
        return data

    @property
    def sha256(self) -> str:
        """Digest of what was read so far."""
        return self._hash.hexdigest()


def _header(name: str, size: int) -> tarfile.TarInfo:
    """A tar header without time, user or rights of this machine: equal files, equal bytes."""
    info = tarfile.TarInfo(name)
    info.size, info.mode = size, 0o644
    return info


def _described(path: Path) -> ArchivedFile:
    """A small file with the digest of what it holds now."""
    content = path.read_bytes()
    return ArchivedFile(path=path.name, bytes=len(content), sha256=hashlib.sha256(content).hexdigest())


def _archived(artifact: Artifact) -> ArchivedArtifact:
    """A finished artifact as the manifest lists it; raises ArtifactError if its request is damaged."""
    provenance = read_json(artifact.path(PROVENANCE))
    if digest_of(read_json(artifact.path(REQUEST))) != artifact.request.digest:
        raise ArtifactError(
            f"{artifact.path(REQUEST)}: not the request that the folder's name tells; {artifact.remedy}"
        )
    outputs = sorted(provenance["outputs"].items())
    return ArchivedArtifact(
        stage=artifact.request.stage,
        name=artifact.request.name,
        digest=artifact.request.digest,
        state=provenance["state"],
        files=[
            *(ArchivedFile(path=name, **described) for name, described in outputs),
            _described(artifact.path(REQUEST)),
            _described(artifact.path(PROVENANCE)),
        ],
    )


def _requests(pipeline: Pipeline, study: str, without: Collection[str]) -> list[Request]:
    """The study's requests of all stages but ``without``, by stage and name."""
    stages = pipeline.stages(study)
    for stage in without:
        if stage not in stages:
            raise ConfigError(f"--without: {study} has no stage '{stage}'{nearest(stage, stages)}")
    kept = [stage for stage in stages if stage not in without]
    return [r for s in kept for r in sorted(pipeline.requests(study, s), key=lambda r: r.name)]


def export_study(pipeline: Pipeline, study: str, path: Path, without: Collection[str] = ()) -> Manifest:
    """Write every finished artifact of a study, of all its stages, to a plain tar archive.

    Every output is checked against its recorded size and SHA-256 while it is written. Unfinished
    artifacts are left out. The same store gives the same bytes. ``path`` appears only when complete.

    Args:
        pipeline: the resolved project, whose store is read.
        study: a study of the scale.
        path: the archive, named ``*.tar``.
        without: stages to leave out.

    Returns:
        The archive's manifest, with counts of requested and missing artifacts.

    Raises:
        ConfigError: a study, stage or file name that does not fit.
        ArtifactError: a damaged file, by name; or no artifact is finished, or the disk is full.
    """
    requests = _requests(pipeline, study, without)
    if path.suffix != ".tar":
        raise ConfigError(f"--to {path}: the archive is a plain tar, so name it *.tar")
    artifacts = [pipeline.store.artifact(request) for request in requests]
    finished = [artifact for artifact in artifacts if artifact.finished]
    if not finished:
        raise ArtifactError(
            f"{pipeline.store.runs}: none of the {len(artifacts)} artifacts of {study} at the scale "
            f"'{pipeline.scale.name}' is finished"
        )
    manifest = Manifest(
        format=FORMAT,
        effstate=effstate.__version__,
        scale=pipeline.scale.name,
        study=study,
        without=sorted(set(without)),
        requested=len(artifacts),
        missing=len(artifacts) - len(finished),
        artifacts=[_archived(artifact) for artifact in finished],
    )
    text = json.dumps(manifest.model_dump(mode="json"), indent=1, sort_keys=True) + "\n"
    options: dict[str, Any] = {"format": tarfile.PAX_FORMAT, "copybufsize": CHUNK_BYTES}
    with (
        _one_sentence(path),
        atomic_path(path) as temporary,
        tarfile.open(temporary, "w:", **options) as archive,
        _bar(f"export {study}", manifest.bytes) as bar,
    ):
        archive.addfile(_header(MANIFEST, len(text.encode())), io.BytesIO(text.encode()))
        for artifact, archived in zip(finished, manifest.artifacts, strict=True):
            for file in archived.files:
                _add(archive, f"{archived.folder}/{file.path}", artifact, file, bar)
    return manifest


def _add(archive: tarfile.TarFile, name: str, artifact: Artifact, file: ArchivedFile, bar: Any) -> None:
    """Add one file of an artifact; raises ArtifactError if its bytes are not those described."""
    source = artifact.path(file.path)
    problem = file_problem(source, file.model_dump(), deep=False)
    if problem is None:
        with source.open("rb") as raw:
            hashed = _Hashed(raw, bar)
            archive.addfile(_header(name, file.bytes), hashed)  # type: ignore[arg-type]
        if hashed.sha256 != file.sha256:
            problem = "its bytes are not the ones that were written (wrong digest)"
    if problem is not None:
        raise ArtifactError(f"{source}: {problem}; {artifact.remedy}")


# ----------------------------------------------------------------------------------------- import


def _foreign(path: Path, why: str) -> ArtifactError:
    return ArtifactError(f"{path}: not a whole archive of `effstate export`: {why}")


def _plain(name: str) -> bool:
    """Whether a path stays below the folder that it is joined to, on every system."""
    parts = name.split("/")
    return not any(p in ("", ".", "..") or set(p) & set("\\:\0") for p in parts)


def _check(manifest: Manifest, path: Path) -> None:
    """Raise ArtifactError for names that an export does not write."""
    for artifact in manifest.artifacts:
        if artifact.stage not in STAGE_VERSIONS:
            hint = nearest(artifact.stage, STAGE_VERSIONS)
            raise _foreign(path, f"there is no stage '{artifact.stage}'{hint}")
        simple = _plain(artifact.name) and "/" not in artifact.name and artifact.name[0] != "."
        if not simple or not artifact.name.endswith(f"-{artifact.digest}"):
            raise _foreign(path, f"'{artifact.name}' is no artifact's name")
        paths = [PurePosixPath(file.path) for file in artifact.files]
        for file in artifact.files:
            inside = _plain(file.path) and not set(PurePosixPath(file.path).parents) & set(paths)
            if not inside or file.bytes < 0 or file.path.startswith("."):
                raise _foreign(path, f"'{artifact.folder}/{file.path}' is no output's path")
        if len(set(paths)) != len(paths):
            raise _foreign(path, f"'{artifact.folder}' has a file twice")
        if not {PurePosixPath(REQUEST), PurePosixPath(PROVENANCE)} <= set(paths):
            raise _foreign(path, f"'{artifact.folder}' has no {REQUEST} or no {PROVENANCE}")
    if len({artifact.key for artifact in manifest.artifacts}) != len(manifest.artifacts):
        raise _foreign(path, "an artifact is in it twice")


def _members(archive: tarfile.TarFile, path: Path) -> Iterator[tuple[tarfile.TarInfo, IO[bytes]]]:
    """Members with their content, in order; raises ArtifactError for anything but a plain file."""
    for member in archive:
        # A sparse file is larger than its bytes in the archive, and no export writes one.
        if member.type not in (tarfile.REGTYPE, tarfile.AREGTYPE) or member.sparse is not None:
            raise _foreign(path, f"'{member.name}' is not a plain file")
        content = archive.extractfile(member)
        assert content is not None
        yield member, content


def _read_manifest(members: Iterator[tuple[tarfile.TarInfo, IO[bytes]]], path: Path) -> Manifest:
    member, content = next(members, (None, None))
    if member is None or content is None or member.name != MANIFEST:
        raise _foreign(path, f"its first file is not {MANIFEST}")
    try:
        data = json.loads(content.read().decode("utf-8"))
    except ValueError:
        raise _foreign(path, f"{MANIFEST} is not complete JSON") from None
    number = data.get("format") if isinstance(data, Mapping) else None
    if isinstance(number, int) and number > FORMAT:
        raise ArtifactError(
            f"{path}: the archive has format {number}, this effstate reads {FORMAT}; update effstate"
        )
    try:
        manifest = parse(Manifest, data, MANIFEST)
    except ConfigError as error:
        raise _foreign(path, str(error)) from None
    _check(manifest, path)
    return manifest


def _is_present(store: RunStore, artifact: ArchivedArtifact) -> bool:
    """Whether the store has the artifact already; raises ArtifactError if with other outputs."""
    folder = store.runs / artifact.stage / artifact.name
    if not (folder / PROVENANCE).exists():
        return False
    here = {k: v["sha256"] for k, v in read_json(folder / PROVENANCE)["outputs"].items()}
    if digest_of(here) != digest_of(artifact.outputs):
        raise ArtifactError(
            f"{folder}: it is there with other outputs than in the archive; import into another "
            f"--results, or run `effstate discard {artifact.name}` first"
        )
    return True


def _copy(content: IO[bytes], target: Path | None, bar: Any) -> tuple[int, str]:
    """Copy a member to a new file, or to nowhere; returns its size and SHA-256."""
    hashed, size = _Hashed(content, bar), 0
    with contextlib.ExitStack() as stack:
        written = None
        if target is not None:
            target.parent.mkdir(parents=True, exist_ok=True)
            written = stack.enter_context(target.open("xb"))
        while chunk := hashed.read(CHUNK_BYTES):
            size += len(chunk)
            if written is not None:
                written.write(chunk)
        if written is not None:
            written.flush()
            os.fsync(written.fileno())
    return size, hashed.sha256


def _check_unpacked(folder: Path, artifact: ArchivedArtifact, path: Path) -> bool:
    """Check an unpacked artifact against its own request and provenance.

    Returns whether its stage's version is this effstate's. Raises ArtifactError if they disagree.
    """
    request, provenance = (json.loads((folder / n).read_text("utf-8")) for n in (REQUEST, PROVENANCE))
    if digest_of(request) != artifact.digest or request["stage"] != artifact.stage:
        raise _foreign(path, f"the request of '{artifact.folder}' is not the one its name tells")
    described = {name: (d["bytes"], d["sha256"]) for name, d in provenance["outputs"].items()}
    listed = {f.path: (f.bytes, f.sha256) for f in artifact.files if f.path in artifact.outputs}
    facts = (provenance["state"], provenance["digest"], provenance["request"], described)
    if facts != (artifact.state, artifact.digest, request, listed):
        raise _foreign(path, f"{PROVENANCE} of '{artifact.folder}' is not what {MANIFEST} says")
    return request["version"] == STAGE_VERSIONS[artifact.stage]


def import_archive(path: Path, store: RunStore) -> Imported:
    """Bring the artifacts of an archive into a store, after checking all of the archive.

    Everything is unpacked beside the artifacts and checked: names, sizes, digests, requests. Then each
    artifact is moved into place whole, under its lock; what an unfinished run left there is replaced.
    Artifacts that are there already stay as they are.

    Args:
        path: an archive of :func:`export_study`.
        store: the store to fill; may not exist yet.

    Returns:
        The manifest and counts of imported, present and outdated artifacts (of another version of
        their stage, so that no request of this effstate names them).

    Raises:
        ArtifactError: the archive is cut off, damaged or foreign (nothing is changed then); an
            artifact is there with other outputs (nothing is changed) or is being made at this moment;
            the disk is full.
    """
    if not path.is_file():
        raise ArtifactError(f"{path}: the file does not exist")
    with (
        _one_sentence(path),
        _held(_lock(store, "import", "all"), f"{store.runs}: another import is going on"),
    ):
        staging = store.runs / STAGING
        shutil.rmtree(staging, ignore_errors=True)  # of an import that was killed
        try:
            return _import(path, store, staging)
        finally:
            shutil.rmtree(staging, ignore_errors=True)


def _import(path: Path, store: RunStore, staging: Path) -> Imported:
    try:
        with tarfile.open(path, "r:") as archive:
            manifest, new = _unpack(archive, path, store, staging)
        current = [_check_unpacked(staging / a.folder, a, path) for a in new]
    except (tarfile.TarError, ValueError, EOFError, KeyError, TypeError, AttributeError):
        raise _foreign(path, "it is cut off, damaged or of another kind") from None
    for artifact in new:
        _land(staging / artifact.folder, staging / "replaced", artifact, store)
    present = len(manifest.artifacts) - len(new)
    return Imported(manifest, len(new), present, current.count(False))


def _unpack(
    archive: tarfile.TarFile, path: Path, store: RunStore, staging: Path
) -> tuple[Manifest, list[ArchivedArtifact]]:
    """Unpack and check every file; returns the manifest and the artifacts that the store lacks."""
    members = _members(archive, path)
    manifest = _read_manifest(members, path)
    new = [a for a in manifest.artifacts if not _is_present(store, a)]
    for artifact in new:
        with _held(_lock(store, *artifact.key), _in_use(store, artifact)):
            pass
    folders = {artifact.folder for artifact in new}
    expected = {f"{a.folder}/{f.path}": (a, f) for a in manifest.artifacts for f in a.files}
    with _bar(f"import {manifest.study}", manifest.bytes) as bar:
        for member, content in members:
            if member.name not in expected:
                raise _foreign(path, f"'{member.name}' is in it twice, or not listed")
            artifact, file = expected.pop(member.name)
            target = staging / artifact.folder / file.path if artifact.folder in folders else None
            if _copy(content, target, bar) != (file.bytes, file.sha256):
                raise _foreign(path, f"'{member.name}' has another size or digest than listed")
    if expected:
        raise _foreign(path, f"{len(expected)} files are missing, the first '{next(iter(expected))}'")
    return manifest, new


def _in_use(store: RunStore, artifact: ArchivedArtifact) -> str:
    folder = store.runs / artifact.stage / artifact.name
    return f"{folder}: a job is making it at this moment; import when it has ended"


def _land(source: Path, replaced: Path, artifact: ArchivedArtifact, store: RunStore) -> None:
    """Move an unpacked artifact into place in one step, unless it has been finished meanwhile."""
    folder = store.runs / artifact.stage / artifact.name
    with _held(_lock(store, *artifact.key), _in_use(store, artifact)):
        if _is_present(store, artifact):
            return
        folder.parent.mkdir(parents=True, exist_ok=True)
        if folder.exists():
            folder.rename(replaced)
        source.rename(folder)
        shutil.rmtree(replaced, ignore_errors=True)


# --------------------------------------------------------------------------------------------- gc


def needed(
    config: Mapping[str, Any], base: Path, scales: Iterable[str] | None = None
) -> set[tuple[str, str]]:
    """(stage, name) of every artifact that a scale asks for.

    A scale counts as its file has it, and with the project's overrides as well where they fit it.

    Args:
        config: the project's configuration, as in ``config/config.yaml``.
        base: the folder that holds ``config/scales``.
        scales: names of scales; every file of ``config/scales`` by default.

    Raises:
        ConfigError: a scale does not exist or cannot be resolved, or there is none.
    """
    known = sorted(path.stem for path in (base / "config" / "scales").glob("*.yaml"))
    chosen = known if scales is None else list(scales)
    if not chosen:
        raise ConfigError(f"name a scale, one of {', '.join(known)}" if known else "there is no scale")
    found: set[tuple[str, str]] = set()
    for name in chosen:
        found |= _names(Pipeline.from_config({**config, "scale": name, "overrides": {}}, base))
        if config.get("overrides"):
            try:
                found |= _names(Pipeline.from_config({**config, "scale": name}, base))
            except (ConfigError, UnknownNameError):
                # Overrides are written for one scale; on another that refuses them nothing ran.
                if name == config.get("scale"):
                    raise
    return found


def _names(pipeline: Pipeline) -> set[tuple[str, str]]:
    """(stage, name) of every request of a pipeline; what a request is made from is one of them."""
    stages = [(study, stage) for study in pipeline.studies for stage in pipeline.stages(study)]
    return {(r.stage, r.name) for study, stage in stages for r in pipeline.requests(study, stage)}


def _is_artifact(folder: Path) -> bool:
    """Whether a folder is an artifact of the store, rather than something that a user put there."""
    named = re.fullmatch(r".+-[0-9a-f]{12}", folder.name) is not None
    return named and not folder.is_symlink() and (folder / REQUEST).is_file()


def _version_note(request: Mapping[str, Any]) -> str:
    """That the artifact's stage has another version now, or is gone; empty if neither."""
    now = STAGE_VERSIONS.get(request["stage"])
    if now is None:
        return f"there is no stage '{request['stage']}' any more"
    if request["version"] != now:
        return f"version {request['version']} of its stage, which is {now} now"
    return ""


def unneeded(store: RunStore, named: Collection[tuple[str, str]]) -> list[Unneeded]:
    """Artifact folders that ``named`` lacks, by stage and name.

    A folder whose lock is held, and whatever it is made from, is to be kept.
    Raises ArtifactError if a folder's request cannot be read.
    """
    folders = [f for f in store.folders() if (f.parent.name, f.name) not in named and _is_artifact(f)]
    requests = {folder: read_json(folder / REQUEST) for folder in folders}
    kept = {folder: "it is being made" for folder in folders if _is_locked(store, folder)}
    digests = {digest for folder in kept for digest in requests[folder]["inputs"]}
    while more := [f for f in folders if f not in kept and f.name.rpartition("-")[2] in digests]:
        kept |= {folder: "what is made from it is being made" for folder in more}
        digests |= {digest for folder in more for digest in requests[folder]["inputs"]}
    return [
        Unneeded(
            folder=folder,
            bytes=sum(p.stat().st_size for p in folder.rglob("*") if p.is_file()),
            note=_version_note(requests[folder]),
            kept=kept.get(folder, ""),
        )
        for folder in folders
    ]


def _is_locked(store: RunStore, folder: Path) -> bool:
    try:
        with _lock(store, folder.parent.name, folder.name).acquire(timeout=0):
            return False
    except Timeout:
        return True


def remove(store: RunStore, chosen: Iterable[Unneeded]) -> list[Path]:
    """Remove artifact folders that need not be kept, and the manifests of cohorts that name them.

    Returns the folders that were removed; one whose lock is held by now stays.
    """
    members = {
        manifest: {member["digest"] for member in read_json(manifest)["members"]}
        for manifest in sorted((store.results / "cohorts").glob("*/*/*.json"))
    }
    removed = []
    for item in chosen:
        if item.kept:
            continue
        stage, name = item.folder.parent.name, item.folder.name
        try:
            with _one_sentence(item.folder), _lock(store, stage, name).acquire(timeout=0):
                for manifest, digests in members.items():
                    if name.rpartition("-")[2] in digests:
                        manifest.unlink(missing_ok=True)
                # Without provenance a half-removed folder is an unfinished run, not a damaged one.
                (item.folder / PROVENANCE).unlink(missing_ok=True)
                shutil.rmtree(item.folder)
        except Timeout:
            continue
        removed.append(item.folder)
    return removed
