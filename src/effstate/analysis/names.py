"""Names of the tables' columns and how a reader sees them; imports nothing heavy."""

from __future__ import annotations

FEATURIZERS = ("gla", "la", "wla", "sa")
"""Built-in featurizers in the order in which figures show them; others follow by name."""

RECURRENT = FEATURIZERS[:3]
"""Those with a state of fixed size; the state of softmax attention (sa) grows with the index."""

INIT_FEATURIZERS = ("s6", "gla", "gla_s6")
"""Those that the initialisation study compares (section 5.1)."""

DIFFICULTY = {
    "mqar": "kv",
    "copying": "num_tokens_to_copy",
    "compression": "vocab_size",
    "regularisation": "kv",
}
"""Study to the column of its difficulty axis (table 1)."""

DESIGN = ("tss", "total_tss", "seq_len")
"""Axes of a sweep besides its difficulty."""

AXIS_LABELS = {
    "kv": "kv",
    "num_tokens_to_copy": "tokens to copy",
    "vocab_size": "vocabulary size",
    "tss": "TSS",
    "total_tss": "total TSS",
    "seq_len": "sequence length",
    "regularisation": "λ",
    "arange_alpha": "α",
}

PER_DIFFICULTY = {"kv": "kv", "num_tokens_to_copy": "token to copy", "vocab_size": "vocab. size"}

QUANTITIES = {
    "accuracy": "accuracy",
    "ess": "ESS",
    "total_ess": "total ESS",
    "tss": "TSS",
    "total_tss": "total TSS",
    "ess_per_difficulty": "ESS / {difficulty}",
    "total_ess_per_difficulty": "total ESS / {difficulty}",
    "tss_per_difficulty": "TSS / {difficulty}",
    "total_tss_per_difficulty": "total TSS / {difficulty}",
    "ess_per_tss": "ESS / TSS",
    "total_ess_per_total_tss": "total ESS / total TSS",
    "ess_per_ceiling": "ESS / geometric ceiling",
    "correlation": "correlation of ESS and accuracy within a run",
}
"""Quantity to its label; ``{difficulty}`` is filled per study."""


def column(quantity: str, kind: str) -> str:
    """The table column of a quantity: quantities of ESS carry the ESS kind at their end."""
    of_ess = quantity == "ess" or quantity.startswith(("ess_", "total_ess"))
    return f"{quantity}_{kind}" if of_ess else quantity


def quantity_label(quantity: str, difficulty: str) -> str:
    """How a quantity is written on an axis, for a study's difficulty column."""
    return QUANTITIES[quantity].format(difficulty=PER_DIFFICULTY[difficulty])


def in_part(grids: str, part: str) -> bool:
    """Whether ``grids`` ("tss_s6+alpha") name a grid of the part "tss": ``tss`` or ``tss_...``."""
    return any(name == part or name.startswith(f"{part}_") for name in grids.split("+"))


def attention_places(pattern: str) -> tuple[int, ...]:
    """Layers with softmax attention in a hybrid's pattern: ``"gsgg"`` (or names joined by +) is (1,)."""
    mixers = pattern.split("+") if "+" in pattern else pattern
    return tuple(place for place, mixer in enumerate(mixers) if mixer in ("s", "sa"))


def kind_label(kind: str) -> str:
    """``"entropy"`` or ``"tol_1e-3"`` as a reader sees it."""
    return "entropy-ESS" if kind == "entropy" else f"tolerance-ESS (τ = {kind.removeprefix('tol_')})"


def order(featurizers: object) -> list[str]:
    """Featurizers in the order of figures: the built-in ones first, then the others by name."""
    given = {str(name) for name in featurizers}  # type: ignore[attr-defined]
    return [f for f in FEATURIZERS if f in given] + sorted(given - set(FEATURIZERS))
