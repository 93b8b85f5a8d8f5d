"""Texts of ticks and cells, and choices of style."""

from __future__ import annotations

import pytest

from effstate.analysis.names import FEATURIZERS, column, order
from effstate.figures import style
from effstate.figures.panels import cell_text, tick_text, tick_texts


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (0.834, ".83"),
        (-0.4, "-.40"),
        (0.0004, "~0"),
        (0.997, "1.0"),
        (-0.999, "-1.0"),
        (3.14, "3.1"),
        (9.97, "10"),
        (128.4, "128"),
        (12345.0, "1e4"),
    ],
)
def test_cells_are_short(value: float, text: str) -> None:
    assert cell_text(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(8, "8"), (0.125, "1/8"), (2.0**15, "$2^{15}$"), (48, "48"), (2.0**-14, "$2^{-14}$")],
)
def test_ticks_are_plain_where_they_can_be(value: float, text: str) -> None:
    assert tick_text(value) == text


def test_ticks_of_one_axis_share_a_notation() -> None:
    assert tick_texts([8192, 2**14]) == ["$2^{13}$", "$2^{14}$"]
    assert tick_texts([64, 1024], width=2.0) == ["64", "1024"]
    assert tick_texts([64, 1024], width=0.4) == ["$2^{6}$", "$2^{10}$"]
    assert tick_texts([48, 1000], width=0.1) == ["48", "1e+03"]


def test_featurizers_differ_in_colour_and_marker() -> None:
    looks = [style.look(f, [*FEATURIZERS, "mine"]) for f in (*FEATURIZERS, "mine")]
    assert len({c for c, _ in looks}) == len({m for _, m in looks}) == 5
    assert order(["zeta", "sa", "alpha", "gla"]) == ["gla", "sa", "alpha", "zeta"]


@pytest.mark.parametrize(
    ("quantity", "expected"),
    [
        ("ess", "ess_tol_1e-3"),
        ("total_ess_per_total_tss", "total_ess_per_total_tss_tol_1e-3"),
        ("tss_per_difficulty", "tss_per_difficulty"),
        ("accuracy", "accuracy"),
    ],
)
def test_only_quantities_of_ess_carry_the_kind(quantity: str, expected: str) -> None:
    assert column(quantity, "tol_1e-3") == expected
