"""Synthetic tables with the schema of the collected ones, for tests of analysis and figures.

Accuracy rises with ESS per difficulty, ESS saturates small states and collapses large ones; a share
of the runs has diverged and some cells are missing. The numbers mean nothing else.
"""

from __future__ import annotations

from itertools import product

import numpy as np
import pandas as pd

KINDS = ("entropy", "tol_1e-1", "tol_1e-3", "tol_1e-5")
DIFFICULTY = {"mqar": "kv", "copying": "num_tokens_to_copy", "compression": "vocab_size"}
SMALL = {
    "models": ((16, 4), (32, 2), (32, 1)),
    "seq_len": (32, 64),
    "difficulty": (4, 8, 16),
    "seeds": (0, 1),
    "epochs": (0, 10, 20, 30, 40),
}
PAPER = {
    "models": tuple(product((64, 128, 256, 512), (4, 8))),
    "seq_len": (64, 128, 256, 512, 1024, 2048),
    "difficulty": (8, 16, 32, 64, 128),
    "seeds": (0,),
    "epochs": (0, 10, 20, 30, 40, 50, 60, 70),
}


def ceiling(tss: float, length: int) -> float:
    """mean_i min(TSS, i, L - i)."""
    i = np.arange(1, length)
    return float(np.minimum(np.minimum(i, length - i), tss).mean())


def tables(study: str = "mqar", axes: dict = SMALL, seed: int = 0, proxies: bool = False) -> dict:
    """``{f"{study}_runs": ..., f"{study}_checkpoints": ..., f"{study}_layers": ...}``."""
    draw = np.random.default_rng(seed)
    runs, checkpoints, layers = [], [], []
    grid = product(
        ("gla", "la", "wla", "sa"),
        axes["models"],
        axes["seq_len"],
        axes["difficulty"],
        axes["seeds"],
    )
    for place, (featurizer, (width, heads), length, hard, run_seed) in enumerate(grid):
        if 4 * hard > length or (featurizer == "la" and hard == axes["difficulty"][-1] and width == 16):
            continue
        tss = length if featurizer == "sa" else width // heads
        base = {
            "run": f"{study}-{place}",
            "featurizer": featurizer,
            "width": width,
            "heads": heads,
            "tss": tss,
            "total_tss": tss * width if featurizer == "sa" else width,
            "seq_len": length,
            DIFFICULTY[study]: hard,
            "seed": run_seed,
            "chance": 1 / hard if study == "compression" else 0.05,
            "ceiling": ceiling(tss, length),
        }
        state = "diverged" if draw.random() < 0.04 else "done"
        last = {}
        for epoch in axes["epochs"]:
            progress = epoch / axes["epochs"][-1]
            fill = {"la": 0.98, "gla": 0.7, "wla": 0.6, "sa": 0.3}[featurizer] / (
                1 + (tss / 64) * (featurizer != "la")
            )
            entropy = base["ceiling"] * min(1.0, fill * (0.5 + 0.5 * progress) * draw.uniform(0.8, 1.0))
            accuracy = np.clip(
                progress * (0.6 + 0.3 * np.log2(2 * entropy / hard)) + draw.normal(0, 0.05), 0, 1
            )
            row = base | {"state": state, "epoch": epoch, "step": 100 * epoch}
            row |= {"accuracy": accuracy, "macro_accuracy": accuracy, "loss": 4 - 3 * accuracy}
            for kind, more in zip(KINDS, (1.0, 0.9, 1.3, 1.5), strict=True):
                row[f"ess_{kind}"] = min(entropy * more, base["ceiling"])
                row[f"total_ess_{kind}"] = row[f"ess_{kind}"] * heads
            if state == "diverged" and epoch > axes["epochs"][1]:
                measures = ("accuracy", "loss", "macro_accuracy")
                row |= {k: np.nan for k in row if k in measures or "ess_" in k}
            checkpoints.append(row)
            last = row
            for layer in (0, 1):
                norm = {"sa": np.nan, "la": np.sqrt(tss)}.get(
                    featurizer, np.exp(-length / 64) * (1 + layer)
                )
                own = {k: v * (0.8 + 0.4 * layer) for k, v in row.items() if "ess_" in k}
                layers.append(
                    {
                        "run": base["run"],
                        "epoch": epoch,
                        "layer": layer,
                        **own,
                        "decay_product_norm": norm,
                    }
                )
        final = {k: v for k, v in last.items() if k not in ("epoch", "step")}
        if proxies:
            final |= {
                "effective_window": length * draw.random(),
                "unmasked_rank": tss * draw.uniform(0.5, 1),
            }
        runs.append(final)
    return named(study, runs=runs, checkpoints=checkpoints, layers=layers)


