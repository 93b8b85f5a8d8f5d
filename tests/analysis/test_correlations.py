"""Correlations against scipy, intervals of differences, and degenerate tables."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from effstate.analysis.correlation import (
    correlation_differences,
    correlations,
    pearson,
    spearman,
    within_run_correlations,
)
from effstate.analysis.tables import TableError

values = st.lists(st.one_of(st.floats(-100, 100), st.integers(0, 3).map(float)), min_size=3, max_size=12)


@settings(deadline=None, max_examples=60)
@given(values, st.integers(0, 2**32 - 1))
def test_pearson_and_spearman_are_scipys(x: list[float], seed: int) -> None:
    a = np.array(x)
    b = np.random.default_rng(seed).permutation(a) + np.arange(a.size)
    if np.ptp(a) < 1e-3 or np.ptp(b) < 1e-3:
        return
    assert pearson(a, b) == pytest.approx(stats.pearsonr(a, b).statistic, abs=1e-9)
    assert spearman(a, b) == pytest.approx(stats.spearmanr(a, b).statistic, abs=1e-9)


def table(n: int = 24, seed: int = 3) -> pd.DataFrame:
    draw = np.random.default_rng(seed)
    x = 2.0 ** draw.uniform(-3, 3, n)
    return pd.DataFrame(
        {
            "featurizer": ["gla", "la"] * (n // 2),
            "x": x,
            "z": 2.0 ** draw.uniform(-3, 3, n),
            "accuracy": np.clip(0.5 + 0.1 * np.log2(x) + draw.normal(0, 0.1, n), 0, 1),
        }
    )


def test_every_statistic_is_what_it_says() -> None:
    found = correlations(table(), ["x"], resamples=50).set_index(["featurizer", "statistic"])
    rows = table()[table()["featurizer"] == "gla"]
    expected = {
        "pearson": stats.pearsonr(rows["x"], rows["accuracy"]).statistic,
        "pearson_log2": stats.pearsonr(np.log2(rows["x"]), rows["accuracy"]).statistic,
        "spearman": stats.spearmanr(rows["x"], rows["accuracy"]).statistic,
    }
    for name, r in expected.items():
        assert found.loc[("gla", name), "r"] == pytest.approx(r, abs=1e-12)
        assert found.loc[("gla", name), "n"] == 12


def test_the_interval_is_scipys_percentile_bootstrap_up_to_its_own_noise() -> None:
    rows = table(40)[lambda t: t["featurizer"] == "gla"]
    ours = correlations(rows, ["x"], statistics=("pearson",), resamples=8000).iloc[0]
    theirs = stats.bootstrap(
        (rows["x"], rows["accuracy"]),
        lambda a, b, axis=-1: pearson(a, b),
        paired=True,
        vectorized=True,
        n_resamples=8000,
        method="percentile",
        rng=np.random.default_rng(7),
    ).confidence_interval
    assert ours["low"] == pytest.approx(theirs.low, abs=0.03)
    assert ours["high"] == pytest.approx(theirs.high, abs=0.03)


def test_one_groups_interval_does_not_move_when_another_is_added() -> None:
    both = correlations(table(), ["x"], resamples=200)
    alone = correlations(table()[lambda t: t["featurizer"] == "la"], ["x"], resamples=200)
    mine = both[both["featurizer"] == "la"].reset_index(drop=True)
    pd.testing.assert_frame_equal(mine, alone.reset_index(drop=True))


def test_the_difference_is_resampled_jointly() -> None:
    # x and a copy of it with the same order: the ranks agree in every resample.
    data = table().assign(copy=lambda t: t["x"] ** 3)
    found = correlation_differences(data, [("x", "copy"), ("x", "z")], resamples=300)
    ranks = found[found["statistic"] == "spearman"]
    same = ranks[ranks["other"] == "copy"]
    assert np.allclose(same[["difference", "low", "high"]].to_numpy(dtype=float), 0, atol=1e-12)
    singles = correlations(data, ["x", "z"], statistics=("spearman",), resamples=5)
    r = singles.set_index(["featurizer", "x"])["r"]
    apart = ranks[ranks["other"] == "z"].set_index("featurizer")
    for name in ("gla", "la"):
        expected = r[(name, "x")] - r[(name, "z")]
        assert apart.loc[name, "difference"] == pytest.approx(expected, abs=1e-12)
        assert apart.loc[name, "low"] <= expected <= apart.loc[name, "high"]


def test_a_column_alone_has_no_difference_from_itself() -> None:
    found = correlation_differences(table(), [("x", "x")], resamples=100)
    assert (found[["difference", "low", "high"]].to_numpy(dtype=float) == 0).all()


DEGENERATE = {
    "no row": table().iloc[:0],
    "one run": table().iloc[:1],
    "two runs": table().iloc[[0, 2]],
    "all diverged": table().assign(accuracy=np.nan),
    "constant accuracy": table().assign(accuracy=1.0),
    "constant ESS up to rounding": table().assign(x=lambda t: 0.3 + 1e-15 * np.arange(len(t))),
    "zero ESS": table().assign(x=0.0),
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", DEGENERATE)
def test_a_correlation_that_does_not_exist_is_nan(name: str) -> None:
    data = DEGENERATE[name]
    found = correlations(data, ["x"], resamples=20)
    joint = correlation_differences(data, [("x", "z")], resamples=20)
    assert found[["r", "low", "high"]].isna().all(axis=None)
    assert joint[["difference", "low", "high"]].isna().all(axis=None)
    assert len(found) == 3 * data["featurizer"].nunique()


def test_log2_leaves_out_zero_and_counts_it() -> None:
    data = table()
    data.loc[data.index[:4], "x"] = 0.0
    found = correlations(data, ["x"], resamples=20).set_index(["featurizer", "statistic"])
    assert found.loc[("gla", "pearson_log2"), ["n", "left_out"]].tolist() == [10, 2]
    assert found.loc[("gla", "pearson"), ["n", "left_out"]].tolist() == [12, 0]


def test_a_missing_column_is_named() -> None:
    with pytest.raises(TableError, match="'ess'"):
        correlations(table(), ["ess"])


def checkpoints(**accuracy: list[float]) -> pd.DataFrame:
    return pd.DataFrame(
        [
            {"run": run, "epoch": 10 * i, "featurizer": "gla", "kv": 4, "ess": e, "accuracy": a}
            for run, curve in accuracy.items()
            for i, (e, a) in enumerate(zip((9.0, 1.0, 2.0, 4.0, 3.0), curve, strict=False))
        ]
    )


def test_within_a_run_epoch_0_is_dropped() -> None:
    found = within_run_correlations(checkpoints(a=[0.9, 0.1, 0.3, 0.5, 0.6]), "ess").iloc[0]
    expected = stats.pearsonr([1, 2, 4, 3], [0.1, 0.3, 0.5, 0.6]).statistic
    assert found["correlation"] == pytest.approx(expected, abs=1e-12)
    assert (found["status"], found["checkpoints"], found["kv"]) == ("used", 4, 4)


def test_what_has_no_correlation_is_counted_by_reason() -> None:
    data = checkpoints(
        constant=[0, 1, 1, 1, 1],
        short=[0, 0.1, 0.2],
        diverged=[0, 0.1, 0.2, np.nan, np.nan],
        ok=[0, 1, 2, 3, 4],
    )
    stuck = checkpoints(stuck=[0, 0.1, 0.2, 0.3, 0.4]).assign(ess=2.0)
    found = within_run_correlations(pd.concat([data, stuck]), "ess").set_index("run")["status"]
    assert found.to_dict() == {
        "constant": "constant accuracy",
        "short": "fewer than 3 checkpoints",
        "diverged": "fewer than 3 checkpoints",
        "ok": "used",
        "stuck": "constant ESS",
    }


def test_no_checkpoints_give_an_empty_table_with_all_columns() -> None:
    found = within_run_correlations(checkpoints(a=[0.0]).iloc[:0], "ess")
    assert found.empty
    assert {"correlation", "status", "kv"} <= set(found.columns)
