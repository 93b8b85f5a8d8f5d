"""Typed configuration: every default and every check of the pipeline stands here.

A *run* is a value: task, model, training and seed, resolved to the last key. A *scale* lists sweeps
(baseline, axes, changes) for the studies; the *project* configuration says which scale, where results
go, and on what they are computed. Unknown keys are refused everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args

import yaml
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SerializeAsAny,
    ValidationError,
    model_validator,
)

from effstate.registry import MIXERS, TASK_CONFIGS, UnknownNameError, nearest

STUDIES = (
    "mqar",
    "copying",
    "compression",
    "init",
    "regularisation",
    "distillation",
    "hybrids",
    "lm",
    "openweights",
)
"""The one vocabulary of studies: rules, tables, claims and folders use these names."""


class ConfigError(ValueError):
    """One sentence: the file, the key, what is wrong, and the nearest right thing."""


class Strict(BaseModel):
    """Base of all configuration: unknown keys are refused, values do not change."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


# ---------------------------------------------------------------------------------------- tasks


class TaskConfig(Strict):
    """What every task has: a vocabulary, a length, and three disjoint splits (section 4)."""

    name: str
    vocab_size: int = Field(8192, ge=4, le=2**31 - 1)
    seq_len: int = Field(64, ge=2)
    num_train: int = Field(128_000, ge=1, description="training rows, reused over epochs")
    num_validation: int = Field(640, ge=1, description="rows of the curves")
    num_test: int = Field(6400, ge=1, description="rows of the reported accuracy")

    def violations(self) -> list[str]:
        """The paper's constraints that this configuration breaks, each as a short sentence."""
        return []

    @property
    def slug(self) -> str:
        """Readable part of a run's folder name."""
        return f"{self.name}-l{self.seq_len}"


class MQARConfig(TaskConfig):
    """Multi-query associative recall (METHOD section 4, tables 1, 4, 5, 7, 8)."""

    name: Literal["mqar"] = "mqar"
    kv: int = Field(8, ge=1, description="key-value pairs in a row, each asked once")
    kv_dist_const: float = Field(0.1, gt=0, description="a: p(slot) ~ slot^(a-1)")
    filler: Literal["random", "zero"] = Field("random", description="tokens that carry nothing")

    def violations(self) -> list[str]:
        """4 kv <= L (the pairs and as many query slots of two tokens), and enough tokens."""
        found = []
        if 4 * self.kv > self.seq_len:
            found.append(
                f"4 * kv <= seq_len is broken: 4 * {self.kv} > {self.seq_len} "
                f"(kv is at most {self.seq_len // 4} here)"
            )
        if self.kv > self.vocab_size // 2 - 1:
            found.append(
                f"kv <= vocab_size / 2 - 1 is broken: {self.kv} > {self.vocab_size // 2 - 1} keys"
            )
        return found

    @property
    def slug(self) -> str:
        return f"mqar-l{self.seq_len}-kv{self.kv}"


class SelectiveCopyingConfig(TaskConfig):
    """Selective copying (METHOD section 4): content among blanks, then repeated in order."""

    name: Literal["selective_copying"] = "selective_copying"
    num_tokens_to_copy: int = Field(8, ge=1)

    def violations(self) -> list[str]:
        """2 n + 1 < L: the content, the copy token and the answers fit with a blank to spare."""
        if 2 * self.num_tokens_to_copy + 1 >= self.seq_len:
            return [
                f"2 * num_tokens_to_copy + 1 < seq_len is broken: "
                f"2 * {self.num_tokens_to_copy} + 1 >= {self.seq_len} "
                f"(at most {(self.seq_len - 2) // 2} here)"
            ]
        return []

    @property
    def slug(self) -> str:
        return f"copying-l{self.seq_len}-n{self.num_tokens_to_copy}"


class CompressionConfig(TaskConfig):
    """Compression (METHOD section 4): the whole row is decoded from its last position."""

    name: Literal["compression"] = "compression"
    vocab_size: int = Field(16, ge=4, le=2**31 - 1, description="the difficulty axis")

    @property
    def slug(self) -> str:
        return f"compression-l{self.seq_len}-v{self.vocab_size}"