def named(study: str, **frames: list[dict]) -> dict[str, pd.DataFrame]:
    """Lists of rows as the tables of a study."""
    return {f"{study}_{name}": pd.DataFrame(rows) for name, rows in frames.items()}


def design(study: str, place: int, featurizer: str, tss: float, **other: object) -> dict:
    """The columns that every table of the studies beside the sweeps has."""
    base = {"run": f"{study}-{place}", "grids": "", "featurizer": featurizer, "seq_len": 64, "kv": 8}
    base |= {"num_layers": 2, "tss": tss, "total_tss": 4 * tss, "seed": 0, "state": "done"}
    base |= other
    length, kv = int(base["seq_len"]), int(base["kv"])
    return base | {"chance": 1 / kv, "ceiling": ceiling(tss, length)}


def ess_of(entropy: float, prefix: str = "") -> dict[str, float]:
    """An ESS and its total, of every kind."""
    found = {}
    for kind, more in zip(KINDS, (1.0, 0.9, 1.3, 1.5), strict=True):
        found |= {f"{prefix}ess_{kind}": entropy * more, f"total_{prefix}ess_{kind}": 4 * entropy * more}
    return found


def init_tables(sizes: tuple[int, ...] = (4, 8, 16, 32), seeds: tuple[int, ...] = (0, 1)) -> dict:
    """S6 and GLA-S6 stay at chance; the ESS and accuracy of GLA rise with its state."""
    draw = np.random.default_rng(0)
    largest, runs, checkpoints = sizes[-1], [], []
    plan = [("tss_s6", "s6", tss, 1000, 8) for tss in sizes]
    plan += [("tss_gated", f, tss, 1000, 8) for f in ("gla", "gla_s6") for tss in sizes]
    plan += [("alpha", "gla_s6", largest, 2**e, 8) for e in range(10, 16)]
    plan += [("fig28", "gla", tss, 1000, 16) for tss in sizes]
    for place, ((grid, featurizer, tss, alpha, kv), seed) in enumerate(product(plan, seeds)):
        base = design("init", place, featurizer, tss, grids=grid, arange_alpha=alpha, kv=kv, seed=seed)
        own = tss**0.7 if featurizer == "gla" else 1.5 + np.log2(alpha / 1000 + 1)
        start = own * draw.uniform(0.9, 1.1)
        reach = tss / largest if featurizer == "gla" else 0.02 * np.log2(alpha / 500)
        for epoch in (0, 10, 20, 30):
            accuracy = np.clip(1 / kv + (0.8 * reach * epoch / 30) + draw.normal(0, 0.01), 0, 1)
            row = base | {"epoch": epoch, "step": 100 * epoch, "accuracy": accuracy}
            checkpoints.append(row | {"loss": 4 - 3 * accuracy, **ess_of(start * (1 + epoch / 60))})
        last = {k: v for k, v in checkpoints[-1].items() if k not in ("epoch", "step")}
        init = {k: v for k, v in ess_of(start, "init_").items() if not k.startswith("total_")}
        runs.append(last | init)
    return named("init", runs=runs, checkpoints=checkpoints)


def regularisation_tables(
    lambdas: tuple[float, ...] = (0.125, 0.5, 2.0, 8.0, 32.0), seeds: tuple[int, ...] = (0, 1, 2)
) -> dict:
    """GLA and WLA are best at λ = 2, LA has no penalty; with the smallest λ one run has diverged."""
    draw = np.random.default_rng(0)
    plan = [(featurizer, "1", 0.0) for featurizer in ("gla", "wla", "la")]
    plan += [*product(("gla", "wla"), ("1", "0", "0,1"), lambdas)]
    runs = []
    for place, ((featurizer, layers, strength), seed) in enumerate(product(plan, seeds)):
        base = design("regularisation", place, featurizer, 16, seed=seed, heads=4)
        base |= {"regularisation": strength, "regularised_layers": layers}
        gain = 0.0 if strength == 0 else 0.4 - 0.1 * abs(np.log2(strength) - 1)
        rise = 0.9 if featurizer == "la" else 0.4 + gain * (1.2 if layers == "1" else 0.8)
        accuracy = float(np.clip(rise + draw.normal(0, 0.02), 0, 1))
        row = base | {"accuracy": accuracy, "loss": 4 - 3 * accuracy, **ess_of(4 + 8 * accuracy)}
        if featurizer == "wla" and strength == lambdas[0] and layers == "0" and seed == 0:
            row |= {k: np.nan for k in row if k in ("accuracy", "loss") or "ess_" in k}
            row["state"] = "diverged"
        runs.append(row)
    return named("regularisation", runs=runs)


