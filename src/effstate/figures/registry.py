"""Every figure: what it shows, what it reads, which module draws it.

Rules, named targets, captions, the gallery and the tests are driven by :data:`FIGURES`. This module
imports neither matplotlib nor pandas nor torch, so that a workflow can read it at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from effstate.registry import UnknownNameError, nearest

PACKAGE = Path(__file__).parents[1]

SECTIONS = {
    "1": "What is measured",
    "3": "What is measured",
    "4.1": "ESS and accuracy across models",
    "4.2": "ESS and accuracy during training",
    "5.1": "Initialisation",
    "5.2": "Distillation",
    "5.3": "State modulation in language models",
    "A": "Regularisation",
    "E.1": "The whole task-model space",
    "E.2": "Initialisation",
    "E.3": "State collapse",
    "E.4": "Distillation and hybrids",
    "E.5": "State modulation in language models",
    "E.6": "Code and prompts",
    "beyond the paper": "Beyond the paper",
}
"""A section of the paper to the heading under which its figures stand."""

TABLE_MAKERS = {
    f"analysis/{name}.py"
    for name in ("collect", "language", "openweights", "proxies", "students", "trace")
}
"""What makes the tables; those have rules and stage versions of their own."""


@dataclass(frozen=True)
class RowSpec:
    """One row of panels in a figure that shows a sweep.

    ``scatter``: accuracy against the quantity, an axes per featurizer. ``heatmap``: the quantity's
    mean over two axes, an axes per featurizer. ``lines``: its mean over each of the axes, a panel
    per axis with all featurizers. ``difficulty`` among ``axes`` stands for the study's own.
    """

    kind: Literal["scatter", "heatmap", "lines"]
    panels: str
    quantity: str
    axes: tuple[str, ...] = ()


@dataclass(frozen=True)
class FigureSpec:
    """A figure as the paper numbers it, or one of ours (B1 ...).

    ``tables`` are read if they exist; a panel whose table is absent is drawn empty and says so.
    ``uses`` are folders or files of the package, besides ``figures`` itself, whose change redraws
    the figure.
    """

    id: str
    number: str
    title: str
    section: str
    module: str
    caption: str
    studies: tuple[str, ...] = ()
    tables: tuple[str, ...] = ()
    ess_kinds: tuple[str, ...] = ()
    uses: tuple[str, ...] = ("analysis",)
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def beyond(self) -> bool:
        """Whether the figure is one of ours (B1 ...)."""
        return self.number.startswith("B")


FIGURES: dict[str, FigureSpec] = {}
"""Figure id (``fig1`` ... ``figB5``) to its specification, in the order of the paper."""


def _add(number: str, title: str, section: str, module: str, caption: str, **rest: Any) -> None:
    spec = FigureSpec(f"fig{number}", number, title, section, module, caption, **rest)
    FIGURES[spec.id] = spec


def _rows(quantity: str) -> tuple[RowSpec, ...]:
    """Panels (a) to (i) of a marginal figure (section E.1)."""
    grids = (
        ("a", ("tss", "difficulty")),
        ("b", ("total_tss", "difficulty")),
        ("c", ("tss", "seq_len")),
        ("d", ("total_tss", "seq_len")),
        ("e", ("seq_len", "difficulty")),
    )
    heatmaps = tuple(RowSpec("heatmap", panel, quantity, axes) for panel, axes in grids)
    lines = RowSpec("lines", "fghi", quantity, ("tss", "total_tss", "difficulty", "seq_len"))
    return (*heatmaps, lines)


def _scatters(*quantities: str) -> tuple[RowSpec, ...]:
    return tuple(RowSpec("scatter", "abcdefgh"[i], q) for i, q in enumerate(quantities))


_MQAR: dict[str, Any] = {"studies": ("mqar",), "tables": ("mqar_runs",)}
_MQAR_CURVES: dict[str, Any] = {"studies": ("mqar",), "tables": ("mqar_runs", "mqar_checkpoints")}
_ENTROPY = ("entropy",)
_TOLERANCE = ("tol_1e-3",)
_STUDIES = ("analysis", "figures/studies.py")
_LENGTH = (*_STUDIES, "figures/regularisation.py")

_add(
    "1",
    "What the effective state-size measures",
    "1",
    "toy",
    "An operator T of a small gated recurrence (a), the block H_i that carries the past to "
    "the present and future cut out of it, the singular values of every H_i (b), and how many"
    " of them count (c): the effective state-size stays below the theoretical state-size and "
    "below what the geometry of the block allows.",
    uses=("ess", "operators"),
    ess_kinds=("entropy", "tol_1e-3"),
    options={"draw": "definition"},
)
_add(
    "2",
    "The effective state-size moves with time and input",
    "3",
    "toy",
    "One gated recurrence on two inputs. Its gate closes where the input holds a reset; there"
    " the past is forgotten and the effective state-size falls, while the theoretical state-"
    "size never moves.",
    uses=("ess", "operators"),
    ess_kinds=("entropy", "tol_1e-3"),
    options={"draw": "resets"},
)
_add(
    "3",
    "Accuracy against ESS per key-value pair",
    "4.1",
    "sweep",
    "Every final model of the MQAR sweep, a panel per featurizer. Softmax attention is shown "
    "by its totals, and its models above an accuracy of 0.95 are left out, as in the paper.",
    ess_kinds=_ENTROPY,
    options={"rows": (RowSpec("scatter", "", "ess_per_difficulty"),), "cross_task": True},
    **_MQAR,
)
_add(
    "4",
    "Where ESS and accuracy move together during training",
    "4.2",
    "sweep",
    "Correlation of ESS and accuracy over the checkpoints of a run, averaged over the runs of"
    " each cell. Rows are the state size (for softmax attention the total state size), "
    "columns the number of key-value pairs.",
    ess_kinds=_ENTROPY,
    options={
        "rows": (RowSpec("heatmap", "", "correlation", ("tss", "difficulty")),),
        "sa_total": True,
    },
    **_MQAR_CURVES,
)
_add(
    "5",
    "ESS predicts accuracy: compared with TSS",
    "4.1",
    "correlation_bars",
    "Correlation of accuracy with ESS per key-value pair and with TSS per key-value pair, "
    "both in log2, over the final models of each featurizer, with 95% bootstrap intervals "
    "over runs.",
    ess_kinds=_ENTROPY,
    options={"draw": "ess_against_tss"},
    **_MQAR,
)
_add(
    "7",
    "State saturation and state collapse",
    "4.2",
    "utilisation",
    "Accuracy and state utilisation at the smallest and the largest state size. A small state"
    " fills up while accuracy fails (saturation); a large one can stay unused (collapse). The"
    " grey line is the most that the geometry of H_i allows; dotted lines are the untrained "
    "models.",
    ess_kinds=_TOLERANCE,
    **_MQAR_CURVES,
)
_add(
    "10",
    "Decay over long sequences, and a regulariser against it",
    "A",
    "length",
    "(a) ESS per key-value pair and the norm of the product of the state-transition matrices "
    "A_i over the sequence, against its length. (b) Accuracy against the strength λ of a penalty "
    "that pulls A towards the identity, on the second, the first or both layers: look whether "
    "GLA and WLA rise towards LA, whose A is the identity.",
    ess_kinds=_TOLERANCE,
    studies=("mqar", "regularisation"),
    tables=("mqar_runs", "mqar_layers", "regularisation_runs"),
    uses=_LENGTH,
    options={"draw": "norms"},
)
_ELEVEN = _scatters(
    "tss_per_difficulty",
    "total_tss_per_difficulty",
    "ess_per_difficulty",
    "total_ess_per_difficulty",
    "ess_per_tss",
    "total_ess_per_total_tss",
    "ess",
    "tss",
)
_add(
    "11",
    "Accuracy against eight measures of the state (entropy-ESS)",
    "E.1",
    "sweep",
    "Final models of the MQAR sweep, accuracy against theoretical and effective state sizes, "
    "with and without normalisation by the task's difficulty.",
    ess_kinds=_ENTROPY,
    options={"rows": _ELEVEN},
    **_MQAR,
)

_MARGINALS = (
    ("accuracy", "accuracy", "12", None),
    ("ESS per key-value pair", "ess_per_difficulty", "13", "19"),
    ("total ESS per key-value pair", "total_ess_per_difficulty", "14", "20"),
    ("state utilisation ESS / TSS", "ess_per_tss", "15", "21"),
    ("total state utilisation", "total_ess_per_total_tss", "16", "22"),
    ("the correlation of ESS and accuracy within a run", "correlation", "17", "23"),
)


def _add_marginals(kinds: tuple[str, ...], place: int, suffix: str) -> None:
    for name, quantity, *numbers in _MARGINALS:
        if numbers[place] is not None:
            _add(
                numbers[place],
                f"Marginals of {name}{suffix}",
                "E.1",
                "sweep",
                f"Mean of {name} over all MQAR models in each bucket of two axes of the sweep "
                "(a-e), and of one axis (f-i).",
                ess_kinds=kinds if quantity != "accuracy" else (),
                options={"rows": _rows(quantity)},
                **(_MQAR_CURVES if quantity == "correlation" else _MQAR),
            )


_add_marginals(_ENTROPY, 0, "")
_add(
    "18",
    "Accuracy against measures of the state (tolerance-ESS)",
    "E.1",
    "sweep",
    "As figure 11, with the effective state-size counted at a tolerance of 1e-3.",
    ess_kinds=_TOLERANCE,
    options={
        "rows": _scatters(
            "ess_per_difficulty",
            "total_ess_per_difficulty",
            "ess_per_tss",
            "total_ess_per_total_tss",
            "ess",
        )
    },
    **_MQAR,
)
_add_marginals(_TOLERANCE, 1, " (tolerance-ESS)")

for _number, _study, _name, _unit in (
    ("24", "copying", "Selective copying", "token to copy"),
    ("25", "compression", "Compression", "vocabulary entry"),
):
    _add(
        _number,
        f"{_name}: state sizes per {_unit}, and correlation during training",
        "E.1",
        "sweep",
        f"{_name}: accuracy of the final models against effective and theoretical state sizes "
        f"per {_unit} (a-d), and the correlation of ESS and accuracy within a run (e, f).",
        studies=(_study,),
        tables=(f"{_study}_runs", f"{_study}_checkpoints"),
        ess_kinds=_ENTROPY,
        options={
            "rows": (
                *_scatters(
                    "ess_per_difficulty",
                    "total_ess_per_difficulty",
                    "tss_per_difficulty",
                    "total_tss_per_difficulty",
                ),
                RowSpec("heatmap", "e", "correlation", ("tss", "difficulty")),
                RowSpec("heatmap", "f", "correlation", ("total_tss", "difficulty")),
            )
        },
    )

# Where the cells of figures 26 and 29 stand in the axes of table 1 (0 smallest, 1 largest).
for _number, _title, _cell, _paper in (
    (
        "26",
        "ESS and accuracy over training",
        {"tss": 1 / 2, "width": 2 / 3, "seq_len": 1.0, "kv": 3 / 4},
        "width 256, heads 8, length 2048, kv 64",
    ),
    (
        "29",
        "ESS and accuracy over training in a cell that collapses",
        {"tss": 1.0, "width": 1.0, "seq_len": 1.0, "kv": 1.0},
        "width 512, heads 4, length 2048, kv 128",
    ),
):
    _add(
        _number,
        _title,
        "E.1" if _number == "26" else "E.3",
        "curves",
        "Entropy-ESS, tolerance-ESS and accuracy over training in one cell of the MQAR sweep."
        " ESS is scaled to its own smallest and largest value in each run; lines are means "
        "over seeds, bands their extremes.",
        studies=("mqar",),
        tables=("mqar_checkpoints",),
        ess_kinds=("entropy", "tol_1e-3"),
        options={"place": _cell, "paper_cell": _paper},
    )
_add(
    "30",
    "ESS per layer against sequence length",
    "E.3",
    "length",
    "ESS per key-value pair of each mixer of GLA and WLA against the sequence length: mean "
    "over the final models of the MQAR sweep.",
    studies=("mqar",),
    tables=("mqar_runs", "mqar_layers"),
    ess_kinds=_TOLERANCE,
    uses=_LENGTH,
    options={"draw": "layers"},
)
_add(
    "B1",
    "Correlations with and without saturated models",
    "beyond the paper",
    "correlation_bars",
    "As figure 5, with all models and without saturated ones (ESS above 0.9 of its geometric "
    "ceiling while accuracy is below 0.95), and the difference of the two correlations with "
    "its own interval.",
    ess_kinds=_ENTROPY,
    options={"draw": "saturation"},
    **_MQAR,
)
_add(
    "B4",
    "Ours against the printed heat maps",
    "beyond the paper",
    "printed",
    "Our means minus the values printed in the paper's heat maps, where a cell stands on both"
    " axes; and for every printed map the rank correlation of the value with each axis, ours "
    "against the paper's.",
    studies=("mqar", "copying", "compression"),
    tables=tuple(
        f"{study}_{kind}"
        for study in ("mqar", "copying", "compression")
        for kind in ("runs", "checkpoints")
    ),
    ess_kinds=("entropy", "tol_1e-3"),
    uses=("analysis", "figures/sweep.py", "figures/data/printed_heatmaps.csv"),
)
_add(
    "B5",
    "ESS beside rival proxies",
    "beyond the paper",
    "correlation_bars",
    "Correlation of accuracy with ESS, TSS, the effective window and the rank of the operator"
    " without its causal mask, each per key-value pair, with 95% bootstrap intervals over "
    "runs.",
    ess_kinds=_ENTROPY,
    options={"draw": "proxies"},
    **_MQAR,
)


_INIT: dict[str, Any] = {
    "section": "E.2",
    "module": "initialisation",
    "studies": ("init",),
    "uses": _STUDIES,
    "ess_kinds": _ENTROPY,
}
_add(
    "8",
    "The state that untrained layers have, and what they learn",
    caption="(a) ESS of untrained layers on Gaussian noise: look how little it follows the "
    "theoretical state-size where the decays start unfavourably. (b) GLA: that ESS and the accuracy "
    "after training. (c) GLA-S6 at its largest state: raising α slows its decay, and its ESS before "
    "training and its accuracy are seen to move or not to move with it.",
    tables=("init_runs",),
    options={"draw": "noise"},
    **_INIT | {"section": "5.1"},
)
_add(
    "27",
    "Training curves of S6 and GLA-S6 at every state size",
    caption="Validation accuracy and loss over training, a line per theoretical state-size: look "
    "whether any size leaves the dotted chance level.",
    tables=("init_runs", "init_checkpoints"),
    options={"draw": "curves"},
    **_INIT | {"ess_kinds": ()},
)
_add(
    "28",
    "GLA in a harder regime: ESS and accuracy against TSS",
    caption="ESS of untrained layers on noise (a) and of the trained models (b), each beside the "
    "accuracy after training: look whether a larger state, which starts with a larger ESS, also "
    "ends with a higher accuracy.",
    tables=("init_runs",),
    options={"draw": "harder"},
    **_INIT,
)

_DISTILLATION: dict[str, Any] = {
    "module": "distillation",
    "studies": ("distillation",),
    "uses": _STUDIES,
    "ess_kinds": _ENTROPY,
}
_add(
    "6",
    "A teacher's ESS and what its students lose",
    "5.2",
    caption="Final activation loss of a student layer against the ESS of the teacher layer that it "
    "replaces, a panel per student state size: look whether the loss rises with the teacher's ESS, "
    "and whether it falls from the smallest to the largest student.",
    tables=("distillation_students",),
    options={"draw": "loss"},
    **_DISTILLATION,
)
_add(
    "31",
    "ESS along the sequence, teacher and students",
    "E.4",
    caption="Mean ESS at each index of a teacher layer and of its students of every size, a panel "
    "per layer, with the accuracy of the network that holds the student: look where a student's "
    "curve leaves the teacher's, and whether accuracy goes with it.",
    tables=("distillation_curves",),
    options={"draw": "curves"},
    **_DISTILLATION,
)
_add(
    "32",
    "Students' ESS against their teachers'",
    "E.4",
    caption="Mean ESS of a student layer against that of the teacher layer it was matched to, a panel "
    "per student state size: points below the grey line lost state, and students too small for their "
    "teacher lie ever farther below it.",
    tables=("distillation_students",),
    options={"draw": "pairs"},
    **_DISTILLATION,
)

_HYBRIDS: dict[str, Any] = {
    "section": "E.4",
    "module": "hybrids",
    "studies": ("hybrids",),
    "tables": ("hybrids_runs", "hybrids_layers"),
    "ess_kinds": ("tol_1e-1",),
}
_add(
    "33",
    "ESS of every layer of the hybrids",
    caption="Layers of every order of four mixers (a) and of the Jamba policy with eight (b); in a "
    "name G is gated linear attention, S softmax attention: look how the ESS of a kind of layer "
    "changes with its place and with what stands before it.",
    options={"draw": "layers"},
    uses=_STUDIES,
    **_HYBRIDS,
)
_add(
    "34",
    "Accuracy of the hybrids and the ESS of their layers",
    caption="Accuracy of every hybrid (bars) with the largest and the average ESS of its softmax "
    "attention layers (a) and of its gated layers (b): look which of the two kinds of layer goes "
    "with accuracy, and compare the correlations above the panels.",
    options={"draw": "accuracy"},
    uses=(*_STUDIES, "figures/data/printed_hybrids.csv"),
    **_HYBRIDS,
)
_add(
    "B2",
    "Regularisation until it hurts",
    "beyond the paper",
    "regularisation",
    "As figure 10b, with λ raised until accuracy falls again, and below it the ESS per key-value "
    "pair at the same λ: look whether the λ that is best for accuracy is the one that keeps the "
    "most state.",
    studies=("regularisation",),
    tables=("regularisation_runs",),
    ess_kinds=_TOLERANCE,
    uses=_STUDIES,
)

_TOLERANCES = {
    "separators": (1e-1, 1e-3, 1e-5),
    "causal": (1e-1, 1e-3, 1e-5),
    "code": (1e-1, 1e-2),
    "shots": (1e-3,),
}
"""Tolerances of the figures of open-weight models, by what they draw."""


_SECTIONS = {"9": "5.3", "B3": "beyond the paper"}


def _add_open(number: str, title: str, draw: str, caption: str, *tables: str, **options: Any) -> None:
    tolerances = _TOLERANCES[draw]
    studies = ("openweights", *options.pop("studies", ()))
    others = options.pop("more_tables", ())
    _add(
        number,
        title,
        _SECTIONS.get(number, "E.5" if draw == "separators" else "E.6"),
        "openweights",
        caption,
        studies=studies,
        tables=(*(f"openweights_{table}" for table in ("runs", "curves", *tables)), *others),
        ess_kinds=tuple(f"tol_{tolerance:.0e}".replace("e-0", "e-") for tolerance in tolerances),
        uses=("figures/language.py",),
        options={"draw": draw, "tolerances": tolerances, **options},
    )


_add_open(
    "9",
    "State along sentences, and recall",
    "separators",
    "Total ESS of a language model along unrelated sentences that end with EOS or with a full stop "
    "(a), and log perplexity over the distance of recalled bigrams (b): look whether the state "
    "falls around a separator, and whether EOS does more than a full stop.",
    "dips",
    studies=("lm",),
    more_tables=("lm_smoothed", "lm_runs"),
)
_PAPERS = (
    "Mamba 2.8B",
    "Pythia 2.8B",
    "Phi-2",
    "Phi-3 mini",
    "Mistral 7B v0.1",
    "Mistral 7B v0.2",
    "Llama-3 8B",
)
for _number, _model in enumerate(_PAPERS, start=35):
    _add_open(
        str(_number),
        f"State along sentences (the paper's model: {_model})",
        "separators",
        "As figure 9a for another model, which the footer names: look whether its state falls "
        "around a separator, and whether EOS does more than a full stop.",
        "dips",
    )
for _number, _program, _words in (
    (43, "root", "an inverse square root"),
    (44, "fibonacci", "Fibonacci"),
):
    _add_open(
        str(_number),
        f"State along a C++ program: {_words}",
        "code",
        "Total ESS along a short program, closing braces marked: look whether the state falls where "
        "a block ends.",
        "code",
        program=_program,
    )
for _number, _sort in ((45, "attention"), (46, "a state-space model")):
    _add_open(
        str(_number),
        f"State after examples of the task: {_sort}",
        "shots",
        "Total ESS along a multiple-choice question after 0, 1, 3 and 5 answered examples, aligned at "
        "the question's start: look how much the first example changes, and the later ones.",
        "shots",
        "accuracies",
    )
_add_open(
    "B3",
    "Causal ESS beside ESS at separators",
    "causal",
    "How far ESS, and the causal ESS that a causal realisation can tell, fall at EOS and at a full "
    "stop, for every model: look whether a dip of ESS needs what comes after the separator.",
    "dips",
    "causal",
)


_LM_TOLERANCES = (1e-3, 1e-2, 1e-1, 1.0)

_add(
    "42",
    "State along sentences: LA, WLA, GLA and SA trained alike",
    "E.5",
    "language",
    "Total ESS of language models that differ in their featurizer only, along three long sentences, a "
    "row for each tolerance: look whose state falls at a separator, and whose at EOS only.",
    studies=("lm",),
    tables=("lm_curves", "lm_dips", "lm_runs"),
    ess_kinds=("tol_1e-3", "tol_1e-2", "tol_1e-1", "tol_1e0"),
    uses=(),
    options={"draw": "modulation", "tolerances": _LM_TOLERANCES},
)
_add(
    "B6",
    "Language models while they learn",
    "beyond the paper",
    "language",
    "Validation loss of each language model over the tokens that it was trained on, and the loss of "
    "a guess from the tokens' shares: look whether the models are far below it, and how close together.",
    studies=("lm",),
    tables=("lm_losses", "lm_runs"),
    uses=(),
    options={"draw": "learning"},
)


def _place(spec: FigureSpec) -> tuple[bool, int]:
    return spec.beyond, int(spec.number.removeprefix("B"))


FIGURES = {spec.id: spec for spec in sorted(FIGURES.values(), key=_place)}


def get(figure_id: str) -> FigureSpec:
    """The specification of ``fig5``, ``figB1`` ...

    Raises UnknownNameError with the nearest known id.
    """
    if figure_id not in FIGURES:
        raise UnknownNameError(f"unknown figure '{figure_id}'{nearest(figure_id, FIGURES)}")
    return FIGURES[figure_id]


def sources(spec: FigureSpec) -> list[str]:
    """Source files that decide how a figure looks, relative to the package, sorted.

    A workflow lists them as inputs, so that editing a figure redraws it (and nothing else). The
    code that makes the tables is not among them: tables have rules of their own.
    """
    found = {f"figures/{name}.py" for name in (spec.module, "panels", "style", "render")}
    found |= {"analysis/names.py", "analysis/tables.py"}
    for used in spec.uses:
        path = PACKAGE / used
        files = path.glob("*.py") if path.is_dir() else [path]
        found.update(f.relative_to(PACKAGE).as_posix() for f in files)
    return sorted(found - TABLE_MAKERS)
