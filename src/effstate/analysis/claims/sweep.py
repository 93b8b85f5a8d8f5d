"""Claims about the task-model sweeps: what ESS predicts, saturation and collapse (section 4, E.1)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pandas as pd

from effstate.analysis.claims.base import Evidence, Part, claim, settle, upper
from effstate.analysis.claims.statistics import (
    NOTHING,
    bootstrap,
    correlation_gaps,
    difference,
    mean,
    of_means,
    paired,
)
from effstate.analysis.correlation import WITHIN_RUN_STATUS, within_run_correlations
from effstate.analysis.names import DIFFICULTY, FEATURIZERS, RECURRENT, column
from effstate.analysis.tables import SA_ACCURACY_LIMIT, add_ratios, cross_task, in_cell

ENTROPY = "ess_entropy"
COUNTED = "ess_tol_1e-3"
"""The tolerance-ESS that the paper takes wherever a state collapses."""

USED = column("ess_per_tss", "tol_1e-3")
FILLED = column("ess_per_ceiling", "tol_1e-3")


@claim(
    "ess-beats-tss",
    "Across MQAR models, accuracy goes with ESS per key-value pair more than with TSS per pair.",
    figures=("3", "5", "11"),
    study="mqar",
)
def ess_beats_tss(evidence: Evidence) -> Iterator[Part]:
    """Per featurizer: Pearson r of accuracy with log2 ESS/difficulty minus that with log2 TSS/..."""
    difficulty = DIFFICULTY[evidence.study]
    runs = evidence.finished("runs", "accuracy", ENTROPY)
    pair = column("ess_per_difficulty", "entropy"), "tss_per_difficulty"
    gaps = correlation_gaps(cross_task(runs, difficulty, "entropy"), pair, "pearson_log2")
    solved = int(((runs["featurizer"] == "sa") & (runs["accuracy"] > SA_ACCURACY_LIMIT)).sum())
    for featurizer in FEATURIZERS:
        above = solved and featurizer == "sa"
        note = f"{solved} models above {SA_ACCURACY_LIMIT} left out" if above else ""
        yield settle(upper(featurizer), gaps.get(featurizer, NOTHING), ">", note=note)


@claim(
    "kv-normalisation-matters",
    "Accuracy goes with ESS per key-value pair more than with ESS alone.",
    figures=("11",),
    study="mqar",
)
def kv_normalisation_matters(evidence: Evidence) -> Iterator[Part]:
    """Per recurrent featurizer: Pearson r of accuracy with ESS/kv minus that with ESS."""
    runs = evidence.finished("runs", "accuracy", ENTROPY)
    pair = column("ess_per_difficulty", "entropy"), ENTROPY
    gaps = correlation_gaps(add_ratios(runs, DIFFICULTY[evidence.study]), pair, "pearson")
    for featurizer in RECURRENT:
        yield settle(upper(featurizer), gaps.get(featurizer, NOTHING), ">")


def _halves(rows: pd.DataFrame, difficulty: str) -> tuple[pd.Series, pd.Series]:
    """Which rows lie in the hard and in the easy half of the grid; its middle lies in both."""
    median = {axis: rows[axis].drop_duplicates().median() for axis in (difficulty, "tss")}
    harder, larger = rows[difficulty] - median[difficulty], rows["tss"] - median["tss"]
    return (harder >= 0) & (larger <= 0), (harder <= 0) & (larger >= 0)


@claim(
    "within-model-correlation-in-hard-cells",
    "In training, ESS and accuracy move together more where the task is hard for the state.",
    figures=("4", "17"),
    study="mqar",
    tables=("checkpoints",),
)
def within_model_correlation_in_hard_cells(evidence: Evidence) -> Iterator[Part]:
    """Per recurrent featurizer: mean within-run correlation, hard half minus easy half."""
    trained = evidence.finished("checkpoints", "accuracy", ENTROPY)
    found = within_run_correlations(trained[trained["featurizer"].isin(RECURRENT)], ENTROPY)
    hard, easy = _halves(found, DIFFICULTY[evidence.study])
    found = found.assign(hard=hard, easy=easy)
    used = found[(found["status"] == WITHIN_RUN_STATUS[0]) & (hard | easy)]

    def gap(columns: np.ndarray) -> np.ndarray:
        r, in_hard, in_easy = columns
        return (r * in_hard).sum(-1) / in_hard.sum(-1) - (r * in_easy).sum(-1) / in_easy.sum(-1)

    for featurizer in RECURRENT:
        mine = used[used["featurizer"] == featurizer]
        sample = mine[["correlation", "hard", "easy"]].to_numpy(float).T
        dropped = int((found["featurizer"] == featurizer).sum()) - len(mine)
        note = f"{dropped} runs in neither half or without a correlation" if dropped else ""
        estimate = bootstrap(gap, sample, key=featurizer)
        yield settle(upper(featurizer), estimate, ">", note=note)


@claim(
    "state-saturation",
    "The smallest LA state is full at the largest kv, fuller than at the start, and accuracy fails.",
    figures=("7", "21"),
    study="mqar",
    tables=("runs", "checkpoints"),
)
def state_saturation(evidence: Evidence) -> Iterator[Part]:
    """LA at the smallest TSS: ESS over its geometric ceiling, its rise, and the loss of accuracy.

    Cells are compared at the lengths at which the largest kv exists. The rise is that from the
    smallest kv or from epoch 0, whichever is clearer.
    """
    runs = add_ratios(evidence.finished("runs", "accuracy", COUNTED), "kv")
    runs = runs[runs["featurizer"].isin(RECURRENT)]
    hardest, easiest = runs["kv"].max(), runs["kv"].min()
    la = runs[(runs["featurizer"] == "la") & (runs["tss"] == runs["tss"].min())]
    full = la[la["kv"] == hardest]
    easy = la[(la["kv"] == easiest) & la["seq_len"].isin(full["seq_len"])]
    checkpoints = add_ratios(evidence.finished("checkpoints", COUNTED), "kv")
    untrained = checkpoints[checkpoints["epoch"] == 0].set_index("run")[FILLED]
    level, accuracy = full[FILLED].to_numpy(float), full["accuracy"].to_numpy(float)
    yield settle("ESS / ceiling at the largest kv", bootstrap(mean, level, key="full"), ">", 0.9)
    lost = bootstrap(difference, accuracy, easy["accuracy"].to_numpy(float), key="accuracy")
    yield settle("accuracy, largest minus smallest kv", lost, "<")
    before = full[FILLED] - full["run"].map(untrained).astype(float)
    rises = {
        "from the smallest kv": bootstrap(difference, level, easy[FILLED].to_numpy(float), key="kv"),
        "from epoch 0": bootstrap(mean, before.dropna().to_numpy(float), key="epoch 0"),
    }
    since, best = max(rises.items(), key=lambda item: np.nan_to_num(item[1].low, nan=-np.inf))
    yield settle("rise of ESS / ceiling", best, ">", refutable=False, note=since)


@claim(
    "state-collapse",
    "At the largest kv and state, GLA and WLA use less than half of what LA uses, and recall less.",
    figures=("7", "21"),
    study="mqar",
)
def state_collapse(evidence: Evidence) -> Iterator[Part]:
    """ESS/TSS over that of LA, and accuracy minus that of LA, at the largest kv and TSS."""
    runs = add_ratios(evidence.finished("runs", "accuracy", COUNTED), "kv")
    runs = runs[runs["featurizer"].isin(RECURRENT)]
    corner = runs[(runs["kv"] == runs["kv"].max()) & (runs["tss"] == runs["tss"].max())]

    def of(name: str, value: str) -> np.ndarray:
        return corner.loc[corner["featurizer"] == name, value].to_numpy(float)

    ratio = of_means(lambda m: m[..., 0] / m[..., 1])
    for featurizer in ("gla", "wla"):
        used = bootstrap(ratio, of(featurizer, USED), of("la", USED), key=featurizer)
        yield settle(f"{upper(featurizer)}: ESS/TSS over LA's", used, "<", 0.5)
        pair = of(featurizer, "accuracy"), of("la", "accuracy")
        worse = bootstrap(difference, *pair, key=featurizer)
        yield settle(f"{upper(featurizer)}: accuracy minus LA's", worse, "<")


@claim(
    "la-utilises-most",
    "Over the whole grid, LA uses a larger share of its state than GLA and than WLA.",
    figures=("7", "21"),
    study="mqar",
)
def la_utilises_most(evidence: Evidence) -> Iterator[Part]:
    """Mean of ESS/TSS, LA minus the other, over the cells that both have, paired by cell."""
    runs = add_ratios(evidence.finished("runs", COUNTED), "kv")
    keys = ["width", "heads", "tss", "seq_len", "kv", "seed"]
    for other in ("gla", "wla"):
        both = runs[runs["featurizer"].isin(("la", other))]
        la, theirs = paired(both, USED, ("la", other), "featurizer", keys)
        alone = len(both[keys].drop_duplicates()) - la.size
        note = f"{alone} cells have one of the two" if alone else ""
        found = bootstrap(mean, la - theirs, key=other)
        yield settle(f"LA - {upper(other)}", found, ">", note=note)


claim(
    "copying-agrees",
    "In selective copying too, accuracy goes with ESS per token more than with TSS per token.",
    figures=("24",),
    study="copying",
)(ess_beats_tss)

claim(
    "compression-agrees",
    "In compression too, accuracy goes with ESS per vocabulary entry more than with TSS per entry.",
    figures=("25",),
    study="compression",
)(ess_beats_tss)


@claim(
    "ess-dips-early-in-training",
    "At the first evaluation ESS has fallen below its start in LA, WLA and GLA, and risen in SA.",
    figures=("26", "29"),
    study="mqar",
    tables=("checkpoints",),
)
def ess_dips_early_in_training(evidence: Evidence) -> Iterable[Part]:
    """Relative change of entropy-ESS to the first evaluation, in the cells of figures 26 and 29."""
    table = evidence.finished("checkpoints", ENTROPY)
    for figure in ("26", "29"):
        cell = evidence.scale.cells.get(f"fig{figure}")
        here = table.iloc[:0] if cell is None else in_cell(table, cell)
        why = f"the scale names no cell for figure {figure}" if cell is None else ""
        for featurizer in FEATURIZERS:
            mine = here[here["featurizer"] == featurizer]
            curves = mine.pivot_table(index="run", columns="epoch", values=ENTROPY)
            first = curves.iloc[:, :2].dropna().to_numpy(float).T
            change = first[1] / first[0] - 1 if 0 in curves and len(first) == 2 else np.array([])
            found = bootstrap(mean, change, key=featurizer)
            name, relation = f"{upper(featurizer)}, figure {figure}", ">" if featurizer == "sa" else "<"
            yield settle(name, found, relation, note=why)
