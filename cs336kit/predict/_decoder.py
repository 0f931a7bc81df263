"""The decoder-only Transformer as a program: the one description of its block."""

from collections.abc import Callable
from contextlib import nullcontext

from cs336kit.predict._attention import Attention
from cs336kit.predict._builder import Builder
from cs336kit.predict._latent import LatentAttention
from cs336kit.predict._layers import Layer, layers, periods
from cs336kit.predict._mlp import MLP
from cs336kit.predict.operations import Program, Storage, Tensor
from cs336kit.predict.precision import PrecisionPolicy
from cs336kit.predict.transformer import TransformerConfig


def _norm(
    b: Builder, place: str, x: Tensor, c: TransformerConfig, *, name: str, component: str = "norms", kept_as: str = ""
) -> Tensor:
    before, b.part = b.part, "norms"
    scale = x.shape[-1:] if c.norm_scale else ()
    normed = b.norm(
        place, x, kind=c.norm, component=component, scale=scale, shift=c.norm_bias, name=name, kept_as=kept_as or place
    )
    b.part = before
    return normed


def _branch(
    b: Builder, c: TransformerConfig, name: str, run: Callable[[Tensor], Tensor], x: Tensor, *, inputs: str
) -> Tensor:
    """Attention or MLP with its norms in front and behind, and its scale."""
    normed = _norm(b, f"{name} norm", x, c, name=inputs) if c.norm_placement in ("pre", "sandwich") else x
    with b.within(name, part=name):
        z = run(normed)
    if normed is not x:
        b.free(normed)
    if c.norm_placement in ("post", "sandwich"):
        behind = _norm(b, f"{name} post norm", z, c, name=f"{name} branch", kept_as=f"{name} post norm")
        b.free(z)
        z = behind
    b.part = name
    return b.scaled(f"{name} scale", z, c.residual_scale)


def _block(b: Builder, c: TransformerConfig, attention: Attention, mlp: MLP, x: Tensor) -> Tensor:
    """Norm, attention, sum, norm, MLP, sum; or attention and MLP side by side behind one norm or two."""
    if c.norms_per_block == 1:
        normed = _norm(b, "attention norm", x, c, name="query, key, value inputs")
        with b.within("attention", part="attention"):
            z = b.scaled("scale", attention(normed), c.residual_scale)
        first = b.add("attention sum", x, z)
        b.free(z)
        with b.within("mlp", part="mlp"):
            m = b.scaled("scale", mlp(normed), c.residual_scale)
        y = b.add("mlp sum", first, m)
        b.free(first, m, normed)
        return y
    residual = c.norm_placement == "residual"
    z = _branch(b, c, "attention", attention, x, inputs="query, key, value inputs")
    y = b.add("attention sum", x, z, name="mlp norm")
    b.free(z)
    if residual:
        y = _behind(b, c, "attention norm", y)
    m = _branch(b, c, "mlp", mlp, x if c.side_by_side else y, inputs="mlp inputs")
    out = b.add("mlp sum", y, m, name="attention norm")
    b.free(y, m)
    return _behind(b, c, "mlp norm", out) if residual else out


def _behind(b: Builder, c: TransformerConfig, place: str, x: Tensor) -> Tensor:
    y = _norm(b, place, x, c, name=place)
    b.free(x)
    return y


def _embedded(b: Builder, c: TransformerConfig, tokens: Tensor, table: Tensor) -> Tensor:
    """What enters the first block."""
    B, S = tokens.shape
    x = b.op("embedding", "embedding", [table, tokens], (B, S, c.embedding_width), name="attention norm")
    if c.embedding_width != c.d_model:
        wide = b.linear("embedding/wider", x, c.d_model, component="embedding projections", name="attention norm")
        b.free(x)
        x = wide
    x = b.scaled("embedding/scale", x, c.embedding_scale)
    if c.positions in ("learned", "sinusoidal"):
        if c.positions == "learned":
            positions = b.parameter("position embedding", c.context + c.extra_positions, c.d_model)
            rows = b.op("positions/slice", "slice", [positions], (S, c.d_model), alias=True)
        else:
            rows = b.data("positions", (S, c.d_model), b.policy.weights)
        summed = b.add("positions", x, rows, name="attention norm")
        b.free(x)
        x = summed
    if c.embedding_norm:
        normed = _norm(b, "embedding norm", x, c, name="attention norm", component="embedding norm")
        b.free(x)
        x = normed
    return x


