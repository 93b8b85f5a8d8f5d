"""What a language model would cost, held to what is built and measured."""

import pytest
import torch
from torch import Tensor, nn

from effstate.config import ModelConfig
from effstate.lm.config import BpeTokenizer, CorpusConfig, LmRunConfig, LmTrainingConfig, SotuSource
from effstate.lm.cost import GPT2_VOCABULARY, activation_bytes, block_bytes, cost_of, planned_vocabulary
from effstate.models import SequenceModel
from effstate.models.sequence import Block

CORPUS = CorpusConfig(source=SotuSource())


def table_9(featurizer: str, **training: object) -> LmRunConfig:
    model = ModelConfig(featurizer=featurizer, num_layers=24, width=2048, heads=16)
    return LmRunConfig(corpus=CORPUS, model=model, training=LmTrainingConfig(**training))


def test_the_models_of_table_9_are_equal_in_size() -> None:
    sizes = {}
    for featurizer in ("la", "wla", "gla", "sa"):
        run = table_9(featurizer)
        with torch.device("meta"):
            model = SequenceModel(run.model, GPT2_VOCABULARY, run.context)
        sizes[featurizer] = sum(p.numel() for p in model.parameters())
        assert cost_of(run, GPT2_VOCABULARY).parameters == sizes[featurizer]
    print(sizes)
    assert min(sizes.values()) >= 1.0e9 and max(sizes.values()) <= 1.5e9
    assert max(sizes.values()) <= 1.02 * min(sizes.values())


def test_the_cost_of_table_9() -> None:
    cost = cost_of(table_9("sa"), GPT2_VOCABULARY)
    assert cost.tokens == 160_000 * 16 * 32_768
    assert cost.flops > 6 * 1e9 * cost.tokens
    sharded = cost_of(table_9("sa", parallel="fsdp"), GPT2_VOCABULARY, processes=16)
    assert sharded.process_bytes < cost.process_bytes / 8
    again = cost_of(table_9("sa", activation_checkpointing=True), GPT2_VOCABULARY)
    assert again.gpu_hours == pytest.approx(4 / 3 * cost.gpu_hours)
    assert again.process_bytes < cost.process_bytes / 4


def test_the_vocabulary_that_is_planned_with() -> None:
    assert planned_vocabulary(CORPUS.tokenizer) == 50_257
    assert planned_vocabulary(BpeTokenizer(vocab_size=4096)) == 4096


def _kept_bytes(block: nn.Module, x: Tensor) -> int:
    """What autograd keeps of a forward pass, besides the parameters."""
    storages = {}
    own = {p.untyped_storage().data_ptr() for p in block.parameters()}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = (storage.nbytes(), tensor)  # held, so that no address returns
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        block(x)
    return sum(size for address, (size, _) in storages.items() if address not in own)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("featurizer", ["la", "wla", "gla", "sa", "gla_s6", "s6"])
def test_the_memory_of_a_block_is_estimated_within_a_third(featurizer: str, precision: str) -> None:
    model = ModelConfig(featurizer=featurizer, num_layers=1, width=256, heads=4)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1, 1024, 256, generator=generator, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
        measured = _kept_bytes(Block(model, featurizer, 0), x)
    assert block_bytes(model, featurizer, 1024, precision) == pytest.approx(measured, rel=1 / 3)
    run = LmRunConfig(
        corpus=CORPUS, model=model, training=LmTrainingConfig(precision=precision), context=1024
    )
    assert activation_bytes(run, 1) == block_bytes(model, featurizer, 1024, precision)
