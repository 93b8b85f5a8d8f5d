"""Made-up tables for every claim: ``CASES[claim](effect)`` gives the claim's tables.

``effect`` is 1 (clearly as claimed), -1 (clearly the opposite) or 0 (as many seeds for as against).
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pandas as pd

Tables = dict[str, pd.DataFrame]
Row = dict[str, Any]

SEEDS = (0, 1, 2)
MODELS = ((64, 8), (64, 4), (64, 2))
HARDNESS = (8, 16, 32)
DIFFICULTY = {"mqar": "kv", "copying": "num_tokens_to_copy", "compression": "vocab_size"}
CELLS = {"fig26": {"width": 64, "heads": 4, "kv": 16}, "fig29": {"width": 64, "heads": 2, "kv": 32}}
MEMORY = ("sa", "gla", "wla", "la")


def jitter(seed: int, size: float = 0.02) -> float:
    """Noise of a seed: negative, none, positive; its mean over seeds is 0."""
    return size * (seed - 1)


def sweep(
    measure: Callable[[Row], Row], study: str = "mqar", lengths: tuple[int, ...] = (128,)
) -> pd.DataFrame:
    """Runs of a sweep; ``measure`` gives ``ess`` (of every kind) and ``accuracy`` of a design."""
    grid = product(("gla", "la", "wla", "sa"), MODELS, HARDNESS, lengths, SEEDS)
    rows = []
    for place, (featurizer, (width, heads), hard, length, seed) in enumerate(grid):
        tss = length if featurizer == "sa" else width // heads
        row = {"run": f"{study}-{place}", "featurizer": featurizer, "width": width, "heads": heads}
        row |= {"tss": float(tss), "seq_len": length, DIFFICULTY[study]: hard, "seed": seed}
        row |= {"total_tss": float(length * width if featurizer == "sa" else width)}
        row |= {"ceiling": 0.9 * tss, "state": "done", "chance": 0.05}
        found = measure(row)
        row["accuracy"] = found["accuracy"]
        for kind in ("entropy", "tol_1e-3"):
            row |= {f"ess_{kind}": found["ess"], f"total_ess_{kind}": found["ess"] * heads}
        rows.append(row)
    return pd.DataFrame(rows)


def checkpoints(runs: pd.DataFrame, curve: Callable[[Row], list[tuple[float, float]]]) -> pd.DataFrame:
    """Checkpoints of runs; ``curve`` gives (ESS, accuracy) at epochs 0, 10, ..."""
    rows = []
    for run in runs.to_dict("records"):
        for place, (ess, accuracy) in enumerate(curve(run)):
            measures = {"ess_entropy": ess, "ess_tol_1e-3": ess, "accuracy": accuracy}
            rows.append(run | {"epoch": 10 * place} | measures)
    return pd.DataFrame(rows)


def correlated(r: float, start: tuple[float, float] = (1.0, 0.0)) -> list[tuple[float, float]]:
    """Epoch 0 and three checkpoints whose ESS and accuracy have exactly the correlation ``r``."""
    x, across = np.array([-1, 0, 1]) / np.sqrt(2), np.array([1, -2, 1]) / np.sqrt(6)
    y = r * x + np.sqrt(1 - r * r) * across
    return [start, *zip(5 + x, 0.5 + 0.1 * y, strict=True)]


def predicted(by_ess: str, by_other: str, study: str = "mqar") -> Callable[[int], Tables]:
    """Accuracy follows one of two functions of a run's ESS, TSS and difficulty d, or neither."""

    def tables(effect: int) -> Tables:
        draw = np.random.default_rng(5)

        def measure(row: Row) -> Row:
            many = row["heads"] if row["featurizer"] == "sa" else 1
            ess = 2 ** draw.uniform(-3, 3)
            values = {
                "log ess/d": np.log2(many * ess / row[DIFFICULTY[study]]) / 8,
                "log tss/d": np.log2(row["tss"] / row[DIFFICULTY[study]]) / 8,
                "ess/d": ess / row[DIFFICULTY[study]],
                "ess": ess / 10,
            }
            signal = draw.normal() if effect == 0 else values[by_ess if effect > 0 else by_other]
            return {"ess": ess, "accuracy": float(np.clip(0.5 + 0.2 * signal, 0, 0.94))}

        return {f"{study}_runs": sweep(measure, study)}

    return tables


