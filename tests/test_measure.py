"""``effstate measure``, its Python form, and recording in one's own loop; small random models only."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import effstate
from effstate.cli import main
from effstate.config import ModelConfig
from effstate.ess import EssError
from effstate.ess import measure as measure_ess
from effstate.measuring import (
    MeasureError,
    Measurement,
    measure_model,
    measure_texts,
    parse_layers,
    separator_dips,
)
from effstate.measuring.report import layer_summary, summary_text
from effstate.models import build_model
from effstate.operators import profile_of
from effstate.operators.huggingface import LayerOperator, read_operators

transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")

WORDS = ["the", "cat", "sat", "on", "a", "mat", "and", "dog", "ran", "far", ".", "<eos>", "<unk>"]
TEXT = "the cat sat on a mat . <eos> a dog ran far . <eos> the mat . <eos>"
LENGTH = len(TEXT.split())


def tiny(kind: str = "llama", **options: Any) -> tuple[Any, Any]:
    """A random model of two layers and a tokenizer of whole words."""
    sizes = {"vocab_size": len(WORDS), "hidden_size": 16, "num_hidden_layers": 2}
    if kind != "mamba":
        heads = {"num_attention_heads": 4, "intermediate_size": 24, "max_position_embeddings": 32}
        sizes |= {"num_key_value_heads": 2, **heads}
    else:
        sizes |= {"state_size": 4, "intermediate_size": 40}
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(kind, **sizes | options)
    model = transformers.AutoModelForCausalLM.from_config(config)
    table = tokenizers.models.WordLevel({word: k for k, word in enumerate(WORDS)}, unk_token="<unk>")
    words = tokenizers.Tokenizer(table)
    words.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=words, eos_token="<eos>", unk_token="<unk>"
    )
    return model.eval(), fast


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A llama in a folder, and texts beside it."""
    path = tmp_path_factory.mktemp("models")
    for part in tiny():
        part.save_pretrained(path / "llama")
    (path / "text.txt").write_text(TEXT)
    (path / "empty.txt").write_text(" \n")
    (path / "one.txt").write_text("cat")
    (path / "long.txt").write_text("cat " * 33)
    (path / "latin.txt").write_bytes(b"caf\xe9")
    return path


def command(*arguments: object) -> int:
    """Exit code of ``effstate`` with these arguments, in this process."""
    before, sys.argv = sys.argv, ["effstate", *map(str, arguments)]
    try:
        main()
    except SystemExit as stop:
        return int(stop.code or 0)
    finally:
        sys.argv = before
    return 0


def operators(model: Any, tokenizer: Any) -> list[LayerOperator]:
    found: list[LayerOperator] = []
    with torch.no_grad(), read_operators(model, found.append):
        model(tokenizer(TEXT, return_tensors="pt")["input_ids"], use_cache=False)
    return found


@pytest.mark.parametrize("kind", ["llama", "mamba"])
def test_values_are_the_reference_of_what_the_layers_compute(kind: str) -> None:
    model, tokenizer = tiny(kind)
    found = measure_model(model, TEXT, tokenizer=tokenizer, tolerances=(1e-3, 1e-5))
    totals = found.totals()
    assert totals.shape == (3, 2, LENGTH - 1)
    for layer, operator in enumerate(operators(model, tokenizer)):
        slow = measure_ess(operator.features.operator(), (1e-3, 1e-5), method="reference")
        width = operator.values.shape[-1]
        expected = width * torch.stack(
            [slow.entropy[0].sum(0), *(slow.tolerance[t][0].sum(0).double() for t in (1e-3, 1e-5))]
        )
        assert np.allclose(totals[:, layer], expected, rtol=1e-4)
    channels = 16 if kind == "llama" else 40
    assert {float(entry.channels.sum()) for entry in found.layers} == {channels}


def test_the_table_is_tidy_and_adds_up_to_the_totals() -> None:
    model, tokenizer = tiny("mamba")
    found = measure_model(model, TEXT, tokenizer=tokenizer)
    table = found.table()
    assert len(table) == 2 * 16 * (LENGTH - 1) * 2
    assert not table.duplicated(["layer", "head", "index", "kind", "tolerance"]).any()
    total = (table["value"] * table["channels"]).groupby([table["kind"], table["layer"], table["index"]])
    assert np.allclose(total.sum().loc["entropy", 1], found.totals()[0, 1])
    assert np.allclose(total.sum().loc["tolerance", 0], found.totals()[1, 0])
    assert set(table["tss"]) == {4}
    third = table[table["index"] == 3]
    assert set(third["token"]) == {"on"}


