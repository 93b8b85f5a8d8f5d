"""Compression (METHOD section 4; MAD's task)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from effstate.config import CompressionConfig
from effstate.tasks.base import IGNORE, Rows, Task, token_dtype
from effstate.tasks.draws import integers


class Compression(Task[CompressionConfig]):
    """L - 1 random content tokens, then one compression token, from which all are decoded.

    Content tokens are 0..V-2, the compression token is V-1. The label of a content position is its
    own token; the compression token's position has none.
    """

    config = CompressionConfig
    readout = "sequence"
    difficulty_name = "vocab_size"

    def rows(self, config: CompressionConfig, count: int, rng: np.random.Generator) -> Rows:
        """See :meth:`Task.rows`; labels: the content itself, read from the last position."""
        dtype = token_dtype(config)
        content = integers(rng, (count, config.seq_len - 1), config.vocab_size - 1, dtype)
        end = np.ones((count, 1), dtype)
        return Rows(
            np.hstack([content, end * dtype(config.vocab_size - 1)]),
            np.hstack([content, end * dtype(IGNORE)]),
        )

    def chance(self, config: CompressionConfig) -> float:
        """1 / (V - 1): a guess among the content tokens."""
        return 1 / (config.vocab_size - 1)

    def roles(self, config: CompressionConfig, inputs: NDArray[Any], labels: NDArray[Any]) -> list[str]:
        """``c`` for content, ``>`` for the compression token."""
        return ["c"] * (config.seq_len - 1) + [">"]
