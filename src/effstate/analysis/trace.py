"""ESS over a run's saved checkpoints: per layer, head and index, averaged over samples (section 2)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from effstate.analysis.proxies import effective_window, unmasked_rank
from effstate.artifacts import Artifact, derive_seed, read_json, write_tensors
from effstate.config import RunConfig, TraceConfig
from effstate.ess import EssError, Profile
from effstate.models import SequenceModel
from effstate.operators import Features, profile_of
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
        try:
            profile = profile_of(features, tolerances)
        except EssError as error:
            raise EssError(f"layer {layer}: {error}") from None
        yield features, profile


def kind_means(profile: Profile, trace: TraceConfig) -> Tensor:
    """ESS averaged over samples, (kinds, heads, L - 1) in the order of :func:`kinds_of`."""
    kinds = [profile.entropy, *(profile.tolerance[t] for t in trace.tolerances)]
    return torch.stack([kind.double().mean(0) for kind in kinds]).float()


@torch.no_grad()
def noise_profiles(model: SequenceModel, run: RunConfig, trace: TraceConfig) -> Iterator[Profile]:
    """ESS profile of each mixer alone on Gaussian noise (section 5.1), in float64.

    The noise, (samples, L, width) of variance 1, follows from the run's seed and is the same for
    every mixer of a width.
    """
    model = model.double().eval()
    generator = torch.Generator().manual_seed(derive_seed(run.seed, "noise"))
    shape = (trace.samples, run.task.seq_len, run.model.width)
    noise = torch.randn(shape, generator=generator, dtype=torch.float64)
    for mixer in model.mixers:
        yield profile_of(mixer.features(noise), trace.tolerances)


def decay_product_norm(features: Features) -> Tensor:
    """||a_1 * ... * a_L|| per head, averaged over samples (figure 10a); NaN without a recurrence."""
    if not hasattr(features, "decay_sum"):
        return torch.full((features.C.shape[1],), float("nan"), dtype=torch.float64)
    return features.decay_sum().exp().norm(dim=-1).mean(0)


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
    ``layer<k>.decay_product_norm`` (E, heads), ``layer<k>.zero_blocks`` (E,): all-zero H_i counted;
    where the trace asks for them ``layer<k>.noise_ess`` (kinds, heads, L - 1) of the untrained layer,
    and ``layer<k>.effective_window`` and ``layer<k>.unmasked_rank`` (heads,) of the last epoch.
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
    once: dict[str, Tensor] = {}
    for position, epoch in enumerate(epochs):
        model = load_model(train, epoch)
        for layer, (features, profile) in enumerate(layer_profiles(model, tokens, trace.tolerances)):
            for name, value in (
                ("ess", kind_means(profile, trace)),
                ("decay_product_norm", decay_product_norm(features).float()),
                ("zero_blocks", torch.tensor(profile.zero_blocks)),
            ):
                columns.setdefault(f"layer{layer}.{name}", []).append(value)
            paths.add(f"{run.model.mixers[layer]}: {profile.method}")
            if trace.proxies and epoch == epochs[-1]:
                once[f"layer{layer}.effective_window"] = effective_window(features).float()
                once[f"layer{layer}.unmasked_rank"] = unmasked_rank(features).float()
        if trace.noise and epoch == 0:
            for layer, profile in enumerate(noise_profiles(model, run, trace)):
                once[f"layer{layer}.noise_ess"] = kind_means(profile, trace)
        on_step(position + 1, len(epochs))
    tensors = {name: torch.stack(values) for name, values in columns.items()} | once
    tensors["epochs"] = torch.tensor(epochs)
    write_tensors(artifact.path(TRACE_FILE), tensors)
    facts = {"path": ", ".join(sorted(paths)), "dtype": "float64", "samples": len(tokens)}
    artifact.finish("done", [TRACE_FILE], seconds=time.monotonic() - started, facts=facts)
