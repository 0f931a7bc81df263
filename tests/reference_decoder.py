"""A decoder written for the tests alone, straight from a TransformerConfig: the truth for counts of parameters, FLOPs
and saved bytes in every combination of options, including those that the course's own models do not offer."""

import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint


class RMSNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        wide = x.float()
        rms = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)
        return (wide * rms * self.weight).to(x.dtype)


def norm(config):
    if config.norm == "rmsnorm":
        return RMSNorm(config.d_model)
    return nn.LayerNorm(config.d_model, bias=config.norm_bias)


class Attention(nn.Module):
    def __init__(self, config, *, sdpa):
        super().__init__()
        self.config, self.sdpa = config, sdpa
        c = config
        self.query = nn.Linear(c.d_model, c.query_width, bias=c.bias != "none")
        self.key = nn.Linear(c.d_model, c.kv_heads * c.head_dim, bias=c.bias != "none")
        self.value = nn.Linear(c.d_model, c.kv_heads * c.head_dim, bias=c.bias != "none")
        self.output = nn.Linear(c.query_width, c.d_model, bias=c.bias == "all")
        # Buffers, as in published code: they are no activations.
        self.register_buffer("hidden", torch.ones(c.context, c.context, dtype=torch.bool).triu(1), persistent=False)
        angles = torch.outer(torch.arange(c.context), 10000.0 ** -torch.linspace(0, 1, c.head_dim // 2))
        self.register_buffer("cos", torch.cat((angles.cos(), angles.cos()), -1), persistent=False)
        self.register_buffer("sin", torch.cat((angles.sin(), angles.sin()), -1), persistent=False)

    def rotate(self, x):
        first, second = x.chunk(2, -1)
        length = x.shape[-2]
        turned = torch.cat((-second, first), -1)
        return (x * self.cos[:length] + turned * self.sin[:length]).to(x.dtype)

    def forward(self, x):
        c = self.config
        batch, length, _ = x.shape
        query, key, value = (
            layer(x).view(batch, length, -1, c.head_dim).transpose(1, 2) for layer in (self.query, self.key, self.value)
        )
        if c.positions == "rope":
            query, key = self.rotate(query), self.rotate(key)
        if self.sdpa:
            out = F.scaled_dot_product_attention(
                query, key, value, is_causal=True, dropout_p=c.dropout, enable_gqa=c.kv_heads != c.heads
            )
        else:
            if c.kv_heads != c.heads:
                key, value = (t.repeat_interleave(c.heads // c.kv_heads, dim=1) for t in (key, value))
            scores = query @ key.transpose(-2, -1) / math.sqrt(c.head_dim)
            scores = scores.masked_fill(self.hidden[:length, :length], -math.inf)
            out = F.dropout(scores.softmax(-1), c.dropout) @ value
        return F.dropout(self.output(out.transpose(1, 2).reshape(batch, length, -1)), c.dropout)


class MLP(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        bias = config.bias == "all"
        if config.gated:
            self.gate = nn.Linear(config.d_model, config.d_ff, bias=bias)
        self.up = nn.Linear(config.d_model, config.d_ff, bias=bias)
        self.down = nn.Linear(config.d_ff, config.d_model, bias=bias)

    def forward(self, x):
        up = self.up(x)
        act = F.silu if self.config.mlp == "swiglu" else F.gelu
        hidden = act(self.gate(x)) * up if self.config.gated else F.gelu(up)
        return F.dropout(self.down(hidden), self.config.dropout)


class Experts(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.router = nn.Linear(config.d_model, config.experts, bias=False)
        self.experts = nn.ModuleList(MLP(config) for _ in range(config.experts))

    def forward(self, x):
        tokens = x.reshape(-1, x.shape[-1])
        weights, chosen = self.router(tokens).softmax(-1).topk(self.config.experts_per_token)
        # Balanced on purpose, so that no count depends on the data: every expert takes an equal share of the pairs.
        out = torch.zeros_like(tokens)
        pairs = torch.arange(chosen.numel(), device=x.device).tensor_split(self.config.experts)
        for expert, pair in zip(self.experts, pairs, strict=True):
            row = pair // self.config.experts_per_token
            share = weights.reshape(-1, 1)[pair]
            out = out.index_add(0, row, (expert(tokens[row]) * share).to(out.dtype))
        return out.view_as(x)


class Block(nn.Module):
    def __init__(self, config, *, sdpa):
        super().__init__()
        self.attention_norm = norm(config)
        if config.norms_per_block == 2:
            self.mlp_norm = norm(config)
        self.parallel = config.parallel or config.norms_per_block == 1
        self.attention = Attention(config, sdpa=sdpa)
        self.mlp = Experts(config) if config.experts else MLP(config)

    def forward(self, x):
        if self.parallel:
            normed = self.attention_norm(x)
            return x + self.attention(normed) + self.mlp(self.mlp_norm(x) if hasattr(self, "mlp_norm") else normed)
        x = x + self.attention(self.attention_norm(x))
        return x + self.mlp(self.mlp_norm(x))


class Decoder(nn.Module):
    def __init__(self, config, *, sdpa=False, checkpointing=False):
        super().__init__()
        self.config, self.checkpointing = config, checkpointing
        self.tokens = nn.Embedding(config.vocab, config.d_model)
        if config.positions == "learned":
            self.positions = nn.Embedding(config.context, config.d_model)
        self.blocks = nn.ModuleList(Block(config, sdpa=sdpa) for _ in range(config.layers))
        self.norm = norm(config)
        self.head = nn.Linear(config.d_model, config.vocab, bias=False)
        if config.tied_head:
            self.head.weight = self.tokens.weight

    def forward(self, tokens):
        x = self.tokens(tokens)
        if self.config.positions == "learned":
            x = x + self.positions.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointing else block(x)
        return self.head(self.norm(x))

    def loss(self, tokens):
        logits = self(tokens)
        return F.cross_entropy(logits.flatten(0, 1), tokens.flatten())
