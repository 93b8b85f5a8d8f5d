"""Selective copying (METHOD section 4; MAD's task)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from effstate.config import SelectiveCopyingConfig
from effstate.tasks.base import IGNORE, Rows, Task, token_dtype
from effstate.tasks.draws import distinct, integers


class SelectiveCopying(Task[SelectiveCopyingConfig]):
    """n content tokens among blanks, a copy token, then n answers: the content in order.

    Content tokens are 0..V-3 (drawn with replacement), the blank is V-2, the copy token V-1. The
    content's places are a uniform choice among the L - n - 1 positions before the copy token; the
    inputs at the n answer positions, the row's last, are blanks.
    """

    config = SelectiveCopyingConfig
    readout = "tokens"
    difficulty_name = "num_tokens_to_copy"

    def rows(self, config: SelectiveCopyingConfig, count: int, rng: np.random.Generator) -> Rows:
        """See :meth:`Task.rows`; labels: the content, at the n positions after the copy token."""
        n, dtype = config.num_tokens_to_copy, token_dtype(config)
        copy_position = config.seq_len - n - 1
        shape = (count, config.seq_len)
        content = integers(rng, (count, n), config.vocab_size - 2, dtype)
        places = np.sort(distinct(rng, count, copy_position, n), axis=1)
        inputs = np.full(shape, config.vocab_size - 2, dtype)
        labels = np.full(shape, IGNORE, dtype)
        np.put_along_axis(inputs, places, content, axis=1)
        inputs[:, copy_position] = config.vocab_size - 1
        labels[:, copy_position + 1 :] = content
        return Rows(inputs, labels)

    def chance(self, config: SelectiveCopyingConfig) -> float:
        """1 / (V - 2): a guess among the content tokens."""
        return 1 / (config.vocab_size - 2)

    def roles(
        self, config: SelectiveCopyingConfig, inputs: NDArray[Any], labels: NDArray[Any]
    ) -> list[str]:
        """``c`` for content, ``.`` for a blank, ``>`` for the copy token, ``?`` for an answer."""
        special = {config.vocab_size - 2: ".", config.vocab_size - 1: ">"}
        asked = config.num_tokens_to_copy
        return [special.get(int(token), "c") for token in inputs[:-asked]] + ["?"] * asked