for _task in (MQARConfig, SelectiveCopyingConfig, CompressionConfig):
    TASK_CONFIGS.register(_task.model_fields["name"].default, _task)


def _resolve_task(value: Any) -> Any:
    """Validate a task mapping with the class registered under its name."""
    if isinstance(value, Mapping):
        name = value.get("name")
        if name is None:
            raise ValueError("a task needs the key 'name'")
        return TASK_CONFIGS[str(name)].model_validate(dict(value))
    return value


AnyTask = Annotated[SerializeAsAny[TaskConfig], BeforeValidator(_resolve_task)]

# ---------------------------------------------------------------------------------------- model


PATTERN_LETTERS = {"g": "gla", "s": "sa", "l": "la", "w": "wla"}
"""Letters of a hybrid's pattern."""


def jamba(layers: int, attention: int) -> tuple[str, ...]:
    """The Jamba policy (section E.4): attention at m * floor(layers / (k + 1) + 1/2) - 1, m = 1 .. k.

    k = ``attention``; all other layers are GLA. Raises ValueError if a place leaves the network.
    """
    if layers < 1 or attention < 0:
        raise ValueError(f"jamba: [{layers}, {attention}] needs layers >= 1 and attention >= 0")
    step = (2 * layers + attention + 1) // (2 * (attention + 1))
    places = {m * step - 1 for m in range(1, attention + 1)}
    if not all(0 <= place < layers for place in places) or len(places) < attention:
        raise ValueError(
            f"jamba: [{layers}, {attention}] puts attention at layer {max(places)}, "
            f"outside of 0 .. {layers - 1}"
        )
    return tuple("sa" if layer in places else "gla" for layer in range(layers))


def _resolve_pattern(value: Any) -> Any:
    """``"gsgg"``, a list of mixers, or ``{jamba: [layers, attention layers]}`` to a tuple of names."""
    if isinstance(value, str):
        unknown = sorted(set(value) - set(PATTERN_LETTERS))
        if unknown:
            known = ", ".join(f"{k} ({v})" for k, v in PATTERN_LETTERS.items())
            raise ValueError(
                f"the pattern has the unknown letter '{unknown[0]}'; known ones are {known}"
            )
        return tuple(PATTERN_LETTERS[letter] for letter in value)
    if isinstance(value, Mapping):
        numbers = value.get("jamba")
        if set(value) != {"jamba"} or not isinstance(numbers, list | tuple) or len(numbers) != 2:
            raise ValueError("a policy is written {jamba: [layers, attention layers]}")
        return jamba(*(int(n) for n in numbers))
    return value


