"""Ranks that share gradients or parameters: counted beside a process group that sends nothing, and really run."""

import dataclasses
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from benchmarks import sharded
from benchmarks.traced import small
from cs336kit import lm, measure
from cs336kit._torch import local
from cs336kit.predict import Layout, TransformerConfig, peak_moments
from cs336plan.trace import build, counting, sharding, traced

pytestmark = pytest.mark.torch

GPT = TransformerConfig(layers=4, d_model=32, heads=4, vocab=64, context=32)
STEP = {"batch": 1, "sequence": 8}


class Trained(nn.Module):
    """The course's decoder, asked as transformers' modules are."""

    def __init__(self, config):
        super().__init__()
        self.decoder = lm.DecoderOnly(config, attention="eager")

    def forward(self, input_ids, labels, use_cache):
        return SimpleNamespace(loss=F.cross_entropy(self.decoder(input_ids).flatten(0, 1), labels.flatten()))


def ruled(config, layout):
    """The peaks of both passes as `predict` has them: of a first micro-batch, and of any."""
    found = []
    for text in (layout, f"{layout},microbatches=2"):
        moments = peak_moments(config, layout=text, foreach=False, **STEP)
        moments.pop("optimizer step")
        found.append(max(moments.values()))
    return found


@pytest.mark.parametrize("layout", ["dp=1", "zero2=4", "zero2=3", "fsdp=4", "fsdp=3", "dp=2,fsdp=4", "dp=2,fsdp=3"])
def test_what_ranks_share_means_the_same_here_and_in_predict(layout):
    # Five tokens of the vocabulary make a table that three and four ranks do not divide.
    config = dataclasses.replace(GPT, vocab=65)
    model, asked = Trained(config), Layout.parse(layout)
    blocks, options = model.decoder.blocks, {**STEP, "precision": "fp32", "rounds": 2}
    held = sum(4 * torch.Size(sharding.held(p.shape, asked)).numel() for p in model.parameters())
    if layout == "dp=1":
        held = sum(p.nbytes for p in model.parameters())
    with sharding.mesh_of(asked) as mesh:
        if mesh is None:
            found = sharding.passes(model, blocks, asked, None, **options)
        else:  # the loss stands outside of what is sharded
            sharding.shard(model.decoder, blocks, mesh, "fp32")
            assert held == sum(local(p).nbytes for p in model.parameters())
            found = counting.passes(model, blocks, sharded=True, **options)
    assert [found.peak_bytes, found.peak_of_rounds(held)] == ruled(config, layout)


def test_experts_are_divided_where_the_shard_is_smaller():
    # Two ranks have an expert each of two; four would have one and none, and divide its rows instead.
    assert [sharding.axis((2, 8, 3), ranks) for ranks in (2, 4, 16)] == [0, 1, 0]
    assert sharding.held((2, 8, 3), Layout(fsdp=4)) == (2, 2, 3)
    # torch does not divide 8 rows among 16 ranks, so the experts are divided, and half of the ranks have none.
    assert sharding.held((2, 8, 3), Layout(fsdp=16)) == (1, 8, 3)
    assert sharding.held((5, 3), Layout(fsdp=4)) == sharding.held((5, 3), Layout(zero2=4)) == (2, 3)


def test_shapes_of_a_mixture_of_fewer_experts_than_ranks():
    asked = Layout(fsdp=8)
    with sharding.mesh_of(asked) as mesh, build.fake():
        config = build.configuration(build.read(small("mixtral") | {"num_hidden_layers": 1}).values)
        model, _ = build.model_of(config, precision="bf16", attention="sdpa")
        said = {name: sharding.held(p.shape, asked) for name, p in model.named_parameters()}
        sharding.shard(model, build.layers_of(model, config), mesh, "bf16")
        assert {name: tuple(local(p).shape) for name, p in model.named_parameters()} == said
    assert any(shape[0] == config.num_local_experts for shape in said.values() if len(shape) == 3)