def within(effect: int) -> Tables:
    runs = sweep(lambda row: {"ess": 1.0, "accuracy": 0.5})

    def curve(run: Row) -> list[tuple[float, float]]:
        hard = (run["kv"] / 16) / (run["tss"] / 16)
        lean = effect * 0.2 * np.log2(hard) if hard != 1 else 0.0
        return correlated(np.clip(0.3 + lean + jitter(run["seed"], 0.1), -0.99, 0.99))

    return {"mqar_checkpoints": checkpoints(runs, curve)}


def saturation(effect: int) -> Tables:
    def measure(row: Row) -> Row:
        at_end = {1: 0.97, 0: 0.9, -1: 0.5}[effect] + jitter(row["seed"])
        share = at_end if row["kv"] == 32 else 0.7
        return {"ess": share * row["ceiling"], "accuracy": 1 - 0.02 * row["kv"] + jitter(row["seed"])}

    runs = sweep(measure)
    start = checkpoints(runs, lambda run: [(0.6 * run["ceiling"], 0.05), (run["ess_entropy"], 0.5)])
    return {"mqar_runs": runs, "mqar_checkpoints": start}


def collapse(effect: int) -> Tables:
    def measure(row: Row) -> Row:
        la = row["featurizer"] == "la"
        share = 0.8 if la else 0.4 - 0.2 * effect + jitter(row["seed"])
        accuracy = 0.9 if la else 0.9 - 0.3 * effect
        return {"ess": share * row["tss"], "accuracy": accuracy + jitter(row["seed"])}

    return {"mqar_runs": sweep(measure)}


def utilisation(effect: int) -> Tables:
    def measure(row: Row) -> Row:
        share = 0.5 + (0.2 * effect + jitter(row["seed"])) * (row["featurizer"] == "la")
        return {"ess": share * row["tss"], "accuracy": 0.5}

    return {"mqar_runs": sweep(measure)}


def early(effect: int) -> Tables:
    runs = sweep(lambda row: {"ess": 1.0, "accuracy": 0.5})

    def curve(run: Row) -> list[tuple[float, float]]:
        way = 1 if run["featurizer"] == "sa" else -1
        return [(2.0, 0.1), (2.0 * (1 + 0.2 * effect * way + jitter(run["seed"])), 0.5), (3.0, 0.9)]

    return {"mqar_checkpoints": checkpoints(runs, curve)}


def length(effect: int) -> Tables:
    def octave(row: Row) -> float:
        return np.log2(row["seq_len"] / 64)

    def measure(row: Row) -> Row:
        way = 1 if row["featurizer"] == "la" else -1
        return {"ess": 4 + (0.5 * effect * way + jitter(row["seed"])) * octave(row), "accuracy": 0.5}

    runs = sweep(measure, lengths=(64, 128, 192))
    layers = []
    for row, epoch, layer in product(runs.to_dict("records"), (0, 10), (0, 1)):
        lean = effect if effect else row["seed"] - 1
        norm = np.nan if row["featurizer"] == "sa" else 2.0 ** (-lean * octave(row) - layer)
        layers.append(row | {"epoch": epoch, "layer": layer, "decay_product_norm": norm})
    return {"mqar_runs": runs, "mqar_layers": pd.DataFrame(layers)}


