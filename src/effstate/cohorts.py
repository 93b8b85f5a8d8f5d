"""A Snakemake job is a cohort: runs of one shape, done one after the other in one process.

A cohort's declared output is a small manifest. The runs themselves belong to the run store, so a
failed member loses nothing of the others, and a cohort run again does only what is missing.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from effstate.artifacts import Artifact, Request, RunStore, digest_of, write_json

logger = logging.getLogger(__name__)


class CohortError(RuntimeError):
    """Some members of a cohort failed; names them and their reasons."""


class Interrupted(RuntimeError):
    """The process was asked to stop; what is needed to go on has been written."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(f"stopped by signal {signal_number}; the same command goes on from here")
        self.signal_number = signal_number


@dataclass(frozen=True)
class Cohort:
    """Requests of one stage that one job makes."""

    stage: str
    study: str
    label: str
    requests: tuple[Request, ...]

    @cached_property
    def name(self) -> str:
        """Readable label and a digest of the members."""
        return f"{self.label}-{digest_of([request.digest for request in self.requests])}"

    def manifest(self, results: Path) -> Path:
        """The declared output of the cohort's job."""
        return results / "cohorts" / self.stage / self.study / f"{self.name}.json"


def _split(requests: Sequence[Request], size: int, bit: int = 0) -> list[list[Request]]:
    """Halve by one more bit of the digest until no bucket holds more than ``size``.

    Adding a run changes only the bucket it falls into, so other cohorts keep their manifests.
    """
    if len(requests) <= size or bit >= 48:
        return [list(requests)] if requests else []
    halves: tuple[list[Request], list[Request]] = ([], [])
    for request in requests:
        halves[int(request.digest, 16) >> (47 - bit) & 1].append(request)
    return [bucket for half in halves for bucket in _split(half, size, bit + 1)]


def group(
    study: str,
    requests: Iterable[Request],
    size: int | Callable[[Sequence[Request]], int],
    shape: Callable[[Request], str],
) -> list[Cohort]:
    """Cohorts of at most ``size`` requests of one stage and ``shape``, ordered by name.

    ``size`` may depend on the requests of a shape.
    """
    shapes: dict[str, dict[str, Request]] = {}
    for request in requests:
        shapes.setdefault(shape(request), {})[request.digest] = request
    cohorts = []
    for label, members in sorted(shapes.items()):
        ordered = [members[digest] for digest in sorted(members)]
        most = size if isinstance(size, int) else size(ordered)
        for bucket in _split(ordered, most):
            cohorts.append(Cohort(bucket[0].stage, study, label, tuple(bucket)))
    return cohorts


def run_cohort(
    cohort: Cohort,
    store: RunStore,
    work: Callable[[Artifact], None],
    *,
    partial: bool = False,
    on_done: Callable[[Artifact], None] = lambda artifact: None,
) -> dict[str, Any]:
    """Make every missing member with ``work`` and write the manifest.

    ``work`` gets the claimed artifact and has to finish it. An exception fails that member only; when
    all members were tried, CohortError names the failed ones (with ``partial`` the manifest is written
    with their state instead). Interrupted passes through at once. Returns the manifest.
    """
    failures: dict[str, str] = {}
    for request in cohort.requests:
        artifact = store.artifact(request)
        if not artifact.finished:
            with store.claim(artifact):
                # Another process may have finished it while this one waited for the lock.
                if not artifact.finished:
                    started = time.monotonic()
                    try:
                        work(artifact)
                    except Interrupted:
                        raise
                    except Exception as error:
                        logger.exception("%s %s failed", request.stage, request.name)
                        reason = f"{type(error).__name__}: {error}".splitlines()[0]
                        artifact.fail(reason)
                        failures[request.name] = reason
                    else:
                        seconds = time.monotonic() - started
                        logger.info("%s %s: %.1f s", request.stage, request.name, seconds)
        on_done(artifact)
    if failures and not partial:
        shown = "; ".join(f"{name} ({reason})" for name, reason in failures.items())
        raise CohortError(f"{len(failures)} of {len(cohort.requests)} failed: {shown}")
    manifest = {
        "stage": cohort.stage,
        "study": cohort.study,
        "members": [
            {
                "name": request.name,
                "digest": request.digest,
                "state": store.artifact(request).state,
                "outputs": store.artifact(request).output_digest(),
            }
            for request in cohort.requests
        ],
    }
    write_json(cohort.manifest(store.results), manifest)
    return manifest
