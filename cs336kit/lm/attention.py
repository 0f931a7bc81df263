"""Attention: every position takes a weighted mean of the values of the positions that it may see."""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from cs336kit.predict._common.checks import known, positive_int

#: How attention is computed: step by step, or by torch's scaled_dot_product_attention.
ATTENTION = ("eager", "sdpa")


def softmax(x: Tensor, *, dim: int) -> Tensor:
    """eˣ / Σ eˣ along `dim`, after subtracting the maximum, so that no exponential overflows.

    Equal to torch.softmax, which keeps only its output for backward. A row of −inf alone gives NaN, here and there.
    """
    shifted = x - x.amax(dim=dim, keepdim=True)
    exponentials = shifted.exp()
    return exponentials / exponentials.sum(dim=dim, keepdim=True)


def causal_mask(
    queries: int,
    keys: int,
    *,
    window: int | None = None,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
) -> Float[Tensor, "queries keys"]:
    """What is added to the scores: 0 where a query may look, −inf where it may not.

    The queries are the last of the keys: query i stands at position keys − queries + i, and sees the positions up to
    and including its own; with `window`, only the last `window` of them.
    """
    positive_int("queries", queries)
    positive_int("keys", keys)
    if queries > keys:
        raise ValueError(f"{queries} queries and {keys} keys: the queries are the last of the keys, so give more keys.")
    blocked = torch.full((queries, keys), -math.inf, dtype=dtype, device=device)
    mask = blocked.triu(keys - queries + 1)
    return mask if window is None else mask + blocked.tril(keys - queries - positive_int("window", window))


def attention(
    query: Float[Tensor, "B A Sq h"],
    key: Float[Tensor, "B K Skv h"],
    value: Float[Tensor, "B K Skv h"],
    *,
    method: str = "eager",
    window: int | None = None,
    dropout: float = 0.0,
) -> Float[Tensor, "B A Sq h"]:
    """Causal softmax(q kᵀ / √h + mask) v; each of the K key/value heads serves A/K neighbouring query heads.

    `method="eager"` does it step by step and keeps the A·Sq·Skv weights for backward; `"sdpa"` calls torch's
    scaled_dot_product_attention, which recomputes them where it has a fused kernel. Both give the same numbers up to
    rounding. `dropout` drops weights (after the softmax); give 0 outside training. Nothing is expanded for grouped
    heads. FLOPs: 4·B·A·Sq·Skv·h, the masked half included. Source: Vaswani et al. 2017, equation 1; Ainslie et al. 2023.
    """
    known("attention method", method, dict.fromkeys(ATTENTION))
    (_, A, Sq, h), (_, K, Skv, _) = query.shape, key.shape
    if A % K:
        raise ValueError(f"{A} query heads and {K} key/value heads: the second must divide the first.")
    if method == "sdpa":
        return _fused(query, key, value, window=window, dropout=dropout)
    # One key head meets the queries of its A/K query heads as if they were more positions: no copy of the keys.
    scores = query.reshape(-1, K, A // K * Sq, h) @ key.transpose(-2, -1) / math.sqrt(h)
    scores = scores.view(-1, A, Sq, Skv)
    # A sum keeps nothing for backward, whereas masked_fill would keep the mask.
    scores = scores + causal_mask(Sq, Skv, window=window, dtype=scores.dtype, device=scores.device)
    weights = F.dropout(torch.softmax(scores, dim=-1), dropout)
    return (weights.view(-1, K, A // K * Sq, Skv) @ value).view(-1, A, Sq, h)


def _fused(query: Tensor, key: Tensor, value: Tensor, *, window: int | None, dropout: float) -> Tensor:
    queries, keys = query.shape[-2], key.shape[-2]
    mask = None
    if (window is not None and window < keys) or 1 < queries < keys:
        mask = causal_mask(queries, keys, window=window, dtype=query.dtype, device=query.device)
    causal = mask is None and queries > 1
    return F.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, is_causal=causal, dropout_p=dropout, enable_gqa=key.shape[1] < query.shape[1]
    )
