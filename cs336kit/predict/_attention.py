"""Attention as a program: projections, rotary positions, the three ways in which torch computes it, a cache."""

from cs336kit.predict._builder import Builder
from cs336kit.predict.devices import Kernel
from cs336kit.predict.operations import Storage, Tensor
from cs336kit.predict.transformer import TransformerConfig


class Attention:
    """`lm.MultiHeadAttention` on `queries` positions that look at `keys`; `tables` are set where positions are rotary.

    With `caching`, a cache takes the keys and values.
    """

    def __init__(
        self, b: Builder, config: TransformerConfig, batch: int, queries: int, keys: int, attention: str, *,
        causal: bool, caching: bool,
    ):  # fmt: skip
        self.b, self.c, self.B, self.S, self.T, self.method = b, config, batch, queries, keys, attention
        self.caching = caching
        pairs = 2 * queries * keys
        if causal and queries == keys:
            window = min(config.window or keys, keys)
            # The triangle's area, S²/2; a sliding window cuts its far corner off.
            pairs = 2 * keys * window - window**2
        #: FLOPs of one of attention's two products
        self._pairs_flops = batch * config.query_width * pairs
        self.tables: tuple[Tensor, Tensor] | None = None

    def __call__(self, x: Tensor) -> Tensor:
        """Projections, rotation, softmax of scores, sum of values, output projection."""
        b, c = self.b, self.c
        A, K, h = c.heads, c.kv_heads, c.head_dim
        inner, outer = c.bias != "none", c.bias == "all"
        self.kernel = self._kernel() if self.method == "sdpa" else None
        fused = self.kernel is not None
        q, k, v = (
            self._heads(b.linear(name, x, n * h, component=name, bias=inner, name=name), n, name, fused)
            for name, n in (("query", A), ("key", K), ("value", K))
        )
        if self.tables is not None:
            turned_q = _rotate(b, "query rotary", q, self.tables, "query")
            turned_k = _rotate(b, "key rotary", k, self.tables, "key")
            b.free(q, k)
            q, k = turned_q, turned_k
        shortened = self.caching and c.window is not None and c.window < self.T
        if self.caching:
            k, v = self._extended(k, v, shortened)
        b.cache_of(k, v, window=c.window)
        attend = self._fused if fused else self._written_out if self.method == "sdpa" else self._eager
        with b.within(self.method):
            z = attend(q, k, v)
        merged = z if fused else self._merge(z)
        out = b.linear("output", merged, c.d_model, component="attention output", bias=outer)
        out = b.ranks.leave(out)
        b.free(q, z, *(() if self.caching and not shortened else (k, v)))
        if merged.storage is not z.storage:
            b.free(merged)
        return b.dropout("output dropout", out, c.dropout, mask="attention dropout mask")

    def _kernel(self) -> Kernel | None:
        """The fused kernel that the device has for these inputs, if any."""
        c, masked = self.c, self.c.window is not None and self.c.window < self.T
        return self.b.device.kernel(
            self.b.policy.products, width=c.head_dim, dropout=bool(c.dropout and self.b.train), mask=masked,
            grouped=c.kv_heads < c.heads,
        )  # fmt: skip

    def _extended(self, k: Tensor, v: Tensor, shortened: bool) -> tuple[Tensor, Tensor]:
        """What a cache holds, and the new positions behind it, in new tensors; a window's cache keeps a copy of the last."""
        b, (B, K, S, h) = self.b, k.shape
        new = every = k, v
        if self.T > S:
            past = b.data("cached", (B, K, self.T - S, h), k.dtype)
            every = b.cat("key/all", past, k, (B, K, self.T, h)), b.cat("value/all", past, v, (B, K, self.T, h))
        if shortened:
            for name, tensor in zip(("key", "value"), every, strict=True):
                b.op(f"{name}/last", "copy", [tensor], (B, K, self.c.window or 0, h))
        if every is not new:
            b.free(*new)
        return every

    def _one_batch(self, x: Tensor) -> bool:
        """Whether batch and heads of x, which stands as (batch, sequence, heads, head_dim), are one axis without a copy.

        What a cache holds, put together with the new position, stands with the heads in front.
        """
        B, heads, S, _ = x.shape
        return B == 1 or heads == 1 or S == 1 or S > self.S

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
        kernel = self.kernel
        assert kernel is not None
        given = q, k, v
        width = _rounded(c.head_dim, kernel.types[q.dtype])
        if width != c.head_dim:
            q, k, v = (b.op(f"{t.storage.name}/pad", "pad", [t], (*t.shape[:-1], width)) for t in given)
        keeps: list[Tensor | Storage] = [q, k, v]
        mask = None
        if c.window is not None and c.window < self.T:
            mask = self._mask(q.dtype)
            if self.T % kernel.mask_columns:
                padded = b.op("mask/pad", "pad", [mask], (self.S, _rounded(self.T + 1, kernel.mask_columns)))
                padded.storage.name = mask.storage.name
                b.free(mask)
                mask = padded
            keeps.append(mask)
        logsumexp = Storage("logsumexp", 4 * self.B * c.heads * _rounded(self.S, kernel.logsumexp_rows))
        words, indices = kernel.random_state
        state = [Storage("indices" if indices else "random state", words)] if words else []
        z = b.op(
            "fused", "sdpa", [q, k, v], q.shape, keeps=[*keeps, logsumexp, *state], keeps_output=True,
            statistics=[logsumexp, *state], name="attention output's input",
            flops=(("attention scores", one), ("attention values", one)),
        )  # fmt: skip
        if mask is not None:
            b.free(mask)
        if width != c.head_dim:
            b.free(q, k, v)
            z.storage.name = "padded attention output"
            sliced = b.op("slice", "slice", [z], given[0].shape, alias=True)
            rows = (self.B, self.S, c.query_width)
            if c.heads == 1:
                return b.view(sliced, *rows)
            merged = b.copy("merge heads", sliced, rows, name="attention output's input")
            b.free(z)
            return merged
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

    def _softmax(self, scores: Tensor, *, inside: bool = False) -> Tensor:
        """The weights, dropped if asked. `inside` of torch's own function the variable of the scores takes the weights, and
        autocast is off.
        """
        b, p = self.b, self.c.dropout
        weights = b.softmax("softmax", scores, name="softmax output", autocast=not inside)
        if inside:
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
        factor = b.cast("weights/cast", weights, v.dtype, name="copies of attention weights")
        z = self._weighted(factor, w, q.shape)
        if w is not v:
            b.free(w)
        if factor is not weights:
            b.free(factor)
        b.free(weights, masked)
        return z

    def _written_out(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Torch's scaled_dot_product_attention without a fused kernel: in fp32, grouped heads repeated."""
        b, c, S = self.b, self.c, self.S
        pairs = (self.B, c.heads, S, S)
        mask = self._mask(q.dtype) if c.window is not None and c.window < S else None
        wide = [b.cast(f"{t.storage.name}/fp32", t, "fp32", name=t.storage.name) for t in (q, k, v)]
        held = [new for new, old in zip(wide, (q, k, v), strict=True) if new is not old]
        scaled_q = b.op("query/scale", "div", [wide[0]], q.shape, name="query")
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
        weights = self._softmax(scores, inside=True)
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


def _rounded(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


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
