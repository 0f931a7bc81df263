"""The decoder as transformers writes it, from the embedding to the loss."""

from collections.abc import Callable
from functools import partial
from itertools import groupby

from cs336kit.predict._transformers.attention import Attention
from cs336kit.predict._transformers.mlp import MLP
from cs336kit.predict._transformers.modules import Modules
from cs336kit.predict._transformers.writings import Writing
from cs336kit.predict.decoder.model import loss_of
from cs336kit.predict.devices import Device
from cs336kit.predict.engine.builder import Builder
from cs336kit.predict.engine.operations import INDICES, Op, Program, Tensor
from cs336kit.predict.layouts import Layout
from cs336kit.predict.precision import PrecisionPolicy
from cs336kit.predict.transformer import TransformerConfig


def _dropped(modules: Modules, name: str, z: Tensor) -> Tensor:
    """Dropout of what attention or MLP returned, if the block applies it."""
    with modules.b.within(name, part=name):
        return modules.dropped(f"block's {name}", "dropout", z, f"{name} dropout mask")


def _branch(
    modules: Modules, name: str, x: Tensor, inputs: str, run: Callable[[Tensor], Tensor], held: list[Tensor]
) -> Tensor:
    """Attention or MLP with its norms; `held`: what the block's variables hold until it returns."""
    b, c, placement = modules.b, modules.c, modules.c.norm_placement
    normed = x if placement == "post" else modules.norm(f"{name} norm", x, name=inputs)
    with b.within(name, part=name):
        z = run(normed)
    if f"{name} input" in modules.how.variables:
        held.append(normed)
    elif name == "attention" or not modules.how.inline_mlp:
        b.free(normed, unless=x)
    z = _dropped(modules, name, z)
    if placement in ("post", "sandwich"):
        behind = modules.norm(f"{name} post norm", z, name=f"{name} branch")
        b.free(z)
        z = behind
    b.part = name
    return b.scaled(f"{name} scale", z, c.residual_scale)


def _block(modules: Modules, attention: Attention, mlp: MLP, x: Tensor, window: int | None) -> Tensor:
    """Norms, attention and MLP, one after another or in parallel."""
    b, c, how, held = modules.b, modules.c, modules.how, list[Tensor]()
    if c.parallel or c.norms_per_block == 1:
        normed = modules.norm("attention norm", x, name="query, key, value inputs")
        with b.within("attention", part="attention"):
            z = attention(normed, window)
        z = _dropped(modules, "attention", z)
        if c.parallel:
            b.free(normed)
            normed = modules.norm("mlp norm", x, name="mlp inputs")
        with b.within("mlp", part="mlp"):
            m = mlp(normed)
        if c.parallel:
            b.free(normed)
        else:
            held.append(normed)
        if how.sums == "in place":
            first, other = b.passed("attention sum", "add in place", (m, z), m.shape, alias=True), x
            b.hold(m)  # in a variable while dropout reads it
            held.append(m)
            first = _dropped(modules, "mlp", first)
        else:
            held.append(m := _dropped(modules, "mlp", m))
            one, other = (x, m) if how.sums == "input first" else (m, x)
            first = b.add("attention sum", z, one)
        y = b.add("mlp sum", first, other)
        b.free(z, first, *held, *([] if how.returns_weights else attention.weights))
        return y
    inside = how.sums == "inside"
    run = partial(attention, window=window, residual=x if inside else None)
    z = _branch(modules, "attention", x, "query, key, value inputs", run, held)
    y = z if inside else b.add("attention sum", x, z, name="mlp norm")
    if inside or "attention output" in how.variables:
        held.append(z)
    else:
        b.free(z)
    m = _branch(modules, "mlp", y, "mlp inputs", partial(mlp, residual=y if inside else None), held)
    if inside:
        out = m
    else:
        out = b.add("mlp sum", y, m, name="attention norm")
        held += [y, m]
    b.free(*held, *([] if how.returns_weights else attention.weights))
    return out


