"""Torch's scaled_dot_product_attention as operations: a fused kernel of the device, or the written-out path."""

from collections.abc import Sequence
from typing import NamedTuple

from cs336kit.predict._writing.builder import Builder
from cs336kit.predict.allocator import round_up
from cs336kit.predict.devices import Kernel
from cs336kit.predict.operations import HOST_INDICES, Storage, Tensor


class Heads(NamedTuple):
    """Queries, keys or values, (batch, heads, sequence, width).

    `front`: they have this order in memory, not the heads after the sequence. `split`: each token's heads are a part
    of a wider row. `expanded`: one head represents all, without a copy.
    """

    x: Tensor
    front: bool = False
    split: bool = False
    expanded: bool = False

    def one_batch_of(self, wanted: int) -> bool:
        """Whether batch and `wanted` heads are one axis without a copy; one head represents any number in a batch of one."""
        B, heads, S, _ = self.x.shape
        if heads != wanted or self.expanded:
            return B == 1 and (heads == 1 or self.expanded)
        return self.front or B == 1 or heads == 1 or (S == 1 and not self.split)

    def cast(self, b: Builder, place: str, dtype: str, *, name: str = "") -> "Heads":
        """In another type: a copy with the same order in memory, in which every head is stored."""
        x = b.cast(place, self.x, dtype, name=name)
        return self if x is self.x else self.computed(x)

    def computed(self, x: Tensor) -> "Heads":
        """The result of an element-wise operation on these heads."""
        return Heads(x, front=self.front or self.expanded)


def scaled_dot_product_attention(
    b: Builder, q: Heads, k: Heads, v: Heads, *, mask: Tensor | None, dropout: float, grouped: bool, flops: int
) -> Tensor:
    """Causal unless a mask is given. `grouped`: enable_gqa is set for fewer key heads; without it, a single one is broadcast.

    The result is (batch, sequence, all heads) if it has this order in memory, else (batch, heads, sequence, width).
    """
    fewer, given = k.x.shape[1] < q.x.shape[1], (q.x, k.x, v.x)
    if b.policy.casts:
        q, k, v = (t.cast(b, f"{t.x.storage.name}/cast", b.policy.products) for t in (q, k, v))
    p = dropout if b.train else 0.0
    kernel = b.device.kernel(
        q.x.dtype, width=q.x.shape[-1], dropout=p > 0, mask=mask is not None, grouped=fewer and grouped,
        broadcast=fewer and not grouped,
    )  # fmt: skip
    if kernel is None:
        z = _written_out(b, q, k, v, mask, p, grouped and fewer, flops)
    else:
        z = _fused(b, kernel, q, k.x, v.x, mask, p > 0, flops)
    b.free(*[copy.x for copy in (q, k, v) if copy.x not in given])
    return z


def _fused(
    b: Builder, kernel: Kernel, query: Heads, k: Tensor, v: Tensor, mask: Tensor | None, dropout: bool, flops: int
) -> Tensor:
    q = query.x
    B, A, S, h = q.shape
    if h % kernel.types[q.dtype]:
        raise ValueError(
            f"head_dim={h} is padded by this kernel, which flavour='transformers' does not count; use a multiple of 8"
        )
    whole = None if mask is None else padded_mask(b, kernel, mask)
    z = fused_attention(b, kernel, q, k, v, mask=whole, dropout=dropout, flops=(flops, flops))
    if whole is not None:
        b.free(whole, unless=mask)
    # The output has the queries' order in memory.
    return z if query.front and kernel.follows else b.view(z, B, S, A * h)


def padded_mask(b: Builder, kernel: Kernel, mask: Tensor) -> Tensor:
    """The mask, padded to as many columns as the kernel needs."""
    *rows, keys = mask.shape
    columns = round_up(keys, kernel.mask_columns)
    return mask if columns == keys else b.op("mask/pad", "pad", [mask], (*rows, columns), name=mask.storage.name)


def fused_attention(
    b: Builder, kernel: Kernel, q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None, dropout: bool, flops: tuple[int, int],
    sinks: Sequence[Tensor] = (), scratch: tuple[int, ...] = (),
) -> Tensor:  # fmt: skip
    """A fused kernel on queries, keys and values of (batch, heads, sequence, width); `flops` are those of its two products."""
    B, A, S, _ = q.shape
    logsumexp = Storage("logsumexp", 4 * B * A * round_up(S, kernel.logsumexp_rows))
    words, indices = kernel.random_state
    state = [Storage(HOST_INDICES if indices else "random state", size) for size in words]
    masks = [] if mask is None else [mask]
    return b.op(
        "fused", "sdpa", [q, k, v, *sinks], (*q.shape[:3], v.shape[-1]), keeps=[q, k, v, *masks, *sinks],
        keeps_output=True, statistics=(logsumexp, *state), name="attention output's input",
        flops=(("attention scores", flops[0]), ("attention values", flops[1])), scratch=(*kernel.backward(q, k), *scratch),
        passing=() if dropout else kernel.forward(q, k),
    )  # fmt: skip


def _written_out(
    b: Builder, q: Heads, k: Heads, v: Heads, mask: Tensor | None, dropout: float, grouped: bool, flops: int
) -> Tensor:
    """In fp32, with grouped heads repeated; the products expand broadcast heads."""
    B, A, S, h = q.x.shape
    dtype, made = q.x.dtype, [q.x, k.x, v.x]

    def new(x: Tensor) -> Tensor:
        if x not in made:
            made.append(x)
        return x

    wide = [t.cast(b, f"{t.x.storage.name}/fp32", "fp32", name=t.x.storage.name) for t in (q, k, v)]
    for t in wide:
        new(t.x)
    scaled = wide[0].computed(new(b.op("query/scale", "mul", [wide[0].x], q.x.shape, name="query")))
    keys, values = wide[1:]
    if grouped:
        keys = Heads(new(b.op("key/repeat", "repeat", [keys.x], q.x.shape, name="key")), True)
        values = Heads(new(b.op("value/repeat", "repeat", [values.x], q.x.shape, name="value")), True)
    keys = keys.computed(new(b.op("key/scale", "mul", [keys.x], keys.x.shape, name="key")))
    x, y = (new(_batched(b, t, A)) for t in (scaled, keys))
    scores = new(b.matmul("scores", x, y, (B, A, S, S), flops, component="attention scores"))
    if mask is None and S > 1:
        mask = new(b.op("mask/where", "where", [], (S, S), dtype="fp32"))
    masked = scores if mask is None else new(b.add("mask", scores, mask, over=True))
    soft = b.softmax("softmax", masked, name="softmax output", safe=True)
    weights = new(b.dropout("weights dropout", soft, dropout, mask="weights' dropout mask", name="dropped weights"))
    w = new(_batched(b, values, A))
    z = b.matmul("values", weights, w, (B, A, S, h), flops, component="attention values")
    result = b.cast("values/cast", z, dtype)
    b.free(*made[3:], *([] if result is z else [z]))
    return result


def _batched(b: Builder, given: Heads, heads: int) -> Tensor:
    x = given.x
    if given.one_batch_of(heads):
        return x
    return b.copy(f"{x.storage.name}/batched", x, (x.shape[0], heads, *x.shape[2:]), name=x.storage.name)
