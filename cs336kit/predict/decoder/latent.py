"""Latent attention: keys and values of all heads are made from one narrow vector per token. Source: DeepSeek-V2, 2024."""

from cs336kit.predict.decoder.attention import Attention
from cs336kit.predict.decoder.sdpa import Heads
from cs336kit.predict.engine.operations import Tensor


class LatentAttention(Attention):
    """As DeepSeek-V2's own module writes it; a cache holds the latent and the rotary part of the key.

    With a cache, one new token works on the latents themselves: the matrices that make keys and values of them are
    applied to its queries and to its result.
    """

    def __call__(self, x: Tensor) -> Tensor:
        b, c = self.b, self.c
        absorbed = self.S < self.T
        q = self._queries(x)
        down = b.linear(
            "latent", x, c.kv_latent + c.rotary_width, component="latent", bias="key" in c.biases, name="latent"
        )
        latent = self._latent_norm("latent norm", b.part_of("latent/part", down, c.kv_latent))
        part = b.view(b.part_of("latent/key", down, c.rotary_width), self.B, 1, self.S, c.rotary_width)
        turned = (
            b.copy("key/copy", part, part.shape) if self.tables is None else self.rotated("key rotary", part, "key")
        )
        b.free(down)
        if self.caching:
            latent, turned = self._all(latent, turned)
        b.cache_of(b.view(latent, self.B, 1, self.T, c.kv_latent), turned, window=self.window)
        z = self._on_latents(q, latent, turned) if absorbed else self._expanded(q, latent, turned)
        out = self._output(z)
        b.free(z)
        dropped = b.dropout("output dropout", out, c.dropout, mask="attention dropout mask")
        b.free(q, *(() if self.caching else (latent, turned)))
        return dropped

    def _latent_norm(self, place: str, x: Tensor) -> Tensor:
        return self.b.norm(
            place, x, kind="rmsnorm", component="latent norms", scale=x.shape[-1:], shift=False, name="latent", kept_as=place,
        )  # fmt: skip

    def _queries(self, x: Tensor) -> Tensor:
        b, c = self.b, self.c
        given = x
        if c.query_latent:
            down = b.linear(
                "query latent", x, c.query_latent, component="query latent", bias="key" in c.biases, name="query latent"
            )
            given = self._latent_norm("query latent norm", down)
            b.free(down)
        q = b.linear("query", given, c.heads * c.head_dim, component="query", name="query")
        b.free(given, unless=x)
        q = self._heads(q, c.heads, c.head_dim, "query")
        if self.tables is None:
            return q
        turned = self.rotated("query rotary", q, "query")
        b.free(q)
        return turned

    def _all(self, latent: Tensor, turned: Tensor) -> tuple[Tensor, Tensor]:
        """The cache with the new positions added."""
        b, B, c, past = self.b, self.B, self.c, self.T - self.S
        if self.once:
            rows = b.view(latent, B, 1, self.S, c.kv_latent)
            every, every_turned = self._in_place("latent", rows, False), self._in_place("key", turned, False)
            return b.view(every, B, self.T, c.kv_latent), every_turned
        if not past:
            return latent, turned
        old = b.data("cached", (B, past, c.kv_latent), latent.dtype)
        old_turned = b.data("cached", (B, 1, past, c.rotary_width), turned.dtype)
        every = b.cat("latent/all", old, latent, (B, self.T, c.kv_latent))
        every_turned = b.cat("key/all", old_turned, turned, (B, 1, self.T, c.rotary_width))
        b.free(latent, turned)
        return every, every_turned

    def _expanded(self, q: Tensor, latent: Tensor, turned: Tensor) -> Tensor:
        """Keys and values of every head, then attention as usual."""
        b, c = self.b, self.c
        A, h, w = c.heads, c.head_dim, c.value_head_dim
        plain = h - c.rotary_width
        both = b.linear("key and value", latent, A * (plain + w), component="key and value", name="key")
        both = self._heads(both, A, plain + w, "key")
        k = b.cat("key/together", b.part_of("key/plain", both, plain), turned, (self.B, A, self.T, h))
        v = b.part_of("value", both, w)
        with b.within(self.attend.method):
            z = self.attend(Heads(q, self.partly), Heads(k, front=True), Heads(v))
        merged = z if self._fuses else b.merge_heads(z)
        b.free(k, both)
        return merged

    def _on_latents(self, q: Tensor, latent: Tensor, turned: Tensor) -> Tensor:
        b, c, B, S, T = self.b, self.c, self.B, self.S, self.T
        A, h, w, latents = c.heads, c.head_dim, c.value_head_dim, c.kv_latent
        plain = h - c.rotary_width
        table = b.parameter("key and value", A * (plain + w), latents)
        own = b.matmul(
            "query/absorbed", q, b.view(table, A, plain + w, latents), (B, A, S, latents), 2 * B * S * A * plain * latents,
            component="key and value",
        )  # fmt: skip
        pairs = 2 * B * A * S * T
        other = b.matmul("scores/turned", q, turned, (B, A, S, T), pairs * c.rotary_width, component="attention scores")
        scores = b.matmul("scores", own, latent, (B, A, S, T), pairs * latents, component="attention scores")
        summed = b.add("scores/sum", scores, other)
        b.free(own, scores, other)
        scaled = b.pointwise("scale", "div", summed)
        b.free(summed)
        mask = self.attend.mask(scaled.dtype)
        masked = b.add("mask", scaled, mask)
        b.free(mask, scaled)
        weights = self.attend.softmax(masked)
        mixed = b.matmul("values", weights, latent, (B, A, S, latents), pairs * latents, component="attention values")
        z = b.matmul(
            "values/absorbed", mixed, b.view(table, A, plain + w, latents), (B, A, S, w), 2 * B * S * A * latents * w,
            component="key and value",
        )  # fmt: skip
        b.free(masked, weights, mixed)
        rows = (B, S, A * w)
        # In each head's product, the batch comes after the heads.
        merged = b.view(z, *rows) if B == 1 or A == 1 else b.copy("merge heads", z, rows)
        if merged.storage is not z.storage:
            b.free(z)
        return merged
