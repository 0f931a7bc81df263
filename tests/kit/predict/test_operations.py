"""Each operation by itself: what it keeps is what torch saves for it, and a gradient is as large as what it belongs to."""

import contextlib
import dataclasses
import functools
import itertools
from collections import Counter
from math import prod

import numpy
import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from cs336kit import lm
from cs336kit.predict import POLICIES, program
from cs336kit.predict.decoder.sdpa import Heads, scaled_dot_product_attention
from cs336kit.predict.devices import DEVICES
from cs336kit.predict.engine.builder import Builder
from cs336kit.predict.engine.operations import INDICES, Op, Storage, Tensor
from cs336kit.predict.engine.walk import Walk
from cs336kit.predict.precision import ELEMENT_BYTES
from cs336kit.predict.training import both_passes
from tests.kit.predict.test_counted_steps import BASE, GPT, LIKE, MOE
from tests.kit.predict.test_walk import DTYPES

pytestmark = pytest.mark.torch

SIZE = {"batch": 2, "sequence": 7}
#: Beside blocks that `lm` builds, those that it does not.
BLOCKS = LIKE | {
    "gpt-oss": {**MOE, "mlp": "swiglu_clipped", "sinks": True}, "Apertus": {"mlp": "xielu"}, "MPT": {"positions": "alibi"},
    "sinusoidal": {**GPT, "positions": "sinusoidal"}, "narrow embedding": {"embedding_dim": 12, "logit_softcap": 3.0},
    "ReLU squared": {"mlp": "relu2"}, "GEGLU": {"mlp": "geglu"},
    "Llama 4": {"qk_norm": "plain", "window": 4, "window_kind": "chunked"},
}  # fmt: skip
HOW = (
    {"precision": "fp32", "attention": "eager"},
    {"precision": "autocast", "attention": "sdpa", "checkpointing": True},
    {"precision": "bf16", "attention": "sdpa", "device": "cuda"},
    {"precision": "autocast", "attention": "eager", "device": "cuda", "chunks": 2},
    {"precision": "fp32", "attention": "sdpa", "frozen": ("query", "mlp down", "norms")},
    {"precision": "bf16", "attention": "eager", "lora_rank": 2, "lora_targets": ("value", "mlp up")},
)
#: What stands behind the blocks, and is trained where all else is frozen.
BEHIND = ("head", "final norm")


def present(names, config):
    """Those components that a model of this configuration has."""
    return tuple(name for name in names if any(leaf.component == name for leaf in program(config, **SIZE).leaves))


def written(name, how):
    config = dataclasses.replace(BASE, **BLOCKS[name])
    chosen = {key: present(how[key], config) for key in ("frozen", "lora_targets") if key in how}
    return program(config, **SIZE, **(how | chosen))


def programs(name):
    """Programs of a block in two of the ways to run it, and with nothing trained but what stands behind the blocks."""
    number = [*BLOCKS].index(name)
    for how in HOW[number % 3 :: 3]:
        yield how, written(name, how)
    if number % 5 == 0 or "experts" in BLOCKS[name]:
        components = {leaf.component for leaf in written(name, {}).leaves}
        yield HOW[0], written(name, HOW[0] | {"frozen": tuple(components - {*BEHIND})})


def operations_of(name):
    """The operations of these programs, one after the other."""
    return [op for _, listed in programs(name) for op, _ in listed.operations()]


def numbers(*shape):
    return torch.randn(shape, dtype=torch.float64)


