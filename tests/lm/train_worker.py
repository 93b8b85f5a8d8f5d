"""One of torchrun's processes: train a tiny run, to its end or until rank 1 stops itself.

train_worker.py STORE CORPUS PARALLEL [STEP]
"""

import os
import signal
import sys
from pathlib import Path

from lm_runs import EXECUTION, begun, lm_run

from effstate import jobs
from effstate.artifacts import RunStore
from effstate.lm.corpus import TokenCorpus
from effstate.lm.requests import lm_train_request
from effstate.lm.trainer import train_language_model


def main(store: Path, corpus: TokenCorpus, parallel: str, stop: int | None) -> None:
    """SIGTERM reaches one process only: the others must hear of it."""
    run = lm_run(corpus, parallel=parallel)

    def on_step(step: int, steps: int) -> None:
        if step == stop and os.environ["RANK"] == "1":
            os.kill(os.getpid(), signal.SIGTERM)

    with jobs.job():
        if stop is None:
            jobs.train_together(RunStore(store), lm_train_request(run), EXECUTION)
        else:
            train_language_model(begun(store, run), corpus, EXECUTION, on_step=on_step)


if __name__ == "__main__":
    _, store, corpus, parallel, *stop = sys.argv
    main(Path(store), TokenCorpus(Path(corpus)), parallel, int(stop[0]) if stop else None)
