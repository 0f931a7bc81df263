"""Multi-head attention with its projections: separate query, key and value matrices, grouped heads, a cache."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from cs336kit.lm.attention import ATTENTION, attention
from cs336kit.lm.linear import Linear
from cs336kit.lm.positions import rope
from cs336kit.predict._common.checks import fraction, known, positive_int

#: Which projections have a bias: (query, key and value; output).
BIASES = {"all": (True, True), "qkv": (True, False), "none": (False, False)}


class LayerCache:
    """The keys and values of one layer for the tokens seen so far, (B, K, T, h) each: T grows with every call.

    With a sliding window only the last `window` positions stay.
    """

    def __init__(self, *, window: int | None = None):
        self.keys: Tensor | None = None
        self.values: Tensor | None = None
        self.window = window

    def extend(
        self, keys: Float[Tensor, "B K new h"], values: Float[Tensor, "B K new h"]
    ) -> tuple[Float[Tensor, "B K T h"], Float[Tensor, "B K T h"]]:
        """Append the new positions; return every position that their queries may look at."""
        if self.keys is not None:
            keys = torch.cat([self.keys, keys], dim=2)
            values = torch.cat([self.values, values], dim=2)
        # A copy of the last positions where some are dropped: a view would keep the storage of all.
        dropped = self.window is not None and keys.shape[2] > self.window
        self.keys = keys[:, :, -self.window :].contiguous() if dropped else keys
        self.values = values[:, :, -self.window :].contiguous() if dropped else values
        return keys, values


class MultiHeadAttention(nn.Module):
    """Causal self-attention with A query heads of width h, and K ≤ A heads for keys and values.

    Four matrices: query (D → A·h), key and value (D → K·h), output (A·h → D). Parameters: 2·D·h·(A + K), plus biases:
    "all" four, "qkv" three, or "none". Dropout falls on the weights and on the output, in training only.
    K = A is multi-head, K = 1 multi-query (Shazeer 2019), anything between grouped-query (Ainslie et al. 2023).
    """

    def __init__(
        self,
        d_model: int,
        heads: int,
        *,
        kv_heads: int | None = None,
        head_dim: int | None = None,
        bias: str = "all",
        window: int | None = None,
        dropout: float = 0.0,
        method: str = "eager",
    ):
        super().__init__()
        positive_int("d_model", d_model)
        self.heads = positive_int("heads", heads)
        self.kv_heads = heads if kv_heads is None else positive_int("kv_heads", kv_heads)
        if heads % self.kv_heads:
            raise ValueError(f"kv_heads={kv_heads} does not divide heads={heads}.")
        if head_dim is None and d_model % heads:
            raise ValueError(f"heads={heads} does not divide d_model={d_model}: change one of them, or give head_dim.")
        self.head_dim = d_model // heads if head_dim is None else positive_int("head_dim", head_dim)
        self.method = method
        known("attention method", method, dict.fromkeys(ATTENTION))
        inner, outer = known("bias", bias, BIASES)
        self.window = None if window is None else positive_int("window", window)
        self.dropout = fraction("dropout", dropout, zero=True)
        self.query = Linear(d_model, self.heads * self.head_dim, bias=inner)
        self.key = Linear(d_model, self.kv_heads * self.head_dim, bias=inner)
        self.value = Linear(d_model, self.kv_heads * self.head_dim, bias=inner)
        self.output = Linear(self.heads * self.head_dim, d_model, bias=outer)

    def forward(
        self,
        x: Float[Tensor, "B S D"],
        *,
        angles: tuple[Float[Tensor, "S h"], Float[Tensor, "S h"]] | None = None,
        cache: LayerCache | None = None,
    ) -> Float[Tensor, "B S D"]:
        """`angles`: the cosine and sine rows of these positions, for rotary positions. `cache`: what came before."""
        B, S, _ = x.shape
        query = self.query(x).view(B, S, self.heads, self.head_dim).transpose(1, 2)
        key = self.key(x).view(B, S, self.kv_heads, self.head_dim).transpose(1, 2)
        value = self.value(x).view(B, S, self.kv_heads, self.head_dim).transpose(1, 2)
        if angles is not None:
            query, key = rope(query, *angles), rope(key, *angles)
        if cache is not None:
            key, value = cache.extend(key, value)
        dropout = self.dropout if self.training else 0.0
        z = attention(query, key, value, method=self.method, window=self.window, dropout=dropout)
        z = self.output(z.transpose(1, 2).reshape(B, S, -1))
        return F.dropout(z, self.dropout, self.training)
