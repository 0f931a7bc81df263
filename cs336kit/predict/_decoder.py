"""The decoder-only Transformer as a program: the one description of its block."""

from cs336kit.predict._attention import Attention
from cs336kit.predict._builder import Builder
from cs336kit.predict._mlp import MLP
from cs336kit.predict.devices import Device
from cs336kit.predict.layouts import ALONE, Layout, local_config
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


def _branch(b: Builder, branch: Attention | MLP, x: Tensor) -> Tensor:
    """Attention or MLP of x, which every rank of tp needs whole."""
    whole = b.ranks.enter(x)
    z = branch(whole)
    if whole.storage is not x.storage:
        b.free(whole)
    return z


def _block(b: Builder, c: TransformerConfig, attention: Attention, mlp: MLP, x: Tensor) -> Tensor:
    """Norm, attention, sum, norm, MLP, sum; with one norm, attention and MLP stand side by side behind it."""
    if c.norms_per_block == 1:
        normed = _norm(b, "attention norm", x, c, name="query, key, value inputs")
        with b.within("attention", part="attention"):
            z = _branch(b, attention, normed)
        first = b.add("attention sum", x, z)
        b.free(z)
        with b.within("mlp", part="mlp"):
            m = _branch(b, mlp, normed)
        y = b.add("mlp sum", first, m)
        b.free(first, m, normed)
        return y
    normed = _norm(b, "attention norm", x, c, name="query, key, value inputs")
    with b.within("attention", part="attention"):
        z = _branch(b, attention, normed)
    b.free(normed)
    b.part = "attention"
    y = b.add("attention sum", x, z, name="mlp norm")
    b.free(z)
    normed = _norm(b, "mlp norm", y, c, name="mlp inputs")
    with b.within("mlp", part="mlp"):
        m = _branch(b, mlp, normed)
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
    layout: Layout = ALONE,
    stage: int = 0,
) -> Program:
    """What `predict.program` returns; see there. `routing`: blocks written one by one, each with the tokens of its experts."""
    c, B, D, train = local_config(config, layout.tp), batch, config.d_model, phase == "train"
    S = 1 if phase == "decode" else sequence // layout.cp
    # Between the products, the ranks of tp divide the positions where sp says so.
    rows = S // layout.tp if layout.sp else S
    b = Builder(
        policy,
        device=device,
        train=train,
        frozen=frozen,
        lora_rank=lora_rank,
        lora_targets=lora_targets,
        base=base,
        layout=layout,
        stage=stage,
    )
    # The cache of a sliding window holds as many keys as the window sees, and the new one comes to them.
    keys = min(sequence, c.window + 1) if phase == "decode" and c.window is not None else sequence
    caching = phase in ("prefill", "decode")
    attend = Attention(b, c, B, S, keys, attention, causal=causal, caching=caching)
    mlp = MLP(b, c, B * S)
    if stage:
        table, x = None, b.ranks.receive((B, rows, D), b.policy.activations)
    else:
        table, x = _embedded(b, c, B, S, rows)
    if c.positions == "rope":
        shape = (S, c.head_dim)
        attend.tables = b.data("cosine", shape, policy.weights), b.data("sine", shape, policy.weights)
    if not stage:
        b.ranks.parameters(b.leaves, 1, also=[table] if table is not None and c.tied_head and layout.pp > 1 else ())
    b.mark("embedding")
    b.section = "block"
    layers = c.layers // layout.pp
    routing = routing[stage * layers : (stage + 1) * layers] if routing else None
    # Where nothing before the blocks is trained, the first one alone hands no gradient on.
    groups = [1, layers - 1] if train and not x.needs_gradient and layers > 1 else [layers]
    for count, sizes in [(n, None) for n in groups] if routing is None else [(1, sizes) for sizes in routing]:
        mlp.routing = sizes
        with b.repeat("block", count, checkpoint=x if checkpointing else None):
            before = len(b.leaves)
            y = _block(b, c, attend, mlp, x)
            b.ranks.parameters(b.leaves[before:], b.count)
            b.mark("block forward")
            b.free(x)
        # The next run of the block starts from the output of this one.
        x = y
    b.section = "end"
    output = x
    if stage < layout.pp - 1:
        b.ranks.send(x)
    else:
        output = _headed(b, c, x, table, B * S, train, chunks)
    b.end_of_cache()
    return b.program(output)


def _embedded(b: Builder, c: TransformerConfig, B: int, S: int, rows: int) -> tuple[Tensor, Tensor]:
    """The table, and the vectors of the tokens with their positions, of which a rank of sp has `rows`."""
    tokens, D = b.data("tokens", (B, S)), c.d_model
    table = b.parameter("token embedding", c.vocab, D)
    x = b.op("embedding", "embedding", [table, tokens], (B, S, D), name="attention norm")
    x = b.ranks.leave(x, "embedding/leave", name="attention norm")
    if c.positions == "learned":
        positions = b.parameter("position embedding", c.context, D)
        sliced = b.op("positions/slice", "slice", [positions], (rows, D), alias=True)
        summed = b.add("positions", x, sliced, name="attention norm")
        b.free(x)
        x = summed
    return table, x


def _headed(
    b: Builder, c: TransformerConfig, x: Tensor, table: Tensor | None, tokens: int, train: bool, chunks: int
) -> Tensor:
    """Final norm, head and, in training, the loss. A head that shares its table with another stage has a copy."""
    x.storage.name = "final norm"
    before = len(b.leaves)
    normed = _norm(b, "final norm", x, c, name="head's input", component="final norm")
    b.part = "head"
    alone = table is None or not c.tied_head
    head = b.parameter("head", c.vocab, c.d_model) if table is None or not c.tied_head else table
    b.ranks.parameters(b.leaves[before:], 1, also=[head] if c.tied_head and alone else ())
    if chunks > 1:
        b.free(x)
    whole = b.ranks.enter(normed, "head/enter")
    if whole.storage is not normed.storage:
        b.free(normed)
    if chunks > 1:
        return _chunked_loss(b, whole, head, tokens, chunks)
    logits = _logits(b, whole, head)
    b.free(whole, x)
    return _loss(b, logits, tokens, c.vocab) if train else logits


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
    divided = b.layout.tp > 1
    logs = (_divided_log_softmax if divided else _log_softmax)(b, wide, (tokens, vocab))
    weight = Storage("cross-entropy", 4)
    # Where the ranks divide the vocabulary, one node makes the gradient of the logits, with two more tensors for a moment.
    scratch = 2 * logs.bytes if divided else 0
    loss = b.op("loss", "nll_loss", [logs], (), keeps=[logs, weight], statistics=[weight], name="loss", scratch=scratch)
    b.free(wide, logs)
    return loss


def _log_softmax(b: Builder, x: Tensor, shape: tuple[int, ...]) -> Tensor:
    return b.op("log softmax", "log_softmax", [x], shape, keeps_output=True, name="cross-entropy")


def _divided_log_softmax(b: Builder, x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Torch's loss_parallel: maximum and sum of each row over all ranks, and each has the logarithms of its columns."""
    rows, _ = shape
    b.ranks.summed("log softmax/maximum", rows)
    shifted = b.op("log softmax/shifted", "sub", [], shape, dtype="fp32")
    exponentials = b.op("log softmax/exp", "exp", [], shape, dtype="fp32")
    b.free(exponentials)
    b.ranks.summed("log softmax/sum", rows)
    y = b.op("log softmax", "all-reduce", [x], shape, passes=True, keeps_output=True, name="cross-entropy")
    b.free(shifted)
    b.ranks.summed("loss/targets", rows)
    return y