def test_some_channels_estimate_all_of_them() -> None:
    model, tokenizer = tiny("mamba")
    whole = measure_model(model, TEXT, tokenizer=tokenizer)
    some = measure_model(model, TEXT, tokenizer=tokenizer, max_channels=20)
    assert some.facts["channels"] == {0: (20, 40), 1: (20, 40)}
    assert float(some.layers[0].channels.sum()) == pytest.approx(40)
    assert np.allclose(some.totals()[0].mean(), whole.totals()[0].mean(), rtol=0.3)
    assert "20 of 40 channels measured" in summary_text(some)
    assert "channels measured" not in summary_text(whole)


def test_the_summary_follows_from_the_values() -> None:
    model, tokenizer = tiny()
    found = measure_model(model, TEXT, tokenizer=tokenizer)
    row = layer_summary(found).iloc[0]
    values = found.layers[0].values[0]
    assert row["tss"] == pytest.approx(LENGTH / 2)
    assert row["ess"] == pytest.approx(values.mean())
    assert row["total_ess"] == pytest.approx(values.mean() * 16)
    assert row["utilisation"] == pytest.approx(values.mean() / (LENGTH / 2))
    ceiling = np.minimum(np.arange(1, LENGTH), LENGTH - np.arange(1, LENGTH)).mean()
    assert row["per_ceiling"] == pytest.approx(values.mean() / ceiling)


def test_the_command_writes_table_picture_and_summary(folder: Path, capsys: Any, tmp_path: Path) -> None:
    arguments = ("--tolerance", 0.1, "--tolerance", 0.01, "--layers", "1", "--out", tmp_path / "out")
    assert command("measure", folder / "llama", "--text", folder / "text.txt", *arguments) == 0
    printed = capsys.readouterr().out
    assert "total ESS (sum over channels" in printed and "dip at EOS" in printed
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == [
        "ess.parquet",
        "ess.png",
        "summary.txt",
        "tokens.parquet",
    ]
    table = pd.read_parquet(tmp_path / "out/ess.parquet")
    assert set(table["layer"]) == {1} and set(table["tolerance"].dropna()) == {0.1, 0.01}
    tokens = pd.read_parquet(tmp_path / "out/tokens.parquet")
    assert tokens["index"][tokens["separator"] == "eos"].tolist() == [7, 13, 17]
    assert tokens["index"][tokens["separator"] == "."].tolist() == [6, 12, 16]
    assert (tmp_path / "out/ess.png").read_bytes().startswith(b"\x89PNG")


def test_dtypes_agree(folder: Path) -> None:
    wide = measure_model(folder / "llama", TEXT, dtype="float64")
    narrow = measure_model(str(folder / "llama"), TEXT, dtype="bfloat16")
    assert (wide.facts["dtype"], narrow.facts["dtype"]) == ("float64", "bfloat16")
    assert np.allclose(wide.totals()[0], narrow.totals()[0], rtol=0.05)


def damaged(folder: Path, tmp_path: Path, **config: Any) -> Path:
    """A copy of the llama with other keys in its configuration."""
    copy = tmp_path / "model"
    copy.mkdir()
    for part in tiny():
        part.save_pretrained(copy)
    known = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(known | config))
    return copy


BAD: dict[str, tuple[list[str], str]] = {
    "no text": (["llama", "txt.txt"], "the text does not exist; the nearest known one is 'text.txt'"),
    "empty text": (["llama", "empty.txt"], "empty.txt: the text is empty"),
    "one token": (["llama", "one.txt"], "the text has 1 token(s); ESS needs at least 2"),
    "long text": (["llama", "long.txt"], "33 tokens, but the context of"),
    "not UTF-8": (["llama", "latin.txt"], "latin.txt: not UTF-8 at byte 3"),
    "no model": (["lama", "text.txt"], "the model does not exist; the nearest known one is 'llama'"),
    "not a model": (["text.txt", "text.txt"], "a model is a folder, a GGUF file or a hub name"),
    "no GGUF": (["model.gguf", "text.txt"], "the GGUF file does not exist"),
    "no config": ([".", "text.txt"], "the folder has no config.json"),
    "layer": (["llama", "text.txt", "--layers", "1-2"], "has no layer 2: its layers are 0 to 1"),
    "layers": (["llama", "text.txt", "--layers", "2-1"], "layers '2-1': '2-1' is no layer or range"),
    "dtype": (
        ["llama", "text.txt", "--dtype", "float"],
        "unknown dtype 'float'; the nearest known one is 'float64'",
    ),
    "device": (["llama", "text.txt", "--device", "tpu"], "the device 'tpu' is not available here"),
    "tolerance": (["llama", "text.txt", "--tolerance", "-1"], "a tolerance must be finite"),
}