def distillation_tables(
    sizes: tuple[int, ...] = (4, 8, 16), lengths: tuple[int, ...] = (32, 64)
) -> dict:
    """Loss rises with the teacher's ESS and falls with the student's state."""
    draw = np.random.default_rng(0)
    runs, students, curves = [], [], []
    cells = product(lengths, (4, 8), (0, 1))
    for place, (length, kv, seed) in enumerate(cells):
        base = design("distillation", place, "gla", 32, seq_len=length, kv=kv, seed=seed)
        index = np.arange(1, length)
        for epoch, layer in product((0, 10, 20), (0, 1)):
            middle = 4 + 8 * epoch / 20 + 3 * layer + draw.normal(0, 1)
            teacher = {"layer": layer, "teacher_tss": 32, "teacher_accuracy": epoch / 20}
            for tss in sizes:
                kept = min(1.0, tss / middle)
                row = base | teacher | {"student": f"{base['run']}-{epoch}-{layer}-{tss}", "tss": tss}
                row |= {"epoch": epoch, "accuracy": kept * epoch / 20, "operator_loss": 1 - 0.8 * kept}
                row["activation_loss"] = float(np.clip(1 - 0.9 * kept + draw.normal(0, 0.03), 0, 2))
                for kind in ("entropy", "tol_1e-3"):
                    row |= {f"teacher_ess_mid_{kind}": middle, f"ess_mid_{kind}": middle * kept}
                    row |= {f"teacher_ess_{kind}": 0.8 * middle, f"ess_{kind}": 0.8 * middle * kept}
                students.append(row)
            shape = np.minimum(1, np.minimum(index, length - index) / 10)
            for role, tss in [("teacher", 32), *(("student", size) for size in sizes)]:
                if epoch == 20:
                    own = {k: base[k] for k in ("run", "featurizer", "seq_len", "kv", "seed")}
                    of = {"student": f"{role}-{tss}", "layer": layer, "role": role, "tss": tss}
                    accuracy = min(1.0, tss / middle)
                    for i, share in zip(index, shape, strict=True):
                        ess = min(middle, tss) * share
                        row = own | of | {"accuracy": accuracy, "index": i, "ess_entropy": ess}
                        curves.append(row | {"ess_tol_1e-3": ess})
        runs.append(base | {"accuracy": 1.0, "loss": 0.1, **ess_of(12.0)})
    return named("distillation", runs=runs, students=students, curves=curves)


def hybrids_tables(deep: int = 8) -> dict:
    """All orders of four mixers and five Jamba ones; accuracy follows the attention layers' ESS."""
    draw = np.random.default_rng(0)
    plan = [("four", "".join(letters)) for letters in product("gs", repeat=4)]
    for places in ((), (3,), (2, 5), (1, 3, 5), (1, 3, 5, 7)):
        plan.append(("jamba", "".join("s" if i in places else "g" for i in range(deep))))
    runs, layers = [], []
    for place, ((grid, pattern), seed) in enumerate(product(plan, (0, 1))):
        base = design("hybrids", place, pattern, 16, grids=grid, seed=seed, num_layers=len(pattern))
        base["attention_layers"] = pattern.count("s")
        own = [draw.uniform(10, 30) if letter == "s" else draw.uniform(1, 6) for letter in pattern]
        heard = [ess for ess, letter in zip(own, pattern, strict=True) if letter == "s"]
        accuracy = max(heard, default=0.0) / 30
        runs.append(base | {"accuracy": accuracy, "loss": 4 - 3 * accuracy, **ess_of(np.mean(own))})
        for epoch, (layer, ess) in product((0, 10), enumerate(own)):
            row = base | {"epoch": epoch, "layer": layer, "accuracy": accuracy * epoch / 10}
            row |= {"mixer": "sa" if pattern[layer] == "s" else "gla", "decay_product_norm": 0.1}
            layers.append(row | ess_of(ess * (0.5 + epoch / 20)))
    return named("hybrids", runs=runs, layers=layers)


def other_tables() -> dict:
    """The tables of the studies beside the sweeps."""
    return init_tables() | regularisation_tables() | distillation_tables() | hybrids_tables()
