"""The decoder-only Transformer as a program: the one description of its block."""

from cs336kit.predict._attention import Attention
from cs336kit.predict._builder import Builder
from cs336kit.predict._mlp import MLP
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
    checkpointing: bool,
    phase: str,
    causal: bool,
    frozen: tuple[str, ...],
    lora_rank: int | None,
    lora_targets: tuple[str, ...],
    routing: tuple[tuple[int, ...] | None, ...] | None,
    layout: Layout = ALONE,
    stage: int = 0,
) -> Program:
    """What `predict.program` returns; see there. `routing`: blocks written one by one, each with the tokens of its experts."""
    c, B, D, train = local_config(config, layout.tp), batch, config.d_model, phase == "train"
    S = 1 if phase == "decode" else sequence // layout.cp
    # Between the products, the ranks of tp divide the positions where sp says so.
    rows = S // layout.tp if layout.sp else S
    b = Builder(
        policy, train=train, frozen=frozen, lora_rank=lora_rank, lora_targets=lora_targets, layout=layout, stage=stage
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
        output = _headed(b, c, x, table, B * S, train)
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


def _headed(b: Builder, c: TransformerConfig, x: Tensor, table: Tensor | None, tokens: int, train: bool) -> Tensor:
    """Final norm, head and, in training, the loss. A head that shares its table with another stage has a copy."""
    x.storage.name = "final norm"
    before = len(b.leaves)
    normed = _norm(b, "final norm", x, c, name="head's input", component="final norm")
    b.part = "head"
    shared = c.tied_head and table is not None
    head = table if shared and table is not None else b.parameter("head", c.vocab, c.d_model)
    b.ranks.parameters(b.leaves[before:], 1, also=[head] if c.tied_head and not shared else ())
    whole = b.ranks.enter(normed, "head/enter")
    logits = b.linear("head", whole, c.vocab, component="head", weight=head, copies="bf16 copy of head")
    b.free(normed, x)
    if whole.storage is not normed.storage:
        b.free(whole)
    return _loss(b, logits, tokens, c.vocab) if train else logits


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
