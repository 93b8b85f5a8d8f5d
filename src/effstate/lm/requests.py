"""Which artifacts a language model needs: corpus -> trained model, each named by its request."""

from __future__ import annotations

from effstate.artifacts import Request
from effstate.lm.config import CorpusConfig, LmRunConfig


def corpus_request(corpus: CorpusConfig) -> Request:
    """The tokenized corpus: shared by all models that read it."""
    return Request("corpus", f"{corpus.source.kind}-{corpus.tokenizer.kind}", corpus)


def lm_train_request(run: LmRunConfig) -> Request:
    """The trained language model: its export, evaluations, log."""
    return Request("lmtrain", run.slug, run, (corpus_request(run.corpus),))