ROWS = torch.tensor([0, 2])
#: kind → inputs, and a function of them that does in torch what the operation does.
TORCH = {
    "add": ((numbers(3, 4), numbers(3, 4)), lambda x, y=1.0: x + y),
    "mul": ((numbers(3, 4), numbers(3, 4)), lambda x, y=2.0: x * y),
    "div": ((numbers(3, 4), numbers(3, 1)), lambda x, y=2.0: x.clone().div_(y)),
    "pow": ((numbers(3, 4),), lambda x: x.pow(3)),
    "neg": ((numbers(3, 4),), torch.neg),
    "cast": ((numbers(3, 4),), lambda x: x.to(torch.bfloat16)),
    "copy": ((numbers(3, 4),), lambda x: x.t().reshape(-1)),
    "heads": ((numbers(3, 4),), lambda x: x.view(3, 2, 2).transpose(0, 1)),
    "view": ((numbers(3, 4),), lambda x: x.view(-1)),
    "repeat": ((numbers(3, 4),), lambda x: x.repeat_interleave(2, 0)),
    "chunk": ((numbers(3, 4),), lambda x: x.chunk(2, -1)[0]),
    "slice": ((numbers(3, 4),), lambda x: x[..., :2]),
    "split": ((numbers(3, 4),), lambda x: x.split([1, 2])[0]),
    "cat": ((numbers(3, 4), numbers(3, 4)), lambda x, y: torch.cat([x, y], -1)),
    "gelu": ((numbers(3, 4),), F.gelu),
    "silu": ((numbers(3, 4),), F.silu),
    "relu": ((numbers(3, 4),), torch.relu),
    "sigmoid": ((numbers(3, 4),), torch.sigmoid),
    "tanh": ((numbers(3, 4),), torch.tanh),
    "square": ((numbers(3, 4),), lambda x: x.pow(2)),
    "rsqrt": ((numbers(3, 4).abs(),), torch.rsqrt),
    "clamp": ((numbers(3, 4),), lambda x: x.clamp(max=1.0)),
    "mean": ((numbers(3, 4),), lambda x: x.mean(-1)),
    "softmax": ((numbers(3, 4),), lambda x: x.softmax(-1)),
    "log_softmax": ((numbers(3, 4),), lambda x: x.log_softmax(-1)),
    "layer_norm": ((numbers(3, 4), numbers(4), numbers(4)), lambda x, *scale: F.layer_norm(x, (4,), *scale)),
    "linear": ((numbers(3, 4), numbers(2, 4), numbers(2)), F.linear),
    "matmul": ((numbers(2, 3, 4), numbers(2, 4, 5)), torch.bmm),
    "index": ((numbers(3, 4), ROWS), lambda x, rows: x[rows]),
    "index_add": ((numbers(3, 4), ROWS, numbers(2, 4)), lambda x, rows, y: x.clone().index_add_(0, rows, y)),
    "topk": ((numbers(3, 4),), lambda x: x.topk(2).values),
    "nll_loss": ((numbers(3, 4),), lambda x: F.nll_loss(x, torch.tensor([0, 1, 2]))),
}  # fmt: skip


@functools.cache
def saved_by_torch(kind, needs):
    """What torch saves for its backward pass: places of inputs, "output", or "own"; `needs`: which inputs need gradients."""
    inputs, function = TORCH[kind]
    given = [t.detach().requires_grad_(need) for t, need in zip(inputs, needs, strict=False)]
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t.data_ptr()) or t, lambda t: t):
        output = function(*given)
    places = {t.data_ptr(): i for i, t in enumerate(given)}
    # The targets are data, which the caller holds anyway.
    own = [pointer for pointer in saved if pointer not in places and pointer != output.data_ptr()]
    own = own[: 1 if kind == "nll_loss" else None]
    named = [places.get(pointer, "output") for pointer in saved if pointer in places or pointer == output.data_ptr()]
    return tuple(sorted(map(str, named + ["own"] * len({*own}))))


#: Operations whose incoming gradient is handed on as it is, or a view of it.
HANDED_ON = ("add", "add in place", "copy", "cat", "all-reduce", "view")
FLOATS = ("fp32", "bf16", "fp16")


@pytest.mark.parametrize("name", BLOCKS)
def test_an_operation_keeps_what_torch_saves_for_it(name):
    for op in operations_of(name):
        needs = tuple(tensor.needs_gradient for tensor in op.inputs)
        if not any(needs):
            assert not op.saves, op
        elif op.kind in TORCH:
            places = {t.storage: str(i) for i, t in enumerate(op.inputs)}
            places |= {t.storage: "output" for t in op.outputs if op.allocates}
            # Of labels and positions, only what a module makes for itself is listed.
            kept = [s for s in op.saves if not (op.kind in ("nll_loss", "embedding") and s.name == INDICES)]
            roles = sorted(places.get(storage, "own") for storage in kept)
            saved = saved_by_torch(op.kind, needs)
            assert tuple(roles) == saved, (
                f"{op.place} keeps {roles} and torch saves {saved} for {op.kind} (numbers are inputs, own is a further tensor)"
            )


