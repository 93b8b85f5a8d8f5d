"""What the paper leaves open, and what this project takes: one list for report and documentation.

Choices that are keys of the configuration can be varied; their defaults are read from the configuration
itself, so that the list cannot say something else. Nothing here imports torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from effstate.config import DistillationConfig, MQARConfig, RunConfig
from effstate.lm.config import CorpusConfig, FineWebSource, LmStudyConfig


@dataclass(frozen=True)
class Choice:
    """One open question of the paper.

    Attributes:
        name: in a few words.
        question: what the paper leaves open.
        ours: what is taken, and why where that is not obvious.
        key: dotted key of a run (``model.head_norm``) or of a study (``total_over``) that varies
            it; empty for a constant of the code.
    """

    name: str
    question: str
    ours: str
    key: str = ""


CHOICES = (
    Choice(
        "factor of the operator",
        "Whether the product of C and B is scaled.",
        "The inverse square root of the state size per head, as in attention.",
        "model.scale_factor",
    ),
    Choice(
        "RoPE on gated mixers",
        "The text calls GLA and WLA identical to LA, which has RoPE; their equations have none.",
        "The equations are followed: no RoPE.",
        "model.rope_on_gated",
    ),
    Choice(
        "norm after the operator",
        "Whether each head's output is normalised before the output projection.",
        "RMSNorm per head for every recurrent mixer; softmax attention averages and needs none.",
        "model.head_norm",
    ),
    Choice(
        "gate bias",
        "Where the gate of GLA and GLA-S6 starts.",
        "At zero: a decay of one half to the power 1 / β.",
        "model.gate_bias",
    ),
    Choice(
        "gate rank",
        "The inner size of the gate's two projections.",
        "16, as in published gated linear attention.",
        "model.gate_rank",
    ),
    Choice(
        "tied embeddings",
        "Whether the output layer shares the embedding's weights.",
        "Two matrices.",
        "model.tie_embeddings",
    ),
    Choice(
        "hidden size of the MLP",
        "SwiGLU is named for one study only, without its size.",
        "SwiGLU in every block, its hidden size this multiple of the width.",
        "model.mlp_ratio",
    ),
    Choice(
        "expansion of S6",
        "Which parts of the Mamba block stay once the short convolution is removed.",
        "The SiLU gate and the wider inner channels stay.",
        "model.s6_expansion",
    ),
    Choice(
        "filler tokens",
        "What stands in MQAR where no pair and no query stands.",
        "Random tokens, so that an empty slot does not give itself away.",
        "task.filler",
    ),
    Choice(
        "distribution of queries",
        "The constant of the query slots is given for some tables, not for the task-model sweep.",
        "The value of the other tables.",
        "task.kv_dist_const",
    ),
    Choice(
        "warm-up",
        "The schedule of the learning rate.",
        "A linear warm-up over this share of the steps, then a cosine.",
        "training.warmup_fraction",
    ),
    Choice(
        "reduction of the regulariser",
        "How the norm of A - I is reduced over samples and positions, which sets the scale of λ.",
        "The root mean square over entries, times the root of heads times states.",
        "training.regulariser_reduction",
    ),
    Choice(
        "meaning of total",
        "The formula of total ESS sums over channels; the values of the sweep's figures fit heads.",
        "Heads in the sweeps, channels in the figures of language models; each axis says which.",
        "total_over",
    ),
    Choice(
        "dropout of students",
        "Where the dropout of the distillation table acts.",
        "On the student's input, in both phases.",
        "matching.dropout",
    ),
    Choice(
        "boundary of the tolerance",
        "The definition counts singular values above the tolerance, the listing also those equal to it.",
        "Above.",
    ),
    Choice(
        "average over the index",
        "The formula divides by the length, the listing by the number of blocks.",
        "The mean over the L - 1 blocks that exist.",
    ),
    Choice(
        "empty blocks",
        "The entropy of a block without a nonzero singular value is undefined.",
        "Its ESS is 0, and such blocks are counted in the tables.",
    ),
    Choice("precision", "The precision of singular values.", "float64."),
    Choice(
        "samples",
        "Whether ESS is averaged over the same samples at every checkpoint of a run.",
        "The same: the first rows of the run's validation split.",
    ),
    Choice(
        "correlation across models",
        "Pearson or Spearman, on ratios or on their logarithm.",
        "Pearson on log2 of the ratios, the scatter plots' axis; the others stand beside it.",
    ),
    Choice(
        "correlation within a run",
        "What becomes of a run whose accuracy never changes.",
        "It has no correlation, is left out, and is counted.",
    ),
    Choice(
        "panels of the penalty figure",
        "What the three panels of figure 10b vary.",
        "The penalised layer: the second, the first, both.",
    ),
    Choice(
        "places of attention",
        "The rule behind the printed attention layers of eight-mixer hybrids.",
        "m * floor(layers / (k + 1) + 1/2) - 1 for m = 1 .. k, which gives all the printed ones.",
    ),
    Choice(
        "distance of recall",
        "Which earlier occurrence of a bigram the recall distance is measured to.",
        "The latest one in the same context; the standard curve takes all tokens at those positions.",
    ),
    Choice(
        "rarity of recalled bigrams",
        "Whether a token counts as recalled if training has shown its bigram often.",
        "Only bigrams that occur at most so often in training, as the prior work on recall has it.",
        "recall.max_training_count",
    ),
    Choice(
        "window of recall",
        "The length of the contexts over which recall is measured.",
        "So many tokens, at the most the context that the models were trained on.",
        "recall.window",
    ),
    Choice(
        "language models",
        "Heads, vocabulary, tokenizer and training corpus of the 1B models.",
        "16 heads, GPT-2's byte-level BPE, FineWeb.",
    ),
)
"""In the order of the method: model, task, training, analysis."""

_RUN = RunConfig(task=MQARConfig())
_STUDY = DistillationConfig(student_k_expansions=[1])
_LANGUAGE = LmStudyConfig(corpus=CorpusConfig(source=FineWebSource()))


def default_of(choice: Choice) -> Any:
    """The default of a choice's key in the configuration; None for a constant of the code."""
    if not choice.key:
        return None
    first = choice.key.partition(".")[0]
    config = next(c for c in (_RUN, _STUDY, _LANGUAGE) if first in type(c).model_fields)
    return attrgetter(choice.key)(config)
