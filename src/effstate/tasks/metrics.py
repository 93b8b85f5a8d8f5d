"""Accuracies of predicted tokens (METHOD section 4), accumulated over batches.

Predictions and labels are torch tensors (on any device) or numpy arrays of shape (rows, L); labels
hold IGNORE where nothing is asked. torch itself is not needed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from effstate.tasks.base import IGNORE


def _numpy(values: Any) -> NDArray[Any]:
    return values.detach().cpu().numpy() if hasattr(values, "detach") else np.asarray(values)


def row_accuracy(predictions: Any, labels: Any) -> NDArray[np.float64]:
    """Share of right labels in each row, shape (rows,); NaN for a row without a label.

    Raises ValueError if the shapes differ.
    """
    predictions, labels = _numpy(predictions), _numpy(labels)
    if predictions.shape != labels.shape:
        raise ValueError(
            f"predictions of shape {predictions.shape} do not fit labels of shape {labels.shape}"
        )
    asked = labels != IGNORE
    right = ((predictions == labels) & asked).sum(axis=1)
    total = asked.sum(axis=1)
    return np.divide(right, total, out=np.full(len(labels), np.nan), where=total > 0)


def class_counts(
    predictions: Any, labels: Any, vocab_size: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """How often each token was the label and predicted right, and the label at all: (V,) each."""
    predictions, labels = _numpy(predictions), _numpy(labels)
    asked = labels != IGNORE
    right = asked & (predictions == labels)
    return (
        np.bincount(labels[right], minlength=vocab_size),
        np.bincount(labels[asked], minlength=vocab_size),
    )


@dataclass
class Accuracy:
    """Token and macro accuracy over all batches given to :meth:`update`; NaN before the first."""

    vocab_size: int
    _rows: int = 0
    _row_sum: float = 0.0
    _right: NDArray[np.int64] = field(init=False)
    _total: NDArray[np.int64] = field(init=False)

    def __post_init__(self) -> None:
        self._right = np.zeros(self.vocab_size, dtype=np.int64)
        self._total = np.zeros(self.vocab_size, dtype=np.int64)

    def update(self, predictions: Any, labels: Any) -> None:
        """Add a batch: predicted tokens and labels, (rows, L) each."""
        shares = row_accuracy(predictions, labels)
        known = shares[~np.isnan(shares)]
        right, total = class_counts(predictions, labels, self.vocab_size)
        self._rows += len(known)
        self._row_sum += float(known.sum())
        self._right += right
        self._total += total

    @property
    def token(self) -> float:
        """Share of right labels, averaged per row; rows without a label do not count."""
        return self._row_sum / self._rows if self._rows else float("nan")

    @property
    def macro(self) -> float:
        """MAD's macro accuracy: the mean, over tokens that occur as labels, of their accuracy."""
        seen = self._total > 0
        if not seen.any():
            return float("nan")
        return float((self._right[seen] / self._total[seen]).mean())