def init(scaling: float, learning: float, rescue: float) -> Tables:
    """The initialisation study; each argument is an effect (1, 0, -1)."""
    sizes, alphas = (4.0, 8.0, 16.0), (16.0, 64.0, 256.0)
    plan = [("tss_s6", "s6", tss, 16.0, 8) for tss in sizes]
    plan += [("tss_gated", f, tss, 16.0, 8) for f in ("gla", "gla_s6") for tss in sizes[:2]]
    plan += [("tss_gated", "gla", 16.0, 16.0, 8), ("tss_gated+alpha", "gla_s6", 16.0, 16.0, 8)]
    plan += [("alpha", "gla_s6", 16.0, alpha, 8) for alpha in alphas[1:]]
    plan += [("fig28", "gla", tss, 16.0, 16) for tss in sizes]
    rows = []
    for place, ((grids, featurizer, tss, alpha, kv), seed) in enumerate(product(plan, SEEDS)):
        noise, step = jitter(seed), np.log2(tss / 8)
        grows, learns = (effect or 0.05 + seed - 1 for effect in (scaling, learning))
        if featurizer == "gla":
            ess, accuracy = 2 + grows * step, 0.5 + 0.3 * learns * step
        elif featurizer == "s6":
            ess, accuracy = 2 - grows * step, 0.125 + noise / 2
        else:
            slower = np.log2(alpha / 16)
            ess = 2 + (rescue + noise) * slower
            accuracy = 0.125 + noise + {1: 0.4, 0: 0.05, -1: 0.0}[rescue] * (slower > 0)
        row = {"run": f"init-{place}", "grids": grids, "featurizer": featurizer, "tss": tss, "kv": kv}
        row |= {"arange_alpha": alpha, "seed": seed, "state": "done", "chance": 0.125}
        rows.append(row | {"accuracy": accuracy, "init_ess_entropy": ess})
    return {"init_runs": pd.DataFrame(rows)}


def chance(effect: int) -> Tables:
    tables = init(1, 1, 1)
    away = {1: 0.0, 0: 0.02, -1: 0.3}[effect]
    runs = tables["init_runs"]
    noise = runs["seed"].map(lambda seed: jitter(seed, 0.005))
    return {"init_runs": runs.assign(accuracy=runs["chance"] + away + noise)}


def penalty(accuracy: Callable[[str, str, float], float]) -> Tables:
    """The regularisation study; accuracy of a featurizer, the penalised layers and λ."""
    plan = [(featurizer, "1", 0.0) for featurizer in ("gla", "wla", "la")]
    plan += product(("gla", "wla"), ("1", "0", "0,1"), (0.5, 2.0, 8.0))
    rows = []
    for place, ((featurizer, layers, strength), seed) in enumerate(product(plan, SEEDS)):
        row = {"run": f"r-{place}", "featurizer": featurizer, "seed": seed, "state": "done"}
        row |= {"regularised_layers": layers, "regularisation": strength}
        rows.append(row | {"accuracy": accuracy(featurizer, layers, strength) + jitter(seed)})
    return {"regularisation_runs": pd.DataFrame(rows)}


def beats_la(effect: int) -> Tables:
    def accuracy(featurizer: str, layers: str, strength: float) -> float:
        if featurizer == "la":
            return 0.5
        return 0.5 + (0.2 if strength == 2 else -0.2) * effect

    return penalty(accuracy)


def second_layer(effect: int) -> Tables:
    return penalty(lambda f, layers, strength: 0.5 + 0.2 * effect * (layers == "1") * (strength > 0))


def over(effect: int) -> Tables:
    return penalty(lambda f, layers, strength: 0.5 - 0.3 * effect * (strength == 8))


def distillation(measure: Callable[[int, int, float, int], Row]) -> Tables:
    """Students; ``measure(teacher, layer, tss, epoch)`` gives their columns."""
    rows = []
    for teacher, layer, tss, epoch in product(range(6), (0, 1), (4.0, 8.0), (0, 10, 20)):
        row = {"run": f"t-{teacher}", "student": f"t-{teacher}-{layer}-{tss}-{epoch}", "layer": layer}
        row |= {"tss": tss, "epoch": epoch, "state": "done", "teacher_accuracy": 0.9}
        rows.append(row | measure(teacher, layer, tss, epoch))
    return {"distillation_students": pd.DataFrame(rows)}


def loss(effect: int) -> Tables:
    draw = np.random.default_rng(2)

    def measure(teacher: int, layer: int, tss: float, epoch: int) -> Row:
        ess = 4 + epoch / 5 + layer + draw.normal(0, 0.2)
        return {"teacher_ess_mid_entropy": ess, "activation_loss": effect * ess + draw.normal(0, 0.5)}

    return distillation(measure)


