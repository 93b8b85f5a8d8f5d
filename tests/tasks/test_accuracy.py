"""Accuracies against hand-counted cases and against a plain loop."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from effstate.tasks import IGNORE
from effstate.tasks.metrics import Accuracy, class_counts, row_accuracy

LABELS = np.array([[1, 2, IGNORE, 1], [IGNORE, 3, IGNORE, IGNORE], [IGNORE] * 4])
PREDICTIONS = np.array([[1, 0, 1, 3], [3, 3, 3, 3], [0, 1, 2, 3]])


def test_hand_counted() -> None:
    assert row_accuracy(PREDICTIONS, LABELS)[:2].tolist() == [1 / 3, 1.0]
    assert math.isnan(row_accuracy(PREDICTIONS, LABELS)[2])
    right, total = class_counts(PREDICTIONS, LABELS, 4)
    assert (right.tolist(), total.tolist()) == ([0, 1, 0, 1], [0, 2, 1, 1])
    accuracy = Accuracy(4)
    accuracy.update(PREDICTIONS, LABELS)
    assert accuracy.token == pytest.approx((1 / 3 + 1) / 2)
    assert accuracy.macro == pytest.approx((1 / 2 + 0 + 1) / 3)


@given(seed=st.integers(0, 999), rows=st.integers(1, 12), cut=st.integers(0, 12))
@settings(max_examples=60, deadline=None)
def test_batches_of_tensors_match_a_loop_over_all_rows(seed: int, rows: int, cut: int) -> None:
    rng = np.random.default_rng(seed)
    predictions = rng.integers(0, 5, (rows, 6))
    labels = np.where(rng.random((rows, 6)) < 0.4, rng.integers(0, 5, (rows, 6)), IGNORE)
    accuracy = Accuracy(5)
    for part in (slice(None, cut), slice(cut, None)):
        accuracy.update(torch.tensor(predictions[part]), torch.tensor(labels[part]))

    per_row, per_class = [], {}
    for predicted, wanted in zip(predictions, labels, strict=True):
        hits = [p == w for p, w in zip(predicted, wanted, strict=True) if w != IGNORE]
        per_row += [np.mean(hits)] if hits else []
        for p, w in zip(predicted, wanted, strict=True):
            if w != IGNORE:
                per_class.setdefault(w, []).append(p == w)
    macro = np.mean([np.mean(hits) for hits in per_class.values()]) if per_class else math.nan
    token = np.mean(per_row) if per_row else math.nan
    assert accuracy.token == pytest.approx(token, nan_ok=True)
    assert accuracy.macro == pytest.approx(macro, nan_ok=True)


def test_nothing_seen_is_nan() -> None:
    accuracy = Accuracy(4)
    assert math.isnan(accuracy.token) and math.isnan(accuracy.macro)


def test_shapes_that_differ_are_refused() -> None:
    with pytest.raises(ValueError, match=r"shape \(3, 2\) do not fit labels of shape \(3, 4\)"):
        row_accuracy(PREDICTIONS[:, :2], LABELS)
