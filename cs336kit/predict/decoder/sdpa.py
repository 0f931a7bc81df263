"""Torch's scaled_dot_product_attention as operations: a fused kernel, or the written-out path."""

from collections.abc import Sequence
from typing import NamedTuple

from cs336kit.predict.allocator import round_up
from cs336kit.predict.devices import Kernel
from cs336kit.predict.engine.builder import Builder
from cs336kit.predict.engine.operations import HOST_INDICES, Storage, Tensor


class Heads(NamedTuple):
    """Queries, keys or values, (batch, heads, sequence, width).

    `front`: they have this order in memory, not the heads after the sequence.
    """

    x: Tensor
    front: bool = False

    @property
    def one_batch(self) -> bool:
        """Whether batch and heads are one axis without a copy."""
        B, heads, S, _ = self.x.shape
        return self.front or B == 1 or heads == 1 or S == 1

    def batched(self, b: Builder, name: str, heads: int, *, shared: bool = False) -> Tensor:
        """A batched product over heads needs batch and heads as one axis: a copy, unless they are one already.

        `shared`: the heads that share a key head are one axis with their positions.
        """
        x = self.x
        if self.front or x.shape[2] == 1 if shared else self.one_batch:
            return x
        return b.copy(f"{name}/batched", x, (x.shape[0], heads, *x.shape[2:]), name=name)

    def cast(self, b: Builder, place: str, dtype: str, *, name: str = "") -> "Heads":
        """In another type: a copy with the same order in memory, in which every head is stored."""
        x = b.cast(place, self.x, dtype, name=name)
        return self if x is self.x else self.computed(x)

    def computed(self, x: Tensor) -> "Heads":
        """The result of an element-wise operation on these heads."""
        return Heads(x, front=self.front)


def scaled_dot_product_attention(
    b: Builder, kernel: Kernel | None, q: Heads, k: Heads, v: Heads, *, mask: Tensor | None, dropout: float, grouped: bool,
    flops: tuple[int, int], sinks: Sequence[Tensor] = (),
) -> Tensor:  # fmt: skip
    """Causal unless a mask is given, which is freed. `kernel`: the fused one that takes these inputs; None: written out.

    `grouped`: there are fewer key heads and enable_gqa is set; without it, a single one is broadcast. `flops` are those of
    the two products. The result is (batch, sequence, all heads) if it has this order in memory, else (batch, heads,
    sequence, width).
    """
    given = q.x, k.x, v.x
    if b.policy.casts:
        q, k, v = (t.cast(b, f"{t.x.storage.name}/cast", b.policy.products) for t in (q, k, v))
    if kernel is None:
        z = _written_out(b, q, k, v, mask, dropout, grouped, flops)
    else:
        z = _fused(b, kernel, q, k.x, v.x, mask, bool(dropout and b.train), flops, sinks)
    b.free(*[copy.x for copy in (q, k, v) if copy.x not in given])
    return z


