"""``effstate measure``: the ESS of a Hugging Face causal language model on a text."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

import typer

from effstate.artifacts import write_text
from effstate.config import ConfigError


def measure(
    model: Annotated[str, typer.Argument(help="a folder, a GGUF file, or a hub name with --revision")],
    text: Annotated[list[Path], typer.Option(help="a text file in UTF-8; may be repeated")],
    tolerance: Annotated[
        list[float] | None, typer.Option(help="of tolerance-ESS; may be repeated [default: 1e-3]")
    ] = None,
    layers: Annotated[str | None, typer.Option(help="e.g. 0-3,7 [default: all]")] = None,
    out: Annotated[
        Path, typer.Option(help="folder of table, picture and summary; of several texts, one for each")
    ] = Path("ess"),
    revision: Annotated[str | None, typer.Option(help="commit of a hub name, 40 hex digits")] = None,
    dtype: Annotated[str, typer.Option(help="float32, float64, bfloat16 or float16")] = "float32",
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, ...")] = "cpu",
    max_channels: Annotated[
        int | None, typer.Option(help="of a layer of Mamba; totals are then estimates", min=1)
    ] = None,
) -> None:
    """Measure the ESS of a causal language model along texts: table, picture and summary of each."""
    from effstate.ess import EssError
    from effstate.measuring import MeasureError, measure_texts, parse_layers, read_text, summary_text
    from effstate.measuring.loading import transformers_or_sentence
    from effstate.operators.huggingface import HuggingFaceError

    if out.exists() and not out.is_dir():
        raise ConfigError(f"--out {out}: a file is there; name a folder")
    names = [path.stem for path in text]
    twice = next((path for path in text if names.count(path.stem) > 1), None)
    if twice is not None:
        raise ConfigError(f"--text {twice}: two texts are named '{twice.stem}'; rename one of them")
    found, written = [], []
    try:
        words = {str(path): read_text(path) for path in text}
        chosen = None if layers is None else parse_layers(layers)
        transformers = transformers_or_sentence()
        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
        logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
        for name, one in measure_texts(
            model,
            words,
            tolerances=tolerance or (1e-3,),
            layers=chosen,
            revision=revision,
            dtype=dtype,
            device=device,
            max_channels=max_channels,
            progress=True,
        ):
            found.append(one)
            written += one.write(out if len(words) == 1 else out / Path(name).stem)
    except (EssError, HuggingFaceError, MeasureError) as error:
        raise ConfigError(str(error)) from None
    summary = summary_text(*found)
    if len(found) > 1:
        written.append(out / "summary.txt")
        write_text(written[-1], summary)
    print(summary, end="")
    print(f"\n{', '.join(str(path.relative_to(out)) for path in written)} in {out}")
