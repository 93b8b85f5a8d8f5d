"""The prompts of a suite as texts, with the token that each mark stands at (METHOD section 7)."""

from __future__ import annotations

import string
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from effstate.config import ConfigError
from effstate.lm.extras import extra
from effstate.openweights.config import (
    CodeSuite,
    MmluQuestions,
    OwnQuestions,
    Question,
    SentencesSuite,
    ShotsSuite,
)

SHOTS_INTRODUCTION = "The following are multiple choice questions (with answers) about mathematics.\n\n"
"""Said before every question, as the benchmark's own prompt does."""


@dataclass(frozen=True)
class Prompt:
    """A text along which ESS is measured.

    Attributes:
        name: which of the suite's texts.
        separator: "eos" or "." between sentences, else "".
        shots: how many answered examples stand before the question; 0 without a question.
        start: the character at which the question starts.
    """

    name: str
    text: str
    separator: str = ""
    shots: int = 0
    start: int = 0


def prompts_of(suite: SentencesSuite | CodeSuite | ShotsSuite, tokenizer: Any) -> list[Prompt]:
    """The prompts whose ESS is measured; ``tokenizer`` knows its own EOS.

    Raises ConfigError if a suite needs an EOS that the tokenizer lacks.
    """
    if isinstance(suite, SentencesSuite):
        return list(_sentences(suite, tokenizer.eos_token))
    if isinstance(suite, CodeSuite):
        return [Prompt(name, text) for name, text in suite.programs.items()]
    examples, asked = questions_of(suite)
    return [
        shot_prompt(f"question {number}", examples[:shots], question)
        for number, question in enumerate(asked[: suite.measured])
        for shots in suite.shots
    ]


def _sentences(suite: SentencesSuite, eos: str | None) -> Iterator[Prompt]:
    if eos is None:
        raise ConfigError("the tokenizer has no EOS token, so it cannot separate sentences")
    yield Prompt("sentences", "".join(sentence + eos for sentence in suite.sentences), "eos")
    yield Prompt("sentences", " ".join(f"{sentence}." for sentence in suite.sentences), ".")


def _as_text(question: Question, answered: bool) -> str:
    choices = zip(string.ascii_uppercase, question.choices, strict=False)
    lines = [question.question, *(f"{letter}. {choice}" for letter, choice in choices), "Answer:"]
    end = f" {string.ascii_uppercase[question.answer]}\n\n" if answered else ""
    return "\n".join(lines) + end


def shot_prompt(name: str, examples: Sequence[Question], question: Question) -> Prompt:
    """A question after its examples; the answer's letter is what a model is to say next."""
    before = SHOTS_INTRODUCTION + "".join(_as_text(example, True) for example in examples)
    return Prompt(name, before + _as_text(question, False), shots=len(examples), start=len(before))


def questions_of(suite: ShotsSuite) -> tuple[list[Question], list[Question]]:
    """Examples and asked questions of a suite.

    Raises ConfigError if there are too few of either, or the hub cannot be reached.
    """
    if isinstance(suite.questions, OwnQuestions):
        examples, asked = list(suite.questions.examples), list(suite.questions.asked)
    else:
        examples, asked = (list(_mmlu(suite.questions, split)) for split in ("dev", "test"))
    for what, there, wanted in (
        ("examples", len(examples), max(suite.shots)),
        ("asked questions", len(asked), suite.asked),
    ):
        if there < wanted:
            raise ConfigError(f"shots: there are {there} {what}, but {wanted} are wanted")
    return examples, asked[: suite.asked]


def _mmlu(source: MmluQuestions, split: str) -> Iterator[Question]:
    datasets = extra("datasets")
    try:
        rows = datasets.load_dataset(
            source.repository, source.subject, split=split, revision=source.revision
        )
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"shots.questions: '{source.repository}' cannot be loaded ({type(error).__name__}); without "
            "a network set questions: {kind: own}"
        ) from None
    for row in rows:
        yield Question(
            question=row["question"], choices=tuple(row["choices"]), answer=int(row["answer"])
        )