class ModelConfig(Strict):
    """A stack of blocks: pre-norm mixer, residual, pre-norm SwiGLU, residual (METHOD section 3).

    Open choices of the paper that are keys here: scale_factor (c), rope_on_gated, head_norm,
    gate_bias, tie_embeddings.
    """

    featurizer: str = Field("gla", description="the mixer of every block")
    pattern: Annotated[tuple[str, ...] | None, BeforeValidator(_resolve_pattern)] = Field(
        None, description="a mixer per block instead: 'gsgg', a list, or {jamba: [8, 2]}"
    )
    num_layers: int = Field(2, ge=1, description="mixers, each followed by an MLP")
    width: int = Field(64, ge=1)
    heads: int = Field(4, ge=1)
    k_expansion: int = Field(1, ge=1, description="state size per head is width / heads * this")
    mlp_ratio: float = Field(2.0, gt=0, description="hidden size of the SwiGLU over the width")
    scale_factor: Literal["inverse_sqrt", "one"] = Field(
        "inverse_sqrt", description="c in T_ij: (d_k)^(-1/2), or 1"
    )
    rope_theta: float = Field(10_000.0, gt=0, description="base of the rotary frequencies")
    rope_on_gated: bool = Field(False, description="RoPE on GLA and WLA too")
    head_norm: Literal["all", "recurrent", "none"] = Field(
        "recurrent", description="per-head RMSNorm after T: every mixer, all but softmax, none"
    )
    gate_rank: int = Field(16, ge=1, description="inner size of GLA's gate projection")
    gate_logit_norm: float = Field(16.0, gt=0, description="beta: a = sigmoid(.)^(1/beta)")
    gate_bias: float = Field(0.0, description="bias of the gate at the start")
    arange_alpha: float = Field(
        1000.0, gt=0, description="alpha of GLA-S6: a = exp(-[1 .. n] / alpha * softplus(.))"
    )
    d_state: int = Field(16, ge=1, description="n of S6, its TSS per channel")
    s6_expansion: int = Field(2, ge=1, description="channels of S6 over the width")
    embedding_std: float = Field(1.0, gt=0)
    tie_embeddings: bool = False
    options: dict[str, float | int | str | bool] = Field(
        {}, description="keyword arguments of a registered mixer of one's own"
    )

    @model_validator(mode="after")
    def _check(self) -> ModelConfig:
        MIXERS.check(self.featurizer)
        if self.pattern is not None:
            for name in self.pattern:
                MIXERS.check(name)
            if len(self.pattern) != self.num_layers:
                raise ValueError(
                    f"the pattern names {len(self.pattern)} mixers, but num_layers = {self.num_layers}"
                )
        if self.width % self.heads:
            fits = [h for h in range(1, self.width + 1) if self.width % h == 0]
            best = min(fits, key=lambda h: (abs(h - self.heads), h))
            raise ValueError(
                f"heads = {self.heads} does not divide width = {self.width}; "
                f"the nearest that does is {best}"
            )
        if self.options and all(MIXERS.is_builtin(name) for name in self.mixers):
            raise ValueError(f"options are for registered mixers; '{self.mixers[0]}' takes none")
        gated = self.rope_on_gated and not {"gla", "wla", "gla_s6"}.isdisjoint(self.mixers)
        if ({"la", "sa"} & {*self.mixers} or gated) and (
            self.width // self.heads * self.k_expansion
        ) % 2:
            raise ValueError(
                f"RoPE needs an even state size per head; width / heads * k_expansion is "
                f"{self.width // self.heads * self.k_expansion}"
            )
        return self

    @property
    def mixers(self) -> tuple[str, ...]:
        """The mixer of every block, first block first."""
        return self.pattern or (self.featurizer,) * self.num_layers

    @property
    def label(self) -> str:
        """The featurizer, or a hybrid's pattern in letters (names where a mixer has no letter)."""
        if self.pattern is None:
            return self.featurizer
        letters = {name: letter for letter, name in PATTERN_LETTERS.items()}
        if set(self.pattern) <= set(letters):
            return "".join(letters[name] for name in self.pattern)
        return "+".join(self.pattern)

    @property
    def slug(self) -> str:
        """Readable part of a run's folder name."""
        expansion = f"-e{self.k_expansion}" if self.k_expansion > 1 else ""
        state = f"-n{self.d_state}" if "s6" in self.mixers else ""
        return f"{self.label}-w{self.width}-h{self.heads}{expansion}{state}"


# ------------------------------------------------------------------------------------- training


class OptimizerConfig(Strict):
    """AdamW on ``batch_size`` rows a step, its rate with a linear warm-up and a cosine after it."""

    learning_rate: float = Field(2e-3, gt=0)
    min_learning_rate_ratio: float = Field(0.0, ge=0, le=1, description="end of the cosine")
    warmup_fraction: float = Field(0.1, ge=0, le=1, description="share of all steps")
    weight_decay: float = Field(0.1, ge=0)
    beta1: float = Field(0.9, ge=0, lt=1)
    beta2: float = Field(0.999, ge=0, lt=1)
    grad_clip: float = Field(1.0, gt=0, description="largest norm of the gradient")
    batch_size: int = Field(64, ge=1)