@pytest.mark.parametrize("name", BLOCKS)
def test_a_gradient_is_handed_to_whatever_needs_one_as_large_as_it_is(name):
    for op in operations_of(name):
        assert {g.of for g in op.gradients} == {t for t in op.inputs if t.needs_gradient}
        assert len(op.gradients) == len({g.of for g in op.gradients})
        for tensor in op.outputs:
            assert tensor.needs_gradient is bool(op.gradients), op
        for gradient in op.gradients:
            of, (output, *_) = gradient.of, op.outputs
            # The incoming gradient itself where nothing is allocated; of what was put together, a part of it.
            sizes = (output.bytes if gradient.bytes is None else gradient.bytes, *gradient.then)
            assert sizes[-1] == of.bytes or op.kind == "cat", op
            bias = op.kind == "linear" and of not in op.inputs[:2]
            summed = op.kind in HANDED_ON or (op.kind == "index_add" and of is op.inputs[0])
            assert (gradient.bytes is None) is (summed or bias), op
            assert gradient.flops == (op.forward_flops if op.kind in ("linear", "matmul") and not bias else 0), op


@pytest.mark.parametrize("name", BLOCKS)
def test_what_an_operation_needs_for_a_moment(name):
    for how, listed in programs(name):
        for op, _ in listed.operations():
            size = op.outputs[0].bytes
            if op.kind in ("square", "rsqrt"):
                assert op.workspace == (size, size), op
            elif op.kind == "softmax" and how.get("device") == "cuda":  # its gradient times its output
                assert op.workspace == (size,), op
            elif op.kind not in ("sdpa", "embedding"):
                assert not op.workspace, op
            # Where torch works in place unless somebody watches.
            assert op.dispatch_workspace == (op.inputs[0].bytes if op.kind in ("index", "topk") else 0)
            # Torch's own function adds a mask in place, and looks for rows in which everything is masked.
            assert op.over == (op.inputs[0].storage if op.place.endswith("/sdpa/mask") else None), op
            if op.place.endswith("/sdpa/softmax"):
                *rows, columns = op.outputs[0].shape
                assert op.forward_workspace == (prod(rows) * columns, prod(rows), 4), op
            else:
                assert not op.forward_workspace, op


#: Operations that show the elements of their first input, or write into it.
VIEWS = ("heads", "chunk", "split", "slice", "index_add", "add in place", "view", "copy to ranks")


@pytest.mark.parametrize("name", BLOCKS)
def test_a_tensor_lies_in_its_storage(name):
    copies = set()
    for op in operations_of(name):
        for tensor in (*op.inputs, *op.outputs):
            assert tensor.bytes <= tensor.storage.bytes, op
            assert not (tensor.needs_gradient and tensor.dtype not in FLOATS), op
        if op.kind in VIEWS:
            assert not op.allocates and {t.storage for t in op.outputs} == {op.inputs[0].storage}, op
        else:
            assert op.allocates[0].bytes == op.outputs[0].bytes and op.allocates[0] is op.outputs[0].storage, op
        # What was just copied lies as it is wanted.
        assert op.kind != "copy" or op.inputs[0].storage not in copies, op
        copies |= {t.storage for t in op.outputs if op.kind in ("copy", "repeat")}


@pytest.mark.parametrize("name", BLOCKS)
def test_shapes_and_types_of_factors_and_sums_go_together(name):
    config = dataclasses.replace(BASE, **BLOCKS[name])
    layout = "ep=2" if config.experts else f"tp={min(2, config.heads)}" + ",sp" * (config.heads > 1)
    divided = program(config, batch=2, sequence=6, layout=layout)
    for op in (*operations_of(name), *(op for op, _ in divided.operations())):
        if op.kind in ("add", "mul"):
            shapes = [tensor.shape for tensor in op.inputs]
            assert numpy.broadcast_shapes(*shapes) == op.outputs[0].shape, op
            assert op.outputs[0].dtype == max((t.dtype for t in op.inputs), key=ELEMENT_BYTES.__getitem__), op
        if op.kind in ("linear", "matmul", "sdpa"):
            assert len({tensor.dtype for tensor in (*op.inputs, *op.outputs)}) == 1, op


@pytest.mark.parametrize("name", BLOCKS)
def test_a_step_leaves_the_gradients_of_what_is_trained_and_the_loss(name):
    for how, listed in programs(name):
        element = ELEMENT_BYTES[POLICIES[how["precision"]].gradients]
        trained = sum(leaf.count * leaf.tensor.elements for leaf in listed.leaves if leaf.tensor.needs_gradient)
        assert both_passes(Walk(listed), listed).ledger.live == element * trained + 4, how


