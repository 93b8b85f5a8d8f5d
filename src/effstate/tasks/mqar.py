"""Multi-query associative recall (METHOD section 4; Zoology's task, tables 1, 4, 5, 7, 8)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from effstate.config import MQARConfig
from effstate.tasks.base import IGNORE, Rows, Task, token_dtype
from effstate.tasks.draws import distinct, integers, power_law_slots


class MQAR(Task[MQARConfig]):
    """Pairs ``k v k v ...``, then each key once more, where its value is the label.

    Keys are 1..V/2-1 and values V/2..V-1 (V/2 rounded down), both drawn without replacement. After
    the pairs come (L - 2 kv) / 2 slots of two tokens (an odd L leaves one more position of filler
    at the end); a key stands at the first position of its slot, which is drawn without replacement
    with p(slot) ~ slot^(a-1), key by key. All other positions carry filler: uniform tokens of the
    whole vocabulary, or 0.
    """

    config = MQARConfig
    readout = "tokens"
    difficulty_name = "kv"

    def rows(self, config: MQARConfig, count: int, rng: np.random.Generator) -> Rows:
        """See :meth:`Task.rows`; label: the value, at the query key's position."""
        pairs, half, dtype = 2 * config.kv, config.vocab_size // 2, token_dtype(config)
        shape = (count, config.seq_len)
        keys = 1 + distinct(rng, count, half - 1, config.kv)
        values = half + distinct(rng, count, config.vocab_size - half, config.kv)
        slots = power_law_slots(
            rng, count, (config.seq_len - pairs) // 2, config.kv, config.kv_dist_const - 1
        )
        if config.filler == "random":
            inputs = integers(rng, shape, config.vocab_size, dtype)
        else:
            inputs = np.zeros(shape, dtype)
        labels = np.full(shape, IGNORE, dtype)
        inputs[:, 0:pairs:2] = keys
        inputs[:, 1:pairs:2] = values
        queries = pairs + 2 * slots
        np.put_along_axis(inputs, queries, keys.astype(dtype), axis=1)
        np.put_along_axis(labels, queries, values.astype(dtype), axis=1)
        return Rows(inputs, labels)

    def chance(self, config: MQARConfig) -> float:
        """1 / kv: the row's values are in sight, and one of them is guessed."""
        return 1 / config.kv

    def roles(self, config: MQARConfig, inputs: NDArray[Any], labels: NDArray[Any]) -> list[str]:
        """``k`` and ``v`` in the pairs, ``?`` at a query key, ``.`` for filler."""
        pairs = 2 * config.kv
        return ["k", "v"] * config.kv + super().roles(config, inputs[pairs:], labels[pairs:])
