"""Claims of the paper, judged on made-up tables, on damaged ones, and on the values it prints."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import get_args, get_type_hints

import numpy as np
import pandas as pd
import pytest
from claim_tables import CASES, CELLS, Tables, checkpoints, correlated
from scipy import stats

from effstate.analysis.claims import CLAIMS, OUTCOMES, claims_markdown, claims_text, judge
from effstate.analysis.claims.base import claim, settle
from effstate.analysis.claims.statistics import Estimate, bootstrap, by_cluster, correlation_gaps, mean
from effstate.analysis.tables import cross_task
from effstate.config import STUDIES
from effstate.ess import geometric_ceiling
from effstate.figures import hybrids, printed
from effstate.jobs import judge_claims
from effstate.scales import ScaleConfig, load_scale
from effstate.studies import KINDS

pytestmark = pytest.mark.filterwarnings("error")

SCALE = ScaleConfig(name="made-up", description="tables of a test", cells=CELLS)
OUTCOME = {1: "reproduced", -1: "not reproduced", 0: "inconclusive"}


@pytest.fixture(autouse=True)
def _fewer_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("effstate.analysis.claims.statistics.RESAMPLES", 400)


@cache
def made(name: str, effect: int) -> Tables:
    """The made-up tables of a claim, made once; nobody may change them."""
    return CASES[name](effect)


def judged(name: str, tables: Tables) -> tuple[pd.Series, pd.DataFrame]:
    """The row of one claim, and its parts by name."""
    claims, parts = judge(tables, SCALE, {name: CLAIMS[name]})
    return claims.loc[0], parts.set_index("part")


# ---------------------------------------------------------------------------------------- registry


def test_claims_are_those_of_the_paper_in_its_order() -> None:
    assert [*CLAIMS] == [*CASES]
    for name, spec in CLAIMS.items():
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)+", name)
        assert spec.sentence.endswith(".")
        assert all(number.isdecimal() for number in spec.figures)
        assert spec.study in STUDIES
        if spec.study in STUDIES[:7]:
            (config,) = get_args(get_type_hints(ScaleConfig)[spec.study])[:1]
            assert {*spec.tables} <= {*KINDS[config].tables}


def test_an_id_is_registered_once() -> None:
    with pytest.raises(ValueError, match="'state-collapse' is registered twice"):
        claim("state-collapse", "Again.", figures=("7",), study="mqar")(lambda evidence: [])


# ---------------------------------------------------------------------------------------- outcomes


@pytest.mark.parametrize("effect", OUTCOME)
@pytest.mark.parametrize("name", CASES)
def test_every_claim_has_every_outcome(name: str, effect: int) -> None:
    row, parts = judged(name, made(name, effect))
    assert row["outcome"] == OUTCOME[effect], parts.to_string()
    shown = parts[parts["statistic"] == row["statistic"]]
    assert OUTCOME[effect] in set(shown["outcome"])


@pytest.mark.parametrize("name", CASES)
def test_a_claim_without_its_tables_is_not_run(name: str) -> None:
    whole = made(name, 1)
    study, needed = CLAIMS[name].study, CLAIMS[name].tables
    for lacking in (table for table in whole if table.removeprefix(f"{study}_") in needed):
        without = {key: table for key, table in whole.items() if key != lacking}
        for tables in (without, whole | {lacking: pd.DataFrame()}):
            row, parts = judged(name, tables)
            assert row["outcome"] == "not run"
            assert row["note"] == f"the scale made-up does not run {study}"
            assert parts.empty
    row, _ = judged(name, {key: table.iloc[:0] for key, table in whole.items()})
    assert row["outcome"] == "not run"


def test_a_study_of_the_scale_without_a_table_says_which() -> None:
    demo = load_scale("demo", Path(__file__).parents[2] / "config/scales")
    without = demo.model_copy(update={"lm": None})
    expected = ((demo, "there is no row in lm_dips"), (without, "the scale demo does not run lm"))
    for scale, note in expected:
        claims, _ = judge({}, scale)
        notes = claims.set_index("claim")["note"]
        assert set(claims["outcome"]) == {"not run"}
        assert notes["state-saturation"] == "there is no row in mqar_runs and mqar_checkpoints"
        assert notes["modulation-order"] == note


@pytest.mark.parametrize("name", CASES)
def test_a_claim_without_a_column_names_it(name: str) -> None:
    measures = r"ess|accuracy|dip|loss|recall_log_perplexity"
    tables = {
        key: table.drop(columns=[c for c in table if re.match(rf"(init_|teacher_)?({measures})", c)])
        for key, table in made(name, 1).items()
    }
    row, parts = judged(name, tables)
    assert row["outcome"] == "not run"
    assert re.search(r"the table has no column '\w", row["note"])
    assert parts.empty


@pytest.mark.parametrize("name", [n for n in CASES if CLAIMS[n].study in STUDIES[:7]])
def test_diverged_and_missing_runs_are_left_out_and_counted(name: str) -> None:
    tables = {}
    for key, table in made(name, 1).items():
        lost = table.copy()
        unit = "student" if "student" in lost else "run"
        first, second = lost[unit].unique()[:2]
        lost.loc[lost[unit] == first, "state"] = "diverged"
        measured = [c for c in lost if re.search(r"ess_|accuracy$|activation_loss", c)]
        lost.loc[lost[unit] == first, measured] = np.nan
        lost.loc[lost[unit] == second, measured] = np.nan
        tables[key] = lost
    row, _ = judged(name, tables)
    assert row["outcome"] in ("reproduced", "inconclusive")  # two runs less may be too few
    assert "left out: 1 diverged, 1 without a value" in row["note"]


@pytest.mark.parametrize("name", [n for n in CASES if CLAIMS[n].study in STUDIES[:7]])
def test_a_study_whose_runs_all_diverged_is_not_run(name: str) -> None:
    tables = {key: table.assign(state="diverged") for key, table in made(name, 1).items()}
    row, parts = judged(name, tables)
    assert row["outcome"] == "not run"
    assert set(parts["outcome"]) <= {"not run"}
    assert "diverged" in row["note"]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", CASES)
def test_tables_with_holes_are_judged_all_the_same(name: str, seed: int) -> None:
    draw = np.random.default_rng(seed)
    share = (0.05, 0.3, 0.7)[seed]
    tables = {key: table.sample(frac=share, random_state=draw) for key, table in made(name, 1).items()}
    row, parts = judged(name, tables)
    assert row["outcome"] in OUTCOMES
    assert set(parts["outcome"]) <= set(OUTCOMES)


@pytest.mark.parametrize("name", [n for n in CASES if CLAIMS[n].study in ("init", "regularisation")])
def test_one_seed_has_no_interval_and_decides_nothing(name: str) -> None:
    tables = {key: table[table["seed"] == 1] for key, table in made(name, 1).items()}
    row, parts = judged(name, tables)
    assert row["outcome"] == "inconclusive"
    assert parts["low"].isna().all()
    assert np.isfinite(parts["statistic"]).all()
    assert "no interval: a cell has one run" in row["note"]


def test_one_length_cannot_tell_what_length_does() -> None:
    tables = made("decay-shrinks-with-length", 1)
    tables = {key: table[table["seq_len"] == 64] for key, table in tables.items()}
    row, _ = judged("decay-shrinks-with-length", tables)
    assert row["outcome"] == "not run"
    assert row["note"].startswith("the runs have one length")


def test_a_cell_that_the_scale_does_not_name_is_not_judged() -> None:
    unnamed = ScaleConfig(name="mine", description="no cells", cells={"fig26": CELLS["fig26"]})
    claims, parts = judge(made("ess-dips-early-in-training", 1), unnamed)
    row = claims.set_index("claim").loc["ess-dips-early-in-training"]
    assert row["outcome"] == "inconclusive"
    assert "4 of 8 parts reproduced, 4 not run" in row["note"]
    absent = parts[parts["part"].str.endswith("figure 29")]
    assert set(absent["outcome"]) == {"not run"}
    assert absent["note"].str.startswith("the scale names no cell for figure 29").all()


def test_the_same_tables_give_the_same_numbers() -> None:
    tables = made("state-saturation", 0) | made("low-ess-layer-distills-better", 0)
    for first, again in zip(judge(tables, SCALE), judge(tables, SCALE), strict=True):
        pd.testing.assert_frame_equal(first, again)


# -------------------------------------------------------------------------------------- statistics


@pytest.mark.parametrize(
    ("ends", "relation", "threshold", "outcome"),
    [
        ((0.1, 0.3), ">", 0.0, "reproduced"),
        ((-0.1, 0.3), ">", 0.0, "inconclusive"),
        ((-0.3, -0.1), ">", 0.0, "not reproduced"),
        ((-0.3, -0.1), "<", 0.0, "reproduced"),
        ((0.1, 0.3), "<", 0.2, "inconclusive"),
        ((0.0, 0.3), ">", 0.0, "inconclusive"),
        ((0.0, 0.3), ">=", 0.0, "reproduced"),
        ((1.0, 1.0), "<", 1.0, "not reproduced"),
        ((1 - 1e-15, 1.0), ">=", 1.0, "reproduced"),
        ((np.nan, np.nan), ">", 0.0, "inconclusive"),
    ],
)
def test_the_interval_decides(
    ends: tuple[float, float], relation: str, threshold: float, outcome: str
) -> None:
    assert settle("part", Estimate(0.2, *ends, 9), relation, threshold).outcome == outcome


def test_a_part_that_cannot_be_refuted_is_inconclusive_instead() -> None:
    below = Estimate(-0.2, -0.3, -0.1, 9)
    assert settle("part", below, ">").outcome == "not reproduced"
    assert settle("part", below, ">", refutable=False).outcome == "inconclusive"


def test_the_bootstrap_is_scipys_percentile_interval() -> None:
    draw = np.random.default_rng(0)
    x, y = draw.normal(0, 1, 20), draw.normal(1, 1, 12)
    found = bootstrap(lambda a, b: mean(b) - mean(a), x, y, key="k")
    expected = stats.bootstrap(
        (x, y),
        lambda a, b, axis: b.mean(axis) - a.mean(axis),
        n_resamples=20_000,
        method="percentile",
        vectorized=True,
        axis=-1,
        random_state=np.random.default_rng(1),
    ).confidence_interval
    assert found.value == pytest.approx(y.mean() - x.mean())
    assert found.n == 32
    assert found.low == pytest.approx(expected.low, abs=0.12)
    assert found.high == pytest.approx(expected.high, abs=0.12)


def test_clusters_are_drawn_whole() -> None:
    # Inside a cluster the values agree: the rows are many, the clusters are what can vary.
    rows = pd.DataFrame({"run": ["a"] * 50 + ["b"] * 10, "x": [0.0] * 50 + [1.0] * 10})
    found = by_cluster(lambda s: s[0].mean(axis=-1), rows, "run", "x")
    assert found.value == pytest.approx(10 / 60)
    assert (found.low, found.high, found.n) == (0.0, 1.0, 2)


# ---------------------------------------------------------------------------------- printed values


def claimed_side(parts: pd.DataFrame) -> pd.Series:
    """Per part with a statistic, whether it lies on the claimed side of the threshold."""
    known = parts.dropna(subset=["statistic"])
    distance = known["statistic"] - known["threshold"]
    return distance.where(known["relation"] != "<", -distance) > 0


def printed_runs() -> pd.DataFrame:
    """The printed cells of figures 12a, 13a and 7/21a (TSS, kv) as if each were one model."""
    maps = printed.printed_maps()
    named = {"12a": "accuracy", "13a": "ess_per_kv", "7/21a": "utilisation"}
    cells = maps[maps["figure"].isin(named)].assign(measure=lambda t: t["figure"].map(named))
    table = cells.pivot_table(
        index=["featurizer", "row", "col"], columns="measure", values="value"
    ).reset_index()
    table = table.rename(columns={"row": "tss", "col": "kv"})
    table["run"] = [f"{f}-{t}-{k}" for f, t, k in table[["featurizer", "tss", "kv"]].to_numpy()]
    table["ess_entropy"] = table["ess_per_kv"] * table["kv"]
    table["ess_tol_1e-3"] = table["utilisation"] * table["tss"]
    # 512 is the shortest length at which the paper's grid has every kv.
    table["ceiling"] = [float(geometric_ceiling(tss, 512)) for tss in table["tss"]]
    for kind in ("entropy", "tol_1e-3"):
        table[f"total_ess_{kind}"] = 8 * table[f"ess_{kind}"]
    design = {"heads": 8, "seq_len": 512, "seed": 0, "state": "done", "width": 8 * table["tss"]}
    return table.assign(**design, total_tss=8 * table["tss"])


@pytest.mark.parametrize(
    "name",
    [
        "kv-normalisation-matters",
        "state-saturation",
        "state-collapse",
        "la-utilises-most",
    ],
)
def test_the_printed_maps_have_the_claimed_sign(name: str) -> None:
    runs = printed_runs()
    _, parts = judged(name, {"mqar_runs": runs, "mqar_checkpoints": runs.assign(epoch=70)})
    right = claimed_side(parts)
    assert len(right) >= 2
    assert right.all(), parts.to_string()


def test_the_printed_maps_do_not_refute_that_ess_beats_tss() -> None:
    """On the ratios every featurizer has the claimed sign, in log2 all but LA (within its interval).

    The printed cells are means over lengths, rounded to one decimal, which log2 amplifies.
    """
    runs = printed_runs()
    _, parts = judged("ess-beats-tss", {"mqar_runs": runs})
    assert claimed_side(parts).to_dict() == {"GLA": True, "LA": False, "WLA": True}
    assert "not reproduced" not in set(parts["outcome"])
    pair = "ess_per_difficulty_entropy", "tss_per_difficulty"
    on_ratios = correlation_gaps(cross_task(runs, "kv", "entropy"), pair, "pearson")
    assert sorted(on_ratios) == ["gla", "la", "wla"]
    assert all(gap.value > 0 for gap in on_ratios.values())


def test_the_printed_maps_of_softmax_attention_have_the_claimed_sign() -> None:
    """Figures 12e and 13e by (length, kv), means over heads and widths, which are fixed here."""
    maps = printed.printed_maps()
    maps = maps[(maps["featurizer"] == "sa") & maps["figure"].isin(["12e", "13e"])]
    cells = maps.pivot_table(index=["row", "col"], columns="figure", values="value").reset_index()
    cells = cells.rename(columns={"row": "seq_len", "col": "kv", "12e": "accuracy"})
    lengths, ess = cells["seq_len"], cells["13e"] * cells["kv"]
    runs = cells.assign(run=cells.index.map(str), featurizer="sa", state="done", tss=lengths)
    runs = runs.assign(ess_entropy=ess, total_ess_entropy=8 * ess, total_tss=256 * lengths)
    _, parts = judged("ess-beats-tss", {"mqar_runs": runs.assign(ceiling=lengths)})
    assert parts.loc["SA", "n"] == (cells["accuracy"] <= 0.95).sum() > 2
    assert claimed_side(parts).to_dict() == {"SA": True}


def test_the_printed_correlations_are_larger_in_hard_cells() -> None:
    maps = printed.printed_maps()
    cells = maps[maps["figure"] == "4/17a"].dropna(subset=["value"]).rename(columns={"value": "r"})
    cells = cells.rename(columns={"row": "tss", "col": "kv"}).assign(state="done")
    cells["run"] = [f"{f}-{t}-{k}" for f, t, k in cells[["featurizer", "tss", "kv"]].to_numpy()]
    trained = checkpoints(cells, lambda run: correlated(run["r"]))
    _, parts = judged("within-model-correlation-in-hard-cells", {"mqar_checkpoints": trained})
    expected = {}
    for featurizer, rows in cells.groupby("featurizer"):
        hard = rows[(rows["kv"] >= 32) & (rows["tss"] <= 32)]["r"].mean()
        easy = rows[(rows["kv"] <= 32) & (rows["tss"] >= 32)]["r"].mean()
        expected[featurizer.upper()] = hard - easy
    assert parts["statistic"].to_dict() == pytest.approx(expected)
    assert claimed_side(parts).all(), parts.to_string()


def test_the_printed_hybrids_have_the_claimed_sign() -> None:
    table = hybrids.printed_accuracies()
    patterns = [
        "".join("s" if i in places else "g" for i in range(layers))
        for layers, places in zip(table["mixer_layers"], table["places"], strict=True)
    ]
    runs = table.assign(
        run=patterns,
        featurizer=patterns,
        grids=table["figure"].map({"33a": "four", "33b": "jamba"}),
        attention_layers=table["places"].map(len),
        state="done",
    )
    layers = runs.assign(epoch=0, layer=0, mixer="sa").assign(**{"ess_tol_1e-1": 1.0})
    tables = {"hybrids_runs": runs, "hybrids_layers": layers}
    for name, part in (
        ("attention-first-collapses", "accuracy"),
        ("fixed-topology-can-fail", "3 - 2 attention layers"),
    ):
        _, parts = judged(name, tables)
        assert claimed_side(parts)[part], parts.to_string()


def test_one_printed_layer_loses_more_with_every_student() -> None:
    """The layers' ESS is drawn, not printed: the sign is that of the second layer holding more."""
    table = pd.read_csv(Path(printed.__file__).parent / "data/printed_distillation.csv", comment="#")
    teachers = table[table["role"] == "teacher"].set_index("layer")["accuracy"]
    students = table[table["role"] == "student"].assign(run="printed", epoch=0, state="done")
    students["student"] = [f"{layer}-{tss}" for layer, tss in students[["layer", "tss"]].to_numpy()]
    students["teacher_accuracy"] = students["layer"].map(teachers)
    students["teacher_ess_entropy"] = 1.0 + students["layer"]
    _, parts = judged("low-ess-layer-distills-better", {"distillation_students": students})
    assert len(parts) == 4
    assert claimed_side(parts).all(), parts.to_string()