class TrainingConfig(OptimizerConfig):
    """The optimiser's run; an *epoch* is a fixed number of steps, as in table 1.

    ``regularisation`` (lambda) adds lambda * ||A - I||_F of the mixers in ``regularised_layers`` to
    the loss (appendix A). The paper leaves the reduction over samples and positions open:
    ``rms`` is the root mean square over all entries times sqrt(heads * n); ``mean`` the mean over
    samples and positions of the norm over heads and states; ``sum`` the norm over everything.
    """

    epochs: int = Field(70, ge=1)
    steps_per_epoch: int = Field(2000, ge=1)
    evaluate_every: int = Field(10, ge=1, description="epochs between checkpoints and evaluations")
    resume_every: int = Field(1, ge=1, description="epochs between resume points")
    regularisation: float = Field(0.0, ge=0, description="lambda of the penalty on decays")
    regularised_layers: tuple[int, ...] = Field((1,), min_length=1, description="counted from 0")
    regulariser_reduction: Literal["rms", "mean", "sum"] = "rms"

    @model_validator(mode="before")
    @classmethod
    def _no_penalty_no_layers(cls, data: Any) -> Any:
        """Without a penalty its other keys decide nothing, so that there is one base line run."""
        if isinstance(data, Mapping) and data.get("regularisation", 0) == 0:
            idle = ("regularised_layers", "regulariser_reduction")
            return {key: value for key, value in data.items() if key not in idle}
        return data

    @property
    def steps(self) -> int:
        """Optimiser steps of the whole run."""
        return self.epochs * self.steps_per_epoch

    @property
    def evaluated_epochs(self) -> list[int]:
        """Epochs with a checkpoint and an evaluation: 0, every Nth, and the last."""
        return sorted({*range(0, self.epochs + 1, self.evaluate_every), self.epochs})


class RunConfig(Strict):
    """Everything that decides a trained model; two equal values are one run."""

    task: AnyTask
    model: ModelConfig = ModelConfig()
    training: TrainingConfig = TrainingConfig()
    seed: int = Field(0, ge=0, lt=2**32, description="data, initialisation and row order")

    @model_validator(mode="after")
    def _check(self) -> RunConfig:
        if self.training.batch_size > self.task.num_train:
            raise ValueError(
                f"training.batch_size = {self.training.batch_size} is larger than "
                f"task.num_train = {self.task.num_train}"
            )
        if self.training.regularisation > 0:
            self._check_regularised()
        return self

    def _check_regularised(self) -> None:
        for layer in self.training.regularised_layers:
            if not 0 <= layer < self.model.num_layers:
                raise ValueError(
                    f"training.regularised_layers names layer {layer}; the model has layers "
                    f"0 .. {self.model.num_layers - 1}"
                )
            if self.model.mixers[layer] in ("la", "sa"):
                raise ValueError(
                    f"training.regularisation: layer {layer} is '{self.model.mixers[layer]}', "
                    "which has no decay to regularise"
                )

    @property
    def slug(self) -> str:
        """Readable part of a run's folder name."""
        return f"{self.task.slug}-{self.model.slug}-s{self.seed}"


class TraceConfig(Strict):
    """Which ESS a trace computes, on how many validation samples (section 2)."""

    samples: int = Field(8, ge=1, description="samples averaged: 8 in section 4, 32 elsewhere")
    tolerances: tuple[float, ...] = Field((1e-1, 1e-3, 1e-5), description="tau, absolute")
    noise: bool = Field(
        False, description="ESS of the untrained layers on Gaussian noise too (section 5.1)"
    )
    proxies: bool = Field(
        False, description="rival proxies of the final model too: window, rank without the mask"
    )

    @model_validator(mode="after")
    def _check(self) -> TraceConfig:
        if any(t <= 0 for t in self.tolerances) or len(set(self.tolerances)) < len(self.tolerances):
            raise ValueError("tolerances are positive and each is named once")
        return self


# --------------------------------------------------------------------------------------- sweeps


class Change(Strict):
    """``set`` these dotted keys in the runs for which every key of ``where`` has one of its values."""

    where: dict[str, Any]
    set: dict[str, Any]


