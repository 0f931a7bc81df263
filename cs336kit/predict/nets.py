"""Networks as lists of operations, for `gradient_flops`: linear nets, adapters, and the decoder of `predict.program`."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from cs336kit.predict._common.checks import boolean, known, positive_int, several, shown
from cs336kit.predict._decoder.decoder import decoder as of_config
from cs336kit.predict._writing.builder import Builder
from cs336kit.predict.devices import DEVICES
from cs336kit.predict.gradients import checked_operations
from cs336kit.predict.operations import Op, Repeat, Storage, Tensor
from cs336kit.predict.precision import POLICIES
from cs336kit.predict.programs import ATTENTION, check_sizes
from cs336kit.predict.transformer import TransformerConfig, check_config


def _written(builder: Builder) -> list[Op]:
    """The operations through which gradients pass."""
    return [item for item in builder.items if isinstance(item, Op) and item.gradients]


def linear_net(sizes: Sequence[int], *, batch: int, activation: bool = False) -> tuple[Op, ...]:
    """x @ w1 @ w2 …: `sizes` are the widths from the input to the output, so n + 1 sizes make n layers.

    Tensors: x, w1 … wn, h1 … hn. With `activation`, every layer but the last is followed by a function that keeps a
    tensor for backward (ReLU, GELU), whose result is a1 … . Biases cost no product.
    """
    boolean("activation", activation)
    sizes = several("sizes", sizes, "widths")
    if len(sizes) < 2:
        raise ValueError(f"sizes={shown(sizes)}: give at least two widths, of the input and of the output.")
    width, *widths = (positive_int("a width in sizes", size) for size in sizes)
    b = Builder(POLICIES["fp32"])
    tensor = b.parameter("x", positive_int("batch", batch), width)
    for i, columns in enumerate(widths, start=1):
        tensor = b.linear(f"h{i}", tensor, columns, component=f"w{i}")
        if activation and i < len(widths):
            tensor = b.op(f"a{i}", "relu", [tensor], tensor.shape, keeps_output=True)
    return tuple(_written(b))


def with_lora(operations: Sequence[Op], *, rank: int, targets: Iterable[str] | None = None) -> tuple[Op, ...]:
    """Beside each target weight w a path through w.A and w.B of this rank: y = x @ w + (x @ w.A) @ w.B.

    targets: names of weights; None for those of every linear layer. The base weights are not frozen here: pass them to
    `gradient_flops(frozen=…)`. Errors: ValueError for a weight that is not there.
    Source: Hu et al. (2021), LoRA, section 4.1.
    """
    positive_int("rank", rank)
    operations = checked_operations(operations)
    weights = {op: op.inputs[1].storage.name for op in operations if op.kind == "linear"}
    names = dict.fromkeys(weights.values())
    chosen = tuple(names) if targets is None else several("targets", targets)
    for name in chosen:
        known("weight in targets", name, names)
    changed = ((op, weights.get(op, "") in chosen) for op in operations)
    return tuple(new for op, adapt in changed for new in (_adapted(op, rank) if adapt else [op]))


def _adapted(op: Op, rank: int) -> list[Op]:
    """A linear layer, its adapters, and their sum, which takes the place of the layer's output."""
    (x, w), (y,) = op.inputs[:2], op.outputs
    name, weight = y.storage.name, w.storage.name
    b = Builder(POLICIES["fp32"])
    base = Tensor(y.shape, y.dtype, Storage(f"{name}.base", y.bytes), True)
    down = b.linear(f"{name}.down", x, rank, component=f"{weight}.A")
    b.add(name, base, b.linear(f"{name}.up", down, y.shape[-1], component=f"{weight}.B"))
    *adapters, total = _written(b)
    alone = replace(op, outputs=(base,), allocates=(base.storage,))
    return [alone, *adapters, replace(total, outputs=op.outputs, allocates=op.allocates)]