# ------------------------------------------------------------------------------------------ report


def test_reports_hold_every_claim_and_fit_a_terminal() -> None:
    tables: Tables = {}
    for name in CASES:
        tables |= made(name, 0)
    found = judge(tables, SCALE)
    text = claims_text(found.claims).splitlines()
    assert len(text) == 1 + len(CLAIMS)
    assert max(map(len, text)) <= 110
    counts = found.claims["outcome"].value_counts()
    shown = ", ".join(f"{counts.get(outcome, 0)} {outcome}" for outcome in OUTCOMES)
    assert text[0] == f"29 claims: {shown}"
    assert [line.split()[0] for line in text[1:]] == [*CLAIMS]
    page = claims_markdown(*found)
    for spec in CLAIMS.values():
        assert spec.sentence in page
    rows = [line for line in page.splitlines() if line.startswith("| ")]
    assert len(rows) == 2 * 2 + len(found.claims) + len(found.parts)
    assert {line.count(" | ") for line in rows} == {6, 5}


def test_the_job_writes_what_it_judged(tmp_path: Path) -> None:
    paths = []
    for name, table in made("state-collapse", 1).items():
        paths.append(tmp_path / f"{name}.parquet")
        table.to_parquet(paths[-1])
    outputs = {name: tmp_path / f"out/{name}.parquet" for name in ("claims", "parts")}
    outputs["report"] = tmp_path / "out/claims.md"
    judge_claims(SimpleNamespace(scale=SCALE), paths, outputs)
    claims = pd.read_parquet(outputs["claims"])
    assert claims.set_index("claim").loc["state-collapse", "outcome"] == "reproduced"
    assert claims_text(claims) == claims_text(judge(made("state-collapse", 1), SCALE).claims)
    parts = pd.read_parquet(outputs["parts"])
    assert outputs["report"].read_text() == claims_markdown(claims, parts)
