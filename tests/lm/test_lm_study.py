"""Evaluation and trace of trained language models against direct computations; their tables."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from lm_runs import EXECUTION, begun, lm_run, make_corpus

from effstate.analysis.language import COLUMNS, collect_language
from effstate.artifacts import Artifact, read_json, write_json
from effstate.cohorts import Interrupted
from effstate.config import ConfigError, parse
from effstate.ess.reference import reference_tolerance_ess
from effstate.lm import evaluation as evaluating
from effstate.lm.checkpoints import load_model
from effstate.lm.config import LmEvaluationConfig, LmRunConfig, LmStudyConfig, LmTraceConfig
from effstate.lm.corpus import TokenCorpus, TokenRows
from effstate.lm.evaluation import make_counts, make_evaluation, read_evaluation, unigram_counts
from effstate.lm.recall import mean_by_shard, naive_recall_distances
from effstate.lm.requests import lm_counts_request, lm_evaluation_request, lm_trace_request
from effstate.lm.trace import make_lm_trace, prompts, totals_along
from effstate.lm.trainer import EXPORT, train_language_model
from effstate.training.interruption import StopFlag

WINDOW, SEQUENCES = 16, 12
TEXTS = LmTraceConfig(
    contexts=(
        "state memory linear attention rank of the past",
        "the past of a linear memory state attention",
    ),
    tolerances=(1e-2, 1.0),
)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> TokenCorpus:
    return make_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module", params=["gla", "sa"])
def trained(
    request: pytest.FixtureRequest, corpus: TokenCorpus, tmp_path_factory: pytest.TempPathFactory
) -> Artifact:
    """Sixteen steps of a model."""
    artifact = begun(tmp_path_factory.mktemp("store"), lm_run(corpus, {"featurizer": request.param}))
    train_language_model(artifact, corpus, EXECUTION)
    return artifact


def run_of(trained: Artifact) -> LmRunConfig:
    config = trained.request.config
    assert isinstance(config, LmRunConfig)
    return config


def counted(trained: Artifact, corpus: TokenCorpus) -> Artifact:
    """The corpus' counts, in the store of the trained model."""
    artifact = trained.store.artifact(lm_counts_request(corpus.config))
    if not artifact.finished:
        artifact.begin()
        make_counts(artifact, corpus)
    return artifact


def evaluation_of(trained: Artifact, sequences: int = SEQUENCES) -> Artifact:
    """The (begun) evaluation of a model on so many rows."""
    config = LmEvaluationConfig(window=WINDOW, sequences=sequences)
    artifact = trained.store.artifact(lm_evaluation_request(run_of(trained), config))
    artifact.begin()
    return artifact


def test_evaluation_holds_what_a_direct_computation_gives(
    trained: Artifact, corpus: TokenCorpus
) -> None:
    artifact = evaluation_of(trained)
    make_evaluation(artifact, trained, counted(trained, corpus), corpus, EXECUTION)
    found = read_evaluation(artifact)

    rows = TokenRows(corpus, "test", WINDOW).read(range(SEQUENCES))
    model = load_model(trained.path(EXPORT)).model
    direct = model(rows[:, :-1]).log_softmax(-1).gather(2, rows[:, 1:, None])[..., 0]
    assert np.allclose(found.log_probabilities, direct.numpy(), atol=1e-5)
    assert found.result["log_perplexity"] == pytest.approx(-float(direct.mean()), abs=1e-5)
    naive = naive_recall_distances(rows.numpy(), corpus.vocab_size, corpus.eos)
    assert np.array_equal(found.distances, naive)
    assert naive.any()
    rare = found.recall_distances(2)
    assert np.array_equal(rare > 0, (naive > 0) & (found.training_counts <= 2))

    tokens = np.concatenate([np.asarray(shard) for shard in corpus.shards("train")])
    counts = [int((tokens == token).sum()) for token in range(corpus.vocab_size)]
    assert unigram_counts(corpus).tolist() == counts
    shares = np.log((np.array(counts) + 1) / (len(tokens) + corpus.vocab_size))
    baseline = -shares[rows[:, 1:].numpy()].mean()
    assert found.result["unigram_log_perplexity"] == pytest.approx(baseline)


