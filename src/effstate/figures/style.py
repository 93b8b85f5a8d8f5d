"""One style for all figures: sizes, colours that colour-blind readers can tell apart, markers."""

from __future__ import annotations

from collections.abc import Sequence

from effstate.analysis.names import FEATURIZERS

WIDTH = 6.75
"""Width of a page in inches: the text width of the paper's format."""

RC = {
    "font.family": "DejaVu Sans",
    "font.size": 7.5,
    "axes.titlesize": 8,
    "axes.labelsize": 7.5,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlepad": 4,
    "axes.labelpad": 2,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "xtick.major.pad": 2,
    "ytick.major.pad": 2,
    "lines.linewidth": 1.3,
    "lines.markersize": 4,
    "figure.facecolor": "white",
    "savefig.dpi": 160,
    "pdf.fonttype": 42,
    "mathtext.fontset": "dejavusans",
}

# Okabe and Ito's palette; the first four are the built-in featurizers.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#AA4499", "#56B4E9", "#E69F00", "#000000")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")

GREY = "#666666"
LIGHT = "#d9d9d9"
SEQUENTIAL = "viridis"
DIVERGING = "RdBu_r"
SERIES = ("#0072B2", "#E69F00", "#56B4E9", "#009E73", "#AA4499", "#D55E00")
"""Colours of series that are not featurizers."""


def look(featurizer: str, all_featurizers: Sequence[str] = FEATURIZERS) -> tuple[str, str]:
    """Colour and marker of a featurizer; one of a user's own gets the next free pair."""
    known = [*FEATURIZERS, *(f for f in sorted(all_featurizers) if f not in FEATURIZERS)]
    place = known.index(featurizer) % len(_COLOURS) if featurizer in known else len(_COLOURS) - 1
    return _COLOURS[place], _MARKERS[place]


def name(featurizer: str) -> str:
    """A featurizer as figures write it: LA, WLA, GLA, SA."""
    return featurizer.upper().replace("_", "-")