def test_several_texts_are_measured_alone_and_summarised_together(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other.txt"
    other.write_text("a dog sat . <eos> the far mat sat on the cat . <eos> a cat .")
    texts = ("--text", folder / "text.txt", "--text", other)
    assert command("measure", folder / "llama", *texts, "--out", tmp_path / "out") == 0
    printed = capsys.readouterr().out
    assert printed.startswith((tmp_path / "out/summary.txt").read_text())
    made = sorted(str(p.relative_to(tmp_path / "out")) for p in (tmp_path / "out").rglob("*.*"))
    files = ("ess.parquet", "ess.png", "summary.txt", "tokens.parquet")
    assert made == [*(f"{stem}/{name}" for stem in ("other",) for name in files), "summary.txt"] + [
        f"text/{name}" for name in files
    ]
    alone = [measure_model(folder / "llama", path.read_text()) for path in (folder / "text.txt", other)]
    for stem, one in zip(("text", "other"), alone, strict=True):
        pd.testing.assert_frame_equal(
            pd.read_parquet(tmp_path / "out" / stem / "ess.parquet"), one.table()
        )
    mean = np.mean([one.totals()[0].mean() for one in alone])
    assert f"mean over layers and index): {mean:.4g}" in printed
    assert f"{len(alone[0].tokens)} + {len(alone[1].tokens)} tokens of 2 texts" in printed


def test_a_bad_text_is_found_before_any_is_measured(folder: Path, tmp_path: Path) -> None:
    model, tokenizer = tiny()
    with pytest.raises(MeasureError, match=r"^long: the text has 33 tokens, but the context of"):
        next(measure_texts(model, {"good": TEXT, "long": "cat " * 33}, tokenizer=tokenizer))


def test_two_texts_of_one_name_are_refused(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    same = tmp_path / "text.txt"
    same.write_text(TEXT)
    assert command("measure", folder / "llama", "--text", folder / "text.txt", "--text", same) == 1
    assert "two texts are named 'text'; rename one of them" in capsys.readouterr().err


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_sentence(case: str, folder: Path, capsys: Any, tmp_path: Path) -> None:
    (model, text, *options), expected = BAD[case]
    out = tmp_path / "out"
    arguments = (folder / model, "--text", folder / text, "--out", out, *options)
    assert command("measure", *arguments) == 1
    check_sentence(capsys, expected)
    assert not out.exists()


def test_a_file_in_the_way_and_damaged_weights(folder: Path, capsys: Any, tmp_path: Path) -> None:
    arguments = ("measure", folder / "llama", "--text", folder / "text.txt", "--out")
    assert command(*arguments, folder / "text.txt") == 1
    check_sentence(capsys, "text.txt: a file is there; name a folder")
    weights = damaged(folder, tmp_path) / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:500])
    assert command("measure", weights.parent, "--text", folder / "text.txt") == 1
    check_sentence(capsys, f"{weights.parent}: cannot be loaded: ")


def check_sentence(capsys: Any, expected: str) -> None:
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.strip()]
    assert line.startswith("effstate: ") and expected in line


COMMIT = "0" * 40
HUB: dict[str, tuple[list[str], str]] = {
    "no revision": ([], "gpt-none: no such folder, and a hub name needs its commit: add --revision"),
    "branch": (["--revision", "main"], "the revision 'main' is no commit of 40 hex digits"),
    "no network": (["--revision", COMMIT], "gpt-none: not in the local cache and the hub cannot"),
}


@pytest.mark.parametrize("case", HUB)
def test_hub_names_are_pinned(case: str, folder: Path, capsys: Any, monkeypatch: Any) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    options, expected = HUB[case]
    assert command("measure", "gpt-none", "--text", folder / "text.txt", *options) == 1
    check_sentence(capsys, expected)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"model_type": "bert"}, "is an encoder (bert), which has no causal operator"),
        ({"model_type": "rwkv"}, "unknown architecture 'rwkv'; known ones are falcon_mamba, gemma2"),
        ({"model_type": "nonesuch"}, "cannot be loaded: "),
    ],
)
def test_other_architectures_are_refused(
    config: dict[str, Any], expected: str, folder: Path, capsys: Any, tmp_path: Path
) -> None:
    model = damaged(folder, tmp_path, **config)
    assert command("measure", model, "--text", folder / "text.txt") == 1
    check_sentence(capsys, expected)


def test_weights_with_nan_are_refused(folder: Path, capsys: Any, tmp_path: Path) -> None:
    model, tokenizer = tiny()
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight[0, 0] = float("nan")
    model.save_pretrained(tmp_path / "bad")
    tokenizer.save_pretrained(tmp_path / "bad")
    assert command("measure", tmp_path / "bad", "--text", folder / "text.txt") == 1
    check_sentence(capsys, "the weights 'model.layers.1.mlp.up_proj.weight' hold NaN or infinity")