def layers_of_teachers(effect: int) -> Tables:
    def measure(teacher: int, layer: int, tss: float, epoch: int) -> Row:
        gap = 0.1 * effect + jitter(teacher % 3)
        return {"teacher_ess_entropy": 4.0 + layer, "accuracy": 0.7 - gap * layer}

    return distillation(measure)


def approach(effect: int) -> Tables:
    def measure(teacher: int, layer: int, tss: float, epoch: int) -> Row:
        gap = 2 + (tss == 8) * (-1.0 * effect + jitter(teacher % 3))
        return {"teacher_ess_entropy": 6.0, "ess_entropy": 6.0 - gap}

    return distillation(measure)


def hybrids(measure: Callable[[str, int], tuple[float, dict[str, list[float]]]]) -> Tables:
    """Hybrids; ``measure(pattern, seed)`` gives accuracy and ESS of the ``s`` and ``g`` layers."""
    plan = [("four", "".join(letters)) for letters in product("gs", repeat=4)]
    plan += [("jamba", "ggsggsgg"), ("jamba", "gsgsgsgg")]
    runs, layers = [], []
    for place, ((grids, pattern), seed) in enumerate(product(plan, SEEDS)):
        accuracy, ess = measure(pattern, seed)
        row = {"run": f"h-{place}", "grids": grids, "featurizer": pattern, "seed": seed, "state": "done"}
        row |= {"attention_layers": pattern.count("s"), "accuracy": accuracy}
        runs.append(row)
        left = {letter: list(values) for letter, values in ess.items()}
        for layer, letter in enumerate(pattern):
            own = {"mixer": "sa" if letter == "s" else "gla", "ess_tol_1e-1": left[letter].pop(0)}
            layers += [row | own | {"epoch": epoch, "layer": layer} for epoch in (0, 10)]
    return {"hybrids_runs": pd.DataFrame(runs), "hybrids_layers": pd.DataFrame(layers)}


def attention_first(effect: int) -> Tables:
    def measure(pattern: str, seed: int) -> tuple[float, dict[str, list[float]]]:
        first = pattern.startswith("s")
        value = 0.5 - 0.3 * effect * first + jitter(seed, 0.05)
        return value, {"s": [10 * value] * 4, "g": [1.0] * 8}

    return hybrids(measure)


def best_proxy(effect: int) -> Tables:
    draw = np.random.default_rng(1)

    def measure(pattern: str, seed: int) -> tuple[float, dict[str, list[float]]]:
        sa = [*draw.uniform(1, 10, pattern.count("s"))]
        gla = [*draw.uniform(1, 10, pattern.count("g"))]
        if effect < 0:  # the mean, and as much the gated layers' maximum, goes with accuracy
            gla = [float(np.mean(sa or [5.0]))] * len(gla)
        follows = {1: max(sa, default=0.0), -1: float(np.mean(sa or [0.0])), 0: 10 * draw.random()}
        return follows[effect] / 10, {"s": sa, "g": gla}

    return hybrids(measure)


def third_layer(effect: int) -> Tables:
    def measure(pattern: str, seed: int) -> tuple[float, dict[str, list[float]]]:
        accuracy = 0.5 - 0.3 * effect * (pattern.count("s") == 3) + jitter(seed)
        return accuracy, {"s": [1.0] * 4, "g": [1.0] * 8}

    return hybrids(measure)


def dips(rows: list[tuple[Row, float]]) -> pd.DataFrame:
    """Three texts of each row's dip at the tolerance 0.1, and half of it at 0.001."""
    return pd.DataFrame(
        row | {"text": text, "tolerance": tolerance, "dip": share * (dip + jitter(text))}
        for row, dip in rows
        for text in SEEDS
        for tolerance, share in ((0.1, 1.0), (0.001, 0.5))
    )


def modulation(effect: int) -> Tables:
    rows = [
        ({"featurizer": name, "separator": "eos", "place": "separator"}, 0.5 - 0.1 * effect * i)
        for i, name in enumerate(MEMORY)
    ]
    return {"lm_dips": dips(rows)}


