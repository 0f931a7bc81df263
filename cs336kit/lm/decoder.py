"""The decoder-only Transformer of any configuration: GPT-2's block, Llama's, and what lies between them."""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from cs336kit.lm.linear import Embedding, Linear
from cs336kit.lm.mlp import GELUMLP, MixtureOfExperts, SwiGLU
from cs336kit.lm.multihead import LayerCache, MultiHeadAttention
from cs336kit.lm.norms import LayerNorm, RMSNorm
from cs336kit.lm.positions import rope_tables
from cs336kit.predict import TransformerConfig


def make_norm(config: TransformerConfig, *, eps: float) -> nn.Module:
    """The norm that the configuration names, over D."""
    if config.norm == "rmsnorm":
        return RMSNorm(config.d_model, eps=eps)
    return LayerNorm(config.d_model, bias=config.norm_bias, eps=eps)


def make_mlp(config: TransformerConfig, *, approximate: str) -> nn.Module:
    """The MLP that the configuration names, or a mixture of such experts (dropout then falls on each expert)."""
    bias = config.bias == "all"

    def one() -> nn.Module:
        if config.mlp == "swiglu":
            return SwiGLU(config.d_model, config.d_ff, bias=bias, dropout=config.dropout)
        return GELUMLP(config.d_model, config.d_ff, bias=bias, dropout=config.dropout, approximate=approximate)

    if not config.experts:
        return one()
    experts = [one() for _ in range(config.experts)]
    return MixtureOfExperts(config.d_model, experts, experts_per_token=config.experts_per_token)


class Block(nn.Module):
    """z₁ = x + attention(norm₁(x)), then z₁ + mlp(norm₂(z₁)): both residuals start from their own input.

    With one norm per block (Falcon 7B) attention and MLP stand side by side: x + attention(norm(x)) + mlp(norm(x)).
    """

    def __init__(self, config: TransformerConfig, *, attention: str, norm_eps: float, approximate: str):
        super().__init__()
        self.norm1 = make_norm(config, eps=norm_eps)
        self.attention = MultiHeadAttention(
            config.d_model,
            config.heads,
            kv_heads=config.kv_heads,
            head_dim=config.head_dim,
            bias=config.bias,
            window=config.window,
            dropout=config.dropout,
            method=attention,
        )
        self.norm2 = make_norm(config, eps=norm_eps) if config.norms_per_block == 2 else None
        self.mlp = make_mlp(config, approximate=approximate)

    def forward(
        self, x: Float[Tensor, "B S D"], angles: tuple[Tensor, Tensor] | None = None, cache: LayerCache | None = None
    ) -> Float[Tensor, "B S D"]:
        if self.norm2 is None:
            normed = self.norm1(x)
            return x + self.attention(normed, angles=angles, cache=cache) + self.mlp(normed)
        x = x + self.attention(self.norm1(x), angles=angles, cache=cache)
        return x + self.mlp(self.norm2(x))


class KVCache:
    """Keys and values of every layer for the tokens seen so far: 2·L·B·K·T·h elements, T tokens long."""

    def __init__(self, config: TransformerConfig):
        self.layers = [LayerCache(window=config.window) for _ in range(config.layers)]
        #: how many tokens the model has seen; the next one stands at this position
        self.tokens = 0

    def tensors(self) -> list[Tensor]:
        """The cached tensors, keys and values of each layer in turn; empty before the first tokens."""
        return [tensor for layer in self.layers for tensor in (layer.keys, layer.values) if tensor is not None]


class DecoderOnly(nn.Module):
    """Token ids (B, S) → logits (B, S, V): embedding, L pre-norm blocks, a final norm, the head.

    By default the block of Korthikanti et al. 2022: separate query, key and value matrices, explicit softmax attention,
    dropout on the attention weights and on both outputs of a block (none on the embeddings). Every choice comes from
    the configuration, so a configuration like Llama's gives Llama.

    `attention` is "eager" or "sdpa"; `checkpointing=True` keeps only the input of each block for backward and
    computes the block again there. `approximate="tanh"` takes GPT-2's formula of the gelu. The head has no bias, and
    shares the embedding's matrix when `config.tied_head` says so. The matrices that write into the residual stream
    start smaller by √(2L). Source: Radford et al. 2019, section 2.3.
    """

    def __init__(
        self,
        config: TransformerConfig,
        *,
        attention: str = "eager",
        checkpointing: bool = False,
        norm_eps: float = 1e-5,
        approximate: str = "none",
        rope_base: float = 10_000.0,
    ):
        super().__init__()
        self.config, self.checkpointing = config, checkpointing
        self.embedding = Embedding(config.vocab, config.d_model)
        self.positions = Embedding(config.context, config.d_model) if config.positions == "learned" else None
        if config.positions == "rope":
            # Buffers, so that they move with the model; not stored in a checkpoint, since they follow from the config.
            cosine, sine = rope_tables(config.context, config.head_dim, base=rope_base)
            self.register_buffer("cosine", cosine, persistent=False)
            self.register_buffer("sine", sine, persistent=False)
        block = {"attention": attention, "norm_eps": norm_eps, "approximate": approximate}
        self.blocks = nn.ModuleList(Block(config, **block) for _ in range(config.layers))
        self.final_norm = make_norm(config, eps=norm_eps)
        self.head = Linear(config.d_model, config.vocab, bias=False)
        if config.tied_head:
            self.head.weight = self.embedding.weight
        self._shrink_residual_outputs()

    def _shrink_residual_outputs(self):
        for name, module in self.blocks.named_modules():
            if name.endswith((".output", ".down")):
                inputs = module.weight.shape[1]
                module.initialize(deviation=1 / math.sqrt(inputs * 2 * self.config.layers))

    def forward(self, tokens: Int[Tensor, "B S"], *, cache: KVCache | None = None) -> Float[Tensor, "B S V"]:
        """Logits of the token after each position. With a cache, `tokens` continue those that it has seen.

        More positions than `config.context` raise ValueError.
        """
        start = 0 if cache is None else cache.tokens
        stop = start + tokens.shape[1]
        if stop > self.config.context:
            raise ValueError(
                f"{stop} positions are more than the model's context of {self.config.context}: shorten them."
            )
        x = self.embedding(tokens)
        if self.positions is not None:
            x = x + self.positions.weight[start:stop]
        angles = (self.cosine[start:stop], self.sine[start:stop]) if self.config.positions == "rope" else None
        for layer, block in enumerate(self.blocks):
            if self.checkpointing and cache is None and torch.is_grad_enabled():
                x = checkpoint(block, x, angles, use_reentrant=False)
            else:
                x = block(x, angles, None if cache is None else cache.layers[layer])
        if cache is not None:
            cache.tokens = stop
        return self.head(self.final_norm(x))
