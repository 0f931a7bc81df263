"""The decoder-only Transformer as a program: the one description of its block."""

from collections.abc import Callable
from contextlib import nullcontext

from cs336kit.predict.decoder.attention import Attention
from cs336kit.predict.decoder.blocks import Block, MLPKind, blocks, norm_of
from cs336kit.predict.decoder.latent import LatentAttention
from cs336kit.predict.decoder.layers import periods, stage_blocks
from cs336kit.predict.decoder.mlp import MLP, Experts
from cs336kit.predict.decoder.norms import norm
from cs336kit.predict.decoder.step import Step
from cs336kit.predict.engine.builder import Adapters, Builder
from cs336kit.predict.engine.operations import Leaf, Program, Shares, Storage, Tensor
from cs336kit.predict.layouts import local_config
from cs336kit.predict.transformer import TransformerConfig


def _branch(
    b: Builder, block: Block, name: str, run: Callable[[Tensor], Tensor], x: Tensor, onto: Tensor, ends: list[Leaf],
    *, inputs: str, summed: str,
) -> Tensor:  # fmt: skip
    """Attention or MLP of x with its norms before and after it and its scale, added to `onto`."""
    start = len(b.leaves)
    norms: list[Leaf] = []
    normed = norm(b, f"{name} norm", x, block.norm, name=inputs) if block.placement in ("pre", "sandwich") else x
    with b.within(name, part=name):
        z = _on_ranks(b, run, normed)
    b.free(normed, unless=x)
    if block.placement in ("post", "sandwich"):
        with b.aside(norms):
            behind = norm(b, f"{name} post norm", z, block.norm, name=f"{name} branch", kept_as=f"{name} post norm")
        b.free(z)
        z = behind
    b.part = name
    z = b.scaled(f"{name} scale", z, block.scale)
    y = b.add(f"{name} sum", onto, z, name=summed)
    b.free(z)
    if block.placement == "residual":
        with b.aside(norms):
            behind = norm(b, f"{name} norm", y, block.norm, name=summed)
        b.free(y)
        y = behind
    # Its module has one norm in front, wherever that is used, and a second one at the end of the block.
    if block.placement == "sandwich":
        ends += norms
    else:
        b.leaves[start:start] = norms
    return y


