"""softmax(q · kᵀ) · v as a program: the three ways to compute it."""

from cs336kit.predict.decoder.blocks import AttentionKind
from cs336kit.predict.decoder.sdpa import Heads, scaled_dot_product_attention, weighted
from cs336kit.predict.devices import FLASH, Kernel
from cs336kit.predict.engine.builder import Builder
from cs336kit.predict.engine.operations import Tensor


class Attend:
    """Heads of `queries` positions that attend to `keys`, in one kind of layer.

    "eager": written out as in the course. "sdpa": torch's scaled_dot_product_attention, as a fused kernel if the device has one
    for these inputs, else as torch writes it out. "flash_attention": a kernel that supports every mask.
    """

    def __init__(
        self, b: Builder, kind: AttentionKind, batch: int, queries: int, keys: int, method: str, *, causal: bool,
    ):  # fmt: skip
        self.b, self.c, self.B, self.S, self.T, self.window = b, kind, batch, queries, keys, kind.window
        pairs = batch * kind.heads * _pairs(kind, queries * b.layout.cp, keys, causal=causal) // b.layout.cp
        #: FLOPs of the two products
        self._flops = pairs * kind.head_dim, pairs * kind.value_head_dim
        # Torch's function has no sinks or capped scores; and if no kernel takes the inputs, it writes attention out.
        own = kind.sinks or kind.softcap is not None
        self.method = "eager" if own and method == "sdpa" else method
        self.kernel = self._kernel() if self.method == "sdpa" else FLASH if self.method == "flash_attention" else None

    def __call__(self, q: Heads, k: Heads, v: Heads) -> Tensor:
        """(B, S, all heads) from a fused kernel, else (B, A, S, h)."""
        b, c, given = self.b, self.c, (q, k)
        if b.policy.casts:  # a norm of queries and keys may have left them in fp32
            q, k = (t.cast(b, f"{t.x.storage.name}/cast", b.policy.products) for t in given)
        if self.method == "eager":
            z = self._eager(q, k, v)
        else:
            z = scaled_dot_product_attention(
                b, self.kernel, q, k, v, mask=self.mask(q.x.dtype) if self.masks else None, dropout=c.dropout,
                grouped=c.kv_heads < c.heads, flops=self._flops, sinks=[b.parameter("sinks", c.heads)] if c.sinks else (),
            )  # fmt: skip
            if self.kernel is not None and len(z.shape) > 3:
                z.storage.name = "attention output"
                z = b.merge_heads(z)
        b.free(*[new.x for new, old in zip((q, k), given, strict=True) if new is not old])
        return z

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
        masked = self.c.alibi or (self.window is not None and self.window < self.T)
        return masked and self.method != "flash_attention"

    def mask(self, dtype: str) -> Tensor:
        """`lm.causal_mask`: 0 and −inf, S × S; with a window, the sum of two triangles; the slopes of ALiBi are added to it."""
        b, shape = self.b, (self.S, self.T)
        full = b.made("mask/full", "full", shape, dtype)
        mask = b.made("mask/triu", "triu", shape, dtype, of=(full,), name="window mask")
        if self.window is not None:
            lower = b.made("mask/tril", "tril", shape, dtype, of=(full,))
            both = b.made("mask/sum", "add", shape, dtype, of=(mask, lower), name="window mask")
            b.free(mask, lower)
            mask = both
        b.free(full)
        if self.c.alibi:
            slopes = b.data("slopes", (self.c.heads, self.S, self.T), dtype)
            both = b.made("mask/slopes", "add", slopes.shape, dtype, of=(mask, slopes), name="mask")
            b.free(mask)
            mask = both
        return mask

    def _eager(self, q: Heads, k: Heads, v: Heads) -> Tensor:
        b, c, pairs = self.b, self.c, (self.B, self.c.heads, self.S, self.T)
        x, y = q.batched(b, "query", c.heads, shared=c.kv_heads < c.heads), k.batched(b, "key", c.kv_heads)
        scores = b.matmul("scores", x, y, pairs, self._flops[0], component="attention scores")
        b.free(x, unless=q.x)
        b.free(y, unless=k.x)
        scaled = b.pointwise("scale", "div", scores)
        b.free(scores)
        if c.softcap is not None:
            scaled = b.softcap("softcap", scaled, name="capped scores")
        mask = self.mask(scaled.dtype)
        masked = b.add("mask", scaled, mask)
        b.free(mask, scaled)
        weights = self._with_sinks(masked) if c.sinks else self.softmax(masked)
        w = v.batched(b, "value", c.kv_heads)
        factor = b.cast("weights/cast", weights, v.x.dtype, name="copies of attention weights")
        z = weighted(b, factor, w, self._flops[1])
        b.free(w, unless=v.x)
        b.free(factor, unless=weights)
        b.free(weights, masked)
        return z

    def _with_sinks(self, scores: Tensor) -> Tensor:
        """The weights with one more score for each head, whose own weight is cut off: a view of all of them."""
        b, A = self.b, self.c.heads
        sinks = b.parameter("sinks", A)
        column = b.view(sinks, A, 1, 1)
        wide = (self.B, A, self.S, self.T + 1)
        joined = b.computed("sinks/join", "sinks", (scores, column), wide)
        every = self.softmax(joined)
        b.free(joined)
        return b.viewed("sinks/cut", "slice", (every,), scores.shape)

    def softmax(self, scores: Tensor) -> Tensor:
        """The weights, with dropout if any."""
        b, p = self.b, self.c.dropout
        weights = b.softmax("softmax", scores, name="softmax output")
        return b.dropout("weights dropout", weights, p, mask="weights' dropout mask", name="dropped weights")


def _pairs(kind: AttentionKind, queries: int, keys: int, *, causal: bool) -> int:
    """Twice the number of pairs of queries and keys that count."""
    if not causal or queries != keys:
        return 2 * queries * keys
    window = min(kind.window or keys, keys)
    if kind.chunked:
        chunks, rest = divmod(keys, window)
        return chunks * window**2 + rest**2
    # The triangle's area is S²/2; a sliding window cuts off its far corner.
    return 2 * keys * window - window**2
