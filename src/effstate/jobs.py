"""What the workflow's scripts call: one function per rule, with log, progress and exit codes."""

from __future__ import annotations

import contextlib
import logging
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from tqdm import tqdm

from effstate.artifacts import (
    Artifact,
    ArtifactError,
    Request,
    RunStore,
    State,
    read_json,
    write_json,
    write_table,
    write_text,
)
from effstate.cohorts import Cohort, CohortError, Interrupted, run_cohort
from effstate.config import ConfigError
from effstate.pipeline import Pipeline
from effstate.registry import nearest
from effstate.studies import LanguageStudy, OpenWeightsStudy

logger = logging.getLogger("effstate")
# Without a log file the sentence on stderr is enough.
logger.addHandler(logging.NullHandler())

KNOWN_ERRORS = (ConfigError, ArtifactError, CohortError)
LOG_EVERY_SECONDS = 15.0

REPORTED = ("figures", "claims", "gallery", "report_pages")
"""Targets that the report holds."""


@contextlib.contextmanager
def job(log: Path | None = None) -> Iterator[None]:
    """Run a job with its log; known errors become one sentence and exit code 1.

    An interrupted job exits with 128 + the signal's number, which Snakemake and SLURM see as a
    failure that may be tried again.
    """
    handlers: list[logging.Handler] = []
    if log is not None:
        log.parent.mkdir(parents=True, exist_ok=True)
        handlers.append(logging.FileHandler(log, mode="a", encoding="utf-8"))
        handlers[0].setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        logger.addHandler(handlers[0])
    logger.setLevel(logging.INFO)
    try:
        yield
    except Interrupted as stop:
        logger.warning("%s", stop)
        print(f"effstate: {stop}", file=sys.stderr)
        sys.exit(128 + stop.signal_number)
    except KNOWN_ERRORS as error:
        logger.error("%s", error)
        print(f"effstate: {error}", file=sys.stderr)
        sys.exit(1)
    finally:
        for handler in handlers:
            logger.removeHandler(handler)
            handler.close()


class Reporter:
    """Progress of a cohort: a bar on a terminal, a line now and then in the log.

    Jobs that run side by side take different lines of the terminal: each holds the first free of a
    few numbered locks.
    """

    def __init__(self, store: RunStore, label: str, total: int) -> None:
        self.label, self.total, self.finished = label, total, 0
        self._slot: FileLock | None = None
        position = 0
        visible = sys.stderr.isatty()
        while visible and self._slot is None and position < 64:
            lock = FileLock(store.runs / ".locks" / f"terminal-line-{position}")
            lock_path = Path(lock.lock_file)
            lock_path.parent.mkdir(parents=True, exist_ok=True)
            try:
                lock.acquire(timeout=0)
                self._slot = lock
            except Timeout:
                position += 1
        self._bar = tqdm(
            total=1.0,
            desc=label,
            position=position,
            leave=False,
            disable=not visible,
            bar_format="{desc} |{bar}| {elapsed}<{remaining}",
        )
        self._logged = time.monotonic()
        self._show(0.0, "")

    def _show(self, within: float, detail: str) -> None:
        share = (self.finished + within) / max(self.total, 1)
        text = f"{self.finished}/{self.total} runs{detail}"
        if not self._bar.disable:
            self._bar.n = min(share, 1.0)
            self._bar.set_description_str(f"{self.label}: {text}", refresh=False)
            self._bar.update(0)
        if time.monotonic() - self._logged > LOG_EVERY_SECONDS:
            self._logged = time.monotonic()
            logger.info("%s: %s (%.0f%%)", self.label, text, 100 * share)

    def step(self, step: int, steps: int) -> None:
        """Within a run: ``step`` of ``steps`` done."""
        self._show(step / steps, f", step {step}/{steps}")

    def run_done(self, artifact: Artifact | None = None) -> None:
        """One more run done (or found done)."""
        self.finished += 1
        self._show(0.0, "")

    def close(self) -> None:
        """Remove the bar and free its line."""
        self._bar.close()
        if self._slot is not None:
            self._slot.release()


def pipeline_of(snakemake: Any) -> Pipeline:
    """The pipeline of the job that a workflow script runs in, from its ``snakemake`` object."""
    return Pipeline.from_config(snakemake.config, Path(snakemake.scriptdir).resolve().parents[1])


def execution_of(pipeline: Pipeline) -> Any:
    """Device, threads and compilation from the project configuration."""
    from effstate.training.trainer import Execution

    project = pipeline.project
    return Execution(
        device=project.device,
        threads=project.threads,
        compile=project.compile,
        kernels=project.kernels,
    )


@dataclass(frozen=True)
class Work:
    """What the making of an artifact gets besides the artifact itself."""

    store: RunStore
    execution: Any
    on_step: Callable[[int, int], None]
    flag: Any


