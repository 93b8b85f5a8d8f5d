"""The notebooks: what each reads, how one is executed, and its page.

A notebook explains and explores what the pipeline has made; it reads tables, the numbers behind figures
and the judged claims through :class:`Results`. Importing this module imports nothing heavy.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from effstate.artifacts import ArtifactError, atomic_path, write_text
from effstate.figures.registry import FIGURES
from effstate.registry import UnknownNameError, nearest

if TYPE_CHECKING:
    import pandas as pd

logger = logging.getLogger("effstate")

CLAIM_COLUMNS = ("claim", "sentence", "figures", "outcome", "statistic [95% interval], claimed", "note")
"""Columns of :meth:`Results.claims`."""


@dataclass(frozen=True)
class Notebook:
    """A notebook of the folder ``notebooks``.

    Attributes:
        name: of its file, without the ending.
        title: what the page is called.
        tables: tables that it reads (``mqar_runs``, ...).
        figures: figures whose numbers it reads (``fig5``, ...).
        claims: whether it shows the judged claims.
    """

    name: str
    title: str
    tables: tuple[str, ...] = ()
    figures: tuple[str, ...] = ()
    claims: bool = False

    @property
    def studies(self) -> tuple[str, ...]:
        """The studies whose tables it reads, each once."""
        return tuple(dict.fromkeys(study_of(table) for table in self.tables))

    @property
    def reads(self) -> frozenset[str]:
        """Everything that :attr:`Results.read` lists once it has run."""
        return frozenset({*self.tables, *self.figures, *(["claims"] if self.claims else [])})


def study_of(table: str) -> str:
    """``mqar`` of ``mqar_runs``."""
    return table.partition("_")[0]


def _named(*notebooks: Notebook) -> dict[str, Notebook]:
    return {notebook.name: notebook for notebook in notebooks}


NOTEBOOKS = _named(
    Notebook("01_metric", "The metric on toy operators"),
    Notebook(
        "02_validation",
        "ESS against accuracy",
        ("mqar_runs", "mqar_checkpoints", "copying_runs", "compression_runs"),
        ("fig5", "figB5"),
        claims=True,
    ),
    Notebook(
        "03_initialisation", "Initialisation", ("init_runs", "init_checkpoints"), ("fig8",), claims=True
    ),
    Notebook("04_regularisation", "Regularisation", ("regularisation_runs",), ("figB2",), claims=True),
    Notebook(
        "05_distillation",
        "Distillation",
        ("distillation_students", "distillation_curves"),
        ("fig6",),
        claims=True,
    ),
    Notebook("06_hybrids", "Hybrids", ("hybrids_runs", "hybrids_layers"), ("fig34",), claims=True),
    Notebook(
        "07_language_models",
        "Language models",
        ("lm_runs", "lm_losses", "lm_curves", "lm_dips", "lm_smoothed"),
        claims=True,
    ),
    Notebook(
        "08_open_weights",
        "Open weights",
        tuple(f"openweights_{name}" for name in ("runs", "curves", "dips", "causal", "code", "shots")),
        claims=True,
    ),
    Notebook("09_your_own_model", "Your own model"),
)
"""Name to notebook, in the order of the paper's sections."""


def notebooks_of(studies: Iterable[str]) -> list[str]:
    """Names of the notebooks for which a scale that runs ``studies`` makes everything."""
    known = set(studies)
    return [name for name, notebook in NOTEBOOKS.items() if known.issuperset(notebook.studies)]


# ------------------------------------------------------------------------------- what a notebook reads


class MissingResultError(ArtifactError):
    """One sentence: a file that the pipeline has not made yet, and the target that makes it."""

    def _render_traceback_(self) -> list[str]:
        # Jupyter calls this: the sentence says everything, a traceback would hide it.
        return [str(self)]


