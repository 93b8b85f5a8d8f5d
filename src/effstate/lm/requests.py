"""Which artifacts a language model needs, each named by its request.

corpus -> counts, corpus -> trained model; from these the evaluation, from the model alone the trace.
"""

from __future__ import annotations

from effstate.artifacts import Request
from effstate.lm.config import (
    CorpusConfig,
    LmCountsConfig,
    LmEvaluationConfig,
    LmRunConfig,
    LmTraceConfig,
)


def corpus_request(corpus: CorpusConfig) -> Request:
    """The tokenized corpus: shared by all models that read it."""
    return Request("corpus", f"{corpus.source.kind}-{corpus.tokenizer.kind}", corpus)


def lm_train_request(run: LmRunConfig) -> Request:
    """The trained language model: its export, evaluations, log."""
    return Request("lmtrain", run.slug, run, (corpus_request(run.corpus),))


def lm_counts_request(corpus: CorpusConfig) -> Request:
    """Counts of the corpus' bigrams and tokens: shared by all evaluations over it."""
    source = corpus_request(corpus)
    return Request("lmcounts", source.slug, LmCountsConfig(), (source,))


def lm_evaluation_request(run: LmRunConfig, evaluation: LmEvaluationConfig) -> Request:
    """Log probabilities of held-out tokens under a trained model, and what each token recalls."""
    inputs = lm_train_request(run), lm_counts_request(run.corpus)
    return Request("lmeval", run.slug, evaluation, inputs)


def lm_trace_request(run: LmRunConfig, trace: LmTraceConfig) -> Request:
    """Total ESS of a trained model along sentences."""
    return Request("lmtrace", run.slug, trace, (lm_train_request(run),))