def _make_data(work: Work, artifact: Artifact) -> None:
    from effstate.training.data import make_data

    make_data(artifact, workers=work.execution.threads)


def _train(work: Work, artifact: Artifact) -> None:
    from effstate.training.trainer import train

    (data,) = map(work.store.artifact, artifact.request.inputs)
    train(artifact, data, work.execution, on_step=work.on_step, flag=work.flag)


def _trained_and_data(work: Work, artifact: Artifact) -> tuple[Artifact, Artifact]:
    """The trained run that an artifact is made from, and the data set of that run."""
    (trained,) = artifact.request.inputs
    return work.store.artifact(trained), work.store.artifact(trained.inputs[0])


def _distil(work: Work, artifact: Artifact) -> None:
    from effstate.training.distillation import distil

    inputs = _trained_and_data(work, artifact)
    distil(artifact, *inputs, work.execution, on_step=work.on_step, flag=work.flag)


def _trace(work: Work, artifact: Artifact) -> None:
    from effstate.analysis.trace import make_trace

    make_trace(artifact, *_trained_and_data(work, artifact), work.execution, on_step=work.on_step)


def _measure_weights(work: Work, artifact: Artifact) -> None:
    from effstate.openweights.trace import make_weights

    make_weights(artifact, work.execution.device, on_step=work.on_step)


def _train_lm(work: Work, artifact: Artifact) -> None:
    from effstate.lm.trainer import train_language_model

    corpus = _corpus(work, artifact.request.inputs[0])
    train_language_model(artifact, corpus, work.execution, on_step=work.on_step, flag=work.flag)


def _corpus(work: Work, request: Request) -> Any:
    from effstate.lm.corpus import TokenCorpus

    return TokenCorpus(work.store.artifact(request).folder)


def _make_corpus(work: Work, artifact: Artifact) -> None:
    from effstate.lm.config import CorpusConfig
    from effstate.lm.corpus import SPLITS, build_corpus

    started, config = time.monotonic(), artifact.request.config
    assert isinstance(config, CorpusConfig)
    corpus = build_corpus(artifact.folder, config, workers=work.execution.threads)
    facts = {f"{split}_tokens": corpus.count(split) for split in SPLITS} | corpus.labels
    artifact.finish("done", corpus.outputs, seconds=time.monotonic() - started, facts=facts)


def _count_corpus(work: Work, artifact: Artifact) -> None:
    from effstate.lm.evaluation import make_counts

    make_counts(artifact, _corpus(work, artifact.request.inputs[0]))


def _evaluate_lm(work: Work, artifact: Artifact) -> None:
    from effstate.lm.evaluation import make_evaluation

    trained, counts = map(work.store.artifact, artifact.request.inputs)
    corpus = _corpus(work, trained.request.inputs[0])
    make_evaluation(
        artifact, trained, counts, corpus, work.execution, on_step=work.on_step, flag=work.flag
    )


def _trace_lm(work: Work, artifact: Artifact) -> None:
    from effstate.lm.trace import make_lm_trace

    (trained,) = map(work.store.artifact, artifact.request.inputs)
    make_lm_trace(artifact, trained, work.execution, on_step=work.on_step, flag=work.flag)


WORK: dict[str, Callable[[Work, Artifact], None]] = {
    "data": _make_data,
    "train": _train,
    "trace": _trace,
    "distill": _distil,
    "weights": _measure_weights,
    "corpus": _make_corpus,
    "lmcounts": _count_corpus,
    "lmtrain": _train_lm,
    "lmeval": _evaluate_lm,
    "lmtrace": _trace_lm,
}
"""Stage to what makes one of its artifacts (claimed before, sealed by the function)."""


def make_cohort(pipeline: Pipeline, cohort: Cohort) -> dict[str, Any]:
    """Make what is missing of a cohort (of any stage) and write its manifest.

    Raises CohortError if members failed, Interrupted if the process was asked to stop.
    """
    from effstate.training.interruption import stop_flag

    store, execution = pipeline.store, execution_of(pipeline)
    reporter = Reporter(store, f"{cohort.stage} {cohort.label}", len(cohort.requests))
    with contextlib.closing(reporter), stop_flag() as flag:
        work = Work(store, execution, reporter.step, flag)

        def make(artifact: Artifact) -> None:
            WORK[cohort.stage](work, artifact)
            flag.check()

        return run_cohort(
            cohort, store, make, partial=pipeline.project.partial, on_done=reporter.run_done
        )


