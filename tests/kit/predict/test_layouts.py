"""One rank of a layout against real sharded modules: torch's fully_shard and DTensor plans beside a process group that
answers without sending, stages of a pipeline run by hand, and the published formulas.
"""

import dataclasses
import warnings
from collections import Counter

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    loss_parallel,
    parallelize_module,
)
from torch.testing._internal.distributed.fake_pg import FakeStore

from cs336kit import lm, measure
from cs336kit.lm.blocks import Block
from cs336kit.lm.stages import Stage
from cs336kit.lm.tensor_parallel import Ranks
from cs336kit.measure.ranks import Collective
from cs336kit.predict import (
    Layout,
    TransformerConfig,
    communication,
    peak_moments,
    program,
    saved_activation_bytes,
    saved_block_bytes,
    step_peak,
)
from cs336kit.predict.layouts import local_config
from cs336kit.predict.network import sent

pytestmark = pytest.mark.torch

GPT = TransformerConfig(layers=2, d_model=24, heads=4, vocab=56, context=16)
LLAMA = TransformerConfig(
    layers=3, d_model=32, heads=4, kv_heads=4, d_ff=40, vocab=56, context=16, mlp="swiglu", norm="rmsnorm",
    positions="rope", bias="none", tied_head=False,
)  # fmt: skip
STEP = {"batch": 2, "sequence": 8}


@pytest.fixture
def ranks():
    """A mesh of so many ranks, of which this process is the first."""

    def start(count):
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=count)
        return init_device_mesh("cpu", (count,))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield start
        dist.destroy_process_group()


