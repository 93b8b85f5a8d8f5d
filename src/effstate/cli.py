"""The ``effstate`` command: what a configuration asks for, what is there, and what a task looks like."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from effstate.cli_measure import measure
from effstate.config import ConfigError, TaskConfig, default_yaml, parse
from effstate.jobs import job
from effstate.pipeline import Pipeline
from effstate.registry import TASK_CONFIGS, UnknownNameError

app = typer.Typer(
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help=__doc__
)
app.command()(measure)

ConfigOption = Annotated[Path, typer.Option("--config", help="the project's configuration")]
ScaleOption = Annotated[str | None, typer.Option(help="a scale instead of the configured one")]
ResultsOption = Annotated[str | None, typer.Option(help="a results folder instead of that one")]
DEFAULT_CONFIG = Path("config/config.yaml")


def _pipeline(config: Path, scale: str | None, results: str | None) -> Pipeline:
    given: dict[str, Any] = {"scale": scale, "results": results}
    return Pipeline.from_file(config, {key: v for key, v in given.items() if v is not None})


@app.command()
def config() -> None:
    """Print the default configuration, with every key explained."""
    print(default_yaml(), end="")


@app.command()
def plan(
    config: ConfigOption = DEFAULT_CONFIG, scale: ScaleOption = None, results: ResultsOption = None
) -> None:
    """Print runs, jobs, dropped combinations, steps and estimated time of a scale."""
    from effstate.planning import plan_text

    print(plan_text(_pipeline(config, scale, results)))


@app.command()
def status(
    config: ConfigOption = DEFAULT_CONFIG, scale: ScaleOption = None, results: ResultsOption = None
) -> None:
    """List done, running, interrupted, diverged, failed and missing runs of a scale."""
    from effstate.planning import status_text

    print(status_text(_pipeline(config, scale, results)))


@app.command()
def report(
    config: ConfigOption = DEFAULT_CONFIG, scale: ScaleOption = None, results: ResultsOption = None
) -> None:
    """Write one HTML file with every figure, claim and setting of a finished scale."""
    from effstate.jobs import make_report

    pipeline = _pipeline(config, scale, results)
    print(f"The report, all in one file: {make_report(pipeline)}")


@app.command()
def data(
    task: Annotated[str, typer.Argument(help="mqar, selective_copying, compression, or your own")],
    setting: Annotated[
        list[str] | None, typer.Option("--set", help="a key of the task, e.g. --set kv=4")
    ] = None,
    rows: Annotated[int, typer.Option(help="rows to print", min=1)] = 3,
    seed: Annotated[int, typer.Option(help="seed of the draws", min=0)] = 0,
) -> None:
    """Print a few annotated training rows of a task."""
    from effstate.registry import TASKS
    from effstate.tasks import check, generate_splits

    values: dict[str, Any] = {"name": task, "num_train": rows, "num_validation": 1, "num_test": 1}
    for text in setting or []:
        key, equals, value = text.partition("=")
        if not equals:
            raise ConfigError(f"--set {text}: write KEY=VALUE, e.g. --set kv=4")
        values[key] = yaml.safe_load(value)
    described: TaskConfig = parse(TASK_CONFIGS[task], values, "--set")
    try:
        check(described)
        split = generate_splits(described, seed)["train"]
    except ValueError as error:
        raise ConfigError(str(error)) from None
    kind = TASKS[task]()
    print(f"{described.slug}, seed {seed}; chance {kind.chance(described):.3f}")
    for inputs, labels in zip(split.inputs, split.labels, strict=True):
        print(f"\n{kind.annotate(described, inputs, labels)}")


@app.command("train-lm")
def train_language_model(
    name: Annotated[str, typer.Argument(help="a run's name, slug-digest, as `status` prints it")],
    config: ConfigOption = DEFAULT_CONFIG,
    scale: ScaleOption = None,
    results: ResultsOption = None,
) -> None:
    """Train one language model, for which torchrun may start several processes.

    On a machine with eight GPUs: torchrun --standalone --nproc-per-node 8 -m effstate train-lm NAME
    """
    from effstate.jobs import train_lm

    train_lm(_pipeline(config, scale, results), name)


@app.command()
def verify(
    config: ConfigOption = DEFAULT_CONFIG, scale: ScaleOption = None, results: ResultsOption = None
) -> None:
    """Check every output of every finished artifact against its recorded digest."""
    from effstate.artifacts import PROVENANCE, ArtifactError

    store = _pipeline(config, scale, results).store
    finished = [folder for folder in store.folders() if (folder / PROVENANCE).exists()]
    problems = [problem for folder in finished for problem in store.verify(folder)]
    for problem in problems:
        print(problem)
    if problems:
        raise ArtifactError(f"{len(problems)} of the store's files are damaged; see `discard`")
    print(f"{len(finished)} artifacts in {store.runs}: every byte is as it was written")


@app.command()
def discard(
    name: Annotated[str, typer.Argument(help="an artifact's name, slug-digest")],
    config: ConfigOption = DEFAULT_CONFIG,
    results: ResultsOption = None,
) -> None:
    """Remove an artifact, whatever was made from it, and the manifests that name them."""
    for path in _pipeline(config, None, results).store.discard(name):
        print(f"removed {path}")


@app.command()
def export(
    study: Annotated[str, typer.Argument(help="a study of the scale, e.g. mqar")],
    to: Annotated[
        Path | None, typer.Option(help="the archive, *.tar; by default effstate-SCALE-STUDY.tar")
    ] = None,
    without: Annotated[
        list[str] | None, typer.Option(help="a stage to leave out, e.g. data; may be repeated")
    ] = None,
    config: ConfigOption = DEFAULT_CONFIG,
    scale: ScaleOption = None,
    results: ResultsOption = None,
) -> None:
    """Write a study's finished artifacts, checked, to one plain tar archive with a manifest.

    Safetensors and Parquet are compact already, so the archive is not compressed.
    """
    from effstate.transfer import export_study, size_text

    pipeline = _pipeline(config, scale, results)
    path = to or Path(f"effstate-{pipeline.scale.name}-{study}.tar")
    manifest = export_study(pipeline, study, path, without or ())
    print(
        f"{path}: {len(manifest.artifacts)} of {manifest.requested} artifacts, "
        f"{size_text(path.stat().st_size)}; {manifest.missing} are not finished and left out"
    )


@app.command("import")
def import_archive(
    file: Annotated[Path, typer.Argument(help="an archive of `effstate export`")],
    config: ConfigOption = DEFAULT_CONFIG,
    results: ResultsOption = None,
) -> None:
    """Bring the artifacts of an archive into the store, after checking every byte.

    What an unfinished run left in an artifact's place is replaced; finished artifacts stay.
    """
    from effstate.transfer import import_archive

    pipeline = _pipeline(config, None, results)
    done = import_archive(file, pipeline.store)
    manifest = done.manifest
    other = f" --config scale={manifest.scale}" if manifest.scale != pipeline.scale.name else ""
    print(
        f"imported {done.imported}, already there {done.present}; "
        f"run `snakemake figures{other}`: it draws from them"
    )
    print("what is not there is made first; with partial=true figures leave gaps for it instead")
    if manifest.missing:
        print(f"{manifest.missing} of the {manifest.requested} artifacts were not finished on export")
    if done.outdated:
        print(f"{done.outdated} are of another version of their stage: this effstate makes them anew")


@app.command()
def gc(
    scales: Annotated[
        str | None, typer.Option(help="scales to keep, e.g. demo,small; all of config/scales by default")
    ] = None,
    remove: Annotated[bool, typer.Option("--remove", help="remove what is listed")] = False,
    config: ConfigOption = DEFAULT_CONFIG,
    results: ResultsOption = None,
) -> None:
    """List runs in the store that no scale asks for any more, with their size; remove them.

    Overrides count as config/config.yaml has them; runs under others are listed.
    """
    from effstate import transfer
    from effstate.config import read_yaml

    store = _pipeline(config, None, results).store
    names = None if scales is None else [name.strip() for name in scales.split(",") if name.strip()]
    named = transfer.needed(read_yaml(config), config.resolve().parent.parent, names)
    found = transfer.unneeded(store, named)
    for item in found:
        notes = "; ".join(filter(None, (item.note, item.kept and f"kept: {item.kept}")))
        print(f"{transfer.size_text(item.bytes):>10}  {item.folder}{notes and f' ({notes})'}")
    total = transfer.size_text(sum(item.bytes for item in found))
    print(f"{len(found)} artifacts in {store.runs} that no scale names, {total}")
    if remove:
        print(f"removed {len(transfer.remove(store, found))}")
    elif found:
        print("`effstate gc --remove` removes them")


def main() -> None:
    """Entry point: known errors are one sentence and exit code 1."""
    with job():
        try:
            app()
        except UnknownNameError as error:
            raise ConfigError(str(error)) from None
