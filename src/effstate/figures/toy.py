"""Figures 1 and 2: what ESS is, on real small operators with a fixed seed (sections 1 and 3)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import torch
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.patches import Rectangle
from torch import Tensor

from effstate.ess import entropy_ess, singular_values, tolerance_ess
from effstate.figures import panels, style
from effstate.figures.panels import Page, Row
from effstate.figures.registry import FigureSpec
from effstate.operators import DecayFeatures

if TYPE_CHECKING:
    from effstate.figures.render import FigureContext

LENGTH, TOLERANCE = 48, 1e-3
BIAS = (-16.0, -16.0, 1.0, 2.0, 3.0, 4.0)
STATES = len(BIAS)
WHITE = {"boxstyle": "round,pad=0.15", "fc": "white", "ec": "none", "alpha": 0.85}
RESETS = ((16, 34), (10, 22, 40))
CUT = 20
ENTROPY, COUNTED, CEILING = style.SERIES[0], style.SERIES[5], style.GREY


def gated_operator(resets: tuple[int, ...], seed: int = 0) -> Tensor:
    """Operator (L, L) of a gated recurrence whose gates read its input, float64.

    The input is noise with one extra channel that is 1 at ``resets``; the projections depend on the
    seed alone, so two calls with one seed are the same weights on two inputs. Two of the states
    forget at once, the others keep what they hold; a reset closes every gate.
    """
    weights = torch.Generator().manual_seed(seed)
    w_b, w_c = (torch.randn(8, STATES, generator=weights, dtype=torch.float64) for _ in range(2))
    bias = torch.tensor(BIAS, dtype=torch.float64)
    noise = torch.Generator().manual_seed(1000 + len(resets))
    u = torch.randn(LENGTH, 8, generator=noise, dtype=torch.float64)
    reset = torch.zeros(LENGTH, 1, dtype=torch.float64)
    reset[list(resets)] = 1.0
    gate = torch.nn.functional.logsigmoid(bias + 0.5 * u[:, :1] - 20.0 * reset)
    features = DecayFeatures(
        (u @ w_c)[None, None] / 8**0.5,
        (u @ w_b)[None, None] / 8**0.5,
        gate[None, None],
        STATES**-0.5,
    )
    return features.operator()[0, 0]


def draw(spec: FigureSpec, context: FigureContext) -> Page:
    """Draw figure 1 (``definition``) or figure 2 (``resets``)."""
    return _definition(spec) if spec.options["draw"] == "definition" else _resets(spec)


def _image(page: Page, ax: Axes, panel: str, operator: Tensor) -> None:
    """|T| in logarithmic grey, zero left white."""
    size = operator.abs().numpy()
    shown = np.ma.masked_less_equal(size, 0)
    norm = LogNorm(1e-4, size.max(), clip=True)
    ax.imshow(shown, cmap="Greys", norm=norm, aspect="auto", interpolation="nearest")
    ax.set(xlabel="input j", ylabel="output i")
    i, j = np.nonzero(size)
    page.record(panel, pd.DataFrame({"x": j, "y": i, "value": size[i, j], "series": "|T|"}))


def _ess_lines(page: Page, ax: Axes, panel: str, operator: Tensor, y_label: str) -> None:
    """ESS along the index below TSS and the geometric ceiling."""
    index = np.arange(1, LENGTH)
    ceiling = np.minimum(np.minimum(index, LENGTH - index), STATES)
    named = {
        "TSS": np.full(LENGTH - 1, float(STATES)),
        "ceiling": ceiling.astype(float),
        "tolerance-ESS": tolerance_ess(operator, TOLERANCE).double().numpy(),
        "entropy-ESS": entropy_ess(operator).double().numpy(),
    }
    frame = pd.concat(pd.DataFrame({"series": n, "x": index, "y": y}) for n, y in named.items())
    panels.lines(
        page,
        ax,
        panel,
        frame,
        log2_x=False,
        by="series",
        looks=LOOKS,
        x_label="index i",
        y_label=y_label,
    )
    ax.set(xlim=(0, LENGTH), ylim=(0, STATES * 1.12))


LOOKS = {
    "TSS": {"color": "black", "marker": "", "lw": 1.0},
    "ceiling": {"color": CEILING, "marker": "", "lw": 0.9, "ls": "--"},
    "tolerance-ESS": {"color": COUNTED, "marker": "", "drawstyle": "steps-mid"},
    "entropy-ESS": {"color": ENTROPY, "marker": ""},
}


def _legend(page: Page) -> None:
    page.legend(
        {
            "TSS": panels.entry("black", lw=1.0),
            "ceiling min(TSS, i, L − i)": panels.entry(CEILING, lw=0.9, ls="--"),
            f"tolerance-ESS (τ = {TOLERANCE:.0e})".replace("e-0", "e-"): panels.entry(COUNTED),
            "entropy-ESS": panels.entry(ENTROPY),
        }
    )


def _definition(spec: FigureSpec) -> Page:
    page = Page(spec.title, [Row(3, 1.75, gap=0.6, above=0.25)])
    _legend(page)
    left, middle, right = page.axes[0]
    operator = gated_operator(())
    page.label(left, "a", "operator |T| and H at i = 20")
    _image(page, left, "a", operator)
    box = Rectangle((-0.5, CUT - 0.5), CUT, LENGTH - CUT, fc="none", ec=COUNTED, lw=1.6)
    left.add_patch(box)
    left.text(
        CUT / 2,
        (CUT + LENGTH) / 2,
        "$H_i$",
        fontsize=11,
        color=COUNTED,
        ha="center",
        va="center",
        bbox=WHITE,
    )
    page.label(middle, "b", "singular values of every H")
    values = singular_values(operator).double().numpy()
    index = np.arange(1, LENGTH)
    shades = colormaps["viridis"](np.linspace(0, 0.9, STATES))
    for k in range(STATES):
        sigma = np.where(values[:, k] > 1e-12, values[:, k], np.nan)
        middle.plot(index, sigma, color=shades[k], lw=1.0)
        page.record("b", pd.DataFrame({"series": f"sigma {k + 1}", "x": index, "y": sigma}))
    middle.axhline(TOLERANCE, color=COUNTED, lw=0.9, ls="--")
    middle.text(1, TOLERANCE * 1.4, "τ", color=COUNTED)
    middle.set_yscale("log")
    middle.set(xlabel="index i", ylabel="singular value", xlim=(0, LENGTH))
    page.label(right, "c", "ESS along the index")
    _ess_lines(page, right, "c", operator, "state size")
    page.note(f"L = {LENGTH}, TSS = {STATES}: two of the states forget at once and carry nothing.")
    return page


def _resets(spec: FigureSpec) -> Page:
    page = Page(spec.title, [Row(2, 1.7, gap=0.6, above=0.25), Row(2, 1.2, gap=0.6, above=0.25)])
    _legend(page)
    for i, resets in enumerate(RESETS):
        top, bottom = page.axes[0][i], page.axes[1][i]
        operator = gated_operator(resets)
        page.label(top, "ab"[i], f"the operator on input {i + 1}")
        _image(page, top, "ab"[i], operator)
        page.label(bottom, "cd"[i], f"ESS on input {i + 1}")
        _ess_lines(page, bottom, "cd"[i], operator, "" if i else "state size")
        for at in resets:
            for ax in (top, bottom):
                ax.axvline(at, color=style.SERIES[4], lw=0.8, ls=":", zorder=1)
        page.record("cd"[i], pd.DataFrame({"series": "reset", "x": resets}))
    page.note(f"L = {LENGTH}, TSS = {STATES}; the same weights on both inputs; dotted lines: resets.")
    page.note("All of H_i is tiny at a reset: the tolerance sees that, the entropy has no scale.")
    return page
