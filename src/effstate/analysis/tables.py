"""Ratios and selections on the tidy tables (METHOD sections 2 and 5)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from effstate.analysis.names import column
from effstate.registry import nearest

SA_ACCURACY_LIMIT = 0.95
"""Figure 3 leaves out softmax attention models above this accuracy (section 4.1)."""

PROXIES = ("effective_window", "unmasked_rank")
"""Rivals of ESS that a runs table may carry (figure B5)."""


class TableError(ValueError):
    """A table lacks a column that was asked for; one sentence."""


def require(table: pd.DataFrame, *columns: str) -> None:
    """Raise TableError, naming the nearest column, unless the table has all ``columns``."""
    for name in columns:
        if name not in table.columns:
            raise TableError(f"the table has no column '{name}'{nearest(name, table.columns)}")


def ess_kinds(table: pd.DataFrame) -> list[str]:
    """ESS kinds that the table carries, such as ``["entropy", "tol_1e-3"]``; not its ratios."""
    kinds = [name.removeprefix("ess_") for name in table.columns if name.startswith("ess_")]
    return [kind for kind in kinds if not kind.startswith("per_")]


def done(table: pd.DataFrame) -> pd.DataFrame:
    """Rows of runs that finished; those that diverged or failed have no measures."""
    require(table, "state")
    return table[table["state"] == "done"]


def last_epoch(table: pd.DataFrame) -> pd.DataFrame:
    """Rows of each run's last epoch."""
    return table[table["epoch"] == table.groupby("run")["epoch"].transform("max")]


def penalised(runs: pd.DataFrame, layers: str) -> pd.DataFrame:
    """Runs with the penalty on ``layers`` (as ``regularised_layers`` has it), and those without one."""
    return runs[(runs["regularised_layers"] == layers) | (runs["regularisation"] == 0)]


def state_counts(table: pd.DataFrame, planned: int | None = None) -> dict[str, int]:
    """Number of runs by state, and ``missing``: planned runs that the table does not have.

    Without ``planned``, only rows marked ``missing`` in the table count as missing.
    """
    counts = {state: int((table["state"] == state).sum()) for state in ("done", "diverged", "failed")}
    missing = int((table["state"] == "missing").sum())
    counts["missing"] = missing if planned is None else max(planned - sum(counts.values()), missing)
    return counts


def add_ratios(table: pd.DataFrame, difficulty: str) -> pd.DataFrame:
    """The table with the ratios of section 4 added, for every ESS kind it carries.

    Per kind: ``ess_per_difficulty_<kind>``, ``total_ess_per_difficulty_<kind>``,
    ``ess_per_tss_<kind>``, ``total_ess_per_total_tss_<kind>``, and, where the table has the
    geometric ceiling mean_i min(TSS, i, L - i), ``ess_per_ceiling_<kind>``. Besides:
    ``tss_per_difficulty``, ``total_tss_per_difficulty``, and the same for rival proxies.

    Raises TableError if ``difficulty`` or a state size is not a column.
    """
    require(table, difficulty, "tss", "total_tss")
    by = table[difficulty]
    added = {
        "tss_per_difficulty": table["tss"] / by,
        "total_tss_per_difficulty": table["total_tss"] / by,
    }
    for proxy in PROXIES:
        if proxy in table.columns:
            added[f"{proxy}_per_difficulty"] = table[proxy] / by
    for kind in ess_kinds(table):
        ess = table[f"ess_{kind}"]
        added[column("ess_per_difficulty", kind)] = ess / by
        added[column("ess_per_tss", kind)] = ess / table["tss"]
        if "ceiling" in table.columns:
            added[column("ess_per_ceiling", kind)] = ess / table["ceiling"]
        if f"total_ess_{kind}" in table.columns:
            total = table[f"total_ess_{kind}"]
            added[column("total_ess_per_difficulty", kind)] = total / by
            added[column("total_ess_per_total_tss", kind)] = total / table["total_tss"]
    return table.assign(**added)


def cross_task(
    runs: pd.DataFrame, difficulty: str, kind: str, sa_limit: float = SA_ACCURACY_LIMIT
) -> pd.DataFrame:
    """Final models as figures 3 and 5 compare them: ratios, with totals for softmax attention.

    In the rows of ``sa`` the columns ``ess_per_difficulty_<kind>`` and ``tss_per_difficulty`` hold
    the totals (section 4.1), and models with an accuracy above ``sa_limit`` are left out.
    """
    require(runs, "featurizer", "accuracy", f"total_ess_{kind}")
    table = add_ratios(done(runs), difficulty)
    sa = table["featurizer"] == "sa"
    for quantity in ("ess_per_difficulty", "tss_per_difficulty"):
        per_channel, total = column(quantity, kind), column(f"total_{quantity}", kind)
        table[per_channel] = table[per_channel].where(~sa, table[total])
    return table[~(sa & (table["accuracy"] > sa_limit))]


def saturated(
    runs: pd.DataFrame, kind: str, utilisation: float = 0.9, accuracy: float = 0.95
) -> pd.Series:
    """Which runs are saturated: ESS near its geometric ceiling while accuracy fails (section 4.2).

    Boolean, one per row: ``ess_<kind>`` above ``utilisation`` * ``ceiling`` and accuracy below
    ``accuracy``. The ceiling, not TSS, because ESS_i <= min(TSS, i, L - i).
    """
    require(runs, f"ess_{kind}", "ceiling", "accuracy")
    full = runs[f"ess_{kind}"] > utilisation * runs["ceiling"]
    return full & (runs["accuracy"] < accuracy)


def nearest_cell(
    table: pd.DataFrame, wanted: Mapping[str, float], also: Sequence[str] = ()
) -> dict[str, float] | None:
    """The cell of the sweep that stands where ``wanted`` stands in table 1's axes.

    ``wanted`` gives for each column a place between 0 (smallest value of the axis) and 1
    (largest). Among the combinations that exist, the one with the smallest summed distance of
    places is returned (ties: the smaller values), with its values of ``also``; None for an empty
    table.
    """
    names = [*wanted, *also]
    require(table, *names)
    cells = table[names].drop_duplicates().sort_values(names)
    if cells.empty:
        return None
    distance = pd.Series(0.0, index=cells.index)
    for name, place in wanted.items():
        rank = cells[name].rank(method="dense") - 1
        distance += (rank / max(rank.max(), 1) - place).abs()
    # Rounded, so that ties of sums such as 1/3 + 1/2 are ties.
    nearest_row = distance.round(9).idxmin()
    return {name: cells.loc[nearest_row, name].item() for name in names}


def in_cell(table: pd.DataFrame, cell: Mapping[str, float]) -> pd.DataFrame:
    """Rows whose columns have the cell's values."""
    require(table, *cell)
    return table[(table[list(cell)] == pd.Series(cell)).all(axis=1)]


def comparable(table: pd.DataFrame, axis: str, over: str) -> pd.DataFrame:
    """Rows whose value of ``over`` occurs at every value of ``axis``.

    A mean along the length compares like with like only if every length has the same difficulties
    (4 kv <= L cuts the hard ones from the short rows).
    """
    require(table, axis, over)
    at = table.groupby(over)[axis].nunique()
    return table[table[over].isin(at.index[at == table[axis].nunique()])]
