"""Attention as transformers writes it: projections, rotary positions, eager or fused."""

from cs336kit.predict._transformers.modules import Modules
from cs336kit.predict.decoder.sdpa import Heads, scaled_dot_product_attention
from cs336kit.predict.engine.operations import INDICES, Tensor


class Attention:
    """Attention of an architecture on whole sequences; `tables` are given if positions are rotary, `mask` if it is eager."""

    def __init__(self, modules: Modules, batch: int, sequence: int, method: str):
        self.modules, self.b, self.c, self.how = modules, modules.b, modules.c, modules.how
        self.B, self.S, self.method = batch, sequence, method if self.how.sdpa else "eager"
        self.tables: tuple[Tensor, Tensor] | None = None
        self.mask: Tensor | None = None
        #: the weights, which a block holds until it returns
        self.weights: list[Tensor] = []
        #: FLOPs of each of the two products
        self._flops = 2 * batch * self.c.query_width * sequence**2

    def __call__(self, x: Tensor, window: int | None, residual: Tensor | None = None) -> Tensor:
        """Projections, rotary positions, eager or fused attention, output projection, dropout; the sum with a `residual`."""
        b, c = self.b, self.c
        q, k, v, held = self._projected(x)
        if self.tables is not None:
            before, (q, k) = (q.x, k.x), self._rotary(q, k, held)
            if c.rotary_width == c.head_dim:  # the same variables; of a part, a view of the rest holds the whole
                b.free(*[x for x in before if x in held])
                held = [x for x in held if x not in before]
            held += [q.x, k.x]
        if self.method == "sdpa":
            z = self._fused(q, k, v, window)
        else:
            z = self._eager(q, k, v, x.dtype, held)
        merged = z if z.shape == (*x.shape[:2], c.query_width) else b.merge_heads(z)
        out = self.modules.linear("output", merged, c.d_model, "attention output")
        out = self.modules.returned("attention", "output dropout", out, residual, "mlp norm")
        b.free(*held, merged)
        return out

    def _projected(self, x: Tensor) -> tuple[Heads, Heads, Heads, list[Tensor]]:
        """Queries, keys and values of every head, and the tensors that hold them."""
        b, c, (B, S, _) = self.b, self.c, x.shape
        A, K, h = c.heads, c.kv_heads, c.head_dim
        if self.how.qkv == "separate":
            made = []
            for name, n in (("query", A), ("key", K), ("value", K)):
                y = self.modules.linear(name, x, n * h, name, name=name)
                if name != "value" and c.qk_norm != "none":
                    rows = y if c.qk_norm == "width" else b.view(y, B, S, n, h)
                    normed = self.modules.norm(f"{name} norm", rows, name=name, component="query and key norms")
                    b.free(y)
                    y = normed
                made.append(Heads(b.view(y, B, n, S, h)))
            return made[0], made[1], made[2], [heads.x for heads in made]
        fused = b.linear(
            "query, key, value", x, (A + 2 * K) * h, component="query, key, value", bias=c.has_bias("query"),
            name="query, key, value", cached=not self.how.transposes,
        )  # fmt: skip
        if self.how.qkv == "picked":
            views = tuple(b.view(b.part_of("pick", fused, A * h), B, A, S, h) for _ in range(3))
        else:
            views = b.views("split", "chunk", fused, *((B, n, S, h) for n in (A, K, K)))
        held = [fused]
        q, k, v = (Heads(t, split=self.how.qkv == "split") for t in views)
        if self.how.qkv == "indexed":
            k, v = (
                Heads(b.pointwise(f"{name}/pick", "copy", t.x, name=name)) for name, t in (("key", k), ("value", v))
            )
            held += [k.x, v.x]
        return q, k, v, held

    def _rotary(self, q: Heads, k: Heads, held: list[Tensor]) -> tuple[Heads, Heads]:
        """Queries and keys with their positions."""
        b, both = self.b, (("query", q), ("key", k))
        if self.how.rope == "own tables":  # the whole table, the positions as its indices, and what they choose
            width = self.c.rotary_width
            held.append(b.made("all positions", "repeat", (1, self.c.context, width), "fp32", name="rotary tables"))
            held.append(b.made("positions", "repeat", (1, self.S, width), "int64", name=INDICES))
            held.append(b.made("chosen", "gather", (1, self.S, width), q.x.dtype, name="rotary tables"))
        if self.how.rope != "wide":
            q, k = (self._rotated(f"{name} rotary", t, name, held) for name, t in both)
            return q, k
        # Both are cast before either is turned, and back after both: in fp32 their gradients are alive together.
        wide = [b.cast(f"{name} rotary/fp32", t.x, "fp32") for name, t in both]
        turned = [
            self._rotated(f"{name} rotary", Heads(x), name, held).x for x, (name, _) in zip(wide, both, strict=True)
        ]
        q, k = (
            Heads(b.converted(f"{name} rotary/back", x, t.x.dtype, name=name))
            for x, (name, t) in zip(turned, both, strict=True)
        )
        for x, (_, t) in zip(wide, both, strict=True):
            b.free(x, unless=t.x)
        return q, k

    def _rotated(self, place: str, given: Heads, name: str, held: list[Tensor]) -> Heads:
        b, (B, n, S, h) = self.b, given.x.shape
        x, width, dtype, tables = given.x, self.c.rotary_width, given.x.dtype, self.tables
        assert tables is not None
        with b.within(place):
            if own := self.how.rope in ("own tables", "repeated tables"):
                kind = dtype if self.how.rope == "own tables" else tables[0].dtype
                tables = tuple(
                    b.made(t, "repeat", (1, S, 1, width), kind, name="rotary tables") for t in ("cosine", "sine")
                )  # type: ignore[assignment]
            # The modules slice: each part writes its gradient into zeros.
            part = x if width == h else b.part_of("part", x, width)
            straight = b.mul("cosine", part, tables[0])
            halves = tuple(b.part_of("halves", part, width // 2) for _ in range(2))
            rotated = b.rotate(straight, halves, tables[1], name=name)
            b.free(*(tables if tables is not self.tables else ()))
            if width != h:
                whole = b.cat("put together", rotated, b.part_of("rest", x, h - width), (B, n, S, h))
                whole.storage.name = name
                if self.how.qkv == "separate":  # in a variable of its own
                    held.append(rotated)
                else:
                    b.free(rotated)
                # In GPT-J, the heads are still after the sequence here.
                return Heads(whole, front=not own)
            if self.how.rope == "returned":
                rotated = b.converted("back", rotated, dtype, name=name)
        return Heads(rotated)

    def _repeated(self, name: str, given: Heads) -> Heads:
        """repeat_kv: a copy with as many heads as the queries have; a single head is expanded without a copy."""
        B, n, S, h = given.x.shape
        if n == self.c.heads:
            return given
        if n == 1:
            return Heads(self.b.view(given.x, B, self.c.heads, S, h), expanded=True)
        return Heads(self.b.computed(f"{name}/repeat", "repeat", (given.x,), (B, self.c.heads, S, h), name=name), True)

    def masked(self, window: int | None) -> bool:
        """Whether fused attention needs a mask: a window as long as the sequence cuts nothing off, but has one anyway."""
        return self.how.masked or (window is not None and window <= self.S)

    def _fused(self, q: Heads, k: Heads, v: Heads, window: int | None) -> Tensor:
        b, c = self.b, self.c
        mask, kv = None, (k, v)
        if self.masked(window):
            mask = b.made("mask/fp", "where", (self.B, 1, self.S, self.S), b.policy.products, name="window mask")
            if not self.how.broadcast:
                k, v = self._repeated("key", k), self._repeated("value", v)
        p = c.dropout if "weights" in self.how.dropouts else 0.0
        fewer, dtype = k.x.shape[1] < c.heads, b.policy.products if b.policy.casts else q.x.dtype
        grouped, broadcast = fewer and not self.how.broadcast, fewer and self.how.broadcast
        kernel = b.device.kernel(
            dtype,
            width=c.head_dim,
            dropout=bool(p and b.train),
            mask=mask is not None,
            grouped=grouped,
            broadcast=broadcast,
        )
        if kernel is not None and c.head_dim % kernel.types[dtype]:
            raise ValueError(
                f"head_dim={c.head_dim} is padded by this kernel, which flavour='transformers' does not count; use a "
                "multiple of 8"
            )
        flops = (self._flops, self._flops)
        with b.within("sdpa"):
            z = scaled_dot_product_attention(b, kernel, q, k, v, mask=mask, dropout=p, grouped=grouped, flops=flops)
        b.free(*[t.x for t, given in ((k, kv[0]), (v, kv[1])) if t.x.storage is not given.x.storage])
        return z

    def _eager(self, q: Heads, k: Heads, v: Heads, dtype: str, held: list[Tensor]) -> Tensor:
        b, c, how, (B, A, S, _) = self.b, self.c, self.how, q.x.shape
        pairs, flops, before = (B, A, S, S), self._flops, (q, k, v)
        if how.softmax in ("fp32 scores", "fp32 factors"):
            q, k = (t.cast(b, f"{name}/fp32", "fp32") for name, t in (("query", q), ("key", k)))
        if not how.broadcast and not how.baddbmm:
            k, v = self._repeated("key", k), self._repeated("value", v)
        x, y = (self._factor(t, name) for t, name in ((q, "query"), (k, "key")))
        if how.baddbmm:
            v = Heads(self._factor(v, "value"), True)
        scores = b.matmul("scores", x, y, pairs, flops, component="attention scores")
        factors = [copy for copy, given in ((x, q), (y, k)) if copy is not given.x]
        if not how.baddbmm:  # no variable holds what only this line has made
            b.free(*factors)
        if how.softmax == "fp32 factors":
            b.free(*[t.x for t, given in ((q, before[0]), (k, before[1])) if t.x.storage is not given.x.storage])
            q, k = before[:2]
        if how.baddbmm:  # scaled in the product itself, and each gradient in a second tensor
            b.last.scratch = (x.bytes,)
        elif how.softmax == "as the input":
            scores = b.viewed("scale", "mul", (scores,), pairs)
        else:
            scaled = b.pointwise("scale", "mul", scores)
            b.free(scores)
            scores = scaled
        if c.attention_softcap is not None:
            scores = b.softcap("softcap", scores, name="capped scores", early=True)
        assert self.mask is not None
        masked = b.add("mask", scores, self.mask)
        if how.baddbmm:  # every result has a variable of its own
            held += [scores, masked]
            b.hold(masked)
        elif how.softmax != "as the input":
            b.free(scores)
        z = self._weighted(scores, masked, v, q.x.dtype if how.softmax == "in fp32" else v.x.dtype, dtype, flops)
        copies = [t.x for t, given in zip((q, k, v), before, strict=True) if t.x.storage is not given.x.storage]
        if how.baddbmm:
            held += factors + copies
        else:
            b.free(*copies)
        return z

    def _weighted(self, scores: Tensor, masked: Tensor, v: Heads, result: str, dtype: str, flops: int) -> Tensor:
        """The softmax, dropout and the weighted sum of values."""
        b, how = self.b, self.how
        apart = how.softmax in ("as it is", "fp32 scores")  # softmax and cast are two lines
        if apart or how.softmax == "fp32 factors":
            soft = b.softmax("softmax", masked, name="softmax output")
            if apart:
                b.free(masked)
        else:
            if how.softmax == "as the input":
                result = dtype
            wide = b.cast("softmax/wide", masked, dtype if how.softmax == "as the input" else "fp32")
            soft = b.softmax_in(wide.dtype, "softmax", wide, name="softmax output")
            b.free(wide, unless=masked)
            if how.softmax == "as the input":
                b.free(scores)
        weights = b.converted("weights/cast", soft, result, name="copies of attention weights")
        if not apart:
            b.free(masked)
        weights = b.dropout(
            "weights dropout", weights, self.c.dropout if "weights" in how.dropouts else 0.0,
            mask="weights' dropout mask", name="dropped weights",
        )  # fmt: skip
        x, y = self._factor(Heads(weights, True), "copies of attention weights"), self._factor(v, "value")
        z = b.matmul("values", x, y, (*masked.shape[:3], v.x.shape[-1]), flops, component="attention values")
        b.free(*[copy for copy, given in ((x, weights), (y, v.x)) if copy is not given])
        self.weights = [weights]
        return z

    def _factor(self, given: Heads, name: str) -> Tensor:
        """What a batched product saves: the factor in the products' type, with batch and heads as one axis."""
        b, heads = self.b, self.c.heads
        lowered = given.cast(b, f"{name}/cast", b.policy.products, name=name) if b.policy.casts else given
        x = lowered.batched(b, name, heads)
        if x is not lowered.x:
            b.free(lowered.x, unless=given.x)
        return x
