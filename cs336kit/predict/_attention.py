"""Attention as a program: projections, rotary positions, the three ways in which torch computes it, a cache."""

from cs336kit.predict._builder import Builder
from cs336kit.predict._layers import Layer
from cs336kit.predict.devices import Kernel
from cs336kit.predict.operations import Storage, Tensor
from cs336kit.predict.transformer import TransformerConfig


class Attention:
    """`lm.MultiHeadAttention` of one kind of layer, on `queries` positions that look at `keys`.

    `tables` are set where positions are rotary. With a `cache`, "growing" or "contiguous", that takes the keys and values.
    """

    def __init__(
        self, b: Builder, config: TransformerConfig, layer: Layer, batch: int, queries: int, keys: int, attention: str, *,
        causal: bool, cache: str,
    ):  # fmt: skip
        self.b, self.c, self.B, self.S, self.T, self.method = b, config, batch, queries, keys, attention
        self.window, self.caching, self.once = layer.window, bool(cache), cache == "contiguous"
        pairs = batch * config.heads * _pairs(config, layer, queries * b.layout.cp, keys, causal=causal) // b.layout.cp
        #: FLOPs of attention's two products
        self._scores_flops = pairs * config.head_dim
        self._values_flops = pairs * config.value_head_dim
        self.tables: tuple[Tensor, Tensor] | None = None
        #: what was put together of two parts: new tensors, which have the heads in front of the sequence
        self.in_front: set[Storage] = set()
        # Sinks and capped scores are what no fused kernel has; and where none takes the inputs, torch writes it out.
        own = config.sinks or config.attention_softcap is not None
        self.method = "eager" if own else attention
        self.kernel = self._kernel() if self.method == "sdpa" else None
        self._fuses = self.kernel is not None

    def __call__(self, x: Tensor) -> Tensor:
        """Projections, rotation, softmax of scores, sum of values, output projection."""
        b, c = self.b, self.c
        A, K, h = c.heads, c.kv_heads, c.head_dim
        fused = self._fuses
        q, k, v = (
            self._projected(name, x, n, width)
            for name, n, width in (("query", A, h), ("key", K, h), ("value", K, c.value_head_dim))
        )
        if self.tables is not None:
            turned_q = self.rotated("query rotary", q, "query")
            turned_k = self.rotated("key rotary", k, "key")
            b.free(q, k)
            q, k = turned_q, turned_k
        shortened = self.caching and self.window is not None and self.window < self.T
        if self.once:
            k, v = self._in_place("key", k, shortened), self._in_place("value", v, shortened)
        elif self.caching:
            k, v = self._extended(k, v, shortened)
        b.cache_of(k, v, window=self.window)
        attend = self._fused if fused else self._written_out if self.method == "sdpa" else self._eager
        with b.within(self.method):
            keys, values, exchanged = b.ranks.positions(k, v, ring=fused and not self._masks)
            z = attend(q, keys, values)
            b.free(*exchanged)
        merged = z if fused else self._merge(z)
        if merged.storage is not z.storage:
            b.free(z)
        out = self._output(merged)
        b.free(q, merged, *(() if self.caching and not shortened else (k, v)))
        return b.dropout("output dropout", out, c.dropout, mask="attention dropout mask")

    def _kernel(self) -> Kernel | None:
        """The fused kernel that the device has for these inputs, if any."""
        c = self.c
        return self.b.device.kernel(
            self.b.policy.products, width=c.head_dim, dropout=bool(c.dropout and self.b.train), mask=self._masks,
            grouped=c.kv_heads < c.heads, value_width=c.value_head_dim,
        )  # fmt: skip

    def rotated(self, place: str, x: Tensor, name: str) -> Tensor:
        """Queries or keys turned by their positions."""
        assert self.tables is not None
        turned = _rotate(self.b, place, x, self.tables, name)
        if self.tables[0].shape[-1] < x.shape[-1]:
            self.in_front.add(turned.storage)
        return turned

    def _projected(self, name: str, x: Tensor, heads: int, width: int) -> Tensor:
        """Queries, keys or values of every head, those of the first two normed where the configuration says so."""
        b, c = self.b, self.c
        y = b.linear(name, x, heads * width, component=name, bias=c.has_bias(name), name=name)
        normed = c.qk_norm if name != "value" else "none"
        if normed == "width":
            y = self._normed(f"{name} norm", y, (heads * width,), name)
        y = self._heads(y, heads, width, name, self._fuses)
        if normed in ("head", "heads", "plain"):
            scale = {"head": (width,), "heads": (heads, width), "plain": ()}[normed]
            y = self._normed(f"{name} norm", y, scale, name)
        return y

    def _normed(self, place: str, x: Tensor, scale: tuple[int, ...], name: str) -> Tensor:
        y = self.b.norm(
            place, x, kind=self.c.norm, component="query and key norms", scale=scale, shift=self.c.qk_norm_bias, name=name,
            kept_as=place,
        )  # fmt: skip
        self.b.free(x)
        return y

    def _output(self, merged: Tensor) -> Tensor:
        b, c = self.b, self.c
        inner = merged
        if c.inner_norms:
            inner = b.norm(
                "inner norm", merged, kind=c.norm, component="norms", scale=merged.shape[-1:] if c.norm_scale else (),
                shift=c.norm_bias,
                name="attention output's input", kept_as="attention inner norm",
            )  # fmt: skip
        out = b.linear("output", inner, c.d_model, component="attention output", bias=c.has_bias("output"))
        if inner is not merged:
            b.free(inner)
        return b.ranks.leave(out)

    def _extended(self, k: Tensor, v: Tensor, shortened: bool) -> tuple[Tensor, Tensor]:
        """What a cache holds, and the new positions behind it, in new tensors; a window's cache keeps a copy of the last."""
        b, (B, K, S, h) = self.b, k.shape
        new = every = k, v
        if S * b.layout.cp < self.T:
            w = v.shape[-1]
            past = [b.data("cached", (B, K, self.T - S, width), k.dtype) for width in (h, w)]
            every = b.cat("key/all", past[0], k, (B, K, self.T, h)), b.cat("value/all", past[1], v, (B, K, self.T, w))
        if shortened:
            for name, tensor in zip(("key", "value"), every, strict=True):
                b.op(f"{name}/last", "copy", [tensor], (B, K, self.window or 0, tensor.shape[-1]))
        if every is not new:
            b.free(*new)
        return every

    def _in_place(self, name: str, x: Tensor, shortened: bool) -> Tensor:
        """The positions of a cache that was allocated once, after the new ones were written into it.

        A prompt that is longer than a window is attended to as it is, and its last positions are written.
        """
        b, (B, K, S, h) = self.b, x.shape
        room = (B, K, self.window if shortened and self.window else self.T, h)
        held = b.data("cached", room, x.dtype) if S < self.T else b.op(f"{name}/room", "empty", [], room, dtype=x.dtype)
        new = b.part_of(f"{name}/last", x, h) if shortened else x
        if shortened:
            new.shape, new.elements = room, held.elements
        every = b.op(f"{name}/write", "write", [held, new], room, alias=True)
        if shortened:
            return x
        self.in_front.add(every.storage)
        b.free(x)
        return every

    def _one_batch(self, x: Tensor) -> bool:
        """Whether batch and heads of x, which stands as (batch, sequence, heads, head_dim), are one axis without a copy.

        What a cache holds, put together with the new position, stands with the heads in front.
        """
        B, heads, S, _ = x.shape
        return B == 1 or heads == 1 or S == 1 or S > self.S or x.storage in self.in_front

    def _heads(self, x: Tensor, heads: int, width: int, name: str, fused: bool) -> Tensor:
        """The heads as an axis of their own. Products of heads return gradients with the heads in front: put back by a copy."""
        shape = (self.B, heads, self.S, width)
        if fused or heads == 1 or self.S == 1 or not x.needs_gradient:
            return self.b.view(x, *shape)
        return self.b.op(f"{name}/heads", "heads", [x], shape, alias=True)

    def _merge(self, z: Tensor) -> Tensor:
        """(B, A, S, h) to (B, S, A·h)."""
        shape = (self.B, self.S, self.c.heads * self.c.value_head_dim)
        name = "attention output's input"
        if self.c.heads == 1 or self.S == 1:
            z.storage.name = name
            return self.b.view(z, *shape)
        return self.b.copy("merge heads", z, shape, name=name)

    def _fused(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        b, c = self.b, self.c
        kernel = self.kernel
        assert kernel is not None
        given = q, k, v
        width = _rounded(c.head_dim, kernel.types[q.dtype])
        if width != c.head_dim:
            widths = (_rounded(t.shape[-1], kernel.types[q.dtype]) for t in given)
            q, k, v = (
                b.op(f"{t.storage.name}/pad", "pad", [t], (*t.shape[:-1], w))
                for t, w in zip(given, widths, strict=True)
            )
        keeps: list[Tensor | Storage] = [q, k, v]
        mask = None
        if self._masks:
            mask = self._mask(q.dtype)
            if self.T % kernel.mask_columns:
                padded = b.op("mask/pad", "pad", [mask], (self.S, _rounded(self.T, kernel.mask_columns)))
                padded.storage.name = mask.storage.name
                b.free(mask)
                mask = padded
            keeps.append(mask)
        logsumexp = Storage("logsumexp", 4 * self.B * c.heads * _rounded(self.S, kernel.logsumexp_rows))
        words, indices = kernel.random_state
        state = [Storage("indices" if indices else "random state", words)] if words else []
        flops = (("attention scores", self._scores_flops), ("attention values", self._values_flops))
        z = b.op(
            "fused", "sdpa", [q, k, v], (*q.shape[:3], v.shape[-1]), keeps=[*keeps, logsumexp, *state], keeps_output=True,
            statistics=[logsumexp, *state], name="attention output's input", flops=flops,
            scratch=(*kernel.backward(q, k), *(() if self._masks else b.ranks.ring_bytes(k, v))),
        )  # fmt: skip
        if mask is not None:
            b.free(mask)
        rows = (self.B, self.S, c.heads * c.value_head_dim)
        if width == c.head_dim:
            in_front = kernel.follows and q.storage in self.in_front and c.heads > 1 and self.S > 1
            return self._reordered(z, rows) if in_front else b.view(z, *rows)
        b.free(q, k, v)
        z.storage.name = "padded attention output"
        sliced = b.op("slice", "slice", [z], (*z.shape[:3], c.value_head_dim), alias=True)
        if c.heads == 1:
            return b.view(sliced, *rows)
        merged = b.copy("merge heads", sliced, rows, name="attention output's input")
        b.free(z)
        return merged

    def _reordered(self, z: Tensor, rows: tuple[int, ...]) -> Tensor:
        """A fused output that has its heads in front, as its queries have: a copy puts them behind."""
        z.storage.name = "attention output"
        merged = self.b.copy("merge heads", z, rows, name="attention output's input")
        self.b.free(z)
        return merged

    @property
    def _masks(self) -> bool:
        """Whether the mask is more than causal, so that it is given to the fused function."""
        return self.c.positions == "alibi" or (self.window is not None and self.window < self.T)

    def _mask(self, dtype: str) -> Tensor:
        """`lm.causal_mask`: 0 and −inf, S × S; with a window, the sum of two triangles; the slopes of ALiBi come to it."""
        b, shape = self.b, (self.S, self.T)
        full = b.op("mask/full", "full", [], shape, dtype=dtype)
        mask = b.op("mask/triu", "triu", [full], shape, name="window mask")
        if self.window is not None:
            lower = b.op("mask/tril", "tril", [full], shape)
            both = b.op("mask/sum", "add", [mask, lower], shape, name="window mask")
            b.free(mask, lower)
            mask = both
        b.free(full)
        if self.c.positions == "alibi":
            slopes = b.data("slopes", (self.c.heads, self.S, self.T), dtype)
            both = b.op("mask/slopes", "add", [mask, slopes], slopes.shape, name="mask")
            b.free(mask)
            mask = both
        return mask

    def _weighted(self, weights: Tensor, values: Tensor, shape: tuple[int, ...]) -> Tensor:
        """weights @ values; its gradient, which comes in the order of tokens, is copied to have the heads in front."""
        b = self.b
        z = b.matmul("values", weights, values, shape, self._values_flops, component="attention values")
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
        scores = b.matmul("scores", x, y, pairs, self._scores_flops, component="attention scores")
        for copied, given in ((x, q), (y, k)):
            if copied is not given:
                b.free(copied)
        scaled = b.op("scale", "div", [scores], pairs)
        b.free(scores)
        if self.c.attention_softcap is not None:
            scaled = b.softcap("softcap", scaled, name="capped scores")
        mask = self._mask(scaled.dtype)
        masked = b.add("mask", scaled, mask)
        b.free(mask, scaled)
        if self.c.sinks:
            weights = self._with_sinks(masked)
        else:
            weights = self._softmax(masked)
        w = self._batched(v, "value")
        factor = b.cast("weights/cast", weights, v.dtype, name="copies of attention weights")
        z = self._weighted(factor, w, (*q.shape[:3], v.shape[-1]))
        if w is not v:
            b.free(w)
        if factor is not weights:
            b.free(factor)
        b.free(weights, masked)
        return z

    def _with_sinks(self, scores: Tensor) -> Tensor:
        """The weights beside one more score of each head, whose own weight is cut off: a view of all of them."""
        b, A = self.b, self.c.heads
        sinks = b.parameter("sinks", A)
        column = b.view(sinks, A, 1, 1)
        wide = (self.B, A, self.S, self.T + 1)
        joined = b.op("sinks/join", "sinks", [scores, column], wide)
        every = self._softmax(joined)
        b.free(joined)
        return b.op("sinks/cut", "slice", [every], scores.shape, alias=True)

    def _written_out(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Torch's scaled_dot_product_attention without a fused kernel: in fp32, grouped heads repeated."""
        b, c, S, T = self.b, self.c, self.S, k.shape[-2]
        pairs = (self.B, c.heads, S, T)
        mask = self._mask(q.dtype) if self._masks else None
        wide = [b.cast(f"{t.storage.name}/fp32", t, "fp32", name=t.storage.name) for t in (q, k, v)]
        held = [new for new, old in zip(wide, (q, k, v), strict=True) if new is not old]
        scaled_q = b.op("query/scale", "div", [wide[0]], q.shape, name="query")
        if mask is None and S > 1:
            ones = b.op("mask/ones", "full", [], (S, T), dtype="int8")
            lower = b.op("mask/tril", "tril", [ones], (S, T), dtype="int8")
            b.free(ones)
            mask = b.op("mask/where", "where", [lower], (S, T), dtype="fp32")
            b.free(lower)
        grouped = c.kv_heads < c.heads
        keys, values = wide[1], wide[2]
        if grouped:
            keys = b.op("key/repeat", "repeat", [keys], (*q.shape[:2], T, q.shape[-1]), name="key")
            values = b.op("value/repeat", "repeat", [values], (*q.shape[:2], T, values.shape[-1]), name="value")
            held += [keys, values]
        scaled_k = b.op("key/scale", "div", [keys], keys.shape, name="key")
        # What an operation on elements makes of a tensor stands in memory as that does.
        self.in_front |= {new.storage for new, old in ((scaled_q, q), (scaled_k, k)) if old.storage in self.in_front}
        x = self._batched(scaled_q, "query")
        y = scaled_k if grouped else self._batched(scaled_k, "key")
        scores = b.matmul("scores", x, y, pairs, self._scores_flops, component="attention scores")
        b.free(*[t for t, old in ((x, scaled_q), (y, scaled_k)) if t is not old], scaled_k)
        if mask is not None:
            masked = b.add("mask", scores, mask)
            b.free(scores)
            scores = masked
        weights = self._softmax(scores, inside=True)
        returned = b.cast("weights/cast", weights, q.dtype)
        w = values if grouped else self._batched(values, "value")
        z = self._weighted(weights, w, (*q.shape[:3], values.shape[-1]))
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


def _pairs(config: TransformerConfig, layer: Layer, queries: int, keys: int, *, causal: bool) -> int:
    """Twice the pairs of queries and keys that count."""
    if not causal or queries != keys:
        return 2 * queries * keys
    window = min(layer.window or keys, keys)
    if config.window_kind == "chunked":
        chunks, rest = divmod(keys, window)
        return chunks * window**2 + rest**2
    # The triangle's area, S²/2; a sliding window cuts its far corner off.
    return 2 * keys * window - window**2


def _rotate(b: Builder, place: str, x: Tensor, tables: tuple[Tensor, Tensor], name: str) -> Tensor:
    """x · cosine + (−second half, first half) · sine, as `lm.rope` writes it; what lies beyond the tables' width stays."""
    with b.within(place):
        width = tables[0].shape[-1]
        if width < x.shape[-1]:
            whole, x = x, b.part_of("turned part", x, width)
            turned = _rotate(b, "part", x, tables, name)
            rest = b.part_of("other part", whole, whole.shape[-1] - width)
            result = b.cat("together", turned, rest, whole.shape)
            result.storage.name = name
            b.free(turned)
            return result
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