def _on_ranks(b: Builder, run: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Attention or MLP of x, for which every rank of tp needs x whole."""
    whole = b.ranks.enter(x)
    z = run(whole)
    if whole.storage is not x.storage:
        b.free(whole)
    return z


def _block(b: Builder, block: Block, attention: Attention, mlp: MLP | Experts, x: Tensor) -> Tensor:
    """Norm, attention, sum, norm, MLP, sum; or attention and MLP in parallel after one norm or two."""
    if block.one_norm:
        normed = norm(b, "attention norm", x, block.norm, name="query, key, value inputs")
        with b.within("attention", part="attention"):
            z = b.scaled("scale", _on_ranks(b, attention, normed), block.scale)
        first = b.add("attention sum", x, z)
        b.free(z)
        with b.within("mlp", part="mlp"):
            m = b.scaled("scale", _on_ranks(b, mlp, normed), block.scale)
        y = b.add("mlp sum", first, m, name="attention norm")
        b.free(first, m, normed)
        return y
    ends: list[Leaf] = []
    y = _branch(b, block, "attention", attention, x, x, ends, inputs="query, key, value inputs", summed="mlp norm")
    read = x if block.side_by_side else y
    out = _branch(b, block, "mlp", mlp, read, y, ends, inputs="mlp inputs", summed="attention norm")
    b.free(y)
    b.leaves += ends
    return out


def _embedded(b: Builder, c: TransformerConfig, tokens: Tensor, table: Tensor, rows: int) -> Tensor:
    """The input of the first block; a rank of sp has `rows` of the positions."""
    B, S = tokens.shape
    x = b.embedding("embedding", table, tokens, (B, S, c.embedding_width), name="attention norm")
    x = b.ranks.leave(x, "embedding/leave", name="attention norm")
    if c.embedding_width != c.d_model:
        wide = b.linear("embedding/wider", x, c.d_model, component="embedding projections", name="attention norm")
        b.free(x)
        x = wide
    x = b.scaled("embedding/scale", x, c.embedding_scale)
    if c.positions in ("learned", "sinusoidal"):
        if c.positions == "learned":
            positions = b.parameter("position embedding", c.context + c.extra_positions, c.d_model)
            vectors = b.viewed("positions/slice", "slice", (positions,), (rows, c.d_model))
        else:
            vectors = b.data("positions", (rows, c.d_model), b.policy.weights)
        summed = b.add("positions", x, vectors, name="attention norm")
        b.free(x)
        x = summed
    if c.embedding_norm:
        normed = norm(b, "embedding norm", x, norm_of(c), name="attention norm", component="embedding norm")
        b.free(x)
        x = normed
    return x


def decoder(step: Step) -> Program:
    """The program of a step: what `predict.program` returns."""
    config, layout, stage, train = step.config, step.layout, step.stage, step.trains
    c, B, S, D, rows = local_config(config, layout.tp), step.batch, step.queries, config.d_model, step.rows
    b = Builder(
        step.policy, device=step.device, train=train, frozen=step.frozen, lora_rank=step.lora_rank,
        lora_targets=step.lora_targets, base=step.base, layout=layout, stage=stage,
    )  # fmt: skip
    if stage:
        table, x = None, b.ranks.receive((B, rows, D), b.policy.activations)
    else:
        table = b.parameter("token embedding", c.vocab, c.embedding_width)
        x = _embedded(b, c, b.data("tokens", (B, S)), table, rows)
        b.ranks.parameters(b.leaves, also=[table] if c.tied_head and layout.pp > 1 else ())
    tables = None
    if c.positions == "rope":
        shape = (S, c.rotary_width)
        tables = b.data("cosine", shape, b.policy.weights), b.data("sine", shape, b.policy.weights)
    b.mark("embedding")
    b.section = "block"
    make = LatentAttention if c.kv_latent else Attention
    # Key/value heads fewer than the ranks are on several of them, each with other query heads.
    shares = Shares(max(1, layout.tp // config.kv_heads), config.qk_norm == "head", config.experts > 0)
    cache = step.cache if step.phase in ("prefill", "decode") else ""

    def write(block: Block, count: int, x: Tensor) -> Tensor:
        """A block as often as it is repeated in a row; the next one starts from the output of the last."""
        # The cache of a window holds as many keys as the window sees; the new key is added to them, or replaces the oldest.
        window = block.attention.window
        beside = window + (cache == "growing") if window is not None else step.sequence
        keys = min(step.sequence, beside) if step.phase == "decode" else step.sequence
        turned = tables if block.attention.rope else None
        attend = make(b, block.attention, B, S, keys, step.attention, tables=turned, causal=step.causal, cache=cache)
        kind = block.mlp
        mlp = MLP(b, kind) if isinstance(kind, MLPKind) else Experts(b, kind, B * S, apart=step.unrolled)
        with b.repeat("block", count, checkpoint=x if step.checkpointing else None):
            before = len(b.leaves)
            y = _block(b, block, attend, mlp, x)
            b.ranks.parameters(b.leaves[before:], b.count, shares=shares)
            b.mark("block forward")
            b.free(x)
        return y

    own = stage_blocks(c.layers, layout.pp, stage)
    kinds = blocks(c, step.routing)[own.start : own.stop]
    # The first block is unlike all others if its input is held by the stage, or if nothing before it is trained.
    apart = len(kinds) if step.unrolled else int(train and (stage > 0 or not x.needs_gradient))
    for kind in kinds[:apart]:
        x = write(kind, 1, x)
    kinds = kinds[apart:]
    # The caller of backward on a stage's output holds the gradient that goes into its last block, and no other.
    held = [kinds.pop()] if train and stage < layout.pp - 1 and kinds else []
    for times, pattern in periods(kinds):
        # A pattern of different layers is listed once, however often it repeats. Where parameters are sharded, what is gathered
        # beside a block depends on its neighbors, which are others at both ends: the first and the last period are apart.
        ends = layout.zero_stage == 3 and times > 1
        for repeated in (1, times - 2, 1) if ends else (times,):
            with b.repeat("blocks", repeated) if repeated > 1 else nullcontext():
                for count, kind in pattern if repeated else ():
                    x = write(kind, count, x)
    for kind in held:
        x = write(kind, 1, x)
    b.section = "end"
    output = x
    if stage < layout.pp - 1:
        b.ranks.send(x)
    else:
        output = _headed(b, c, x, table, B * S, train, step.chunks)
    b.end_of_cache()
    return b.program(output)


def _headed(
    b: Builder, c: TransformerConfig, x: Tensor, table: Tensor | None, tokens: int, train: bool, chunks: int
) -> Tensor:
    """Final norm, head and, in training, the loss. A head that shares its table with another stage has its own copy."""
    before, normed = len(b.leaves), x
    if c.final_norm:
        x.storage.name = "final norm"
        normed = norm(b, "final norm", x, norm_of(c), name="head's input", component="final norm")
    b.part = "head"
    if c.embedding_width != c.d_model:
        narrow = b.linear(
            "head/narrower", normed, c.embedding_width, component="embedding projections", name="head's input"
        )
        b.free(normed, unless=x)
        normed = narrow
    own = table is None or not c.tied_head
    # A copy of the table is trained if the table is.
    name = "token embedding" if c.tied_head else "head"
    head = b.parameter(name, c.vocab, c.embedding_width) if table is None or own else table
    bias = b.parameter("head", c.vocab) if c.head_bias else None
    adapters = b.adapters("head", c.embedding_width, c.vocab)
    b.ranks.parameters(b.leaves[before:], also=[head] if c.tied_head and own else ())
    if chunks > 1 and normed is not x:
        b.free(x)
    whole = b.ranks.enter(normed, "head/enter")
    if whole.storage is not normed.storage and (normed is not x or chunks > 1):
        b.free(normed)
    if chunks > 1:
        return _chunked_loss(b, c, whole, head, bias, adapters, tokens, chunks)
    logits = _logits(b, c, whole, head, bias, adapters, last=whole.storage is not x.storage)
    b.free(x)
    return loss_of(b, logits, tokens, c.vocab) if train else logits


def _logits(
    b: Builder, c: TransformerConfig, x: Tensor, head: Tensor, bias: Tensor | None, adapters: Adapters, *, last: bool = False
) -> Tensor:  # fmt: skip
    """The head's logits, scaled and capped. `last`: nobody else holds x, which is freed as soon as the head has read it."""
    logits = b.linear(
        "head", x, c.vocab, component="head", weight=head, bias=bias or False, copies="copy of head", adapters=adapters
    )
    if last:
        b.free(x)
    logits = b.scaled("logits/scale", logits, c.logit_scale)
    return logits if c.logit_softcap is None else b.softcap("logits/softcap", logits, name="capped logits")


def _chunked_loss(
    b: Builder, c: TransformerConfig, x: Tensor, head: Tensor, bias: Tensor | None, adapters: Adapters, tokens: int,
    chunks: int,
) -> Tensor:  # fmt: skip
    """Logits and loss of one chunk of tokens at a time, each checkpointed, so that the logits of two chunks never coexist.

    This is torch.utils.checkpoint around the head and F.cross_entropy(reduction="sum"); the sums are added and divided.
    """
    width = head.shape[1]
    rows = -(-tokens // chunks)
    sizes = [min(rows, tokens - start) for start in range(0, tokens, rows)]
    parts = b.views("loss/split", "split", b.view(x, tokens, width), *((size, width) for size in sizes))
    total: Tensor | None = None
    for part, size in zip(parts, sizes, strict=True):
        with b.repeat("loss chunk", 1, checkpoint=part):
            b.part = "head"
            loss = loss_of(b, _logits(b, c, part, head, bias, adapters), size, c.vocab)
        b.part = "loss"
        if total is None:
            total = loss
        else:
            both = b.add("loss/sum", total, loss, name="loss")
            b.free(total, loss)
            total = both
    assert total is not None
    mean = b.pointwise("loss/mean", "div", total, name="loss")
    b.free(total, x)
    return mean


def loss_of(b: Builder, logits: Tensor, tokens: int, vocab: int, targets: tuple[Tensor, ...] = ()) -> Tensor:
    """F.cross_entropy of the logits in fp32: a log softmax, and the mean of its values at the targets.

    `targets` are given if the caller does not hold them all the time.
    """
    b.part = "loss"
    wide = b.converted("logits/fp32", logits, "fp32")
    if b.layout.tp > 1:
        logs = _divided_log_softmax(b, wide, (tokens, vocab))
    else:
        rows = b.view(wide, tokens, vocab)
        logs = b.pointwise("log softmax", "log_softmax", rows, saves="output", name="cross-entropy")
    weight = Storage("cross-entropy", 4)
    loss = b.with_statistics("loss", "nll_loss", (logs,), (), (weight,), saves=(logs, *targets), name="loss")
    b.free(wide, logs)
    return loss


def _divided_log_softmax(b: Builder, x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Maximum and sum of each row over all ranks; each rank has the logarithms of its columns, as in torch's loss_parallel.

    The live tensors meanwhile are those of `lm.tensor_parallel.VocabularyLoss`.
    """
    rows, _ = shape
    b.ranks.summed("log softmax/maximum", rows)
    shifted = b.made("log softmax/shifted", "sub", shape, "fp32")
    exponentials = b.made("log softmax/exp", "exp", shape, "fp32")
    b.ranks.summed("log softmax/sum", rows)
    b.free(exponentials)
    y = b.passed("log softmax", "all-reduce", (x,), shape, name="cross-entropy")
    if y.needs_gradient:
        b.last.saves = (y.storage,)
    b.free(shifted)
    b.ranks.summed("loss/targets", rows)
    return y
