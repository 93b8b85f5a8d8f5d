"""Typed configuration of the study of open-weight models: models, prompts, figures (METHOD 7)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import Field, model_validator

from effstate.config import Strict
from effstate.lm.config import Commit, Kind
from effstate.registry import nearest

TEXTS = Path(__file__).parent / "texts"

FIGURE_SUITES = {
    **{f"fig{number}": "sentences" for number in (9, *range(35, 42))},
    **{f"fig{number}": "code" for number in (43, 44)},
    **{f"fig{number}": "shots" for number in (45, 46)},
}
"""Figure to the suite of prompts that it shows."""

# ---------------------------------------------------------------------------------------- models


class HubSource(Kind):
    """A repository on the Hugging Face hub."""

    kind: Literal["hub"] = "hub"
    repository: str
    revision: Commit


class FolderSource(Kind):
    """A local folder in the Hugging Face layout, or a GGUF file."""

    kind: Literal["folder"] = "folder"
    path: Path


class PackageSource(Kind):
    """A file that an installed Python package ships."""

    kind: Literal["package"] = "package"
    package: str = Field(description="as it is installed by pip")
    module: str
    file: str


class GlassSource(Kind):
    """The English model of the package ``glassllm`` (0.85M parameters)."""

    kind: Literal["glassllm"] = "glassllm"
    version: str = Field("0.1.0", description="of the package: another one may hold other weights")


class RandomSource(Kind):
    """An untrained model of a known architecture, with GPT-2's tokenizer."""

    kind: Literal["random"] = "random"
    architecture: str = Field(description="model_type of transformers, e.g. mamba")
    options: dict[str, int] = Field({}, description="of its configuration class")
    seed: int = Field(0, ge=0, lt=2**32)


AnySource = Annotated[
    HubSource | FolderSource | PackageSource | GlassSource | RandomSource,
    Field(discriminator="kind"),
]


class OpenModel(Strict):
    """A model of the study."""

    source: AnySource
    dtype: Literal["float32", "float64", "bfloat16", "float16"] = "float32"
    max_channels: int | None = Field(
        None, ge=1, description="of a layer of Mamba; totals are then estimates"
    )
    skip: bool = Field(False, description="leave it out, as one that is gated or missing")


# ---------------------------------------------------------------------------------------- suites


class Suite(Kind):
    """Prompts of one sort, and what is measured along them."""

    tolerances: tuple[Annotated[float, Field(gt=0)], ...] = Field(min_length=1)
    max_tokens: int | None = Field(None, ge=2, description="longer prompts are refused")
    layer_step: int = Field(1, ge=1, description="every which layer is measured")


def _sentences() -> tuple[str, ...]:
    return tuple((TEXTS / "sentences.txt").read_text("utf-8").splitlines())


class SentencesSuite(Suite):
    """Unrelated sentences, each followed by a separator: once EOS, once a full stop."""

    kind: Literal["sentences"] = "sentences"
    tolerances: tuple[Annotated[float, Field(gt=0)], ...] = (1e-1, 1e-3, 1e-5)
    sentences: tuple[str, ...] = Field(default_factory=_sentences, min_length=2)

    @model_validator(mode="after")
    def _check(self) -> SentencesSuite:
        for sentence in self.sentences:
            if "." in sentence or not sentence.strip():
                raise ValueError(
                    f"the sentence {sentence!r} is empty or holds a full stop, which is a separator"
                )
        return self


def _programs() -> dict[str, str]:
    return {path.stem: path.read_text("utf-8") for path in sorted(TEXTS.glob("*.cpp"))}


class CodeSuite(Suite):
    """C++ programs."""

    kind: Literal["code"] = "code"
    tolerances: tuple[Annotated[float, Field(gt=0)], ...] = (1e-1, 1e-2)
    programs: dict[str, str] = Field(default_factory=_programs)


class Question(Strict):
    """A question with its choices; ``answer`` counts from 0."""

    question: str
    choices: tuple[str, ...] = Field(min_length=2, max_length=26)
    answer: int = Field(ge=0)

    @model_validator(mode="after")
    def _check(self) -> Question:
        if self.answer >= len(self.choices):
            raise ValueError(
                f"answer = {self.answer} of {self.question!r} is beyond its {len(self.choices)} choices"
            )
        return self


class OwnQuestions(Kind):
    """Questions that are part of the configuration; the default ones are the project's own."""

    kind: Literal["own"] = "own"
    examples: tuple[Question, ...]
    asked: tuple[Question, ...]

    @model_validator(mode="before")
    @classmethod
    def _default(cls, data: Any) -> Any:
        if set(data) <= {"kind"}:
            return {**yaml.safe_load((TEXTS / "questions.yaml").read_text("utf-8")), **data}
        return data


class MmluQuestions(Kind):
    """MMLU through ``datasets``: examples from the split ``dev``, asked ones from ``test``."""

    kind: Literal["mmlu"] = "mmlu"
    repository: str = "cais/mmlu"
    subject: str = "elementary_mathematics"
    revision: Commit


class ShotsSuite(Suite):
    """Multiple-choice questions after 0, 1, 3 and 5 answered examples."""

    kind: Literal["shots"] = "shots"
    tolerances: tuple[Annotated[float, Field(gt=0)], ...] = (1e-3,)
    shots: tuple[Annotated[int, Field(ge=0)], ...] = (0, 1, 3, 5)
    questions: Annotated[OwnQuestions | MmluQuestions, Field(discriminator="kind")] = Field(
        default_factory=lambda: OwnQuestions.model_validate({})
    )
    asked: int = Field(8, ge=1, description="questions whose answers make the accuracy")
    measured: int = Field(2, ge=1, description="the first of them, whose ESS is measured")


class WeightsConfig(Strict):
    """One artifact: a model on a suite of prompts."""

    model: OpenModel
    suite: Annotated[SentencesSuite | CodeSuite | ShotsSuite, Field(discriminator="kind")]


class OpenWeightsConfig(Strict):
    """The study: which model each figure shows, and the prompts."""

    models: dict[str, OpenModel]
    figures: dict[str, str] = Field(description="figure to the model that it shows")
    sentences: SentencesSuite = SentencesSuite()
    code: CodeSuite = CodeSuite()
    shots: ShotsSuite = Field(default_factory=ShotsSuite)

    @model_validator(mode="after")
    def _check(self) -> OpenWeightsConfig:
        for figure, model in self.figures.items():
            if figure not in FIGURE_SUITES:
                raise ValueError(
                    f"figures: no model is shown in '{figure}'{nearest(figure, FIGURE_SUITES)}"
                )
            if model not in self.models:
                raise ValueError(
                    f"figures.{figure}: unknown model '{model}'{nearest(model, self.models)}"
                )
        return self

    def asked(self) -> dict[tuple[str, str], list[str]]:
        """(model, suite) to the figures that show it, models that are skipped among them."""
        found: dict[tuple[str, str], list[str]] = {}
        for figure, model in self.figures.items():
            found.setdefault((model, FIGURE_SUITES[figure]), []).append(figure)
        return found
