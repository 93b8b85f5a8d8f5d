"""Export, import and gc: archives that hold, archives that do not, and what no scale names."""

from __future__ import annotations

import hashlib
import io
import json
import random
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from effstate import transfer
from effstate.artifacts import (
    Artifact,
    ArtifactError,
    Request,
    RunStore,
    digest_of,
    read_json,
    write_json,
    write_text,
)
from effstate.cohorts import run_cohort
from effstate.config import ConfigError, MQARConfig, RunConfig, TraceConfig, read_yaml
from effstate.jobs import make_cohort, make_tables
from effstate.pipeline import Pipeline
from effstate.requests import data_request, trace_request, train_request
from effstate.transfer import MANIFEST, export_study, import_archive

from .conftest import EVERY_STUDY, ROOT, TINY, make_project
from .test_cli import effstate


def make(artifact: Artifact) -> None:
    """A stage that writes two files, one of them in a folder, and leaves a resume point behind."""
    write_text(artifact.path("out.txt"), artifact.request.digest)
    write_text(artifact.path("parts/0.txt"), artifact.request.slug * 50)
    write_text(artifact.path("resume.txt"), "not an output")
    artifact.finish("done", ["out.txt", "parts/0.txt"], seconds=0.0)


def requests_of(pipeline: Pipeline) -> list[Request]:
    """Every request of every study and stage."""
    return [
        request
        for study in pipeline.studies
        for stage in pipeline.stages(study)
        for request in pipeline.requests(study, stage)
    ]


def filled(folder: Path, tiny: dict[str, Any] | None = None) -> Pipeline:
    """A project whose every artifact is there, made by :func:`make`, with the cohorts' manifests."""
    make_project(folder, tiny, results=str(folder / "results"))
    pipeline = Pipeline.from_file(folder / "config/config.yaml")
    for study in pipeline.studies:
        for stage in pipeline.stages(study):
            for cohort in pipeline.cohorts(study, stage).values():
                run_cohort(cohort, pipeline.store, make)
    return pipeline


def files(store: RunStore) -> dict[str, bytes]:
    """Every file in the store, by path, without locks."""
    paths = sorted(path for path in store.runs.rglob("*") if path.is_file())
    names = {path.relative_to(store.runs).as_posix(): path for path in paths}
    return {n: p.read_bytes() for n, p in names.items() if not n.startswith(".locks/")}


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    """A filled project that no test changes."""
    return filled(tmp_path_factory.mktemp("filled"))