class GridConfig(Strict):
    """One of a study's grids: laid over the study's baseline, multiplied with the study's axes."""

    baseline: dict[str, Any] = {}
    axes: dict[str, list[Any]] = {}


class SweepConfig(GridConfig):
    """A study's runs: a baseline, axes multiplied out, and changes for some of them.

    An axis is a dotted key of a run (``task.kv``), or several that move together
    (``"model.width, model.heads": [[16, 4], [32, 2]]``). A study whose parts vary different keys
    names several ``grids``; a run that stands in two of them is trained once.
    """

    grids: dict[str, GridConfig] = {}
    changes: list[Change] = []
    trace: TraceConfig = TraceConfig()
    total_over: Literal["heads", "channels"] = Field(
        "heads", description="what total ESS sums over (METHOD section 2)"
    )


class MatchingConfig(Strict):
    """One distillation run: a student layer matched to a teacher layer (section 5.2, table 6).

    First the operators, ||T_s - T_t||_F^2 / ||T_t||_F^2, then the outputs,
    ||y_s - y_t||^2 / ||y_t||^2, means over the batch; each with its own AdamW at a constant rate.
    """

    learning_rate: float = Field(1e-3, gt=0)
    weight_decay: float = Field(0.0, ge=0)
    batch_size: int = Field(1, ge=1)
    steps_operator: int = Field(800, ge=0)
    steps_activation: int = Field(3200, ge=1)
    dropout: float = Field(0.2, ge=0, lt=1, description="on the student's input")
    samples: int = Field(32, ge=1, description="validation rows on which ESS and losses are measured")
    tolerance: float = Field(1e-3, gt=0, description="of the tolerance-ESS beside the entropy-ESS")


class DistillationConfig(SweepConfig):
    """Teachers are the sweep's runs; each layer of each checkpoint gets a student of each size."""

    student_k_expansions: list[int] = Field(
        min_length=1, description="state size per head of a student over width / heads"
    )
    matching: MatchingConfig = MatchingConfig()


class ClusterConfig(Strict):
    """A SLURM cluster, as ``profiles/slurm/cluster.yaml`` describes it."""

    partition: str | None = Field(None, description="of jobs without a GPU; null: the default one")
    gpu_partition: str | None = Field(None, description="of jobs with a GPU; null: as partition")
    account: str | None = Field(None, description="whose hours are spent; null: the user's default")
    gpus: int = Field(1, ge=0, le=1, description="GPUs of a job that trains or measures, 0 or 1")
    gpu_type: str | None = Field(None, description="as `sinfo -o %G` prints it; null: any")
    job_hours: float = Field(4, gt=0, description="a job is filled with runs up to this estimate")
    max_hours: float = Field(24, gt=0, description="time limit of a job; longer runs go on in the next")

    @model_validator(mode="after")
    def _check(self) -> ClusterConfig:
        if self.job_hours > self.max_hours:
            raise ValueError(
                f"job_hours = {self.job_hours:g} is longer than max_hours = {self.max_hours:g}; "
                f"take at most {self.max_hours:g}"
            )
        return self


class ProjectConfig(Strict):
    """What a user edits in ``config/config.yaml`` or gives with ``--config``."""

    scale: str = Field("demo", description="a file of config/scales: demo, small, paper")
    results: str = Field("results", description="where everything is written; may be a scratch disk")
    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto", description="auto takes a GPU where there is one"
    )
    threads: int = Field(1, ge=1, description="CPU threads of one training or tracing job")
    cohort_size: int = Field(6, ge=1, description="runs in one Snakemake job, at the most")
    student_cohort_size: int = Field(
        12, ge=1, description="distillation students in one Snakemake job, at the most"
    )
    compile: Literal["auto", "yes", "no"] = Field(
        "auto", description="torch.compile the model while training; auto decides by run length"
    )
    kernels: Literal["own", "fla"] = Field(
        "own", description="fla: train with flash-linear-attention's kernels (CUDA, lower precision)"
    )
    partial: bool = Field(
        False, description="draw figures from the runs that exist and leave gaps for the others"
    )
    plugins: list[str] = Field(
        [], description="Python files or modules that register mixers and tasks of your own"
    )
    cluster: ClusterConfig | None = Field(
        None, description="a SLURM cluster; profiles/slurm/cluster.yaml sets it and explains its keys"
    )
    overrides: dict[str, Any] = Field(
        {}, description="merged into the scale, e.g. {mqar: {axes: {seed: [0, 1, 2]}}}"
    )


