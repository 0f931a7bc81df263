"""The decoder as transformers writes it, from the embedding to the loss."""

from collections.abc import Callable
from itertools import groupby

from cs336kit.predict._decoder.decoder import loss_of
from cs336kit.predict._transformers.attention import Attention
from cs336kit.predict._transformers.mlp import MLP
from cs336kit.predict._transformers.modules import Modules
from cs336kit.predict._transformers.writings import Writing
from cs336kit.predict._writing.builder import Builder
from cs336kit.predict.devices import Device
from cs336kit.predict.layouts import Layout
from cs336kit.predict.operations import Op, Program, Tensor
from cs336kit.predict.precision import PrecisionPolicy
from cs336kit.predict.transformer import TransformerConfig


def _branch(modules: Modules, name: str, x: Tensor, inputs: str, run: Callable[[Tensor], Tensor]) -> Tensor:
    """Attention or MLP with its norms."""
    b, placement = modules.b, modules.c.norm_placement
    normed = x if placement == "post" else modules.norm(f"{name} norm", x, name=inputs)
    with b.within(name, part=name):
        z = run(normed)
    b.free(normed, unless=x)
    if placement in ("post", "sandwich"):
        behind = modules.norm(f"{name} post norm", z, name=f"{name} branch")
        b.free(z)
        z = behind
    b.part = name
    return z


def _block(modules: Modules, attention: Attention, mlp: MLP, x: Tensor, window: int | None) -> Tensor:
    """Norms, attention and MLP, one after another or in parallel."""
    b, c = modules.b, modules.c
    if c.norms_per_block == 1:
        normed = modules.norm("attention norm", x, name="query, key, value inputs")
        with b.within("attention", part="attention"):
            z = attention(normed, window)
        with b.within("mlp", part="mlp"):
            m = mlp(normed)
        one, other = (x, m) if modules.how.input_first else (m, x)
        first = b.add("attention sum", z, one)
        y = b.add("mlp sum", first, other)
        b.free(z, m, first, normed)
        return y
    z = _branch(modules, "attention", x, "query, key, value inputs", lambda normed: attention(normed, window))
    y = b.add("attention sum", x, z, name="mlp norm")
    b.free(z)
    m = _branch(modules, "mlp", x if c.parallel else y, "mlp inputs", mlp)
    out = b.add("mlp sum", y, m, name="attention norm")
    b.free(y, m)
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
    if c.positions == "learned":
        positions = b.parameter("position embedding", c.context + c.extra_positions, c.d_model)
        rows = b.embedding("positions/embedding", positions, b.data("positions", (S,)), (1, S, c.d_model))
        summed = b.add("positions", x, rows, name="attention norm")
        b.free(x, rows)
        x = summed
    if c.embedding_norm:
        normed = modules.norm("embedding norm", x, name="attention norm", component="embedding norm")
        b.free(x)
        x = normed
    x = modules.dropped("embedding", "embedding dropout", x, "embedding dropout mask")
    if c.positions == "rope":
        shape, kind = (1, 1, S, c.rotary_width), "fp32" if how.rope == "returned" else policy.weights
        cosine, sine = (b.op(name, "table", (), shape, dtype=kind, name="rotary tables") for name in ("cosine", "sine"))
        cosine.storage.shared = sine.storage.shared = True
        attend.tables = cosine, sine
    mask = None
    if attend.method == "eager":
        mask = attend.mask = b.op("mask", "mask", (), (B, 1, S, S), dtype=policy.weights, name="mask")
        mask.storage.shared = True
    b.ranks.parameters(b.leaves)
    b.mark("embedding")
    b.section = "block"
    if checkpointing and how.keeps_mask and mask is not None and train:
        # An empty operation represents what checkpointing saves besides a block's input.
        b.items.append(Op("checkpointed mask", "checkpoint", (), (), (), (mask.storage,), (), "attention"))
    for window, alike in groupby(c.window_of(layer) for layer in range(c.layers)):
        count, before = len(list(alike)), len(b.leaves)
        with b.repeat("block", count, checkpoint=x if checkpointing else None):
            y = _block(modules, attend, mlp, x, window)
            b.ranks.parameters(b.leaves[before:], count, of=c)
            b.mark("block forward")
            b.free(x)
        x = y
    b.section, before = "end", len(b.leaves)
    x.storage.name = "final norm"
    normed = modules.norm("final norm", x, name="head's input", component="final norm")
    b.free(x)
    if mask is not None and not checkpointing:  # a checkpointed block holds it
        b.free(mask)
    b.part = "head"
    head = table if c.tied_head else b.parameter("head", c.vocab, c.d_model)
    bias = b.parameter("head", c.vocab) if c.head_bias else False
    b.ranks.parameters(b.leaves[before:])
    logits = b.linear("head", normed, c.vocab, component="head", weight=head, bias=bias, copies="copy of head")
    b.free(normed)
    if c.logit_softcap is not None:
        logits = b.softcap("softcap", logits, name="capped logits", early=True)
    output = loss_of(b, logits, B * S, c.vocab) if train else logits
    b.end_of_cache()
    return b.program(output)