def test_a_stopped_evaluation_goes_on_to_the_same_bytes(
    trained: Artifact, corpus: TokenCorpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluating, "PART_TOKENS", 3 * WINDOW)
    monkeypatch.setattr(evaluating, "FORWARD_TOKENS", WINDOW)
    counts, artifact = counted(trained, corpus), evaluation_of(trained, sequences=10)
    flag, seen = StopFlag(), []

    def on_step(done: int, total: int) -> None:
        seen.append(done)
        if done == 5:  # in the second part of four
            flag.signal_number = 15

    with pytest.raises(Interrupted):
        make_evaluation(artifact, trained, counts, corpus, EXECUTION, on_step=on_step, flag=flag)
    assert [p.name for p in artifact.folder.glob("parts/*")] == ["00000.safetensors"]
    kept = artifact.path("parts/00000.safetensors")
    kept_at = kept.stat().st_mtime_ns
    broken = artifact.path("parts/00002.safetensors")
    broken.write_bytes(b"half a part")
    seen.clear()
    make_evaluation(artifact, trained, counts, corpus, EXECUTION, on_step=lambda a, b: seen.append(a))
    assert seen == list(range(4, 11))
    assert kept.stat().st_mtime_ns == kept_at
    whole = read_evaluation(artifact)
    assert whole.log_probabilities.shape == (10, WINDOW)
    digests = artifact.output_digest()
    for path in [*artifact.folder.glob("parts/*"), artifact.path("provenance.json")]:
        path.unlink()
    make_evaluation(artifact, trained, counts, corpus, EXECUTION)
    assert artifact.output_digest() == digests


def test_total_ess_along_a_text_is_that_of_the_definition(
    trained: Artifact, corpus: TokenCorpus
) -> None:
    loaded = load_model(trained.path(EXPORT), dtype=torch.float64)
    ids = prompts(loaded.encoder, TEXTS.contexts)[0].ids[:24]
    found = totals_along(loaded.model, ids, TEXTS.tolerances)
    width = loaded.config.model.width
    for layer, features in enumerate(loaded.model.features(torch.tensor([ids]))):
        operator = features.operator()[0]
        for place, tolerance in enumerate(TEXTS.tolerances):
            naive = reference_tolerance_ess(operator, tolerance).double()
            expected = naive.sum(0) * width / len(naive)
            assert torch.equal(found[layer, place], expected)


def test_prompts_mark_every_separator_in_every_order(trained: Artifact, corpus: TokenCorpus) -> None:
    encoder = load_model(trained.path(EXPORT)).encoder
    found = prompts(encoder, ("one of us", "two of them", "three"))
    assert [(p.separator, p.text) for p in found] == [(s, i) for s in ("eos", ".") for i in range(6)]
    for one in found:
        assert len(one.marked) == 3
        assert one.marked[-1] == len(one.ids) - 1
        marked = [encoder.tokenizer.decode([one.ids[i]], skip_special_tokens=False) for i in one.marked]
        assert all("." in text for text in marked) or {one.ids[i] for i in one.marked} == {corpus.eos}


def test_a_text_longer_than_the_context_is_refused(trained: Artifact) -> None:
    texts = LmTraceConfig(contexts=("state of the past " * 20, "a memory"))
    artifact = trained.store.artifact(lm_trace_request(run_of(trained), texts))
    artifact.begin()
    with pytest.raises(ConfigError, match=r"tokens, but the model's context holds 32; shorten"):
        make_lm_trace(artifact, trained, EXECUTION)
    assert artifact.state == "interrupted"


def study_config(run: LmRunConfig, **keys: object) -> LmStudyConfig:
    """The study whose only model is that of ``run``."""
    data = run.model_dump(exclude={"seed"})
    data["featurizers"] = [data["model"].pop("featurizer")]
    small = {"window": WINDOW, "bootstrap": 10, "grid_points": 8, "max_training_count": None}
    more = {"recall": small, "sequences": SEQUENCES, "trace": TEXTS.model_dump()}
    return parse(LmStudyConfig, data | more | keys, "the test")