def recall(effect: int) -> Tables:
    rows = []
    for (i, name), shard in product(enumerate(MEMORY), range(6)):
        cost = 2 + (0.5 * effect + jitter(shard % 3)) * i
        row = {"featurizer": name, "shard": shard, "recall_log_perplexity": cost}
        rows.append(row | {"log_perplexity": 3 + 0.1 * effect * i})
    return {"lm_recall": pd.DataFrame(rows)}


def open_dips(effect: int) -> Tables:
    """EOS against mid-sentence of two models; their full stops differ as the next claim says."""
    rows = []
    for model, kind, stop in (("falcon-mamba-7b", "ssm", 0.1), ("mistral-7b", "attention", 0.45)):
        base = {"model": model, "trained": True, "kind": kind, "billions": 7.0}
        at_stop = {1: stop, 0: 0.35, -1: 0.55 - stop}[effect]
        rows.append((base | {"separator": "eos", "place": "separator"}, 0.5))
        rows.append((base | {"separator": ".", "place": "separator"}, at_stop))
        rows.append((base | {"separator": "eos", "place": "control"}, 0.5 - 0.2 * effect))
    return {"openweights_dips": dips(rows)}


def code(effect: int) -> Tables:
    places = ({"place": "closing brace"}, 0.5), ({"place": "control"}, 0.5 - 0.2 * effect)
    rows = [
        ({"program": p, "trained": True} | place, dip)
        for p in ("root", "fibonacci")
        for place, dip in places
    ]
    return {"openweights_code": dips(rows)}


def shots(effect: int) -> Tables:
    one = {1: {"attention": 0.5, "ssm": 0.02}, 0: {"attention": 0.3, "ssm": 0.3}}
    one[-1] = {"attention": 0.02, "ssm": 0.5}
    later = {1: 0.02, 0: 0.1, -1: 0.3}[effect]
    rows = []
    for kind, question in product(("attention", "ssm"), range(6)):
        first = 1 + one[effect][kind] + jitter(question % 3, 0.03)
        for shot, ess in ((0, 1.0), (1, first), (5, first * (1 + later))):
            row = {"model": f"{kind}-3b", "kind": kind, "question": question, "shots": shot}
            row["trained"] = True
            rows.append(row | {"ess": 100 * ess})
    return {"openweights_shots": pd.DataFrame(rows)}


CASES: dict[str, Callable[[int], Tables]] = {
    "ess-beats-tss": predicted("log ess/d", "log tss/d"),
    "kv-normalisation-matters": predicted("ess/d", "ess"),
    "within-model-correlation-in-hard-cells": within,
    "state-saturation": saturation,
    "state-collapse": collapse,
    "la-utilises-most": utilisation,
    "copying-agrees": predicted("log ess/d", "log tss/d", "copying"),
    "compression-agrees": predicted("log ess/d", "log tss/d", "compression"),
    "ess-dips-early-in-training": early,
    "s6-init-does-not-scale": lambda effect: init(effect, 1, 1),
    "s6-cannot-learn-mqar": chance,
    "gla-accuracy-tracks-init-ess": lambda effect: init(1, effect, 1),
    "alpha-rescues-gla-s6": lambda effect: init(1, 1, effect),
    "regularisation-beats-la": beats_la,
    "second-layer-is-best": second_layer,
    "over-regularisation-hurts": over,
    "decay-shrinks-with-length": length,
    "teacher-ess-predicts-distillation-loss": loss,
    "low-ess-layer-distills-better": layers_of_teachers,
    "student-ess-approaches-teacher": approach,
    "attention-first-collapses": attention_first,
    "max-sa-ess-is-best-proxy": best_proxy,
    "fixed-topology-can-fail": third_layer,
    "modulation-order": modulation,
    "recall-gap-mirrors-modulation": recall,
    "eos-dips-in-open-models": open_dips,
    "ssm-needs-eos-attention-does-not": open_dips,
    "code-delimiters-dip": code,
    "one-shot-changes-attention-only": shots,
}