# -------------------------------------------------------------------------- reading, with errors

M = TypeVar("M", bound=BaseModel)


def _fields_at(model: type[BaseModel], location: tuple[Any, ...]) -> list[str]:
    """Known keys of the (nested) model at an error's location, for the nearest-name hint."""
    for part in location:
        if not isinstance(part, str) or part not in model.model_fields:
            return []
        annotation = model.model_fields[part].annotation
        inner = [a for a in (annotation, *get_args(annotation)) if isinstance(a, type)]
        models = [a for a in inner if issubclass(a, BaseModel)]
        if not models:
            return []
        model = models[0]
    return list(model.model_fields)


def explain(error: ValidationError, model: type[BaseModel], source: str) -> str:
    """The first problem of a pydantic error as one sentence that names source and key."""
    first = error.errors(include_url=False)[0]
    location = first["loc"]
    key = ".".join(str(part) for part in location)
    if first["type"] == "extra_forbidden":
        known = _fields_at(model, location[:-1])
        return f"{source}: unknown key '{key}'{nearest(str(location[-1]), known)}"
    if first["type"] == "missing":
        return f"{source}: the key '{key}' is missing"
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] != "value_error":
        message = message[0].lower() + message[1:]  # pydantic's own begin with a capital
    if key:
        given = first.get("input")
        shown = f" = {given!r}" if isinstance(given, str | int | float | bool) else ""
        return f"{source}: {key}{shown}: {message}"
    return f"{source}: {message}"


def parse(model: type[M], data: Any, source: str) -> M:
    """Validate ``data``; raises ConfigError with one sentence."""
    if not isinstance(data, Mapping):
        raise ConfigError(f"{source}: expected keys and values, found {type(data).__name__}")
    try:
        return model.model_validate(dict(data))
    except ValidationError as error:
        raise ConfigError(explain(error, model, source)) from None
    except UnknownNameError as error:
        raise ConfigError(f"{source}: {error}") from None


def read_yaml(path: Path) -> dict[str, Any]:
    """A YAML mapping; raises ConfigError if the file is missing or not YAML."""
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: the file does not exist") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        where = getattr(error, "problem_mark", None)
        line = f", line {where.line + 1}" if where is not None else ""
        raise ConfigError(f"{path}{line}: not a YAML file that can be read") from None
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: expected keys and values, found {type(data).__name__}")
    return data


def merge(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """``changes`` laid over ``base``, mapping by mapping; anything else is replaced."""
    merged = dict(base)
    for key, value in changes.items():
        old = merged.get(key)
        both = isinstance(old, Mapping) and isinstance(value, Mapping)
        merged[key] = merge(old, value) if both else value
    return merged


def load_project(data: Mapping[str, Any], source: str = "config/config.yaml") -> ProjectConfig:
    """The project configuration from a mapping (for example Snakemake's ``config``)."""
    return parse(ProjectConfig, data, source)


# ---------------------------------------------------------------------------- the default's text

_HEADER = """\
# What a user edits. This file is generated from effstate.config.ProjectConfig
# (`effstate config`) and held in step with it by a test; the values here are the defaults.
# Any key can be given on the command line too: snakemake figures --cores 2 --config scale=small
"""


def default_yaml() -> str:
    """The text of ``config/config.yaml``: every key, its default, its description as a comment."""
    lines = [_HEADER]
    for name, field in ProjectConfig.model_fields.items():
        value = yaml.safe_dump(field.get_default(), default_flow_style=True).splitlines()[0]
        lines.append(f"# {field.description}\n{name}: {value}\n")
    return "\n".join(lines)
