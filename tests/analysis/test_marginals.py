"""Marginals against a group-by written by hand."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from effstate.analysis.buckets import marginals
from effstate.analysis.tables import TableError

row = st.tuples(
    st.sampled_from(["gla", "la"]),
    st.sampled_from([4, 8]),
    st.sampled_from([16, 32]),
    st.one_of(st.none(), st.floats(0, 1)),
)


def by_hand(rows: list[tuple], axes: list[int]) -> dict[tuple, list[float]]:
    found: dict[tuple, list[float]] = {}
    for entry in rows:
        if entry[3] is not None:
            found.setdefault((entry[0], *(entry[a] for a in axes)), []).append(entry[3])
    return found


@settings(deadline=None, max_examples=50)
@given(st.lists(row, max_size=25), st.sampled_from([["tss"], ["kv"], ["tss", "kv"]]))
def test_mean_extremes_and_count_are_those_of_a_loop(rows: list[tuple], axes: list[str]) -> None:
    names = ["featurizer", "tss", "kv", "value"]
    table = pd.DataFrame(rows, columns=names).astype({"value": float})
    found = marginals(table, "value", axes)
    expected = by_hand(rows, [names.index(a) for a in axes])
    got = {tuple(r[["featurizer", *axes]]): r for _, r in found.iterrows()}
    assert got.keys() == expected.keys()
    for key, values in expected.items():
        assert got[key]["mean"] == pytest.approx(np.mean(values))
        assert (got[key]["low"], got[key]["high"]) == (min(values), max(values))
        assert got[key]["n"] == len(values)


def test_a_missing_axis_is_named() -> None:
    table = pd.DataFrame({"featurizer": ["la"], "tss": [4], "value": [1.0]})
    with pytest.raises(TableError, match="'kv'"):
        marginals(table, "value", ["kv"])
