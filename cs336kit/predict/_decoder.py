"""The decoder-only Transformer as a program: the one description of its block."""

from itertools import pairwise

from cs336kit.predict._builder import Builder
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


def _rotate(b: Builder, place: str, x: Tensor, tables: tuple[Tensor, Tensor], name: str) -> Tensor:
    """x · cosine + (−second half, first half) · sine, as `lm.rope` writes it."""
    with b.within(place):
        first, second = b.chunk("halves", x)
        straight = b.mul("cosine", x, tables[0])
        negative = b.op("negate", "neg", [second], second.shape)
        turned = b.cat("exchange", negative, first, x.shape)
        b.free(negative)
        crossed = b.mul("sine", turned, tables[1])
        b.free(turned)
        rotated = b.add("sum", straight, crossed, name=name)
        b.free(straight, crossed)
        result = b.cast("cast", rotated, x.dtype, name=name)
        if result is not rotated:
            b.free(rotated)
        return result


class _Decoder:
    def __init__(
        self, b: Builder, config: TransformerConfig, batch: int, queries: int, keys: int, attention: str, causal: bool
    ):
        self.b, self.c, self.B, self.S, self.T, self.method = b, config, batch, queries, keys, attention
        pairs = 2 * queries * keys
        if causal and queries == keys:
            window = min(config.window or keys, keys)
            # The triangle's area, S²/2; a sliding window cuts its far corner off.
            pairs = 2 * keys * window - window**2
        #: FLOPs of one of attention's two products
        self._pairs_flops = batch * config.query_width * pairs
        self.tables: tuple[Tensor, Tensor] | None = None
        #: tokens of each expert; None for equal shares
        self.routing: tuple[int, ...] | None = None

    def attention(self, x: Tensor) -> Tensor:
        """Projections, rotation, softmax of scores, sum of values, output projection."""
        b, c = self.b, self.c
        A, K, h = c.heads, c.kv_heads, c.head_dim
        inner, outer = c.bias != "none", c.bias == "all"
        # On a CPU, dropout sends the fused function to its written-out path.
        fused = self.method == "sdpa" and not (c.dropout and b.train)
        q, k, v = (
            self._heads(b.linear(name, x, n * h, component=name, bias=inner, name=name), n, name, fused)
            for name, n in (("query", A), ("key", K), ("value", K))
        )
        if self.tables is not None:
            turned_q = _rotate(b, "query rotary", q, self.tables, "query")
            turned_k = _rotate(b, "key rotary", k, self.tables, "key")
            b.free(q, k)
            q, k = turned_q, turned_k
        if self.T > self.S:
            k, v = self._continued(k, v)
        b.cache_of(k, v, window=c.window)
        attend = self._fused if fused else self._written_out if self.method == "sdpa" else self._eager
        with b.within(self.method):
            z = attend(q, k, v)
        merged = z if fused else self._merge(z)
        out = b.linear("output", merged, c.d_model, component="attention output", bias=outer)
        # A cache goes on holding its keys and values, unless a window has made it take the last ones only.
        cached = self.S < self.T <= (c.window or self.T)
        b.free(q, z, *(() if cached else (k, v)))
        if merged.storage is not z.storage:
            b.free(merged)
        return b.dropout("output dropout", out, c.dropout, mask="attention dropout mask")

    def _continued(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """What a cache holds, and the new position behind it, in new tensors; a window's cache keeps a copy of the last."""
        b, (B, K, S, h) = self.b, k.shape
        past = b.data("cached", (B, K, self.T - S, h), k.dtype)
        both = b.cat("key/continued", past, k, (B, K, self.T, h)), b.cat("value/continued", past, v, (B, K, self.T, h))
        window = self.c.window
        if window is not None and window < self.T:
            for name, tensor in zip(("key", "value"), both, strict=True):
                b.op(f"{name}/last", "copy", [tensor], (B, K, window, h))
        b.free(k, v)
        return both

    def _one_batch(self, x: Tensor) -> bool:
        """Whether batch and heads of x, which stands as (batch, sequence, heads, head_dim), are one axis without a copy."""
        B, heads, S, _ = x.shape
        return B == 1 or heads == 1 or S == 1

    def _heads(self, x: Tensor, heads: int, name: str, fused: bool) -> Tensor:
        """The heads as an axis of their own. Products of heads return gradients with the heads in front: put back by a copy."""
        shape = (self.B, heads, self.S, self.c.head_dim)
        if fused or heads == 1 or self.S == 1 or not x.needs_gradient:
            return self.b.view(x, *shape)
        return self.b.op(f"{name}/heads", "heads", [x], shape, alias=True)

    def _merge(self, z: Tensor) -> Tensor:
        """(B, A, S, h) to (B, S, A·h)."""
        shape = (self.B, self.S, self.c.query_width)
        name = "attention output's input"
        if self.c.heads == 1 or self.S == 1:
            z.storage.name = name
            return self.b.view(z, *shape)
        return self.b.copy("merge heads", z, shape, name=name)

    def _fused(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        b, c = self.b, self.c
        one = self._pairs_flops
        keeps = [q, k, v]
        mask = None
        if c.window is not None and c.window < self.T:
            mask = self._mask(q.dtype)
            keeps.append(mask)
        logsumexp = Storage("logsumexp", 4 * self.B * c.heads * self.S)
        z = b.op(
            "fused", "sdpa", [q, k, v], q.shape, keeps=[*keeps, logsumexp], keeps_output=True, statistics=[logsumexp],
            name="attention output's input", flops=(("attention scores", one), ("attention values", one)), again=5 * one,
        )  # fmt: skip
        if mask is not None:
            b.free(mask)
        return b.view(z, self.B, self.S, c.query_width)

    def _mask(self, dtype: str) -> Tensor:
        """`lm.causal_mask`: 0 and −inf, S × S; with a window, the sum of two triangles."""
        b, shape = self.b, (self.S, self.T)
        full = b.op("mask/full", "full", [], shape, dtype=dtype)
        mask = b.op("mask/triu", "triu", [full], shape, name="window mask")
        if self.c.window is not None:
            lower = b.op("mask/tril", "tril", [full], shape)
            both = b.op("mask/sum", "add", [mask, lower], shape, name="window mask")
            b.free(mask, lower)
            mask = both
        b.free(full)
        return mask

    def _weighted(self, weights: Tensor, values: Tensor, shape: tuple[int, ...]) -> Tensor:
        """weights @ values; its gradient, which comes in the order of tokens, is copied to have the heads in front."""
        b = self.b
        z = b.matmul("values", weights, values, shape, self._pairs_flops, component="attention values")
        if self.c.heads == 1 or self.S == 1:
            return z
        return b.op("values/heads", "heads", [z], shape, alias=True)

    def _softmax(self, scores: Tensor, *, assigned: bool = False) -> Tensor:
        """The weights, dropped if asked. `assigned`: the variable of the scores takes the weights."""
        b, p = self.b, self.c.dropout
        weights = b.op("softmax", "softmax", [scores], scores.shape, keeps_output=True, name="softmax output")
        if assigned:
            b.free(scores)
        return b.dropout("weights dropout", weights, p, mask="weights' dropout mask", name="dropped weights")

    def _eager(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        b, pairs = self.b, (self.B, self.c.heads, self.S, self.T)
        x, y = self._batched(q, "query"), self._batched(k, "key")
        scores = b.matmul("scores", x, y, pairs, self._pairs_flops, component="attention scores")
        for copied, given in ((x, q), (y, k)):
            if copied is not given:
                b.free(copied)
        scaled = b.op("scale", "div", [scores], pairs)
        b.free(scores)
        mask = self._mask(scaled.dtype)
        masked = b.add("mask", scaled, mask)
        b.free(mask, scaled)
        weights = self._softmax(masked)
        w = self._batched(v, "value")
        z = self._weighted(weights, w, q.shape)
        if w is not v:
            b.free(w)
        b.free(weights, masked)
        return z

    def _written_out(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Torch's scaled_dot_product_attention without a fused kernel: in fp32, grouped heads repeated."""
        b, c, S = self.b, self.c, self.S
        pairs = (self.B, c.heads, S, S)
        given = self._mask(q.dtype) if c.window is not None and c.window < S else None
        wide = [b.cast(f"{t.storage.name}/fp32", t, "fp32", name=t.storage.name) for t in (q, k, v)]
        held = [new for new, old in zip(wide, (q, k, v), strict=True) if new is not old]
        scaled_q = b.op("query/scale", "div", [wide[0]], q.shape, name="query")
        mask = given
        if mask is None and S > 1:
            ones = b.op("mask/ones", "full", [], (S, S), dtype="int8")
            lower = b.op("mask/tril", "tril", [ones], (S, S), dtype="int8")
            b.free(ones)
            mask = b.op("mask/where", "where", [lower], (S, S), dtype="fp32")
            b.free(lower)
        grouped = c.kv_heads < c.heads
        keys, values = wide[1], wide[2]
        if grouped:
            keys = b.op("key/repeat", "repeat", [keys], q.shape, name="key")
            values = b.op("value/repeat", "repeat", [values], q.shape, name="value")
            held += [keys, values]
        scaled_k = b.op("key/scale", "div", [keys], q.shape, name="key")
        x = self._batched(scaled_q, "query")
        y = scaled_k if grouped else self._batched(scaled_k, "key")
        scores = b.matmul("scores", x, y, pairs, self._pairs_flops, component="attention scores")
        b.free(*[t for t, old in ((x, scaled_q), (y, scaled_k)) if t is not old], scaled_k)
        if mask is not None:
            masked = b.add("mask", scores, mask)
            b.free(scores)
            scores = masked
        weights = self._softmax(scores, assigned=True)
        returned = b.cast("weights/cast", weights, q.dtype)
        w = values if grouped else self._batched(values, "value")
        z = self._weighted(weights, w, q.shape)
        if w is not values:
            b.free(w)
        result = b.cast("values/cast", z, q.dtype)
        if result is not z:
            b.free(z, returned)
        b.free(weights, scaled_q, *held, *([mask] if mask is not None else []))
        return result

    def _batched(self, x: Tensor, name: str) -> Tensor:
        """A product of heads takes batch and heads as one axis: a copy, unless they are one already."""
        return x if self._one_batch(x) else self.b.copy(f"{name}/batched", x, x.shape, name=name)

    def mlp(self, x: Tensor) -> Tensor:
        return self.mixture(x) if self.c.experts else self.expert(x)

    def mixture(self, x: Tensor) -> Tensor:
        """The router, then one expert after the other on the tokens that chose it; their results are added up in z."""
        b, c = self.b, self.c
        N, k = self.B * self.S, c.experts_per_token
        tokens = b.view(x, N, c.d_model)
        given = b.linear("router", tokens, c.experts, component="router", name="router scores", cast="mlp inputs")
        chosen = Storage("indices", 8 * N * k)
        scores = b.op(
            "topk",
            "topk",
            [given],
            (N, k),
            keeps=[chosen],
            statistics=[chosen],
            watched=given.bytes,
            name="routing scores",
        )
        indices = Tensor((N, k), "int64", chosen, False)
        b.hold(indices)
        b.free(given)
        wide = b.cast("scores/fp32", scores, "fp32")
        soft = b.op("softmax", "softmax", [wide], (N, k), keeps_output=True, name="routing weights")
        if wide is not scores:
            b.free(wide)
        weights = b.cast("weights/cast", soft, x.dtype, name="routing weights")
        if weights is not soft:
            b.free(soft)
        z = b.op("zeros", "full", [], (N, c.d_model), dtype=x.dtype, name="sum of experts")
        total = z
        held: tuple[Tensor, ...] = ()
        for count, sizes in self._groups(N * k):
            if count > 1:
                with b.repeat("experts", count):
                    total, held = self._visit(tokens, weights, total, sizes, held)
            else:
                total, held = self._visit(tokens, weights, total, sizes, held)
        b.free(*held, scores, indices, weights)
        self.sum_of_experts = z
        return b.view(total, self.B, self.S, c.d_model)

    def _groups(self, visits: int) -> list[tuple[int, int]]:
        """(how many experts, tokens of each) in order. The first and the last stand alone, and so does any whose tokens are
        not as many as those of the one before: what they allocate and let go differs.
        """
        sizes = self.routing
        if sizes is None:
            share, more = divmod(visits, self.c.experts)
            sizes = (share + 1,) * more + (share,) * (self.c.experts - more)
        groups = [(1, sizes[0])]
        repeating = False
        for before, size in pairwise(sizes[:-1]):
            if size == before and repeating:
                groups[-1] = (groups[-1][0] + 1, size)
            else:
                groups.append((1, size))
                repeating = size == before
        return [*groups, (1, sizes[-1])]

    def _visit(
        self, tokens: Tensor, weights: Tensor, total: Tensor, n: int, held: tuple[Tensor, ...]
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """One expert on its n tokens. The caller's variables of the expert before live until they are assigned anew."""
        b, c = self.b, self.c
        N, k = self.B * self.S, c.experts_per_token
        with b.within("expert"):
            equal = b.op("equal", "compare", [], (N, k), dtype="int8")
            rows = b.op("nonzero", "nonzero", [], (2, n), dtype="int64", name="indices")
            b.free(equal, *held[:1])
            mine = b.index("tokens", tokens, rows, (n, c.d_model), name="mlp inputs")
            out = self.expert(mine)
            b.free(mine)
            weight = b.index("weights", weights, rows, (n, 1), name="routing weights")
            out.storage.name = "expert outputs"
            part = b.mul("weighted", out, weight, name="expert outputs")
            b.free(out, weight, *held[1:])
            total = b.index_add("sum", total, rows, part)
        return total, (rows, part)

    def expert(self, x: Tensor) -> Tensor:
        """The MLP that the configuration names."""
        b, c = self.b, self.c
        bias = c.bias == "all"
        if c.mlp == "swiglu":
            gate = b.linear("gate", x, c.d_ff, component="mlp gate", bias=bias, name="gate", cast="mlp inputs")
            silu = b.op("silu", "silu", [gate], gate.shape, keeps=[gate], name="silu")
            b.free(gate)
            up = b.linear("up", x, c.d_ff, component="mlp up", bias=bias, name="up", cast="mlp inputs")
            hidden = b.mul("product", silu, up, name="mlp down's input")
            b.free(silu, up)
        else:
            up = b.linear("up", x, c.d_ff, component="mlp up", bias=bias, name="gelu input", cast="mlp inputs")
            hidden = b.op("gelu", "gelu", [up], up.shape, keeps=[up], name="mlp down's input")
            b.free(up)
        out = b.linear("down", hidden, c.d_model, component="mlp down", bias=bias)
        b.free(hidden)
        return b.dropout("dropout", out, c.dropout, mask="mlp dropout mask")

    def block(self, x: Tensor) -> Tensor:
        b, c = self.b, self.c
        if c.norms_per_block == 1:
            normed = _norm(b, "attention norm", x, c, name="query, key, value inputs")
            with b.within("attention", part="attention"):
                z = self.attention(normed)
            first = b.add("attention sum", x, z)
            b.free(z)
            with b.within("mlp", part="mlp"):
                m = self.mlp(normed)
            y = b.add("mlp sum", first, m)
            b.free(first, m, normed)
            return y
        normed = _norm(b, "attention norm", x, c, name="query, key, value inputs")
        with b.within("attention", part="attention"):
            z = self.attention(normed)
        b.free(normed)
        b.part = "attention"
        y = b.add("attention sum", x, z, name="mlp norm")
        b.free(z)
        normed = _norm(b, "mlp norm", y, c, name="mlp inputs")
        with b.within("mlp", part="mlp"):
            m = self.mlp(normed)
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
    routing: tuple[tuple[int, ...], ...] | None,
) -> Program:
    """What `predict.program` returns; see there."""
    c, B, D, train = config, batch, config.d_model, phase == "train"
    S = 1 if phase == "decode" else sequence
    b = Builder(policy, train=train, frozen=frozen, lora_rank=lora_rank, lora_targets=lora_targets)
    # The cache of a sliding window holds as many keys as the window sees, and the new one comes to them.
    keys = min(sequence, c.window + 1) if phase == "decode" and c.window is not None else sequence
    d = _Decoder(b, c, B, S, keys, attention, causal)
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
        d.tables = b.data("cosine", shape, policy.weights), b.data("sine", shape, policy.weights)
    b.mark("embedding")
    b.section = "block"
    # Where nothing before the blocks is trained, the first one alone hands no gradient on.
    groups = [1, c.layers - 1] if train and not x.needs_gradient and c.layers > 1 else [c.layers]
    for count, sizes in [(n, None) for n in groups] if routing is None else [(1, sizes) for sizes in routing]:
        d.routing = sizes
        with b.repeat("block", count, checkpoint=x if checkpointing else None):
            y = d.block(x)
            b.mark("block forward")
            b.free(x)
        # The next run of the block starts from the output of this one.
        x = y
    b.section = "end"
    x.storage.name = "final norm"
    normed = _norm(b, "final norm", x, c, name="head's input", component="final norm")
    b.part = "head"
    head = table if c.tied_head else b.parameter("head", c.vocab, D)
    logits = b.linear("head", normed, c.vocab, component="head", weight=head, copies="bf16 copy of head")
    b.free(normed, x)
    return b.program(_loss(b, logits, B * S, c.vocab) if train else logits)


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
    b.end_of_cache()
    return loss