def train_together(store: RunStore, request: Request, execution: Any) -> None:
    """Train one language model in this process, or in all those that torchrun started together.

    The first process holds the lock. Raises ArtifactError if another job has it.
    """
    from effstate.lm.parallel import is_first
    from effstate.training.interruption import stop_flag

    artifact = store.artifact(request)
    if artifact.finished:
        return
    with contextlib.ExitStack() as stack:
        flag, on_step = stack.enter_context(stop_flag()), lambda step, steps: None
        if is_first():
            if store.is_locked(artifact):
                raise ArtifactError(f"{artifact.folder}: another job is making it at this moment")
            stack.enter_context(store.claim(artifact))
            reporter = stack.enter_context(contextlib.closing(Reporter(store, request.slug, 1)))
            on_step = reporter.step
        WORK["lmtrain"](Work(store, execution, on_step, flag), artifact)


def train_lm(pipeline: Pipeline, name: str) -> None:
    """Train the language model ``name`` of the scale; raises ConfigError if there is none."""
    requests = {
        request.name: request
        for study in pipeline.studies.values()
        if "lmtrain" in study.stages
        for request in study.requests("lmtrain")
    }
    if name not in requests:
        scale = pipeline.scale.name
        raise ConfigError(f"the scale '{scale}' has no language model '{name}'{nearest(name, requests)}")
    train_together(pipeline.store, requests[name], execution_of(pipeline))


def make_tables(pipeline: Pipeline, study: str, outputs: Mapping[str, Path]) -> None:
    """Collect a study's tables and write each to its path."""
    from effstate.analysis.collect import collect

    sweep = pipeline.sweep(study)
    reporter = Reporter(pipeline.store, f"collect {study}", len(sweep.runs))
    with contextlib.closing(reporter):
        tables = collect(pipeline.store, sweep, on_run=reporter.run_done)
    for name, path in outputs.items():
        write_table(path, tables[name])


def make_student_tables(pipeline: Pipeline, outputs: Mapping[str, Path]) -> None:
    """Collect the distillation study's students and write each table to its path."""
    from effstate.analysis.students import collect_students

    sweep, config = pipeline.sweep("distillation"), pipeline.scale.distillation
    assert config is not None
    reporter = Reporter(
        pipeline.store, "collect students", len(pipeline.requests("distillation", "distill"))
    )
    with contextlib.closing(reporter):
        tables = collect_students(pipeline.store, config, sweep.runs, reporter.run_done)
    for name, path in outputs.items():
        write_table(path, tables[name])


def find_open_models(pipeline: Pipeline, output: Path) -> None:
    """Write where the study's open-weight models lie; ConfigError for those that cannot be had."""
    from effstate.openweights.models import find_models

    config = pipeline.scale.openweights
    assert config is not None
    write_json(output, find_models(config.models))


def make_weights_tables(pipeline: Pipeline, outputs: Mapping[str, Path]) -> None:
    """Collect the traces of open-weight models and write each table to its path."""
    from effstate.analysis.openweights import collect_weights

    study = pipeline.study("openweights")
    assert isinstance(study, OpenWeightsStudy)
    tables = collect_weights(pipeline.store, study.config, study.by_suite)
    for name, path in outputs.items():
        write_table(path, tables[name])


def make_language_tables(pipeline: Pipeline, outputs: Mapping[str, Path]) -> None:
    """Collect the language models and write each table to its path."""
    from effstate.analysis.language import collect_language

    study = pipeline.study("lm")
    assert isinstance(study, LanguageStudy)
    reporter = Reporter(pipeline.store, "collect lm", len(study.models))
    with contextlib.closing(reporter):
        tables = collect_language(pipeline.store, study.config, study.models, reporter.run_done)
    for name, path in outputs.items():
        write_table(path, tables[name])


def finished_digests(pipeline: Pipeline, study: str, stage: str) -> list[str]:
    """Digests of the study's artifacts of a stage that exist: what a partial table is made from."""
    store = pipeline.store
    return [r.digest for r in pipeline.requests(study, stage) if store.artifact(r).finished]


def _reason(artifact: Artifact, state: State) -> str:
    """Why a run failed, or when it diverged; empty for other states."""
    if state == "failed":
        return str(read_json(artifact.path("failure.json"))["message"])
    if state == "diverged":
        from effstate.training.trainer import RESULT

        when = read_json(artifact.checked(RESULT)).get("diverged", {})
        return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in when.items())
    return ""


def states(pipeline: Pipeline) -> list[dict[str, Any]]:
    """One row a run of every study: name, state and, for failed and diverged ones, the reason."""
    rows = []
    for name, study in pipeline.studies.items():
        for request in [r for stage in study.run_stages for r in pipeline.requests(name, stage)]:
            artifact = pipeline.store.artifact(request)
            state = artifact.state
            reason = _reason(artifact, state)
            rows.append({"study": name, "run": request.name, "state": state, "reason": reason})
    return rows


