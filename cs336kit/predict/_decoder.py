"""The decoder-only Transformer as a program: the one description of its block."""

from cs336kit.predict._attention import Attention
from cs336kit.predict._builder import Builder
from cs336kit.predict._mlp import MLP
from cs336kit.predict.devices import Device
from cs336kit.predict.operations import Program, Storage, Tensor
from cs336kit.predict.precision import PrecisionPolicy
from cs336kit.predict.transformer import TransformerConfig


def _norm(
    b: Builder, place: str, x: Tensor, config: TransformerConfig, *, name: str, component: str = "norms"
) -> Tensor:
    before, b.part = b.part, "norms"
    if config.norm == "rmsnorm":
        normed = b.rms_norm(place, x, component=component, name=name, kept_as=place)
    else:
        normed = b.layer_norm(place, x, component=component, shift=config.norm_bias, name=name, kept_as=place)
    b.part = before
    return normed


def _block(b: Builder, c: TransformerConfig, attention: Attention, mlp: MLP, x: Tensor) -> Tensor:
    """Norm, attention, sum, norm, MLP, sum; with one norm, attention and MLP stand side by side behind it."""
    if c.norms_per_block == 1:
        normed = _norm(b, "attention norm", x, c, name="query, key, value inputs")
        with b.within("attention", part="attention"):
            z = attention(normed)
        first = b.add("attention sum", x, z)
        b.free(z)
        with b.within("mlp", part="mlp"):
            m = mlp(normed)
        y = b.add("mlp sum", first, m)
        b.free(first, m, normed)
        return y
    normed = _norm(b, "attention norm", x, c, name="query, key, value inputs")
    with b.within("attention", part="attention"):
        z = attention(normed)
    b.free(normed)
    b.part = "attention"
    y = b.add("attention sum", x, z, name="mlp norm")
    b.free(z)
    normed = _norm(b, "mlp norm", y, c, name="mlp inputs")
    with b.within("mlp", part="mlp"):
        m = mlp(normed)
    b.free(normed)
    b.part = "mlp"
    out = b.add("mlp sum", y, m, name="attention norm")
    b.free(y, m)
    return out


def decoder(
    config: TransformerConfig,
    *,
    batch: int,
    sequence: int,
    policy: PrecisionPolicy,
    attention: str,
    device: Device,
    checkpointing: bool,
    phase: str,
    causal: bool,
    frozen: tuple[str, ...],
    lora_rank: int | None,
    lora_targets: tuple[str, ...],
    routing: tuple[tuple[int, ...] | None, ...] | None,
    chunks: int = 1,
    base: str | None = None,
) -> Program:
    """What `predict.program` returns; see there. `routing`: blocks written one by one, each with the tokens of its experts."""
    c, B, D, train = config, batch, config.d_model, phase == "train"
    S = 1 if phase == "decode" else sequence
    b = Builder(
        policy, device=device, train=train, frozen=frozen, lora_rank=lora_rank, lora_targets=lora_targets, base=base
    )
    # The cache of a sliding window holds as many keys as the window sees, and the new one comes to them.
    keys = min(sequence, c.window + 1) if phase == "decode" and c.window is not None else sequence
    caching = phase in ("prefill", "decode")
    attend = Attention(b, c, B, S, keys, attention, causal=causal, caching=caching)
    mlp = MLP(b, c, B * S)
    tokens = b.data("tokens", (B, S))
    table = b.parameter("token embedding", c.vocab, D)
    x = b.op("embedding", "embedding", [table, tokens], (B, S, D), name="attention norm")
    if c.positions == "learned":
        positions = b.parameter("position embedding", c.context, D)
        rows = b.op("positions/slice", "slice", [positions], (S, D), alias=True)
        summed = b.add("positions", x, rows, name="attention norm")
        b.free(x)
        x = summed
    if c.positions == "rope":
        shape = (S, c.head_dim)
        attend.tables = b.data("cosine", shape, policy.weights), b.data("sine", shape, policy.weights)
    b.mark("embedding")
    b.section = "block"
    # Where nothing before the blocks is trained, the first one alone hands no gradient on.
    groups = [1, c.layers - 1] if train and not x.needs_gradient and c.layers > 1 else [c.layers]
    for count, sizes in [(n, None) for n in groups] if routing is None else [(1, sizes) for sizes in routing]:
        mlp.routing = sizes
        with b.repeat("block", count, checkpoint=x if checkpointing else None):
            y = _block(b, c, attend, mlp, x)
            b.mark("block forward")
            b.free(x)
        # The next run of the block starts from the output of this one.
        x = y
    b.section = "end"
    x.storage.name = "final norm"
    normed = _norm(b, "final norm", x, c, name="head's input", component="final norm")
    b.part = "head"
    head = table if c.tied_head else b.parameter("head", c.vocab, D)
    if chunks > 1:
        b.free(x)
        output = _chunked_loss(b, normed, head, B * S, chunks)
    else:
        logits = _logits(b, normed, head)
        b.free(normed, x)
        output = _loss(b, logits, B * S, c.vocab) if train else logits
    b.end_of_cache()
    return b.program(output)


def _logits(b: Builder, x: Tensor, head: Tensor) -> Tensor:
    return b.linear("head", x, head.shape[0], component="head", weight=head, copies="bf16 copy of head")


def _chunked_loss(b: Builder, x: Tensor, head: Tensor, tokens: int, chunks: int) -> Tensor:
    """Logits and loss of some tokens at a time, each part checkpointed: its logits are never there with another's.

    What torch.utils.checkpoint does around the head and F.cross_entropy(reduction="sum"), added up and divided.
    """
    vocab, width = head.shape
    rows = -(-tokens // chunks)
    sizes = [min(rows, tokens - start) for start in range(0, tokens, rows)]
    parts = b.split("loss/split", b.view(x, tokens, width), sizes)
    total: Tensor | None = None
    for part, size in zip(parts, sizes, strict=True):
        with b.repeat("loss chunk", 1, checkpoint=part):
            b.part = "head"
            loss = _loss(b, _logits(b, part, head), size, vocab)
        b.part = "loss"
        if total is None:
            total = loss
        else:
            both = b.add("loss/sum", total, loss, name="loss")
            b.free(total, loss)
            total = both
    assert total is not None
    mean = b.op("loss/mean", "div", [total], (), name="loss")
    b.free(total, x)
    return mean


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
