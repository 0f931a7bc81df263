"""Attention: every position computes a weighted mean of the values at the positions that it may attend to."""

import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cs336kit.lm._shapes import Float
from cs336kit.lm.caches import LayerCache
from cs336kit.lm.layers import PAIRS, Linear, RMSNorm, module_or_none, rope
from cs336kit.predict.checks import fraction, known, one_of, positive_int, positive_number

#: How attention is computed: step by step, or with torch's scaled_dot_product_attention.
ATTENTION = ("eager", "sdpa")
#: Which projections have a bias.
BIASES = {"all": ("query", "key", "value", "output"), "qkv": ("query", "key", "value"), "none": ()}
#: Norms of queries and keys: none, over each head separately, or over all heads together.
QK_NORMS = ("none", "head", "width")


def softmax(x: Tensor, *, dim: int) -> Tensor:
    """eˣ / Σ eˣ along `dim`, after subtracting the maximum, so that no exponential overflows.

    Equal to torch.softmax, which saves only its output for backward. A row that is all −inf gives NaN in both.
    """
    shifted = x - x.amax(dim=dim, keepdim=True)
    exponentials = shifted.exp()
    return exponentials / exponentials.sum(dim=dim, keepdim=True)


def causal_mask(
    queries: int, keys: int, *, window: int | None = None, dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
) -> Float[Tensor, "queries keys"]:  # fmt: skip
    """The mask that is added to the scores: 0 where a query may attend, −inf where it may not.

    The queries are at the last positions of the keys: query i is at position keys − queries + i, and attends to the
    positions up to and including its own; with `window`, only to the last `window` of them.
    """
    positive_int("queries", queries)
    positive_int("keys", keys)
    if queries > keys:
        raise ValueError(f"{queries} queries and {keys} keys: the queries are the last of the keys, so give more keys.")
    blocked = torch.full((queries, keys), -math.inf, dtype=dtype, device=device)
    mask = blocked.triu(keys - queries + 1)
    return mask if window is None else mask + blocked.tril(keys - queries - positive_int("window", window))


