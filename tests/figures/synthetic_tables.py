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
    frames = {"runs": runs, "checkpoints": checkpoints, "layers": layers}
    return {f"{study}_{name}": pd.DataFrame(rows) for name, rows in frames.items()}