#: What a collective says forward, and backward. What is summed forward is handed on backward, and the other way round.
BACKWARD = {
    "all-reduce": ("all-reduce", None), "copy to ranks": (None, "all-reduce"), "all-to-all": ("all-to-all", "all-to-all"),
    "all-gather": ("all-gather", "reduce-scatter"), "reduce-scatter": ("reduce-scatter", "all-gather"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("layout", "ranks", "kinds"),
    [
        ("tp=2", 2, {"all-reduce", "copy to ranks"}), ("tp=2,sp", 2, {"all-gather", "reduce-scatter"}),
        ("cp=3", 3, {"all-gather"}), ("ep=2", 2, {"all-to-all"}),
    ],
)  # fmt: skip
def test_collectives_have_the_shapes_and_send_the_bytes_of_a_ring(layout, ranks, kinds):
    config, seen = dataclasses.replace(BASE, **(MOE if layout == "ep=2" else {})), set()
    for options in ({}, {"frozen": ("token embedding", "norms", "key")}, {"phase": "forward"}):
        for op, _ in program(config, batch=2, sequence=12, layout=layout, **options).operations():
            if not op.collectives or not op.inputs:
                continue
            seen.add(op.kind)
            (given, *_), (made, *_) = op.inputs, op.outputs
            larger, smaller = (given, made) if op.kind == "reduce-scatter" else (made, given)
            times = sorted(a / b for a, b in zip(larger.shape, smaller.shape, strict=True))
            grows = ranks if "all-gather" in BACKWARD[op.kind] else 1
            assert times == [*([1] * (len(times) - 1)), grows], op
            forward, backward = BACKWARD[op.kind]
            said = [(forward, "forward"), (backward if given.needs_gradient else None, "backward")]
            assert [(wire.kind, wire.when) for wire in op.collectives] == [
                (kind, when) for kind, when in said if kind
            ], op
            for wire in op.collectives:
                turns = (2 if wire.kind == "all-reduce" else 1) * (ranks - 1)
                assert wire.bytes == turns * -(-larger.bytes // ranks), op
                assert (wire.ranks, wire.span, wire.stride) == (ranks, ranks, 1)
    assert seen == kinds


def test_scores_are_those_of_gathered_keys_and_weights_those_of_gathered_values():
    operations = [op for op, _ in program(BASE, batch=1, sequence=12, layout="cp=3").operations()]
    made = {op.place.rpartition("eager/")[2]: op for op in operations if "eager/" in op.place}
    for product, gathered in (("scores", "key/gather"), ("values", "value/gather")):
        assert made[product].inputs[1].storage is made[gathered].outputs[0].storage


RING = {"attention": "sdpa", "device": "cuda", "precision": "bf16"}


def test_keys_and_values_of_two_ranks_and_their_gradients_are_there_while_a_ring_runs_backward():
    """Forward they go round all other ranks; backward, with their gradients, one step more, which brings these home."""
    config = dataclasses.replace(BASE, layers=1, heads=2, kv_heads=2, head_dim=8)
    for frozen in ((), ("token embedding", "norms", "query", "key", "value")):
        listed = program(config, batch=2, sequence=12, layout="cp=2", **RING, frozen=frozen)
        operations = [op for op, _ in listed.operations()]
        (ring,) = [op for op in operations if op.kind == "ring"]
        # 2 sequences, 6 positions of a rank, 2 heads of 8 numbers in bf16.
        keys = values = 2 * 2 * 6 * 2 * 8
        assert ring.outputs[0].bytes == 2 * (keys + values)
        backward = [] if frozen else [(1 + 2) * (keys + values)]
        assert [wire.bytes for wire in ring.collectives] == [keys + values, *backward]
        (one,) = [op for op, _ in program(config, batch=2, sequence=6, **RING).operations() if op.kind == "sdpa"]
        (kernel,) = [op for op in operations if op.kind == "sdpa"]
        assert kernel.workspace == (*one.workspace, *(keys, values) * 3)
        # A rank's queries meet the keys of both.
        assert kernel.forward_flops == 2 * one.forward_flops


# -- beside what torch runs ----------------------------------------------------------------------------------------------

#: kind of an operation → the operators of torch that do it; views are not looked at.
OPERATORS = {
    "copy": ("clone",), "repeat": ("clone",), "cast": ("_to_copy",), "matmul": ("bmm",), "linear": ("mm", "addmm"),
    "cat": ("cat",), "neg": ("neg",), "softmax": ("_softmax", "_safe_softmax"), "tanh": ("tanh",), "gelu": ("gelu",),
    "silu": ("silu",), "relu": ("relu",), "sigmoid": ("sigmoid",), "rsqrt": ("rsqrt",), "square": ("pow",), "mean": ("mean",),
    "topk": ("topk",), "bernoulli": ("bernoulli_",), "layer_norm": ("native_layer_norm",), "embedding": ("embedding",),
    "triu": ("triu",), "tril": ("tril",), "where": ("where",), "log_softmax": ("_log_softmax",), "index": ("index",),
    "nll_loss": ("nll_loss_forward",), "index_add": ("index_add_",), "nonzero": ("nonzero",), "add": ("add", "add_"),
    # Torch scales by a product or by a quotient.
    "mul": ("mul", "div"), "div": ("mul", "div"), "dropout": ("mul", "div"),
    "sdpa": ("_scaled_dot_product_flash_attention_for_cpu",),
}  # fmt: skip
NAMES = {operator: operators[0] for operators in OPERATORS.values() for operator in operators}


class Ran(TorchDispatchMode):
    """How often each operator ran."""

    def __init__(self):
        super().__init__()
        self.counts = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        if name in NAMES:
            self.counts[NAMES[name]] += 1
        return func(*args, **kwargs or {})


def counted(operations):
    """The same of operations that are predicted, each with how often it runs."""
    counts = Counter()
    for op, count in operations:
        if op.kind in OPERATORS:
            counts[OPERATORS[op.kind][0]] += count
    return counts


@pytest.mark.parametrize("number, name", enumerate(LIKE), ids=list(LIKE))
def test_as_many_operations_of_each_kind_as_torch_runs(number, name):
    config = dataclasses.replace(BASE, **LIKE[name])
    for i, attention in enumerate(("eager", "sdpa")):
        precision = ("fp32", "bf16", "autocast")[(number + i) % 3]
        batch, sequence = ((2, 7), (3, 1), (1, 5))[(number // 3 + i) % 3]
        policy = POLICIES[precision]
        model = lm.DecoderOnly(config, attention=attention).to(DTYPES[policy.weights])
        tokens = torch.zeros((batch, sequence), dtype=torch.int64)
        autocast = torch.autocast("cpu", DTYPES[policy.products]) if policy.casts else contextlib.nullcontext()
        with autocast, Ran() as ran:
            loss = F.cross_entropy(model(tokens).flatten(0, 1).float(), tokens.flatten())
        listed = program(config, batch=batch, sequence=sequence, precision=precision, attention=attention)
        assert counted(listed.operations()) == ran.counts, (precision, attention, batch, sequence)
        in_kernels = config.qk_norm == "head" and config.norm == "layernorm"
        if attention == "eager" and config.heads > 1 and batch > 1 and not in_kernels:
            with Ran() as ran:
                loss.backward()
            # The gradients of heads, which come with the heads in front, are put back by copies; layer norms do that inside.
            heads = sum(count for op, count in listed.operations() if op.kind == "heads")
            assert heads == ran.counts["clone"], (precision, batch, sequence)


#: How heads lie in memory → such heads of torch, from batch, heads and positions.
LAID = {
    "behind": lambda B, n, S: torch.randn(B, S, n, 8).transpose(1, 2),
    "front": lambda B, n, S: torch.randn(B, n, S, 8),
}


@pytest.mark.parametrize(("queries", "keys"), itertools.product(LAID, LAID))
def test_copies_and_masks_of_attention_that_torch_writes_out(queries, keys):
    for B, S, (A, K), masked in itertools.product((1, 2), (1, 2, 5), ((1, 1), (4, 1), (4, 2), (4, 4)), (False, True)):
        grouped = K < A
        given = LAID[queries](B, A, S), *(LAID[keys](B, K, S) for _ in range(2))
        mask = torch.zeros(B, 1, S, S) if masked else None
        with Ran() as ran:
            written_out = torch.ops.aten._scaled_dot_product_attention_math
            written_out(*given, mask, 0.1, S > 1 and not masked, enable_gqa=grouped)
        b, heads = Builder(POLICIES["fp32"], device=DEVICES["cpu"]), []
        for name, x, laid in zip(("query", "key", "value"), given, (queries, keys, keys), strict=True):
            x = Tensor(tuple(x.shape), "fp32", Storage(name, 4 * x.numel()), True)
            heads.append(Heads(x, **{} if laid == "behind" else {laid: True}))
        mask = Tensor((B, 1, S, S), "fp32", Storage("mask", 4 * B * S * S), False) if masked else None
        scaled_dot_product_attention(b, None, *heads, mask=mask, dropout=0.1, grouped=grouped, flops=(1, 1))
        said = counted((item, 1) for item in b.items if isinstance(item, Op))
        for operator in ("clone", "where", "bmm", "add"):
            assert said[operator] == ran.counts[operator], (operator, B, S, A, K, masked)
