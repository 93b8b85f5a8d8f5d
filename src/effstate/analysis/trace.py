"""ESS over a run's saved checkpoints: per layer, head and index, averaged over samples (section 2)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from effstate.artifacts import Artifact, read_json, write_tensors
from effstate.config import RunConfig, TraceConfig
from effstate.ess import EssError, Profile, measure
from effstate.models import SequenceModel
from effstate.operators import Features
from effstate.training.data import load_data
from effstate.training.trainer import RESULT, Execution, load_model

TRACE_FILE = "trace.safetensors"


def kind_name(tolerance: float) -> str:
    """Column name of a tolerance-ESS: 0.001 is ``tol_1e-3``."""
    mantissa, exponent = f"{tolerance:e}".split("e")
    digits = mantissa.rstrip("0").rstrip(".")
    return f"tol_{digits}e{int(exponent)}"


def kinds_of(trace: TraceConfig) -> list[str]:
    """The ESS kinds of a trace, in the order in which they are stored."""
    return ["entropy", *(kind_name(tolerance) for tolerance in trace.tolerances)]


@torch.no_grad()
def layer_profiles(
    model: SequenceModel, tokens: Tensor, tolerances: tuple[float, ...]
) -> Iterator[tuple[Features, Profile]]:
    """Features and ESS profile of each layer on ``tokens`` (samples, L), in float64.

    Profiles have shape (samples, heads, L - 1). Raises EssError naming layer, sample and head where
    an operator is not finite.
    """
    model = model.double().eval()
    for layer, features in enumerate(model.features(tokens)):
        operator = features.recurrence() if hasattr(features, "recurrence") else features.operator()
        try:
            profile = measure(operator, tolerances)
        except EssError as error:
            raise EssError(f"layer {layer}: {error}") from None
        yield features, profile


def decay_product_norm(features: Features) -> Tensor:
    """||a_1 * ... * a_L|| per head, averaged over samples (figure 10a); NaN without a decay."""
    log_decay = getattr(features, "log_decay", None)
    if not hasattr(features, "recurrence"):
        return torch.full((features.C.shape[1],), float("nan"), dtype=torch.float64)
    length, size = features.B.shape[-2:]
    if log_decay is None:
        return torch.full((features.C.shape[1],), size**0.5, dtype=torch.float64)
    full = log_decay.double().expand(*log_decay.shape[:-2], length, size)
    return full.sum(-2).exp().norm(dim=-1).mean(0)


def make_trace(
    artifact: Artifact,
    train: Artifact,
    data: Artifact,
    execution: Execution,
    *,
    on_step: Callable[[int, int], None] = lambda step, steps: None,
) -> None:
    """Trace every saved checkpoint of a finished run on the same validation samples; seal it.

    Tensors of the file: ``epochs`` (E,), and per layer k ``layer<k>.ess`` (E, kinds, heads, L - 1),
    ``layer<k>.decay_product_norm`` (E, heads), ``layer<k>.zero_blocks`` (E,): all-zero H_i counted.
    """
    started = time.monotonic()
    trace = artifact.request.config
    run = train.request.config
    assert isinstance(trace, TraceConfig) and isinstance(run, RunConfig)
    torch.set_num_threads(execution.threads)
    result = read_json(train.checked(RESULT))
    epochs = [entry["epoch"] for entry in result["evaluations"]]
    tokens = load_data(data, splits=["validation"])["validation"].head(trace.samples).inputs.long()
    columns: dict[str, list[Tensor]] = {}
    paths: set[str] = set()
    for position, epoch in enumerate(epochs):
        model = load_model(train, epoch)
        for layer, (features, profile) in enumerate(layer_profiles(model, tokens, trace.tolerances)):
            kinds = [profile.entropy, *(profile.tolerance[t] for t in trace.tolerances)]
            means = torch.stack([kind.double().mean(0) for kind in kinds])
            for name, value in (
                ("ess", means.float()),
                ("decay_product_norm", decay_product_norm(features).float()),
                ("zero_blocks", torch.tensor(profile.zero_blocks)),
            ):
                columns.setdefault(f"layer{layer}.{name}", []).append(value)
            paths.add(f"{run.model.featurizer}: {profile.method}")
        on_step(position + 1, len(epochs))
    tensors = {name: torch.stack(values) for name, values in columns.items()}
    tensors["epochs"] = torch.tensor(epochs)
    write_tensors(artifact.path(TRACE_FILE), tensors)
    facts = {"path": ", ".join(sorted(paths)), "dtype": "float64", "samples": len(tokens)}
    artifact.finish("done", [TRACE_FILE], seconds=time.monotonic() - started, facts=facts)