def ring(said, count):
    """Bytes that each of `count` ranks sends, by collective."""
    total = Counter()
    for each in said:
        total[each.kind] += (2 if each.kind == "all-reduce" else 1) * (count - 1) * -(-each.size // count)
    return total


def predicted(config, layout, **options):
    """(collective → how many, collective → bytes), forward and backward, of one rank's step."""
    counts, sizes = Counter(), Counter()
    for wire, times in sent(program(config, layout=layout, **STEP, **options)):
        if wire.when != "step":
            counts[wire.kind] += times
            sizes[wire.kind] += times * wire.bytes
    return counts, sizes


# -- ZeRO 3 --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("config", "count"), [(GPT, 2), (GPT, 3), (GPT, 64), (LLAMA, 8)])
def test_shards_and_wires_are_those_of_fully_shard(ranks, config, count):
    mesh = ranks(count)
    model = lm.DecoderOnly(config)
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    layout = f"fsdp={count}"
    assert step_peak(config, **STEP, layout=layout)["parameters"] == 4 * sum(
        parameter.to_local().numel() for parameter in model.parameters()
    )
    tokens = torch.zeros(2, 8, dtype=torch.int64)
    with measure.collectives() as said:
        F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
    _, sizes = predicted(config, layout)
    assert sizes == ring(said, count)
    assert communication(config, **STEP, layout=layout, node=64).total == sum(sizes.values())


# -- tensor and sequence parallel ----------------------------------------------------------------------------------------


def divided(config, mesh, *, sp, attention):
    """The course's decoder under a plan of DTensor: columns, rows, and the vocabulary."""
    model = lm.DecoderOnly(config, attention=attention)
    ours = {lm.Linear: nn.Linear, lm.Embedding: nn.Embedding}
    for module in list(model.modules()):  # the plans know torch's own classes only
        for name, child in list(module.named_children()):
            if type(child) in ours:
                rows, columns = child.weight.shape
                sizes = (columns, rows) if isinstance(child, lm.Linear) else (rows, columns)
                new = ours[type(child)](*sizes)
                new.weight, new.bias = child.weight, getattr(child, "bias", None)
                setattr(module, name, new)
    between = Shard(1) if sp else Replicate()
    # Between the products plain tensors, unless positions have to be divided with them.
    plain = config.positions != "learned"
    plan = {"embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=between, use_local_output=plain)}
    plan["head"] = ColwiseParallel(input_layouts=between, output_layouts=Shard(-1), use_local_output=False)
    for i, block in enumerate(model.blocks):
        for branch, into, out in (("attention", ("query", "key", "value"), "output"), ("mlp", ("gate", "up"), "down")):
            place = f"blocks.{i}.{branch}"
            plan[place] = PrepareModuleInput(
                input_layouts=between, desired_input_layouts=Replicate(), use_local_output=False
            )
            for name in into:
                if hasattr(getattr(block, branch), name):
                    plan[f"{place}.{name}"] = ColwiseParallel(use_local_output=branch == "attention")
            plan[f"{place}.{out}"] = RowwiseParallel(output_layouts=between, use_local_output=plain)
        block.attention.heads //= mesh.size()
        block.attention.kv_heads //= mesh.size()
    parallelize_module(model, mesh, plan)
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if not plain and not isinstance(parameter, DTensor):
                setattr(module, name, nn.Parameter(distribute_tensor(parameter.data, mesh, [Replicate()])))
    return model


def local(tensor):
    """What this rank has of it, arrived or on its way."""
    mine = tensor._local_tensor if isinstance(tensor, DTensor) else tensor
    return getattr(mine, "elem", mine)


@pytest.mark.parametrize("config", [GPT, LLAMA])
@pytest.mark.parametrize(
    ("count", "sp", "attention"),
    [(2, False, "eager"), (4, False, "sdpa"), (2, True, "sdpa"), (4, True, "eager"), (4, True, "sdpa")],
)
def test_a_rank_of_tp_has_the_shapes_the_kept_bytes_and_the_collectives_of_dtensor(ranks, config, attention, count, sp):
    mesh = ranks(count)
    model = divided(config, mesh, sp=sp, attention=attention)
    layout = str(Layout(tp=count, sp=sp))
    tokens = torch.zeros(2, 8, dtype=torch.int64)
    losses = []

    def forward():
        target = DTensor.from_local(tokens.flatten(), mesh, [Replicate()])
        losses.append(F.cross_entropy(model(tokens).flatten(0, 1), target))
        return losses[0]

    with measure.collectives() as said, loss_parallel():
        kept = measure.saved_activation_bytes(forward).total
        losses[0].backward()
    assert saved_activation_bytes(config, **STEP, attention=attention, layout=layout).total == kept
    counts, sizes = predicted(config, layout, attention=attention)
    if sp and config.positions == "learned":
        # DTensor brings the table's gradient together at once; here that is said of the step.
        said.remove(Collective("all-gather", 4 * 8 * 24, count))
    assert counts == Counter(each.kind for each in said)
    assert sizes == ring(said, count)
    written = program(config, **STEP, layout=layout)
    shapes = Counter(tuple(local(parameter).shape) for parameter in model.parameters())
    if config.tied_head:  # the plan divides a shared table twice
        shapes[written.leaves[0].tensor.shape] -= 1
    assert shapes == sum((Counter({leaf.tensor.shape: leaf.count}) for leaf in written.leaves), Counter())


def test_tp_and_sp_are_the_published_formulas_with_what_has_changed():
    """Korthikanti et al. 2022, equations 2 and 4: sbh(10 + 24/t) + 5as²b/t, and with sp everything over t.

    Since then the norms' statistics count (4 bytes each on CUDA), and torch keeps the gathered input of both branches,
    which the paper gathers again in the backward pass.
    """
    B, S, D, A = 3, 32, 64, 8
    config = TransformerConfig(layers=2, d_model=D, heads=A, vocab=128, context=S, dropout=0.1)
    options = {"batch": B, "sequence": S, "precision": "bf16", "device": "cuda"}
    for t in (1, 2, 4, 8):
        row, pairs = B * S * D, 5 * A * S * S * B // t
        statistics = 2 * 2 * 4 * B * S
        alone = saved_block_bytes(config, layout=f"tp={t}", **options).total
        assert alone == row * 10 + 24 * row // t + pairs + statistics
        if t > 1:
            both = saved_block_bytes(config, layout=f"tp={t},sp", **options).total
            gathered = 4 * row - 4 * row // t
            assert both == 34 * row // t + pairs + statistics // t + gathered


def cut(whole, shape, rank, tp):
    """A rank's part of a parameter: of an axis that is divided into fewer parts than there are ranks, neighbors have the same."""
    for axis, (size, own) in enumerate(zip(whole.shape, shape, strict=True)):
        if own < size:
            whole = whole.narrow(axis, rank * (size // own) // tp * own, own)
    return whole


@pytest.mark.parametrize("tp", [2, 4])
@pytest.mark.parametrize(
    "changes",
    [
        {}, {"kv_heads": 2}, {"kv_heads": 1}, {"qk_norm": "head"}, {"qk_norm": "head", "kv_heads": 1, "norm": "layernorm"},
        {"kv_latent": 12, "rotary_dim": 4, "query_latent": 16}, {"experts": 4, "experts_per_token": 2, "bias": "qkv"},
        {"experts": 4, "experts_per_token": 2, "kv_heads": 2},
    ],
)  # fmt: skip
def test_gradients_of_which_a_rank_of_tp_has_a_part_are_summed_once_in_a_step(changes, tp):
    """Attention and MLP of each rank by autograd, from the same incoming gradient: which are not those of the whole module."""
    config = dataclasses.replace(LLAMA, layers=1, **{"bias": "none", **changes})
    whole, x = Block(config, dtype=torch.float64), torch.randn(2, 8, 32, dtype=torch.float64)
    parts = [Block(local_config(config, tp), dtype=torch.float64) for _ in range(tp)]
    back = torch.randn_like(x)
    summed = Counter()
    for name in ("attention", "mlp"):
        module = getattr(whole, name)
        gradients = dict(zip(dict(module.named_parameters()), _gradients(module, x, back), strict=True))
        total = torch.zeros_like(x)
        for rank, part in enumerate(getattr(part, name) for part in parts):
            for at, own in part.named_parameters():
                own.data.copy_(cut(module.get_parameter(at).detach(), own.shape, rank, tp))
            total += part(x).detach()
            if rank == tp - 1:
                for at, mine in zip(gradients, _gradients(part, x, back), strict=True):
                    if not torch.allclose(mine, cut(gradients[at], mine.shape, rank, tp)):
                        copies = tp if mine.shape == gradients[at].shape else tp // config.kv_heads
                        summed[copies] += mine.numel()
        assert torch.allclose(total, module(x))
    written = program(config, **STEP, layout=f"tp={tp}")
    said = {wire.ranks: wire.bytes for wire, _ in sent(written) if wire.when == "step"}
    assert said == {ranks: 2 * (ranks - 1) * -(-4 * elements // ranks) for ranks, elements in summed.items()}


def _gradients(module, x, back):
    return torch.autograd.grad(module(x), list(module.parameters()), back)


def test_key_value_heads_fewer_than_ranks_stand_on_several_and_a_vocabulary_is_padded():
    config = dataclasses.replace(LLAMA, heads=8, kv_heads=2, head_dim=4, vocab=55)
    shapes = {leaf.component: leaf.tensor.shape for leaf in program(config, **STEP, layout="tp=4").leaves}
    assert shapes["query"] == (8, 32) and shapes["key"] == shapes["value"] == (4, 32)
    assert shapes["attention output"] == (32, 8) and shapes["mlp up"] == (10, 32) and shapes["mlp down"] == (32, 10)
    assert shapes["token embedding"] == shapes["head"] == (14, 32)


# -- pipeline ------------------------------------------------------------------------------------------------------------


NO_POSITIONS = dataclasses.replace(GPT, layers=4, positions="none", tied_head=False)


@pytest.mark.parametrize("stage", [0, 1])
@pytest.mark.parametrize("microbatches", [1, 2, 5])
@pytest.mark.parametrize(("schedule", "attention"), [("gpipe", "eager"), ("1f1b", "sdpa")])
def test_the_peak_of_a_stage_is_that_of_its_schedule(schedule, microbatches, stage, attention):
    layout = Layout(pp=2, microbatches=microbatches, schedule=schedule)
    model = lm.DecoderOnly(NO_POSITIONS, attention=attention)
    module = Stage(model, layout, stage, Ranks(None, 1, 0, sp=False))
    tokens = torch.zeros(2, 8, dtype=torch.int64)

    def forward(flight):
        given = tokens if stage == 0 else torch.randn(2, 8, 24, requires_grad=True)
        output = module(given)
        flight.append(F.cross_entropy(output.flatten(0, 1), tokens.flatten()) if stage else output)

    def backward(flight):
        output = flight.pop(0)
        torch.autograd.backward(output, torch.ones_like(output))

    def run():
        flight = []
        ahead = min(microbatches, layout.in_flight(stage))
        for _ in range(ahead - 1):
            forward(flight)
        for i in range(microbatches):
            if i + ahead <= microbatches:
                forward(flight)
            backward(flight)

    moments = peak_moments(NO_POSITIONS, **STEP, layout=layout, stage=stage, attention=attention)
    moments.pop("optimizer step")
    assert max(moments.values()) == measure.peak_bytes(run)
