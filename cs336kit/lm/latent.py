"""Latent attention (MLA): the keys and values of all heads are computed from one narrow vector per token."""

import math
from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cs336kit.lm._shapes import Float
from cs336kit.lm.attention import ATTENTION, attention, beside_heads, bias_names, causal_mask, check_mask
from cs336kit.lm.caches import LayerCache
from cs336kit.lm.layers import PAIRS, Linear, RMSNorm, module_or_none, rope
from cs336kit.predict.checks import at_most, fraction, non_negative_int, one_of, positive_int


class LatentAttention(nn.Module):
    """Causal self-attention whose cache holds kv_latent + rotary_dim numbers per token, for all heads together.

    `latent` computes them from x: a latent, which is normalized, and the rotary part of the keys, which all heads share.
    From the latent, `key_and_value` computes the rest of each head's key (head_dim − rotary_dim wide) and its value
    (value_dim wide). With `query_latent`, queries come from a latent of their own. Parameters: D·(c + r) + c +
    c·A·(h − r + v) + D·A·h + A·v·D, with c = kv_latent, r = rotary_dim, v = value_dim; with a query latent q, D·q + q + q·A·h
    in place of D·A·h. `bias` may name "key" (both latents) and "output"; `inner_norm` normalizes the input of the output
    matrix.
    With a cache, attention works on the latents themselves: `key_and_value` is applied to the queries and to the results, so
    the keys and values of earlier tokens are never computed again. Source: DeepSeek-AI 2024, arXiv:2405.04434, section 2.1.
    """

    def __init__(
        self, d_model: int, heads: int, *, kv_latent: int, rotary_dim: int, head_dim: int, query_latent: int = 0,
        value_dim: int | None = None, bias: str | Iterable[str] = (), dropout: float = 0.0, method: str = "sdpa",
        rope_pairs: str = "halves", norm_eps: float = 1e-5, inner_norm: nn.Module | None = None, **factory: Any,
    ):  # fmt: skip
        super().__init__()
        self.heads, self.head_dim = positive_int("heads", heads), positive_int("head_dim", head_dim)
        self.kv_latent = positive_int("kv_latent", kv_latent)
        self.rotary_dim = at_most("rotary_dim", positive_int("rotary_dim", rotary_dim), head_dim)
        self.value_dim = head_dim if value_dim is None else positive_int("value_dim", value_dim)
        self.plain = head_dim - rotary_dim
        self.method, self.rope_pairs = method, rope_pairs
        one_of("attention method", method, ATTENTION)
        one_of("pairing of rotary positions", rope_pairs, PAIRS)
        self.dropout = fraction("dropout", dropout, zero=True)
        bias = bias_names(bias)
        self.query_latent = self.query_latent_norm = None
        if non_negative_int("query_latent", query_latent):
            self.query_latent = Linear(d_model, query_latent, bias="key" in bias, **factory)
            self.query_latent_norm = RMSNorm(query_latent, eps=norm_eps, **factory)
        self.query = Linear(query_latent or d_model, heads * head_dim, bias=False, **factory)
        self.latent = Linear(d_model, kv_latent + rotary_dim, bias="key" in bias, **factory)
        self.latent_norm = RMSNorm(kv_latent, eps=norm_eps, **factory)
        self.key_and_value = Linear(kv_latent, heads * (self.plain + self.value_dim), bias=False, **factory)
        self.output = Linear(heads * self.value_dim, d_model, bias="output" in bias, **factory)
        self.inner_norm = module_or_none("inner_norm", inner_norm)

    def forward(
        self, x: Float[Tensor, "... S D"], *,
        angles: tuple[Float[Tensor, "... S r"], Float[Tensor, "... S r"]] | None = None,
        cache: LayerCache | None = None, mask: Tensor | None = None,
    ) -> Float[Tensor, "... S D"]:  # fmt: skip
        """`angles`: the rows of cosine and sine for these positions. `cache`: the tokens before x. `mask`: as in `attention`."""
        check_mask(mask)
        given, angles = x, None if angles is None else beside_heads(angles)
        if self.query_latent is not None and self.query_latent_norm is not None:
            given = self.query_latent_norm(self.query_latent(x))
        query = self._turned(self._heads(self.query(given), self.head_dim), angles)
        del given
        down = self.latent(x)
        latent, part = self.latent_norm(down[..., : self.kv_latent]), down[..., self.kv_latent :].unsqueeze(-3)
        del down
        # Without rotation this is a view: copy it, or a cache would keep the whole of `down` alive.
        turned = part.clone() if angles is None else rope(part, *angles, pairs=self.rope_pairs)
        del part
        if cache is not None:
            latent, turned = cache.extend(latent, turned)
        if latent.shape[-2] > x.shape[-2]:
            z = _merged(self._on_latents(query, latent, turned, mask))
        else:
            z = self._expanded(query, latent, turned, mask)
        z = self.output(z if self.inner_norm is None else self.inner_norm(z))
        return F.dropout(z, self.dropout, self.training)

    def _heads(self, z: Tensor, width: int) -> Tensor:
        return z.view(*z.shape[:-1], self.heads, width).transpose(-3, -2)

    def _turned(self, x: Tensor, angles: tuple[Tensor, Tensor] | None) -> Tensor:
        """Apply rotary positions to the last rotary_dim dimensions of each head."""
        if angles is None:
            return x
        turned = rope(x[..., self.plain :], *angles, pairs=self.rope_pairs)
        return torch.cat([x[..., : self.plain], turned], dim=-1) if self.plain else turned

    def _expanded(self, query: Tensor, latent: Tensor, turned: Tensor, mask: Tensor | None) -> Tensor:
        """Compute keys and values of every head, then ordinary attention."""
        both = self._heads(self.key_and_value(latent), self.plain + self.value_dim)
        plain, value = both[..., : self.plain], both[..., self.plain :]
        key = torch.cat([plain, turned.expand(*plain.shape[:-1], self.rotary_dim)], dim=-1)
        dropout = self.dropout if self.training else 0.0
        return _merged(attention(query, key, value, mask=mask, method=self.method, dropout=dropout))

    def _on_latents(self, query: Tensor, latent: Tensor, turned: Tensor, mask: Tensor | None) -> Tensor:
        """q · (W_k c) = (W_kᵀ q) · c: scores are products with the latents c, and W_v is applied to their weighted mean."""
        *axes, A, S, _ = query.shape
        matrix = self.key_and_value.weight.view(A, self.plain + self.value_dim, self.kv_latent)
        scores = self._scores(query, latent, turned, matrix[:, : self.plain])
        scores = (scores / math.sqrt(self.head_dim)).view(*axes, A, S, -1)
        if mask is None:
            scores = scores + causal_mask(S, scores.shape[-1], dtype=scores.dtype, device=scores.device)
        elif mask.dtype == torch.bool:
            scores = scores.masked_fill(~mask, -math.inf)
        else:
            scores = scores + mask
        weights = F.dropout(torch.softmax(scores, dim=-1), self.dropout, self.training)
        mixed = (weights.flatten(-3, -2) @ latent).view(*axes, A, S, -1)
        return _by_head(mixed, matrix[:, self.plain :].transpose(-2, -1))

    def _scores(self, query: Tensor, latent: Tensor, turned: Tensor, matrix: Tensor) -> Tensor:
        """The scores of all heads, as rows of one product with the latents and one with the rotated parts of the keys."""
        own = _by_head(query[..., : self.plain], matrix).flatten(-3, -2)
        other = query[..., self.plain :].flatten(-3, -2) @ turned.squeeze(-3).transpose(-2, -1)
        return own @ latent.transpose(-2, -1) + other


def _merged(z: Float[Tensor, "... A S v"]) -> Float[Tensor, "... S A*v"]:
    return z.transpose(-3, -2).flatten(-2)


def _by_head(x: Float[Tensor, "... A S n"], matrices: Float[Tensor, "A n m"]) -> Float[Tensor, "... A S m"]:
    """x @ matrices, one per head, as one batched product of A matrices: the batch is folded into the rows, so none is copied."""
    # All sizes are explicit: n is 0 where rotary positions take the whole head, and then -1 would be ambiguous.
    *axes, A, S, n = x.shape
    B, m = math.prod(axes), matrices.shape[-1]
    rows = x.reshape(B, A, S, n).transpose(0, 1).reshape(A, B * S, n)
    return (rows @ matrices).view(A, B, S, m).transpose(0, 1).reshape(*axes, A, S, m)