def decoder(
    config: TransformerConfig,
    how: Writing,
    *,
    batch: int,
    sequence: int,
    policy: PrecisionPolicy,
    attention: str,
    device: Device,
    checkpointing: bool,
    train: bool,
    layout: Layout,
) -> Program:
    """What `predict.program` returns for flavour="transformers": one forward pass without a cache, and its loss."""
    c, B, S = config, batch, sequence
    b = Builder(policy, device=device, train=train, layout=layout)
    modules = Modules(b, c, how)
    attend, mlp = Attention(modules, B, S, attention), MLP(modules)
    tokens = b.data("tokens", (B, S))
    table = b.parameter("token embedding", c.vocab, c.d_model)
    x = b.embedding("embedding", table, tokens, (B, S, c.d_model), name="attention norm")
    x = b.scaled("embedding/scale", x, c.embedding_scale)
    x = modules.dropped("inputs", "embedding dropout", x, "embedding dropout mask")
    # The model's own variables, which live until it returns, and the embeddings among them, if they are the blocks' input.
    own, embedded = list[Tensor](), [x]
    # Checkpointed blocks hold what they read until the backward pass has gone through the first of them.
    read: list[Tensor] = []
    kind = "held" if checkpointing else "table"
    if c.positions != "alibi":
        counts = B if c.extra_positions else 1  # counted from each sequence's mask, or for all
        read.append(numbers := b.made("position numbers", kind, (counts, S), "int64", name=INDICES))
    if c.positions == "learned":
        positions = b.parameter("position embedding", c.context + c.extra_positions, c.d_model)
        if c.extra_positions:
            own.append(b.made("positions/mask", "full", (B, S), "fp32"))
            numbers = b.made("positions/moved", "offset", (B, S), "int64", name=INDICES)
        rows = b.embedding("positions/embedding", positions, numbers, (counts, S, c.d_model), made=True)
        if c.extra_positions:
            b.free(numbers)
        summed = b.add("positions", x, rows, name="attention norm")
        own, embedded, x = [*own, x, rows], [], summed
    if c.embedding_norm:
        normed = modules.norm("embedding norm", x, name="attention norm", component="embedding norm")
        b.free(x)
        embedded, x = [], normed
    b.hold(x)
    dropped = modules.dropped("embedding", "embedding dropout", x, "embedding dropout mask")
    if dropped is not x and embedded:
        own, embedded = [x], []
    else:
        b.free(x)
    x = dropped
    if c.positions == "rope":
        shape, dtype = (1, 1, S, c.rotary_width), "fp32" if how.rope == "returned" else policy.weights
        if how.rope == "own tables":  # the model makes none
            attend.tables = b.data("cosine", shape, dtype), b.data("sine", shape, dtype)
        else:
            cosine, sine = (b.made(name, kind, shape, dtype, name="rotary tables") for name in ("cosine", "sine"))
            cosine.storage.shared = sine.storage.shared = True
            attend.tables = cosine, sine
            read += attend.tables
    if c.positions == "alibi":
        read.append(b.made("alibi", kind, (B, c.heads, S), policy.weights, name="mask"))
    b.ranks.parameters(b.leaves)
    b.mark("embedding")
    b.section = "block"
    eager, masks = attend.method == "eager", dict[int | None, Tensor]()
    groups = [(window, len(list(alike))) for window, alike in groupby(c.window_of(layer) for layer in range(c.layers))]
    if how.both_masks and len({window for window, _ in groups}) == 1:  # of which no layer reads the other
        own.append(b.made("mask", "table", (B, 1, S, S), policy.weights, name="mask"))
    if how.returns_weights and eager and groups[0][1] > 1:  # only the first block has none before it
        groups[:1] = [(groups[0][0], 1), (groups[0][0], groups[0][1] - 1)]
    for window, count in groups:
        before, returned = len(b.leaves), attend.weights if how.returns_weights else []
        if window not in masks and (eager or attend.masked(window)):
            shape, dtype = ((B, 1, S, S), policy.weights) if eager else ((1, 1, S, S), "bool")
            masks[window] = mask = b.made("mask", kind, shape, dtype, name="mask")
            if checkpointing and how.keeps_mask and train:
                # An empty operation represents what checkpointing saves besides a block's input.
                b.items.append(Op("checkpointed mask", "checkpoint", (), (), (), (mask.storage,), (), "attention"))
        attend.mask = masks.get(window)
        with b.repeat("block", count, checkpoint=x if checkpointing else None):
            y = _block(modules, attend, mlp, x, window)
            b.ranks.parameters(b.leaves[before:], count)
            b.mark("block forward")
            b.free(x, *returned)
        x = y
        for each in embedded:  # not before, because one run stands for all, and the others free their input
            b.hold(each)
        own, embedded = own + embedded, []
    b.section, before = "end", len(b.leaves)
    x.storage.name = "final norm"
    normed = modules.norm("final norm", x, name="head's input", component="final norm")
    b.free(x, *own, *(attend.weights if how.returns_weights else []))
    if not checkpointing:
        b.free(*read, *masks.values())
    b.part = "head"
    head = table if c.tied_head else b.parameter("head", c.vocab, c.d_model)
    bias = b.parameter("head", c.vocab) if c.head_bias else False
    b.ranks.parameters(b.leaves[before:])
    logits = b.linear("head", normed, c.vocab, component="head", weight=head, bias=bias, copies="copy of head")
    logits = b.scaled("logits/scale", logits, c.logit_scale)
    if c.logit_softcap is not None:
        logits = b.softcap("softcap", logits, name="capped logits", early=True)
    output = logits
    if train:
        b.hold(logits)
        padded, shifted = (b.made(f"labels/{n}", "labels", (B, S + n), "int64", name=INDICES) for n in (1, 0))
        output = loss_of(b, logits, B * S, c.vocab, (shifted,))
        b.free(logits, padded, shifted)
    b.free(normed)
    b.end_of_cache()
    return b.program(output)