def test_the_module_is_as_before():
    """What is sharded is a copy, whose tensors have the mode of all others."""
    with sharding.mesh_of(Layout(fsdp=2)) as mesh, build.fake():
        config = build.configuration(build.read(small("gpt2")).values)
        model, _ = build.model_of(config, precision="bf16", attention="sdpa")
        before = {name: (p, p.shape) for name, p in model.named_parameters()}
        layers = build.layers_of(model, config)
        copied, of_copy = sharding._copied(model, layers)
        assert not {id(p) for p in copied.parameters()} & {id(p) for p, _ in before.values()}
        assert len(list(copied.parameters())) == len(before)  # the head is the table there, too
        assert {p.fake_mode for p in copied.parameters()} == {p.fake_mode for p, _ in before.values()}
        assert of_copy == list(build.layers_of(copied, config)) and of_copy != list(layers)
        options = {"batch": 1, "sequence": 4, "precision": "bf16"}
        sharding.passes(model, layers, Layout(fsdp=2), mesh, **options)
        assert {name: (p, p.shape) for name, p in model.named_parameters()} == before
    assert not torch.distributed.is_initialized()


def test_a_process_that_belongs_to_a_group_is_told():
    with sharding.mesh_of(Layout(fsdp=2)), pytest.raises(ValueError, match=r"belongs to a process group.*fsdp=2"):
        traced(small("llama"), layout="fsdp=2", keep=False)


def test_replicas_of_shards_hold_more_where_gradients_accumulate():
    values = small("llama")
    once, twice = (
        {text: traced(values, layout=text, accumulating=again, answering=False, keep=False, **STEP) for text in texts}
        for again, texts in ((False, ("fsdp=2",)), (True, ("fsdp=2", "dp=4,fsdp=2")))
    )
    first, gradients = once["fsdp=2"].passes_peak_bytes, once["fsdp=2"].gradient_bytes
    # What is all-reduced is a gradient in a first round, and stands beside it in all others.
    assert first < twice["fsdp=2"].passes_peak_bytes < twice["dp=4,fsdp=2"].passes_peak_bytes == first + gradients
    assert twice["dp=4,fsdp=2"].layout == "dp=2,fsdp=2"


@pytest.mark.parametrize("layout", ["tp=2", "pp=2", "ep=2", "cp=2,fsdp=2"])
def test_layouts_that_divide_layers_are_refused(layout):
    with pytest.raises(ValueError, match="tracing counts replicas"):
        traced(small("llama"), layout=layout, keep=False)


@pytest.mark.proof
@pytest.mark.parametrize("name", ["llama", "mixtral", "nemotron_h"])  # all others: python -m benchmarks.sharded
def test_a_rank_of_fully_shard_is_traced_as_it_runs(name):
    number = sharded.FAMILIES.index(name)  # two of five policies for each
    questions = [(sharded.case(name), sharded.POLICIES[(number + more) % 5]) for more in (0, 2)]
    real = measure.run_ranks(sharded.on_ranks, questions, ranks=sharded.RANKS, device="cpu")[0]
    assert [sharded.counted(values, *policy) for values, policy in questions] == real


@pytest.mark.proof
# Parameters or activations are most of the peak.
@pytest.mark.parametrize(("kind", "layers", "layout", "checkpointing", "size"), [
    ("qwen2", 9, "zero2=4", False, (1, 8)), ("qwen2", 9, "zero2=4", True, (4, 32)), ("qwen2", 9, "fsdp=4", False, (4, 32)),
    ("qwen2", 9, "fsdp=4", True, (1, 8)),
    # Eight periods of a layer with a window and one without, and one more.
    ("gemma2", 17, "fsdp=4", True, (4, 32)),
])  # fmt: skip
def test_layers_that_repeat_are_those_of_all(kind, layers, layout, checkpointing, size):
    values = small(kind) | {"num_hidden_layers": layers, "tie_word_embeddings": False}
    values.pop("layer_types", None)
    options = {
        "layout": layout, "checkpointing": checkpointing, "accumulating": True, "answering": False, "keep": False,
        "batch": size[0], "sequence": size[1],
    }  # fmt: skip
    whole, other = (traced(values, whole=each, **options) for each in (True, False))
    assert whole.whole and not other.whole
    assert dataclasses.replace(other, whole=True) == whole
