"""ESS of any causal language model on a text: loading, measuring, and what is reported."""

from effstate.measuring.loading import MeasureError, load_model, parse_layers, read_text
from effstate.measuring.measurement import Measurement, measure_model, measure_texts
from effstate.measuring.report import separator_dips, summary_text

__all__ = [
    "MeasureError",
    "Measurement",
    "load_model",
    "measure_model",
    "measure_texts",
    "parse_layers",
    "read_text",
    "separator_dips",
    "summary_text",
]