def test_tables_of_a_finished_study(trained: Artifact, corpus: TokenCorpus) -> None:
    run = run_of(trained)
    config = study_config(run)
    assert config.runs() == [run]
    evaluated = evaluation_of(trained)
    if not evaluated.finished:
        make_evaluation(evaluated, trained, counted(trained, corpus), corpus, EXECUTION)
    traced = trained.store.artifact(lm_trace_request(run, config.trace))
    traced.begin()
    make_lm_trace(traced, trained, EXECUTION)
    requests = (trained.request, evaluated.request, traced.request)
    tables = collect_language(trained.store, config, [(run, requests)])
    assert {name: tuple(table.columns) for name, table in tables.items()} == COLUMNS
    (row,) = tables["runs"].to_dict("records")
    assert row["state"] == "done"
    assert row["unigram_log_perplexity"] > 0
    recall = tables["recall"]
    whole = (recall["recall_log_perplexity"] * recall["tokens"]).sum() / recall["tokens"].sum()
    assert whole == pytest.approx(row["recall_log_perplexity"])
    curves, layers = tables["curves"], tables["layers"]
    assert (curves["mark"] == "separator").any()
    assert layers["layer"].nunique() == run.model.num_layers
    # Total ESS along a text is the sum over its layers' own.
    totals = pd.read_parquet(traced.path("totals.parquet"))
    first = curves[(curves["text"] == 0) & (curves["separator"] == "eos") & (curves["index"] == 3)]
    summed = totals.query("text == 0 and separator == 'eos' and index == 3")
    assert first["total_ess"].sum() == pytest.approx(summed["total_ess"].sum())


def test_a_diverged_model_is_said_to_be(trained: Artifact, corpus: TokenCorpus, tmp_path: Path) -> None:
    run = run_of(trained)
    artifact = begun(tmp_path, run)
    write_json(artifact.path("result.json"), {"state": "diverged", "evaluations": []})
    facts = {"parameters": 1, "steps": 0, "tokens": 0}
    artifact.finish("diverged", ("result.json",), seconds=0, facts=facts)
    evaluated = evaluation_of(artifact)
    make_evaluation(evaluated, artifact, artifact, corpus, EXECUTION)
    traced = artifact.store.artifact(lm_trace_request(run, TEXTS))
    traced.begin()
    make_lm_trace(traced, artifact, EXECUTION)
    assert evaluated.state == traced.state == "diverged"
    assert read_json(evaluated.path("result.json")) == {"state": "diverged"}
    requests = (artifact.request, evaluated.request, traced.request)
    tables = collect_language(artifact.store, study_config(run), [(run, requests)])
    assert tables["runs"]["state"].tolist() == ["diverged"]
    assert math.isnan(tables["runs"]["log_perplexity"].iloc[0])
    assert tables["dips"].empty


def test_shards_by_hand() -> None:
    log_probabilities = -np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    distances = np.array([[0, 1], [0, 1], [0, 0]])
    found = mean_by_shard(log_probabilities, distances, 2)
    assert found.to_dict("records") == [
        {"shard": 0, "recall_log_perplexity": 3.0, "log_perplexity": 3.0, "tokens": 2}
    ]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"recall": {"window": 99}}, "recall.window = 99 is longer than the models' context; the"),
        ({"featurizers": ["glaa"]}, "unknown mixer 'glaa'"),
        ({"featurizers": []}, "featurizers: "),
        ({"model": {"featurizer": "sa"}}, "named by its key featurizers"),
        ({"model": {"width": 6, "heads": 2}}, "RoPE needs an even state size"),
        ({"trace": {"contexts": ["a. b", "c"]}}, "is empty or holds a full stop"),
        ({"trace": {"contexts": ["c"]}}, "trace.contexts"),
        ({"sequencs": 3}, "unknown key 'sequencs'; the nearest known one is 'sequences'"),
    ],
    ids=["window", "mixer", "none", "featurizer", "rope", "full stop", "one context", "unknown"],
)
def test_a_wrong_study_is_one_sentence(
    change: dict[str, object], sentence: str, corpus: TokenCorpus
) -> None:
    run = lm_run(corpus)
    data = run.model_dump(exclude={"seed", "model"}) | {"recall": {"window": WINDOW}}
    with pytest.raises(ConfigError) as error:
        parse(LmStudyConfig, data | change, "scale.yaml: lm")
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)