def decoder(
    config: TransformerConfig,
    *,
    batch: int,
    sequence: int,
    policy: PrecisionPolicy,
    attention: str,
    checkpointing: bool,
    phase: str,
    causal: bool,
    frozen: tuple[str, ...],
    lora_rank: int | None,
    lora_targets: tuple[str, ...],
    routing: tuple[tuple[int, ...] | None, ...] | None,
) -> Program:
    """What `predict.program` returns; see there. `routing`: blocks written one by one, each with the tokens of its experts."""
    c, B, train = config, batch, phase == "train"
    S = 1 if phase == "decode" else sequence
    b = Builder(policy, train=train, frozen=frozen, lora_rank=lora_rank, lora_targets=lora_targets)
    tokens = b.data("tokens", (B, S))
    table = b.parameter("token embedding", c.vocab, c.embedding_width)
    x = _embedded(b, c, tokens, table)
    tables = None
    if c.positions == "rope":
        shape = (S, c.rotary_width)
        tables = b.data("cosine", shape, policy.weights), b.data("sine", shape, policy.weights)
    b.mark("embedding")
    b.section = "block"
    mlp = MLP(b, c, B * S)
    make = LatentAttention if c.kv_latent else Attention
    caching = phase in ("prefill", "decode")

    def write(kind: Layer, count: int, x: Tensor) -> Tensor:
        """A block as often as it stands in a row; the next one starts from the output of the last."""
        # The cache of a window holds as many keys as the window sees, and the new one comes to them.
        keys = min(sequence, kind.window + 1) if phase == "decode" and kind.window is not None else sequence
        attend = make(b, c, kind, B, S, keys, attention, causal=causal, caching=caching)
        attend.tables = tables if kind.rope else None
        mlp.sparse = kind.sparse
        with b.repeat("block", count, checkpoint=x if checkpointing else None):
            y = _block(b, c, attend, mlp, x)
            b.mark("block forward")
            b.free(x)
        return y

    kinds = layers(c)
    if routing is not None:
        for kind, sizes in zip(kinds, routing, strict=True):
            mlp.routing = sizes
            x = write(kind, 1, x)
    else:
        if train and not x.needs_gradient:  # nothing before the blocks is trained: the first one hands no gradient on
            x = write(kinds.pop(0), 1, x)
        for times, rows in periods(kinds):
            # A pattern of unlike layers stands in the list once, however often it comes.
            with b.repeat("blocks", times) if times > 1 else nullcontext():
                for count, kind in rows:
                    x = write(kind, count, x)
    b.section = "end"
    normed = x
    if c.final_norm:
        x.storage.name = "final norm"
        normed = _norm(b, "final norm", x, c, name="head's input", component="final norm")
    output = _logits(b, c, normed, table)
    if normed is not x:
        b.free(x)
    output = _loss(b, output, B * S, c.vocab) if train else output
    b.end_of_cache()
    return b.program(output)


def _logits(b: Builder, c: TransformerConfig, x: Tensor, table: Tensor) -> Tensor:
    b.part = "head"
    if c.embedding_width != c.d_model:
        narrow = b.linear("head/narrower", x, c.embedding_width, component="embedding projections", name="head's input")
        b.free(x)
        x = narrow
    weight = table if c.tied_head else b.parameter("head", c.vocab, c.embedding_width)
    logits = b.linear("head", x, c.vocab, component="head", weight=weight, bias=c.head_bias, copies="bf16 copy of head")
    b.free(x)
    logits = b.scaled("logits/scale", logits, c.logit_scale)
    return logits if c.logit_softcap is None else b.softcap("logits/softcap", logits, name="capped logits")


def _loss(b: Builder, logits: Tensor, tokens: int, vocab: int) -> Tensor:
    """F.cross_entropy of the logits in fp32: a log softmax, and the mean of what it gives the targets."""
    b.part = "loss"
    wide = b.cast("logits/fp32", logits, "fp32")
    if wide is not logits:
        b.free(logits)
    logs = b.op("log softmax", "log_softmax", [wide], (tokens, vocab), keeps_output=True, name="cross-entropy")
    weight = Storage("cross-entropy", 4)
    loss = b.op("loss", "nll_loss", [logs], (), keeps=[logs, weight], statistics=[weight], name="loss")
    b.free(wide, logs)
    return loss