@pytest.fixture(scope="module")
def archive(pipeline: Pipeline, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its study mqar as an archive that no test changes."""
    path = tmp_path_factory.mktemp("archive") / "mqar.tar"
    export_study(pipeline, "mqar", path)
    return path


# ------------------------------------------------------------------------------- there and back


@pytest.mark.parametrize("study", [name for name in EVERY_STUDY if name not in ("name", "description")])
def test_an_imported_study_is_finished_with_the_same_outputs(study: str, tmp_path: Path) -> None:
    keys = ("name", "description", study)
    source = filled(tmp_path / "cluster", {k: EVERY_STUDY[k] for k in keys})
    export_study(source, study, tmp_path / "a.tar")
    here = RunStore(tmp_path / "laptop")
    done = import_archive(tmp_path / "a.tar", here)
    requests = requests_of(source)
    assert (done.imported, done.present, done.outdated) == (len(requests), 0, 0)
    for request in requests:
        there = source.store.artifact(request)
        assert here.artifact(request).state == "done"
        assert here.artifact(request).output_digest() == there.output_digest()
        assert here.verify(here.artifact(request).folder) == []
    expected = {k: v for k, v in files(source.store).items() if not k.endswith("/resume.txt")}
    assert files(here) == expected


def test_tables_collected_from_imported_runs_equal_the_originals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = {**TINY, "mqar": {**TINY["mqar"], "axes": {"model.featurizer": ["gla"], "task.kv": [2]}}}
    folder = make_project(tmp_path, one)
    monkeypatch.chdir(folder)
    cluster = Pipeline.from_file(folder / "config/config.yaml", {"results": "cluster"})
    laptop = Pipeline.from_file(folder / "config/config.yaml", {"results": "laptop"})
    for stage in cluster.stages("mqar"):
        for cohort in cluster.cohorts("mqar", stage).values():
            make_cohort(cluster, cohort)
    export_study(cluster, "mqar", tmp_path / "a.tar", ["data"])
    import_archive(tmp_path / "a.tar", laptop.store)
    tables = {}
    for pipeline in (cluster, laptop):
        paths = {n: pipeline.results / f"{n}.parquet" for n in pipeline.study("mqar").tables}
        make_tables(pipeline, "mqar", paths)
        tables[pipeline.project.results] = {n: pd.read_parquet(p) for n, p in paths.items()}
    for name, table in tables["cluster"].items():
        assert len(table)
        pd.testing.assert_frame_equal(tables["laptop"][name], table)


def test_every_scale_s_requests_keep_their_digest_in_a_file() -> None:
    for scale in ("demo", "small", "paper"):
        config = read_yaml(ROOT / "config/config.yaml") | {"scale": scale}
        for request in requests_of(Pipeline.from_config(config, ROOT)):
            assert digest_of(json.loads(json.dumps(request.resolved))) == request.digest


def test_the_same_store_gives_the_same_bytes(pipeline: Pipeline, archive: Path, tmp_path: Path) -> None:
    import_archive(archive, RunStore(tmp_path / "results"))
    config = yaml.safe_load((pipeline.base / "config/config.yaml").read_text())
    copied = Pipeline.from_config(config | {"results": str(tmp_path / "results")}, pipeline.base)
    export_study(copied, "mqar", tmp_path / "again.tar")
    assert (tmp_path / "again.tar").read_bytes() == archive.read_bytes()


def test_the_archive_is_a_plain_tar_that_tells_what_it_holds(pipeline: Pipeline, archive: Path) -> None:
    with tarfile.open(archive, "r:") as opened:
        members = opened.getmembers()
        content = opened.extractfile(members[0])
        assert content is not None
        manifest = json.load(content)
    assert members[0].name == MANIFEST
    assert {(m.mtime, m.uid, m.gid, m.uname, m.gname) for m in members} == {(0, 0, 0, "", "")}
    assert (manifest["format"], manifest["scale"], manifest["study"]) == (1, "tiny", "mqar")
    assert (manifest["requested"], manifest["missing"]) == (10, 0)
    listed = [
        f"runs/{a['stage']}/{a['name']}/{f['path']}" for a in manifest["artifacts"] for f in a["files"]
    ]
    assert listed == [member.name for member in members[1:]]
    names = [(a["stage"], a["name"]) for a in manifest["artifacts"]]
    assert names == sorted(names, key=lambda n: (("data", "train", "trace").index(n[0]), n[1]))
    assert not any("resume" in name or "lock" in name for name in listed)


def test_unfinished_artifacts_and_stages_to_leave_out_are_not_in_it(tmp_path: Path) -> None:
    pipeline = filled(tmp_path)
    requests = pipeline.requests("mqar", "train")
    pipeline.store.artifact(requests[0]).path("provenance.json").unlink()
    manifest = export_study(pipeline, "mqar", tmp_path / "a.tar", ["data"])
    assert (manifest.requested, manifest.missing, len(manifest.artifacts)) == (8, 1, 7)
    assert {a.stage for a in manifest.artifacts} == {"train", "trace"}
    here = RunStore(tmp_path / "here")
    import_archive(tmp_path / "a.tar", here)
    assert [here.artifact(r).state for r in requests] == ["missing", "done", "done", "done"]


@pytest.mark.parametrize("damage", ["flip", "cut", "remove", "request"])
def test_a_damaged_file_is_named_and_no_archive_appears(damage: str, tmp_path: Path) -> None:
    pipeline = filled(tmp_path)
    artifact = pipeline.store.artifact(pipeline.requests("mqar", "trace")[-1])
    path = artifact.path("parts/0.txt")
    content = path.read_text()
    if damage == "flip":
        path.write_text("?" + content[1:])
    elif damage == "cut":
        path.write_text(content[1:])
    elif damage == "remove":
        path.unlink()
    else:
        path = artifact.path("request.json")
        write_json(path, read_json(path) | {"version": 99})
    before = sorted(tmp_path.iterdir())
    with pytest.raises(ArtifactError) as caught:
        export_study(pipeline, "mqar", tmp_path / "a.tar")
    assert str(path) in str(caught.value)
    assert f"effstate discard {artifact.request.name}" in str(caught.value)
    assert sorted(tmp_path.iterdir()) == before


# -------------------------------------------------------------------------------- into a store


def test_what_is_there_stays_and_what_is_unfinished_is_replaced(
    pipeline: Pipeline, archive: Path, tmp_path: Path
) -> None:
    here = RunStore(tmp_path)
    done, begun, *_ = pipeline.requests("mqar", "train")
    with here.claim(here.artifact(done)) as artifact:
        make(artifact)
    with here.claim(here.artifact(begun)) as artifact:
        write_text(artifact.path("resume.txt"), "half way")
    kept = here.artifact(done).path("provenance.json").stat().st_mtime_ns
    imported = import_archive(archive, here)
    assert (imported.imported, imported.present) == (9, 1)
    assert here.artifact(done).path("provenance.json").stat().st_mtime_ns == kept
    assert here.artifact(begun).state == "done"
    assert not here.artifact(begun).path("resume.txt").exists()
    again = import_archive(archive, here)
    assert (again.imported, again.present) == (0, 10)


def test_an_artifact_with_other_outputs_is_refused_and_nothing_changes(
    pipeline: Pipeline, archive: Path, tmp_path: Path
) -> None:
    here = RunStore(tmp_path)
    request = pipeline.requests("mqar", "trace")[-1]
    with here.claim(here.artifact(request)) as artifact:
        write_text(artifact.path("out.txt"), "another processor's")
        artifact.finish("done", ["out.txt"], seconds=0.0)
    before = files(here)
    with pytest.raises(ArtifactError, match=f"{request.name}: it is there with other outputs"):
        import_archive(archive, here)
    assert files(here) == before


def test_a_run_that_is_being_made_is_not_replaced(
    pipeline: Pipeline, archive: Path, tmp_path: Path
) -> None:
    here = RunStore(tmp_path)
    request = pipeline.requests("mqar", "train")[-1]
    with here.claim(here.artifact(request)) as artifact:
        write_text(artifact.path("resume.txt"), "half way")
        before = files(here)
        with pytest.raises(ArtifactError, match=f"{request.name}: a job is making it"):
            import_archive(archive, here)
        assert files(here) == before
    assert import_archive(archive, here).imported == 10


def test_artifacts_of_another_stage_version_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = filled(tmp_path)
    export_study(old, "mqar", tmp_path / "a.tar")
    monkeypatch.setitem(transfer.STAGE_VERSIONS, "trace", transfer.STAGE_VERSIONS["trace"] + 1)
    done = import_archive(tmp_path / "a.tar", RunStore(tmp_path / "here"))
    assert (done.imported, done.outdated) == (10, 4)


# ---------------------------------------------------------------------- archives not to trust

Changed = list[tuple[tarfile.TarInfo, bytes]]


def members_of(archive: Path) -> Changed:
    """Headers and contents of an archive."""
    with tarfile.open(archive, "r:") as opened:
        return [(m, opened.extractfile(m).read()) for m in opened]  # type: ignore[union-attr]


def written(path: Path, members: Changed) -> Path:
    """An archive of these headers and contents."""
    with tarfile.open(path, "w:") as opened:
        for member, content in members:
            member.size = len(content) if member.isreg() else 0
            opened.addfile(member, io.BytesIO(content))
    return path


def listing(members: Changed, change: Callable[[dict[str, Any]], None]) -> Changed:
    """The members with a changed manifest."""
    manifest = json.loads(members[0][1])
    change(manifest)
    return [(members[0][0], json.dumps(manifest).encode()), *members[1:]]


def renamed(members: Changed, old: str, new: str) -> Changed:
    """One artifact's file under another path, in the manifest and in the archive."""

    def change(manifest: dict[str, Any]) -> None:
        manifest["artifacts"][0]["files"][0]["path"] = new

    for member, _ in members:
        if member.name.endswith(old):
            member.name = member.name.removesuffix(old) + new
            break
    return listing(members, change)


def artifact_set(**keys: Any) -> Callable[[Changed], Changed]:
    """A change of keys of the first artifact in the manifest."""

    def change(manifest: dict[str, Any]) -> None:
        manifest["artifacts"][0] |= keys

    return lambda members: listing(members, change)


def linked(members: Changed, kind: bytes) -> Changed:
    """The last file as a link to a file outside."""
    members[-1][0].type, members[-1][0].linkname = kind, "/etc/hostname"
    return members


def extra(members: Changed, name: str) -> Changed:
    """One more file, which the manifest does not list."""
    return [*members, (tarfile.TarInfo(name), b"more")]


def other_content(members: Changed, suffix: str, content: bytes) -> Changed:
    """The first file of that name with another content, and a manifest that agrees with it."""
    place = next(i for i, (m, _) in enumerate(members) if m.name.endswith(suffix))
    name = members[place][0].name

    def change(manifest: dict[str, Any]) -> None:
        for artifact in manifest["artifacts"]:
            for file in artifact["files"]:
                if f"runs/{artifact['stage']}/{artifact['name']}/{file['path']}" == name:
                    file["bytes"] = len(content)
                    file["sha256"] = hashlib.sha256(content).hexdigest()

    members[place] = (members[place][0], content)
    return listing(members, change)


UNTRUSTED: dict[str, tuple[Callable[[Changed], Changed], str]] = {
    "no manifest": (lambda m: m[1:], "its first file is not manifest.json"),
    "manifest last": (lambda m: [*m[1:], m[0]], "its first file is not manifest.json"),
    "empty": (lambda m: [], "its first file is not manifest.json"),
    "manifest is a list": (lambda m: [(m[0][0], b"[]")], "expected keys and values"),
    "manifest is cut off": (lambda m: [(m[0][0], m[0][1][:99])], "not complete JSON"),
    "newer format": (lambda m: listing(m, lambda d: d.update(format=2)), "update effstate"),
    "unknown key": (lambda m: listing(m, lambda d: d.update(new=2)), "unknown key 'new'"),
    "unknown stage": (artifact_set(stage="trane"), "no stage 'trane'; the nearest known one"),
    "climbing name": (artifact_set(name="../../x-0", digest="0"), "is no artifact's name"),
    "name in a folder": (artifact_set(name="x/x-0", digest="0"), "is no artifact's name"),
    "hidden name": (artifact_set(name=".x-0", digest="0"), "is no artifact's name"),
    "empty name": (artifact_set(name="", digest=""), "is no artifact's name"),
    "another name": (artifact_set(name="x-0123456789ab"), "is no artifact's name"),
    "artifact twice": (
        lambda m: listing(m, lambda d: d["artifacts"].append(d["artifacts"][0])),
        "an artifact is in it twice",
    ),
    "no request": (artifact_set(files=[]), "has no request.json or no provenance.json"),
    "climbing path": (lambda m: renamed(m, "out.txt", "../../../x"), "is no output's path"),
    "absolute path": (lambda m: renamed(m, "out.txt", "/x"), "is no output's path"),
    "another system's path": (lambda m: renamed(m, "out.txt", "..\\x"), "is no output's path"),
    "file as folder": (lambda m: renamed(m, "out.txt", "parts/0.txt/x"), "is no output's path"),
    "file twice": (lambda m: renamed(m, "out.txt", "parts/0.txt"), "has a file twice"),
    "renamed output": (lambda m: renamed(m, "out.txt", "x.txt"), "is not what manifest.json says"),
    "symbolic link": (lambda m: linked(m, tarfile.SYMTYPE), "is not a plain file"),
    "hard link": (lambda m: linked(m, tarfile.LNKTYPE), "is not a plain file"),
    "device": (lambda m: linked(m, tarfile.CHRTYPE), "is not a plain file"),
    "unlisted file": (lambda m: extra(m, "runs/train/x"), "in it twice, or not listed"),
    "unlisted climb": (lambda m: extra(m, "../../x"), "in it twice, or not listed"),
    "member twice": (lambda m: [*m, m[-1]], "in it twice, or not listed"),
    "file missing": (lambda m: m[:-1], "1 files are missing"),
    "another request": (
        lambda m: other_content(m, "request.json", b'{"stage": "data"}'),
        "is not the one its name tells",
    ),
    "another output": (lambda m: other_content(m, "out.txt", b"x"), "is not what manifest.json says"),
    "provenance is no JSON": (lambda m: other_content(m, "provenance.json", b"x"), "cut off, damaged"),
    "request is NaN": (lambda m: other_content(m, "request.json", b"[NaN]"), "cut off, damaged"),
}


@pytest.mark.parametrize("case", UNTRUSTED)
def test_a_foreign_archive_is_refused_and_leaves_nothing(
    case: str, archive: Path, tmp_path: Path
) -> None:
    change, expected = UNTRUSTED[case]
    bad = written(tmp_path / "bad.tar", change(members_of(archive)))
    here = RunStore(tmp_path / "deep/down/results")
    with pytest.raises(ArtifactError) as caught:
        import_archive(bad, here)
    assert expected in str(caught.value) and str(bad) in str(caught.value)
    assert "\n" not in str(caught.value)
    left = {p.name for p in tmp_path.rglob("*") if p.is_file() and ".locks" not in p.parts}
    assert left == {"bad.tar"} and not (here.runs / transfer.STAGING).exists()


def test_a_sparse_member_is_refused(archive: Path, tmp_path: Path) -> None:
    members = members_of(archive)
    members[-1][0].pax_headers = {
        "GNU.sparse.major": "0",
        "GNU.sparse.size": "9",
        "GNU.sparse.map": "0,1",
    }
    with pytest.raises(ArtifactError, match="is not a plain file"):
        import_archive(written(tmp_path / "bad.tar", members), RunStore(tmp_path / "results"))


def test_no_flipped_or_missing_byte_comes_into_a_store(archive: Path, tmp_path: Path) -> None:
    whole = archive.read_bytes()
    good = RunStore(tmp_path / "good")
    import_archive(archive, good)
    expected, draws = files(good), random.Random(0)
    refused = 0
    for number in range(80):
        content = bytearray(whole)
        place = draws.randrange(len(content))
        if number % 2:
            content[place] ^= 1 << draws.randrange(8)
        else:
            del content[place:]
        (tmp_path / "bad.tar").write_bytes(content)
        here = RunStore(tmp_path / f"results{number}")
        try:
            import_archive(tmp_path / "bad.tar", here)
        except ArtifactError:
            refused += 1
            assert files(here) == {}
        else:  # in the padding between files, or after the last one
            assert files(here) == expected
    assert refused > 40


def test_other_files_are_refused_in_one_sentence(tmp_path: Path) -> None:
    make_project(tmp_path)
    (tmp_path / "noise.tar").write_bytes(random.Random(0).randbytes(5000))
    (tmp_path / "empty.tar").write_bytes(b"")
    with tarfile.open(tmp_path / "gz.tar", "w:gz") as opened:
        opened.add(tmp_path / "Snakefile", "manifest.json")
    for name, expected in {
        "noise.tar": "cut off, damaged or of another kind",
        "empty.tar": "cut off, damaged or of another kind",
        "gz.tar": "cut off, damaged or of another kind",
        "none.tar": "the file does not exist",
    }.items():
        done = effstate("import", name, cwd=tmp_path)
        assert done.returncode == 1
        assert done.stderr.startswith(f"effstate: {name}: ") and expected in done.stderr
        assert done.stderr.count("\n") == 1


# ------------------------------------------------------------------------------------ commands


def test_the_commands_move_a_study(pipeline: Pipeline, tmp_path: Path) -> None:
    done = effstate("export", "mqar", "--to", str(tmp_path / "a.tar"), cwd=pipeline.base)
    assert done.returncode == 0, done.stderr
    assert "a.tar: 10 of 10 artifacts, " in done.stdout and "0 are not finished" in done.stdout
    make_project(tmp_path / "laptop", scale="demo")
    for expected in ("imported 10, already there 0", "imported 0, already there 10"):
        done = effstate("import", "../a.tar", cwd=tmp_path / "laptop")
        assert done.returncode == 0, done.stderr
        assert f"{expected}; run `snakemake figures --config scale=tiny`" in done.stdout


BAD = {
    "unknown study": (["export", "mqr"], "the nearest known one is 'mqar'"),
    "unknown stage": (["export", "mqar", "--without", "dta"], "no stage 'dta'; the nearest known one"),
    "compressed": (["export", "mqar", "--to", "a.tgz"], "name it *.tar"),
    "nothing there": (["export", "mqar"], "none of the 10 artifacts of mqar"),
    "unknown scale": (["gc", "--scales", "tiny,dmo"], "the nearest known one is 'demo'"),
    "no scale": (["gc", "--scales", ","], "name a scale, one of demo, paper, small, tiny"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_sentence(case: str, tmp_path: Path) -> None:
    arguments, expected = BAD[case]
    done = effstate(*arguments, cwd=make_project(tmp_path))
    assert done.returncode == 1
    assert expected in done.stderr
    assert done.stderr.startswith("effstate: ") and done.stderr.count("\n") == 1
    assert not list(tmp_path.glob("*.t*"))


# ------------------------------------------------------------------------------------------ gc


def stray(seed: int = 7) -> tuple[Request, Request, Request]:
    """A chain of requests that no scale names."""
    run = RunConfig(task=MQARConfig(kv=2, seq_len=16, vocab_size=16), seed=seed)
    return data_request(run), train_request(run), trace_request(run, TraceConfig())


def without_paper(folder: Path) -> Path:
    """The project without its largest scale, which takes a second to expand."""
    (folder / "config/scales/paper.yaml").unlink()
    return folder


def unneeded(pipeline: Pipeline) -> dict[str, str]:
    """What the store holds without need, by stage, with why it is kept."""
    config = read_yaml(pipeline.base / "config/config.yaml")
    found = transfer.unneeded(pipeline.store, transfer.needed(config, pipeline.base))
    return {item.folder.parent.name: item.kept for item in found}


def test_gc_removes_what_no_scale_names_and_nothing_else(tmp_path: Path) -> None:
    pipeline = filled(tmp_path)
    before = files(pipeline.store)
    manifests = sorted((pipeline.results / "cohorts").glob("*/*/*.json"))
    requests = stray()
    for request in requests:
        with pipeline.store.claim(pipeline.store.artifact(request)) as artifact:
            make(artifact)
    members = [{"name": requests[0].name, "digest": requests[0].digest}]
    write_json(pipeline.results / "cohorts/data/mqar/old.json", {"members": members})
    mine = [pipeline.store.runs / "train" / name for name in ("notes", "notes-0123456789ab")]
    for folder in mine:
        folder.mkdir()
    listed = effstate("gc", cwd=tmp_path)
    assert listed.returncode == 0, listed.stderr
    size = sum(p.stat().st_size for r in requests for p in _tree(pipeline.store.artifact(r).folder))
    assert f"3 artifacts in {pipeline.store.runs} that no scale names" in listed.stdout
    assert transfer.size_text(size) in listed.stdout
    assert all(request.name in listed.stdout for request in requests)
    assert all(pipeline.store.artifact(request).finished for request in requests)
    removed = effstate("gc", "--remove", cwd=tmp_path)
    assert "removed 3" in removed.stdout, removed.stderr
    assert files(pipeline.store) == before
    assert sorted((pipeline.results / "cohorts").glob("*/*/*.json")) == manifests
    assert all(folder.is_dir() for folder in mine)


def _tree(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def test_gc_keeps_what_is_being_made_and_what_it_is_made_from(tmp_path: Path) -> None:
    pipeline = filled(tmp_path)
    without_paper(tmp_path)
    requests = stray()
    for request in requests[:2]:
        with pipeline.store.claim(pipeline.store.artifact(request)) as artifact:
            make(artifact)
    with pipeline.store.claim(pipeline.store.artifact(stray(8)[0])) as artifact:
        make(artifact)
    with pipeline.store.claim(pipeline.store.artifact(requests[2])):
        done = effstate("gc", "--remove", cwd=tmp_path)
        assert "removed 1" in done.stdout, done.stderr
        assert all(pipeline.store.artifact(request).folder.exists() for request in requests)
        kept = unneeded(pipeline)
    assert kept["trace"] == "it is being made"
    assert kept["train"] == kept["data"] == "what is made from it is being made"
    assert not any(unneeded(pipeline).values())


def test_gc_lists_outdated_versions_of_a_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = filled(tmp_path)
    without_paper(tmp_path)
    monkeypatch.setitem(transfer.STAGE_VERSIONS, "trace", 99)
    named = transfer.needed(read_yaml(tmp_path / "config/config.yaml"), tmp_path)
    found = transfer.unneeded(pipeline.store, named)
    assert [item.folder.parent.name for item in found] == ["trace"] * 4
    assert {item.note for item in found} == {"version 2 of its stage, which is 99 now"}


def test_gc_keeps_a_scale_as_written_and_under_the_project_s_overrides(tmp_path: Path) -> None:
    more = {"mqar": {"axes": {"task.kv": [2, 3]}}}
    make_project(tmp_path, results=str(tmp_path / "results"), overrides=more)
    without_paper(tmp_path)
    pipeline = Pipeline.from_file(tmp_path / "config/config.yaml")
    plain = Pipeline.from_config(
        read_yaml(tmp_path / "config/config.yaml") | {"overrides": {}}, tmp_path
    )
    requests = {r.digest: r for p in (pipeline, plain) for r in p.requests("mqar", "data")}
    for request in [*requests.values(), stray()[0]]:
        with pipeline.store.claim(pipeline.store.artifact(request)) as artifact:
            make(artifact)
    assert len(requests) == 3
    config = read_yaml(tmp_path / "config/config.yaml")
    found = transfer.unneeded(pipeline.store, transfer.needed(config, tmp_path))
    assert [item.folder.name for item in found] == [stray()[0].name]
    named = transfer.needed(config, tmp_path, ["demo"])
    assert len(transfer.unneeded(pipeline.store, named)) == 4


@pytest.mark.parametrize("where", ["file", "overrides"])
def test_gc_removes_nothing_while_a_scale_cannot_be_resolved(where: str, tmp_path: Path) -> None:
    pipeline = filled(tmp_path)
    without_paper(tmp_path)
    with pipeline.store.claim(pipeline.store.artifact(stray()[0])) as artifact:
        make(artifact)
    if where == "file":
        (tmp_path / "config/scales/broken.yaml").write_text("name: broken\ndescription: x\nmqr: {}\n")
    else:
        config = read_yaml(tmp_path / "config/config.yaml") | {"overrides": {"mqar": {"axs": {}}}}
        (tmp_path / "config/config.yaml").write_text(yaml.safe_dump(config))
    before = files(pipeline.store)
    done = effstate("gc", "--remove", cwd=tmp_path)
    assert done.returncode == 1 and "unknown key" in done.stderr, done.stdout
    assert files(pipeline.store) == before
    with pytest.raises(ConfigError, match="unknown key"):
        unneeded(pipeline)
