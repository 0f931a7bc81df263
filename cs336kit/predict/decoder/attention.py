"""Attention as a program: projections, rotary positions, a cache."""

from cs336kit.predict.decoder.attend import Attend
from cs336kit.predict.decoder.blocks import AttentionKind
from cs336kit.predict.decoder.norms import norm
from cs336kit.predict.decoder.sdpa import Heads
from cs336kit.predict.engine.builder import Builder
from cs336kit.predict.engine.operations import Leaf, Tensor


class Attention:
    """`lm.MultiHeadAttention` in one kind of layer, on `queries` positions that attend to `keys`.

    `tables`: given if positions are rotary. `cache`: "growing" or "contiguous", if one takes the keys and values.
    """

    def __init__(
        self, b: Builder, kind: AttentionKind, batch: int, queries: int, keys: int, method: str, *,
        tables: tuple[Tensor, Tensor] | None, causal: bool, cache: str,
    ):  # fmt: skip
        self.b, self.c, self.B, self.S, self.T = b, kind, batch, queries, keys
        self.window, self.caching, self.once = kind.window, bool(cache), cache == "contiguous"
        self.tables = tables
        #: whether only a part of each head is rotated: joined with the rest in a new tensor, which has the heads in front
        self.partly = tables is not None and kind.rotary_width < kind.head_dim
        self.attend = Attend(b, kind, batch, queries, keys, method, causal=causal)
        self._fuses = self.attend.kernel is not None
        #: parameters of the norms inside, which the module has after its matrices
        self._norms: list[Leaf] = []

    def __call__(self, x: Tensor) -> Tensor:
        """Projections, rotation, softmax of scores, sum of values, output projection."""
        b, c = self.b, self.c
        A, K, h = c.heads, c.kv_heads, c.head_dim
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
        with b.within(self.attend.method):
            keys, values, exchanged = b.ranks.positions(k, v, ring=self._fuses and not self.attend.masks)
            # What was joined with a cache, written into one or gathered from other ranks has the heads in front, too.
            front = (self.once and not shortened) or keys.shape[2] > self.S
            z = self.attend(Heads(q, self.partly), Heads(keys, front or self.partly), Heads(values, front))
            b.free(*exchanged)
        merged = z if self._fuses else b.merge_heads(z)
        out = self._output(merged)
        b.free(merged)
        dropped = b.dropout("output dropout", out, c.dropout, mask="attention dropout mask")
        b.free(q, *(() if self.caching and not shortened else (k, v)))
        return dropped

    def rotated(self, place: str, x: Tensor, name: str) -> Tensor:
        """Queries or keys rotated by their positions, as `lm.rope` does; what is beyond the tables' width stays as it is."""
        assert self.tables is not None
        b, width = self.b, self.tables[0].shape[-1]
        with b.within(place):
            if width == x.shape[-1]:
                halves = b.chunk("halves", x)
                turned = b.rotate(b.mul("cosine", x, self.tables[0]), halves, self.tables[1], name=name)
                return b.converted("cast", turned, x.dtype, name=name)
            turned = self.rotated("part", b.part_of("turned part", x, width), name)
            rest = b.part_of("other part", x, x.shape[-1] - width)
            whole = b.cat("together", turned, rest, x.shape)
            whole.storage.name = name
            b.free(turned)
            return whole

    def _projected(self, name: str, x: Tensor, heads: int, width: int) -> Tensor:
        """Queries, keys or values of every head, the first two with a norm if the configuration has one."""
        b, c = self.b, self.c
        y = b.linear(name, x, heads * width, component=name, bias=name in c.biases, name=name)
        normed = c.qk_norm if name != "value" else "none"
        if normed == "width":
            y = self._normed(f"{name} norm", y, (heads * width,), name)
        y = self._heads(y, heads, width, name)
        if normed in ("head", "heads", "plain"):
            scale = {"head": (width,), "heads": (heads, width), "plain": ()}[normed]
            y = self._normed(f"{name} norm", y, scale, name)
        return y

    def _normed(self, place: str, x: Tensor, scale: tuple[int, ...], name: str) -> Tensor:
        with self.b.aside(self._norms):
            y = self.b.norm(
                place, x, kind=self.c.norm_kind, component="query and key norms", scale=scale, shift=self.c.qk_norm_bias,
                name=name, kept_as=place,
            )  # fmt: skip
        self.b.free(x)
        return y

    def _output(self, merged: Tensor) -> Tensor:
        b, c = self.b, self.c
        inner = merged
        if c.inner_norm is not None:
            with b.aside(self._norms):
                name, kept = "attention output's input", "attention inner norm"
                inner = norm(b, "inner norm", merged, c.inner_norm, name=name, kept_as=kept)
        out = b.linear("output", inner, c.d_model, component="attention output", bias="output" in c.biases)
        b.leaves += self._norms
        self._norms.clear()
        b.free(inner, unless=merged)
        return b.ranks.leave(out)

    def _extended(self, k: Tensor, v: Tensor, shortened: bool) -> tuple[Tensor, Tensor]:
        """A cache concatenated with the new positions, in new tensors; a window's cache keeps a copy of the last ones."""
        b, (B, K, S, h) = self.b, k.shape
        new = every = k, v
        if S * b.layout.cp < self.T:
            w = v.shape[-1]
            past = [b.data("cached", (B, K, self.T - S, t.shape[-1]), t.dtype) for t in (k, v)]
            every = b.cat("key/all", past[0], k, (B, K, self.T, h)), b.cat("value/all", past[1], v, (B, K, self.T, w))
        if shortened:
            for name, tensor in zip(("key", "value"), every, strict=True):
                b.passed(f"{name}/last", "copy", (tensor,), (B, K, self.window or 0, tensor.shape[-1]))
        if every is not new:
            b.free(*new)
        return every

    def _in_place(self, name: str, x: Tensor, shortened: bool) -> Tensor:
        """The positions of a cache that was allocated once, after the new ones are written into it.

        A prompt that is longer than a window is attended to as it is, and its last positions are written.
        """
        b, (B, K, S, h) = self.b, x.shape
        room = (B, K, self.window if shortened and self.window else self.T, h)
        held = b.data("cached", room, x.dtype) if S < self.T else b.made(f"{name}/room", "empty", room, x.dtype)
        new = b.part_of(f"{name}/last", x, h) if shortened else x
        if shortened:
            new.shape, new.elements = room, held.elements
        every = b.viewed(f"{name}/write", "write", (held, new), room)
        if shortened:
            return x
        b.free(x)
        return every

    def _heads(self, x: Tensor, heads: int, width: int, name: str) -> Tensor:
        """The heads as their own axis. Products over heads return gradients with the heads in front: a copy moves them back."""
        shape = (self.B, heads, self.S, width)
        if self._fuses or heads == 1 or self.S == 1 or not x.needs_gradient:
            return self.b.view(x, *shape)
        return self.b.viewed(f"{name}/heads", "heads", (x,), shape)