class Results:
    """What the pipeline has made at one scale, for reading only.

    Attributes:
        read: names of what has been read: tables, figures, ``claims``.
    """

    def __init__(self, scale: str, folder: str | Path) -> None:
        self.scale, self.folder = scale, Path(folder)
        self.read: set[str] = set()

    def table(self, name: str) -> pd.DataFrame:
        """A tidy table, such as ``mqar_runs``.

        Raises MissingResultError that names the target which makes it.
        """
        self.read.add(name)
        return self._parquet(self.folder / "tables" / self.scale / f"{name}.parquet", target_of(name))

    def numbers(self, figure: str) -> pd.DataFrame:
        """The numbers behind a figure, such as ``fig5``.

        Raises MissingResultError that names the figure's target, UnknownNameError for no figure.
        """
        import pandas as pd

        if figure not in FIGURES:
            raise UnknownNameError(f"unknown figure '{figure}'{nearest(figure, FIGURES)}")
        self.read.add(figure)
        return pd.read_csv(
            self._existing(self.folder / "figures" / self.scale / f"{figure}.csv", figure),
            low_memory=False,
        )

    def claims(self, *studies: str) -> pd.DataFrame:
        """The judged claims of the studies, as text: columns :data:`CLAIM_COLUMNS`.

        Raises MissingResultError that names the target ``claims``.
        """
        from effstate.analysis.claims.report import found_text

        self.read.add("claims")
        judged = self._parquet(self.folder / "claims" / self.scale / "claims.parquet", "claims")
        mine = judged[judged["study"].isin(studies)]
        found = [found_text(row) for row in mine.to_dict("records")]
        return mine.assign(**{CLAIM_COLUMNS[4]: found})[[*CLAIM_COLUMNS]].reset_index(drop=True)

    def _parquet(self, path: Path, target: str) -> pd.DataFrame:
        import pandas as pd

        return pd.read_parquet(self._existing(path, target))

    def _existing(self, path: Path, target: str) -> Path:
        if not path.exists():
            raise MissingResultError(
                f"{path} does not exist; in the project's folder run "
                f"`snakemake {target} --cores 2 --config scale={self.scale}`"
            )
        return path


def target_of(table: str) -> str:
    """The first figure that is drawn from ``table``, or from another table of its study.

    Raises UnknownNameError for a table of no study.
    """
    for wanted in (lambda spec: table in spec.tables, lambda spec: study_of(table) in spec.studies):
        for figure, spec in FIGURES.items():
            if wanted(spec):
                return figure
    known = {name for spec in FIGURES.values() for name in spec.tables}
    raise UnknownNameError(f"unknown table '{table}'{nearest(table, known)}")


# ------------------------------------------------------------------------------------ executing one


INLINE = "module://matplotlib_inline.backend_inline"


@contextmanager
def _pictures_in_the_notebook() -> Iterator[None]:
    """A kernel inherits MPLBACKEND, and with Agg, as the Makefile has it, it would show no picture."""
    before = os.environ.get("MPLBACKEND")
    os.environ["MPLBACKEND"] = INLINE
    try:
        yield
    finally:
        del os.environ["MPLBACKEND"]
        if before is not None:
            os.environ["MPLBACKEND"] = before


def execute(notebook: Path, executed: Path, parameters: Mapping[str, Any]) -> None:
    """Run a notebook in a kernel of this Python, and write it with its outputs to ``executed``.

    ``parameters`` replace those of the cell tagged ``parameters``. The file is written whole or not
    at all. Raises ArtifactError with the failing cell's number and its error.
    """
    import papermill

    with atomic_path(executed) as temporary, _pictures_in_the_notebook():
        try:
            papermill.execute_notebook(
                str(notebook),
                str(temporary),
                dict(parameters),
                kernel_name="python3",
                progress_bar=False,
            )
        except papermill.PapermillExecutionError as error:
            logger.error("%s", error)
            raise ArtifactError(
                f"{notebook}: cell {error.exec_count} failed: {error.ename}: {error.evalue}"
            ) from None


def write_page(executed: Path, title: str, output: Path) -> None:
    """Render an executed notebook to one HTML file that loads nothing: pictures are inside."""
    from markupsafe import Markup
    from nbconvert import HTMLExporter
    from pygments.formatters import HtmlFormatter

    from effstate.pages import environment

    exporter = HTMLExporter(template_name="basic", embed_images=True)
    body, _ = exporter.from_filename(str(executed))
    html = environment().get_template("notebook.html.j2")
    colours = HtmlFormatter(style="default").get_style_defs(".highlight")
    write_text(output, html.render(title=title, body=Markup(body), colours=Markup(colours)))


def make_notebook(notebook: Path, scale: str, results: Path, executed: Path, page: Path) -> None:
    """Execute a notebook of :data:`NOTEBOOKS` on the results of a scale, and write its page.

    Raises ArtifactError if a cell fails.
    """
    execute(notebook, executed, {"scale": scale, "results": str(results)})
    write_page(executed, NOTEBOOKS[notebook.stem].title, page)