#: Part of a place in a program → the short name of the tensor that is made there.
_TENSORS = {
    "embedding": "x", "positions": "x", "query": "q", "key": "k", "value": "v", "scores": "scores", "softmax": "weights",
    "values": "mix", "fused": "mix", "output": "o", "attention norm": "n1", "attention sum": "x1", "mlp norm": "n2",
    "gate": "gate", "up": "up", "gelu": "act", "product": "act", "down": "down", "mlp sum": "out", "final norm": "n",
    "head": "logits",
}  # fmt: skip
#: Component of a parameter → its short name; others keep their own.
_WEIGHTS = {
    "token embedding": "embedding", "position embedding": "positions", "query": "w_q", "key": "w_k", "value": "w_v",
    "attention output": "w_o", "mlp gate": "w_gate", "mlp up": "w_up", "mlp down": "w_down", "final norm": "norm",
}  # fmt: skip


def _blocks(
    config: TransformerConfig, batch: int, sequence: int, attention: str, prefixes: Sequence[str]
) -> tuple[list[Op], list[tuple[Op, ...]], list[Op]]:
    """What `predict.program` repeats, written once for each prefix, and what stands before and behind; all with names."""
    check_config(config)
    if config.experts:
        raise ValueError(f"experts={config.experts}: routed products are not counted here; give a dense configuration.")
    batch, sequence = check_sizes(config, batch=batch, sequence=sequence)
    known("attention", attention, ATTENTION)
    walked = of_config(
        replace(config, layers=len(prefixes)), batch=batch, sequence=sequence, policy=POLICIES["fp32"],
        attention=attention, device=DEVICES["cpu"], checkpointing=False, phase="train", causal=False, frozen=(), lora_rank=None,
        lora_targets=(), routing=(None,) * len(prefixes),
    )  # fmt: skip
    before: list[Op] = []
    blocks: list[tuple[Op, ...]] = []
    behind: list[Op] = []
    for item in walked.items:
        if isinstance(item, Repeat):
            block = [op for op in item.items if isinstance(op, Op) and op.gradients]
            blocks.append(_named(block, prefixes[len(blocks)]))
        elif isinstance(item, Op) and item.gradients and item.part != "loss":
            (behind if blocks else before).extend(_named([item]))
    return before, blocks, behind


def _named(operations: list[Op], prefix: str = "") -> tuple[Op, ...]:
    """The operations, their storages named after what they are. What only moves or scales a tensor keeps its name."""
    for op in operations:
        places = op.place.split("/")
        short = next((_TENSORS[place] for place in reversed(places) if place in _TENSORS), "")
        for tensor in op.inputs:
            storage = tensor.storage
            if storage.leaf and tensor.needs_gradient:
                # A norm's shift follows its scale, as biases follow their weights.
                name = f"norm{short[1:]}" if storage.name == "norms" else storage.name
                storage.name = prefix + _WEIGHTS.get(name, name)
        for storage in op.allocates[:1]:
            flowing = (t.storage.name for t in op.inputs if t.needs_gradient and not t.storage.leaf)
            storage.name = prefix + short if short else next(flowing)
    return tuple(operations)


def decoder_block(config: TransformerConfig, *, batch: int, sequence: int, attention: str = "sdpa") -> tuple[Op, ...]:
    """One block of `predict.program`, from x to out: q, k, v, scores, mix, o, and up, down (GELU) or gate, up, down.

    Weights are named w_q … w_down. attention: "eager" (two products and a softmax) or "sdpa" (one fused kernel, whose
    backward computes the scores again). All S × S scores are counted, also under a causal mask or a window, as counters
    do. Errors: ValueError for a mixture of experts.
    """
    _, (block,), _ = _blocks(config, batch, sequence, attention, [""])
    return block


def decoder(
    config: TransformerConfig, *, batch: int, sequence: int, attention: str = "sdpa"
) -> tuple[tuple[Op, ...], tuple[tuple[Op, ...], ...]]:
    """A whole decoder: its operations, from embedding to logits, and its blocks as the segments that checkpointing takes.

    Block i's tensors are named "i.q", "i.w_q" and so on. The leaf "embedding" is the head's matrix too when the head is
    tied, otherwise the head's is "head"; looking up an embedding costs no product.
    """
    check_config(config)
    prefixes = [f"{i}." for i in range(config.layers)]
    before, blocks, behind = _blocks(config, batch, sequence, attention, prefixes)
    return (*before, *(op for block in blocks for op in block), *behind), tuple(blocks)