def load_tables(paths: Iterable[Path]) -> dict[str, Any]:
    """Tables by name (``mqar_runs``); raises ArtifactError for a file that cannot be read."""
    import pandas as pd
    import pyarrow

    tables = {}
    for path in paths:
        try:
            tables[path.stem] = pd.read_parquet(path)
        except (OSError, pyarrow.ArrowException):
            study = path.stem.rpartition("_")[0]
            raise ArtifactError(
                f"{path}: not a complete Parquet file; delete it and run "
                f"`snakemake {path}` (study {study}) to make it anew"
            ) from None
    return tables


def figure_context(pipeline: Pipeline, paths: Iterable[Path]) -> Any:
    """What every figure gets: scale, tables, and whether they may be partial."""
    from effstate.figures.render import FigureContext

    return FigureContext(
        scale=pipeline.scale.name,
        description=pipeline.scale.description,
        tables=load_tables(paths),
        partial=pipeline.project.partial,
        options={
            "planned_runs": {study: len(sweep.runs) for study, sweep in pipeline.sweeps.items()},
            "total_over": {name: study.total_over for name, study in pipeline.studies.items()},
            "cells": pipeline.scale.cells,
        },
    )


def draw_figure(pipeline: Pipeline, figure: str, tables: Iterable[Path], prefix: Path) -> None:
    """Draw a registered figure as PNG, PDF and CSV."""
    from effstate.figures.render import render

    render(figure, figure_context(pipeline, tables), prefix)


def judge_claims(pipeline: Pipeline, tables: Iterable[Path], outputs: Mapping[str, Path]) -> None:
    """Judge the paper's claims: tables ``claims`` and ``parts``, and the Markdown page ``report``."""
    from effstate.analysis.claims import claims_markdown, judge

    found = judge(load_tables(tables), pipeline.scale)
    write_table(outputs["claims"], found.claims)
    write_table(outputs["parts"], found.parts)
    write_text(outputs["report"], claims_markdown(*found))


def make_gallery(pipeline: Pipeline, claims: Path, output: Path) -> None:
    """Write the page with every figure and the judged claims."""
    from effstate.gallery import gallery_page

    (table,) = load_tables([claims]).values()
    scale = pipeline.scale
    folder = f"../figures/{scale.name}"
    write_text(output, gallery_page(scale.name, scale.description, folder, table))


def make_hyperparameters(pipeline: Pipeline, outputs: Iterable[Path]) -> None:
    """Write the paper's hyperparameter tables as resolved: ``T<N>.csv`` and ``T<N>.md``."""
    from effstate.hyperparameters import printed_tables, resolve, table_csv, table_markdown

    tables = printed_tables()
    for path in outputs:
        table = tables[path.stem]
        rows = resolve(pipeline, table)
        if path.suffix == ".csv":
            write_text(path, table_csv(rows))
        else:
            write_text(path, table_markdown(path.stem, table.title, pipeline.scale.name, rows))


def make_pages(pipeline: Pipeline, claims: Iterable[Path], outputs: Mapping[str, Path]) -> None:
    """Write the report's pages: claims and their parts, settings, open choices, runs."""
    from effstate.report import PAGES

    tables = load_tables(claims)
    for name, path in outputs.items():
        write_text(path, PAGES[name](pipeline, tables))


def make_report(pipeline: Pipeline) -> Path:
    """Have Snakemake write its report of the finished targets of the project in the working folder.

    Returns the path. Raises ArtifactError with Snakemake's last line if it cannot.
    """
    path = pipeline.results / "report" / f"{pipeline.scale.name}.html"
    command = [sys.executable, "-m", "snakemake", *REPORTED, "--cores", "1", "--report", str(path)]
    keys = [f"scale={pipeline.scale.name}", f"results={pipeline.results}"]
    command += ["--config", *keys]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        last = done.stderr.strip().rpartition("\n")[2]
        raise ArtifactError(
            f"{path}: not written; run `snakemake {' '.join(REPORTED)}` first (Snakemake says: {last})"
        )
    return path


def closing_words(pipeline: Pipeline) -> str:
    """Where the figures lie, and the judged claims, as far as they exist."""
    scale = pipeline.scale.name
    folder = pipeline.results / "figures" / scale
    drawn = sorted(folder.glob("fig*.png"))
    if not drawn:
        return ""
    words = [f"{len(drawn)} figures in {folder}/ (PNG, PDF, and the numbers behind each as CSV)"]
    gallery = pipeline.results / "gallery" / f"{scale}.html"
    claims = pipeline.results / "claims" / scale / "claims.parquet"
    if claims.exists():
        from effstate.analysis.claims import claims_text

        (table,) = load_tables([claims]).values()
        words = ["", claims_text(table), "", *words]
    if gallery.exists():
        words.append(f"All of them on one page: {gallery}")
    return "\n".join(words)