def _fused(
    b: Builder, kernel: Kernel, query: Heads, k: Tensor, v: Tensor, mask: Tensor | None, dropout: bool,
    flops: tuple[int, int], sinks: Sequence[Tensor],
) -> Tensor:  # fmt: skip
    q, (B, A, S, h), width = query.x, query.x.shape, v.shape[-1]
    rows, multiple = (B, S, A * width), kernel.types[query.x.dtype]
    padded = h % multiple > 0
    if padded:
        q, k, v = (
            b.computed(f"{t.storage.name}/pad", "pad", (t,), (*t.shape[:-1], round_up(t.shape[-1], multiple)))
            for t in (q, k, v)
        )
    if mask is not None and mask.shape[-1] % kernel.mask_columns:
        columns = round_up(mask.shape[-1], kernel.mask_columns)
        whole = b.computed("mask/pad", "pad", (mask,), (*mask.shape[:-1], columns), name=mask.storage.name)
        b.free(mask)
        mask = whole
    masks = [] if mask is None else [mask]
    logsumexp = Storage("logsumexp", 4 * B * A * round_up(S, kernel.logsumexp_rows))
    words, indices = kernel.random_state
    state = [Storage(HOST_INDICES if indices else "random state", size) for size in words]
    z = b.with_statistics(
        "fused", "sdpa", (q, k, v, *sinks), (B, A, S, v.shape[-1]), (logsumexp, *state), saves=(q, k, v, *masks, *sinks),
        name="attention output's input",
    )  # fmt: skip
    op = b.last
    if op.gradients:
        op.saves += (z.storage,)
    op.flops = ("attention scores", flops[0]), ("attention values", flops[1])
    op.workspace = (*kernel.backward(q, k), *(() if masks else b.ranks.ring_bytes(k, v)))
    op.forward_workspace = () if dropout else kernel.forward(q, k)
    b.free(*masks)
    if padded:
        b.free(q, k, v)
        z.storage.name = "padded attention output"
        sliced = b.viewed("slice", "slice", (z,), (B, A, S, width))
        if A == 1:
            return b.view(sliced, *rows)
        merged = b.copy("merge heads", sliced, rows, name="attention output's input")
        b.free(z)
        return merged
    # The output has the queries' order in memory.
    return z if query.front and kernel.follows else b.view(z, *rows)


def _written_out(
    b: Builder, q: Heads, k: Heads, v: Heads, mask: Tensor | None, dropout: float, grouped: bool, flops: tuple[int, int]
) -> Tensor:
    """In fp32, with grouped heads repeated; the products expand broadcast heads."""
    (B, A, S, _), T, dtype = q.x.shape, k.x.shape[2], q.x.dtype
    wide = [t.cast(b, f"{t.x.storage.name}/fp32", "fp32", name=t.x.storage.name) for t in (q, k, v)]
    held = [new.x for new, old in zip(wide, (q, k, v), strict=True) if new is not old]
    query, keys, values = wide
    query = query.computed(b.pointwise("query/scale", "div", query.x, name="query"))
    if mask is None and S > 1:
        ones = b.made("mask/ones", "full", (S, T), "int8")
        lower = b.made("mask/tril", "tril", (S, T), "int8", of=(ones,))
        b.free(ones)
        mask = b.made("mask/where", "where", (S, T), "fp32", of=(lower,))
        b.free(lower)
    if grouped:
        keys, values = (
            Heads(b.computed(f"{name}/repeat", "repeat", (t.x,), (B, A, T, t.x.shape[-1]), name=name), True)
            for name, t in (("key", keys), ("value", values))
        )
        held += [keys.x, values.x]
    keys = keys.computed(b.pointwise("key/scale", "div", keys.x, name="key"))
    x, y = query.batched(b, "query", A), keys.batched(b, "key", A)
    scores = b.matmul("scores", x, y, (B, A, S, T), flops[0], component="attention scores")
    b.free(x, unless=query.x)
    b.free(y, unless=keys.x)
    b.free(keys.x)
    if mask is not None:
        masked = b.add("mask", scores, mask, over=True)
        b.free(scores)
        scores = masked
    soft = b.softmax("softmax", scores, name="softmax output", safe=True)
    b.free(scores)
    weights = b.dropout("weights dropout", soft, dropout, mask="weights' dropout mask", name="dropped weights")
    returned = b.cast("weights/cast", weights, dtype)
    w = values.batched(b, "value", A)
    z = weighted(b, weights, w, flops[1])
    b.free(w, unless=values.x)
    result = b.cast("values/cast", z, dtype)
    if result is not z:
        b.free(z, returned)
    b.free(weights, query.x, *held, *([] if mask is None else [mask]))
    return result


def weighted(b: Builder, weights: Tensor, values: Tensor, flops: int) -> Tensor:
    """weights @ values; its gradient, which comes in token order, is copied to bring the heads to the front."""
    shape = (*weights.shape[:3], values.shape[-1])
    z = b.matmul("values", weights, values, shape, flops, component="attention values")
    return z if 1 in shape[1:3] else b.viewed("values/heads", "heads", (z,), shape)