def test_a_missing_package_names_the_extra(folder: Path, capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert command("measure", folder / "llama", "--text", folder / "text.txt") == 1
    check_sentence(capsys, "'transformers' is missing; install it with `pip install effstate[hub]`")


def test_pickled_weights_are_not_read(folder: Path, tmp_path: Path) -> None:
    copy = damaged(folder, tmp_path)
    (copy / "model.safetensors").unlink()
    torch.save(tiny()[0].state_dict(), copy / "pytorch_model.bin")
    with pytest.raises(MeasureError, match="cannot be loaded"):
        measure_model(copy, TEXT)


def test_layers_are_parsed() -> None:
    assert parse_layers("0-3,7, 2") == [0, 1, 2, 3, 7]
    for text in ("", "a", "1,,2", "-1", "3-2"):
        with pytest.raises(MeasureError, match="is no layer or range"):
            parse_layers(text)


def test_dips_are_measured_against_the_sentence() -> None:
    total = np.full(39, 10.0)
    total[[19 - 2, 20 - 1]] = [6.0, 8.0]  # at indices 18 and 20
    dips = separator_dips(total, [10, 20, 30])
    assert dips["separator"].tolist() == [10, 20]
    assert dips["dip"].tolist() == pytest.approx([0.0, 0.4])
    assert dips["control"].tolist() == pytest.approx([0.0, 0.0])
    assert separator_dips(total, [2, 4, 6]).empty and separator_dips(total, [7]).empty


# --------------------------------------------------------------------------------------- recording


def test_recording_a_sequence_model_is_its_features() -> None:
    config = ModelConfig(pattern=("gla", "sa", "s6", "wla"), num_layers=4, width=16, heads=2, d_state=3)
    model = build_model(config, 10, 16).eval()
    tokens = torch.randint(10, (2, 16), generator=torch.Generator().manual_seed(0))
    with effstate.record(model) as trace:
        model(tokens)
    found = trace.ess((1e-3,))
    assert list(found) == [0, 1, 2, 3]
    for layer, features in enumerate(build_model(config, 10, 16).double().features(tokens)):
        expected = profile_of(features, (1e-3,))
        assert torch.allclose(found[layer].entropy, expected.entropy, rtol=1e-3)
        assert (trace.layers[layer].tss >= expected.tolerance[1e-3]).all()


def test_recording_leaves_training_as_it_was() -> None:
    config = ModelConfig(pattern="gs", num_layers=2, width=16, heads=2)
    tokens = torch.randint(10, (2, 16), generator=torch.Generator().manual_seed(0))
    states = []
    for recorded in (False, True):
        model = build_model(config, 10, 16)
        optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
        before = None
        for _ in range(2):
            if recorded:
                with effstate.record(model, layers=[1]) as trace:
                    loss = model(tokens).square().mean()
                before = trace.layers[1].features.operator().clone()
            else:
                loss = model(tokens).square().mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        states.append(model.state_dict())
        if recorded:
            assert list(trace.layers) == [1] and not before.requires_grad
            assert torch.equal(trace.layers[1].features.operator(), before)
            assert all("project" not in mixer.__dict__ for mixer in model.mixers)
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])


def test_the_last_forward_of_a_hugging_face_model_stays() -> None:
    for kind in ("llama", "mamba"):
        model, tokenizer = tiny(kind)
        ids = tokenizer(TEXT, return_tensors="pt")["input_ids"]
        with effstate.record(model) as trace:
            model(ids[:, :6], use_cache=False)
            model(ids, use_cache=False).logits.sum().backward()
        model(ids[:, :4], use_cache=False)
        profile = trace.ess((1e-3,))[1]
        slow = measure_ess(operators(model, tokenizer)[1].features.operator(), method="reference")
        assert profile.entropy.shape[-1] == LENGTH - 1
        assert torch.allclose(profile.entropy, slow.entropy, rtol=1e-4)


def test_recording_says_what_is_wrong() -> None:
    model = build_model(ModelConfig(width=16), 10, 16)
    with effstate.record(model) as trace:
        pass
    with pytest.raises(EssError, match="no forward of the model ran"):
        trace.ess()
    with (
        pytest.raises(TypeError, match="Linear is neither a SequenceModel nor"),
        effstate.record(torch.nn.Linear(2, 2)),
    ):
        pass


def test_importing_the_package_is_cheap_and_its_names_are_there() -> None:
    code = "import sys, effstate; sys.exit('torch' in sys.modules or hasattr(effstate, 'nonesuch'))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    assert effstate.measure_model is measure_model
    assert isinstance(measure_model(tiny()[0], TEXT, tokenizer=tiny()[1]), Measurement)
