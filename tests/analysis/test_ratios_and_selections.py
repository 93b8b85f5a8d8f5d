"""Ratios, selections and cells of the tidy tables."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from effstate.analysis.tables import (
    TableError,
    add_ratios,
    comparable,
    cross_task,
    done,
    ess_kinds,
    in_cell,
    nearest_cell,
    saturated,
    state_counts,
)


def runs() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "run": ["a", "b", "c", "d"],
            "state": ["done", "done", "diverged", "done"],
            "featurizer": ["gla", "sa", "gla", "sa"],
            "tss": [8, 64, 16, 64],
            "total_tss": [32, 1024, 32, 1024],
            "kv": [4, 8, 8, 16],
            "accuracy": [0.5, 0.97, np.nan, 0.95],
            "ceiling": [7.0, 16.0, 12.0, 16.0],
            "ess_entropy": [6.5, 10.0, np.nan, 4.0],
            "total_ess_entropy": [26.0, 40.0, np.nan, 16.0],
        }
    )


def test_ratios_are_divisions_by_hand() -> None:
    table = add_ratios(runs(), "kv")
    first = table.iloc[0]
    assert first["ess_per_difficulty_entropy"] == 6.5 / 4
    assert first["total_ess_per_difficulty_entropy"] == 26 / 4
    assert first["ess_per_tss_entropy"] == 6.5 / 8
    assert first["total_ess_per_total_tss_entropy"] == 26 / 32
    assert first["ess_per_ceiling_entropy"] == 6.5 / 7
    assert first["tss_per_difficulty"] == 2
    assert first["total_tss_per_difficulty"] == 8
    assert table.iloc[2][["ess_per_tss_entropy", "ess_per_difficulty_entropy"]].isna().all()


def test_ratios_leave_the_given_table_alone() -> None:
    table = runs()
    add_ratios(table, "kv")
    pd.testing.assert_frame_equal(table, runs())
    assert ess_kinds(table) == ["entropy"]
    assert ess_kinds(add_ratios(table, "kv")) == ["entropy"]


def test_a_missing_difficulty_names_the_nearest_column() -> None:
    with pytest.raises(TableError, match=r"no column 'kvs'.*'kv'"):
        add_ratios(runs(), "kvs")


def test_softmax_attention_is_compared_by_its_totals_and_below_the_limit() -> None:
    table = cross_task(runs(), "kv", "entropy")
    assert table["run"].tolist() == ["a", "d"]
    sa = table.set_index("run").loc["d"]
    assert sa["ess_per_difficulty_entropy"] == 16 / 16
    assert sa["tss_per_difficulty"] == 1024 / 16
    assert table.set_index("run").loc["a", "ess_per_difficulty_entropy"] == 6.5 / 4


def test_saturation_is_judged_on_the_geometric_ceiling_and_failing_accuracy() -> None:
    table = runs().assign(ess_entropy=[6.5, 15.0, np.nan, 15.0])
    assert saturated(table, "entropy").tolist() == [True, False, False, False]
    assert saturated(table, "entropy", accuracy=0.96).tolist() == [True, False, False, True]


@pytest.mark.parametrize(
    ("planned", "missing"),
    [(None, 0), (4, 0), (7, 3), (2, 0)],
    ids=["unknown", "all", "3", "fewer"],
)
def test_states_are_counted(planned: int | None, missing: int) -> None:
    counts = state_counts(runs(), planned)
    assert counts == {"done": 3, "diverged": 1, "failed": 0, "missing": missing}
    assert done(runs())["run"].tolist() == ["a", "b", "d"]


def test_the_papers_cell_is_found_in_the_papers_axes() -> None:
    cells = pd.DataFrame(
        [
            (w // h, w, h, length, kv)
            for w in (64, 128, 256, 512)
            for h in (4, 8)
            for length in (64, 2048)
            for kv in (8, 16, 32, 64, 128)
        ],
        columns=["tss", "width", "heads", "seq_len", "kv"],
    )
    place = {"tss": 0.5, "width": 2 / 3, "seq_len": 1.0, "kv": 0.75}
    found = nearest_cell(cells, place, also=("heads",))
    assert found == {"tss": 32, "width": 256, "seq_len": 2048, "kv": 64, "heads": 8}
    assert len(in_cell(cells, found)) == 1


def test_the_nearest_cell_exists_and_is_none_only_without_rows() -> None:
    table = pd.DataFrame({"tss": [4, 32], "width": [16, 32]})
    assert nearest_cell(table, {"tss": 0.0, "width": 1.0}) in (
        {"tss": 4, "width": 16},
        {"tss": 32, "width": 32},
    )
    assert nearest_cell(table.iloc[:1], {"tss": 1.0, "width": 1.0}) == {"tss": 4, "width": 16}
    assert nearest_cell(table.iloc[:0], {"tss": 1.0}) is None


def test_comparable_keeps_difficulties_that_every_length_has() -> None:
    table = pd.DataFrame({"seq_len": [32, 32, 64, 64, 64], "kv": [4, 8, 4, 8, 16]})
    assert sorted(comparable(table, "seq_len", "kv")["kv"]) == [4, 4, 8, 8]
    apart = pd.DataFrame({"seq_len": [32, 64], "kv": [4, 8]})
    assert comparable(apart, "seq_len", "kv").empty