def attention(
    query: Float[Tensor, "... Sq h"], key: Float[Tensor, "... Skv h"], value: Float[Tensor, "... Skv v"], *,
    mask: Tensor | None = None, method: str = "sdpa", window: int | None = None, dropout: float = 0.0,
    softcap: float | None = None,
) -> Float[Tensor, "... Sq v"]:  # fmt: skip
    """Softmax(q kᵀ / √h + mask) v: (…, A, Sq, h), (…, K, Skv, h) and (…, K, Skv, v) give (…, A, Sq, v).

    The axis before the sequence holds the heads: each of the K key/value heads serves A/K neighboring query heads, and
    the keys and values are not expanded for that. Any number of axes may come before it. Without a mask, attention is
    causal; `mask` (…, Sq, Skv) replaces that: booleans (True = may attend), or floats that are added to the scores. A
    query that may attend to nothing has no result: NaN step by step, zeros from torch's kernel.
    `method="sdpa"` calls torch's scaled_dot_product_attention, which computes the A·Sq·Skv weights again in backward where
    it has a fused kernel; `"eager"` computes step by step and saves them. Both give the same numbers up to rounding.
    `softcap` turns scores x into softcap · tanh(x / softcap), always step by step. `dropout` applies to the weights (after
    the softmax); give 0 outside training. FLOPs: 2·B·A·Sq·Skv·(h + v), the masked half included.
    Source: Vaswani et al. 2017, equation 1; Ainslie et al. 2023.
    """
    one_of("attention method", method, ATTENTION)
    dropout = fraction("dropout", dropout, zero=True)
    check_mask(mask)
    window = None if window is None else positive_int("window", window)
    softcap = None if softcap is None else positive_number("softcap", softcap)
    if query.dim() == 2:
        one = (tensor.unsqueeze(0) for tensor in (query, key, value))  # with an axis of one head
        return attention(*one, mask=mask, method=method, window=window, dropout=dropout, softcap=softcap).squeeze(0)
    (*axes, A, Sq, h), (*key_axes, K, Skv, key_width) = query.shape, key.shape
    if A % K:
        raise ValueError(f"{A} query heads and {K} key/value heads: the second must divide the first.")
    if axes != key_axes or h != key_width or key.shape[:-1] != value.shape[:-1]:
        raise ValueError(
            f"query {tuple(query.shape)}, key {tuple(key.shape)} and value {tuple(value.shape)} do not fit: their leading "
            "axes must be equal, queries as wide as keys, and there must be as many keys as values."
        )
    if mask is not None and window is not None:
        raise ValueError("mask and window are both given: put the window into the mask.")
    if method == "sdpa" and softcap is None:
        return _fused(query, key, value, mask=mask, window=window, dropout=dropout)
    # Each key head treats the queries of its A/K query heads as additional positions, so the keys are not copied.
    scores = query.reshape(*axes, K, A // K * Sq, h) @ key.transpose(-2, -1) / math.sqrt(h)
    scores = scores.view(*axes, A, Sq, Skv)
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    # An addition saves nothing for backward, whereas masked_fill would save the mask; the added tensor is freed at once.
    if mask is None:
        scores = scores + causal_mask(Sq, Skv, window=window, dtype=scores.dtype, device=scores.device)
    elif mask.dtype == torch.bool:
        scores = scores + torch.zeros_like(mask, dtype=scores.dtype).masked_fill(~mask, -math.inf)
    else:
        scores = scores + mask
    weights = F.dropout(torch.softmax(scores, dim=-1), dropout)
    return (weights.view(*axes, K, A // K * Sq, Skv) @ value).view(*axes, A, Sq, value.shape[-1])


def check_mask(mask: Tensor | None) -> None:
    """Raise ValueError for a mask of any other dtype: integer zeros and ones, added to the scores, would mask nothing."""
    if mask is not None and not (isinstance(mask, Tensor) and (mask.dtype == torch.bool or mask.is_floating_point())):
        given = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
        raise ValueError(
            f"mask must be a tensor of booleans (True = may attend) or of floats that are added to the scores, got {given}: "
            "for zeros and ones give mask.bool()."
        )


def _fused(
    query: Tensor, key: Tensor, value: Tensor, *, mask: Tensor | None, window: int | None, dropout: float
) -> Tensor:
    queries, keys = query.shape[-2], key.shape[-2]
    causal = mask is None and queries > 1
    if mask is None and ((window is not None and window < keys) or (queries > 1 and queries != keys)):
        mask, causal = causal_mask(queries, keys, window=window, dtype=query.dtype, device=query.device), False
    return F.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=mask,
        is_causal=causal,
        dropout_p=dropout,
        enable_gqa=key.shape[-3] < query.shape[-3],
    )


def _turned(x: Tensor, angles: tuple[Tensor, Tensor], pairs: str) -> Tensor:
    """Apply rotary positions to the first dimensions of each head, as many as the tables have; leave the rest unchanged."""
    width = angles[0].shape[-1]
    if width == x.shape[-1]:
        return rope(x, *angles, pairs=pairs)
    return torch.cat([rope(x[..., :width], *angles, pairs=pairs), x[..., width:]], dim=-1)


def bias_names(bias: str | Iterable[str]) -> tuple[str, ...]:
    """The projections that have a bias, from a name in BIASES or a list of names; an unknown name raises ValueError."""
    names = tuple(known("bias", bias, BIASES) if isinstance(bias, str) else bias)
    for name in names:
        one_of("projection with a bias", name, BIASES["all"])
    return names


def beside_heads(angles: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Add an axis that broadcasts over the heads: (…, S, h) becomes (…, 1, S, h). Angles (S, h) need none."""
    cosine, sine = (t.unsqueeze(-3) if t.dim() > 2 else t for t in angles)
    return cosine, sine


class MultiHeadAttention(nn.Module):
    """Causal self-attention with A query heads of width h, and K ≤ A heads for keys and values.

    Four matrices: query (D → A·h), key and value (D → K·h), output (A·h → D). Parameters: 2·D·h·(A + K), plus biases:
    "all" four, "qkv" three, or "none". Dropout applies to the weights and to the output, in training only.
    K = A is multi-head, K = 1 multi-query (Shazeer 2019), anything between grouped-query (Ainslie et al. 2023).
    `qk_norm` normalizes queries and keys, each "head" separately or over their whole "width", with the modules that
    `make_norm(width)` returns (default: RMSNorm); `inner_norm` normalizes the input of the output matrix.
    """

    def __init__(
        self, d_model: int, heads: int, *, kv_heads: int | None = None, head_dim: int | None = None,
        bias: str | Iterable[str] = "all", window: int | None = None, dropout: float = 0.0, method: str = "sdpa",
        rope_pairs: str = "halves", softcap: float | None = None, qk_norm: str = "none",
        make_norm: Callable[[int], nn.Module] | None = None, inner_norm: nn.Module | None = None, **factory: Any,
    ):  # fmt: skip
        super().__init__()
        positive_int("d_model", d_model)
        self.heads = positive_int("heads", heads)
        self.kv_heads = heads if kv_heads is None else positive_int("kv_heads", kv_heads)
        if heads % self.kv_heads:
            raise ValueError(f"kv_heads={kv_heads} does not divide heads={heads}.")
        if head_dim is None and d_model % heads:
            raise ValueError(f"heads={heads} does not divide d_model={d_model}: change one of them, or give head_dim.")
        self.head_dim = d_model // heads if head_dim is None else positive_int("head_dim", head_dim)
        self.method, self.rope_pairs = method, rope_pairs
        one_of("attention method", method, ATTENTION)
        one_of("pairing of rotary positions", rope_pairs, PAIRS)
        biases = bias_names(bias)
        self.softcap = None if softcap is None else float(positive_number("softcap", softcap))
        self.qk_norm = qk_norm
        one_of("norm of queries and keys", qk_norm, QK_NORMS)
        self.window = None if window is None else positive_int("window", window)
        self.dropout = fraction("dropout", dropout, zero=True)
        self.query = Linear(d_model, self.heads * self.head_dim, bias="query" in biases, **factory)
        self.key = Linear(d_model, self.kv_heads * self.head_dim, bias="key" in biases, **factory)
        self.value = Linear(d_model, self.kv_heads * self.head_dim, bias="value" in biases, **factory)
        self.output = Linear(self.heads * self.head_dim, d_model, bias="output" in biases, **factory)
        self.query_norm = self.key_norm = None
        if qk_norm != "none":
            make: Callable[[int], nn.Module] = make_norm or partial(RMSNorm, **factory)
            query, key = (self.heads, self.kv_heads) if qk_norm == "width" else (1, 1)
            self.query_norm, self.key_norm = make(query * self.head_dim), make(key * self.head_dim)
        self.inner_norm = module_or_none("inner_norm", inner_norm)

    def _projected(self, linear: nn.Module, x: Tensor, heads: int, norm: nn.Module | None) -> Tensor:
        z = linear(x)
        if norm is not None and self.qk_norm == "width":
            z = norm(z)
        z = z.view(*x.shape[:-1], heads, self.head_dim)
        if norm is not None and self.qk_norm == "head":
            z = norm(z)
        return z.transpose(-3, -2)

    def forward(
        self, x: Float[Tensor, "... S D"], *,
        angles: tuple[Float[Tensor, "... S h"], Float[Tensor, "... S h"]] | None = None,
        cache: LayerCache | None = None, mask: Tensor | None = None,
    ) -> Float[Tensor, "... S D"]:  # fmt: skip
        """`angles`: the rows of cosine and sine for these positions, with rotary positions. `cache`: the tokens before x.

        `mask`: which positions may attend to which, instead of the causal mask (see `attention`).
        """
        axes = x.shape[:-1]
        query = self._projected(self.query, x, self.heads, self.query_norm)
        key = self._projected(self.key, x, self.kv_heads, self.key_norm)
        value = self._projected(self.value, x, self.kv_heads, None)
        if angles is not None:
            angles = beside_heads(angles)
            query, key = (_turned(z, angles, self.rope_pairs) for z in (query, key))
        if cache is not None:
            key, value = cache.extend(key, value)
        dropout = self.dropout if self.training else 0.0
        z = attention(
            query, key, value, mask=mask, method=self.method, window=self.window, dropout=dropout, softcap=self.softcap
        )
        z = z.transpose(-3, -2).reshape(*axes, -1)
        z = self.output(z if self.inner_norm is None else self.inner_norm(z))
        return F.dropout(z, self.dropout, self.training)
