"""softmax(q · kᵀ) · v as a program: the three ways to compute it."""

from cs336kit.predict._decoder.sdpa import fused_attention, padded_mask
from cs336kit.predict._layers import Layer
from cs336kit.predict._writing.builder import Builder
from cs336kit.predict.allocator import round_up
from cs336kit.predict.devices import FLASH, Kernel
from cs336kit.predict.operations import Storage, Tensor
from cs336kit.predict.transformer import TransformerConfig


class Attend:
    """Heads of `queries` positions that attend to `keys`, in one kind of layer.

    "eager": written out as in the course. "sdpa": torch's scaled_dot_product_attention, as a fused kernel if the device has one
    for these inputs, else as torch writes it out. "flash_attention": a kernel that supports every mask.
    """

    def __init__(
        self, b: Builder, config: TransformerConfig, layer: Layer, batch: int, queries: int, keys: int, method: str, *,
        causal: bool,
    ):  # fmt: skip
        self.b, self.c, self.B, self.S, self.T, self.window = b, config, batch, queries, keys, layer.window
        pairs = batch * config.heads * _pairs(config, layer, queries * b.layout.cp, keys, causal=causal) // b.layout.cp
        #: FLOPs of the two products
        self._scores_flops = pairs * config.head_dim
        self._values_flops = pairs * config.value_head_dim
        #: what was concatenated: new tensors, which have the heads before the sequence
        self.in_front: set[Storage] = set()
        # Torch's function has no sinks or capped scores; and if no kernel takes the inputs, it writes attention out.
        own = config.sinks or config.attention_softcap is not None
        self.method = "eager" if own and method == "sdpa" else method
        self.kernel = self._kernel() if self.method == "sdpa" else FLASH if self.method == "flash_attention" else None

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """(B, S, all heads) from a fused kernel, else (B, A, S, h)."""
        given = q, k
        if self.b.policy.casts:  # a norm of queries and keys may have left them in fp32
            q, k = (self.b.cast(f"{t.storage.name}/cast", t, self.b.policy.products) for t in given)
            self._stand_alike((q, k), given)
        if self.kernel is not None:
            z = self._fused(self.kernel, q, k, v)
        else:
            z = self._written_out(q, k, v) if self.method == "sdpa" else self._eager(q, k, v)
        self.b.free(*[new for new, old in zip((q, k), given, strict=True) if new is not old])
        return z

    def _stand_alike(self, made: tuple[Tensor, ...], given: tuple[Tensor, ...]) -> None:
        """The result of an element-wise operation has the memory layout of its input."""
        self.in_front |= {new.storage for new, old in zip(made, given, strict=True) if old.storage in self.in_front}

    def _kernel(self) -> Kernel | None:
        """The fused kernel that the device has for these inputs, if any."""
        c = self.c
        return self.b.device.kernel(
            self.b.policy.products, width=c.head_dim, dropout=bool(c.dropout and self.b.train), mask=self.masks,
            grouped=c.kv_heads < c.heads, value_width=c.value_head_dim,
        )  # fmt: skip

    @property
    def masks(self) -> bool:
        """Whether the mask is more than causal, so that it has to be given to the fused function."""
        masked = self.c.positions == "alibi" or (self.window is not None and self.window < self.T)
        return masked and self.method != "flash_attention"

    def mask(self, dtype: str) -> Tensor:
        """`lm.causal_mask`: 0 and −inf, S × S; with a window, the sum of two triangles; the slopes of ALiBi are added to it."""
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

    def _fused(self, kernel: Kernel, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        b, c = self.b, self.c
        given = q, k, v
        width = round_up(c.head_dim, kernel.types[q.dtype])
        if width != c.head_dim:
            widths = (round_up(t.shape[-1], kernel.types[q.dtype]) for t in given)
            q, k, v = (
                b.op(f"{t.storage.name}/pad", "pad", [t], (*t.shape[:-1], w))
                for t, w in zip(given, widths, strict=True)
            )
        mask = None
        if self.masks:
            given_mask = self.mask(q.dtype)
            mask = padded_mask(b, kernel, given_mask)
            b.free(given_mask, unless=mask)
        z = fused_attention(
            b, kernel, q, k, v, mask=mask, dropout=bool(c.dropout and b.train), flops=(self._scores_flops, self._values_flops),
            sinks=[b.parameter("sinks", c.heads)] if c.sinks else [],
            scratch=() if self.masks else b.ranks.ring_bytes(k, v),
        )  # fmt: skip
        if mask is not None:
            b.free(mask)
        rows = (self.B, self.S, c.heads * c.value_head_dim)
        if width == c.head_dim:
            # If its heads are in front, as those of its queries are, the output is copied.
            if not (kernel.follows and q.storage in self.in_front):
                return b.view(z, *rows)
            z.storage.name = "attention output"
            return b.merge_heads(z)
        b.free(q, k, v)
        z.storage.name = "padded attention output"
        sliced = b.op("slice", "slice", [z], (*z.shape[:3], c.value_head_dim), alias=True)
        if c.heads == 1:
            return b.view(sliced, *rows)
        merged = b.copy("merge heads", sliced, rows, name="attention output's input")
        b.free(z)
        return merged

    def _eager(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        b, pairs = self.b, (self.B, self.c.heads, self.S, self.T)
        grouped = self.c.kv_heads < self.c.heads
        x, y = self._batched(q, "query", grouped=grouped), self._batched(k, "key")
        scores = b.matmul("scores", x, y, pairs, self._scores_flops, component="attention scores")
        b.free(x, unless=q)
        b.free(y, unless=k)
        scaled = b.op("scale", "div", [scores], pairs)
        b.free(scores)
        if self.c.attention_softcap is not None:
            scaled = b.softcap("softcap", scaled, name="capped scores")
        mask = self.mask(scaled.dtype)
        masked = b.add("mask", scaled, mask)
        b.free(mask, scaled)
        if self.c.sinks:
            weights = self._with_sinks(masked)
        else:
            weights = self.softmax(masked)
        w = self._batched(v, "value")
        factor = b.cast("weights/cast", weights, v.dtype, name="copies of attention weights")
        z = self._weighted(factor, w, (*q.shape[:3], v.shape[-1]))
        b.free(w, unless=v)
        b.free(factor, unless=weights)
        b.free(weights, masked)
        return z

    def _with_sinks(self, scores: Tensor) -> Tensor:
        """The weights with one more score for each head, whose own weight is cut off: a view of all of them."""
        b, A = self.b, self.c.heads
        sinks = b.parameter("sinks", A)
        column = b.view(sinks, A, 1, 1)
        wide = (self.B, A, self.S, self.T + 1)
        joined = b.op("sinks/join", "sinks", [scores, column], wide)
        every = self.softmax(joined)
        b.free(joined)
        return b.op("sinks/cut", "slice", [every], scores.shape, alias=True)

    def _written_out(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Torch's scaled_dot_product_attention without a fused kernel: in fp32, grouped heads repeated."""
        b, c, S, T = self.b, self.c, self.S, k.shape[-2]
        pairs = (self.B, c.heads, S, T)
        mask = self.mask(q.dtype) if self.masks else None
        wide = [b.cast(f"{t.storage.name}/fp32", t, "fp32", name=t.storage.name) for t in (q, k, v)]
        self._stand_alike(tuple(wide), (q, k, v))
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
        self._stand_alike((scaled_q, scaled_k), (q, k))
        x = self._batched(scaled_q, "query")
        y = scaled_k if grouped else self._batched(scaled_k, "key")
        scores = b.matmul("scores", x, y, pairs, self._scores_flops, component="attention scores")
        b.free(x, unless=scaled_q)
        b.free(y, unless=scaled_k)
        b.free(scaled_k)
        if mask is not None:
            masked = b.add("mask", scores, mask, over=True)
            b.free(scores)
            scores = masked
        weights = self.softmax(scores, inside=True)
        returned = b.cast("weights/cast", weights, q.dtype)
        w = values if grouped else self._batched(values, "value")
        z = self._weighted(weights, w, (*q.shape[:3], values.shape[-1]))
        b.free(w, unless=values)
        result = b.cast("values/cast", z, q.dtype)
        if result is not z:
            b.free(z, returned)
        b.free(weights, scaled_q, *held, *([mask] if mask is not None else []))
        return result

    def _weighted(self, weights: Tensor, values: Tensor, shape: tuple[int, ...]) -> Tensor:
        """weights @ values; its gradient, which comes in token order, is copied to bring the heads to the front."""
        b = self.b
        z = b.matmul("values", weights, values, shape, self._values_flops, component="attention values")
        if self.c.heads == 1 or self.S == 1:
            return z
        return b.op("values/heads", "heads", [z], shape, alias=True)

    def softmax(self, scores: Tensor, *, inside: bool = False) -> Tensor:
        """The weights, with dropout if any. `inside`: torch's own function assigns them to the variable of the scores."""
        b, p = self.b, self.c.dropout
        weights = b.softmax("softmax", scores, name="softmax output", safe=inside)
        if inside:
            b.free(scores)
        return b.dropout("weights dropout", weights, p, mask="weights' dropout mask", name="dropped weights")

    def _batched(self, x: Tensor, name: str, *, grouped: bool = False) -> Tensor:
        """A batched product over heads needs batch and heads as one axis: a copy, unless they are one already.

        x is (batch, sequence, heads, head_dim); a cache's keys or values, concatenated with the new position, have the
        heads in front. `grouped`: the heads that share a key head are one axis with their positions.
        """
        B, heads, S, _ = x.shape
        one = S == 1 or S > self.S or x.storage in self.in_front or not (grouped or (B > 1 and heads > 1))
        return x if one else self.b.copy(f"{name}/batched", x, x.shape, name=name)


def _pairs(config: TransformerConfig, layer: Layer, queries: int, keys: int, *, causal: bool) -> int:
    """Twice the number of pairs of queries and keys that count."""
    if not causal or queries != keys:
        return 2 * queries * keys
    window = min(layer.window or keys, keys)
    if config.window_kind == "chunked":
        chunks, rest = divmod(keys, window)
        return chunks * window**2 + rest**2
    # The triangle's area is S²/2; a sliding window cuts off its far corner.
    return 2 * keys * window - window**2
