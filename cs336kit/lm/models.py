"""The models: the lecture's deep linear one, and a decoder for any configuration (GPT-2's, Llama's, DeepSeek's)."""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from cs336kit.lm._shapes import Float, Int
from cs336kit.lm.attention import QK_NORMS
from cs336kit.lm.blocks import Block, make_norm
from cs336kit.lm.caches import KVCache
from cs336kit.lm.layers import Embedding, Linear, rope_tables
from cs336kit.lm.mlp import ACTIVATIONS
from cs336kit.predict import TransformerConfig
from cs336kit.predict.checks import boolean, one_of, positive_int

#: What makes a configuration a Llama: field of TransformerConfig → the value that it must have.
LLAMA = {"norm": "rmsnorm", "positions": "rope", "mlp": "swiglu"}
#: Initializations of the weights: see DecoderOnly.
INITIAL = ("fan_in", "gpt2")


#: Field of a configuration → the values that these modules can build; predict knows more of them.
_LACKING: dict[str, tuple[Any, ...]] = {
    "mlp": tuple(ACTIVATIONS), "positions": ("learned", "rope", "none"), "qk_norm": QK_NORMS, "window_kind": ("sliding",),
    "norm_unit_offset": (False,), "value_dim": (None,), "embedding_dim": (None,), "sinks": (False,),
    "attention_scale": (None,),
}  # fmt: skip
#: The same for latent attention, whose values may have a width of their own.
_LACKING_LATENT: dict[str, tuple[Any, ...]] = {
    **{name: built for name, built in _LACKING.items() if name != "value_dim"},
    "qk_norm": ("none",), "window": (None,), "attention_softcap": (None,),
}  # fmt: skip


def check_buildable(config: TransformerConfig) -> None:
    """Raise ValueError for a field of the configuration that these modules cannot build."""
    beside = " beside kv_latent" if config.kv_latent else ""
    for name, built in (_LACKING_LATENT if config.kv_latent else _LACKING).items():
        if (value := getattr(config, name)) not in built:
            raise ValueError(
                f"{name}={value!r}{beside} cannot be built here, though predict counts it: lm has "
                f"{', '.join(map(repr, built))}."
            )


class Cruncher(nn.Module):
    """`layers` square linear layers, one after the other, then one head of width 1.

    Shapes: (B, D) → (B,), or (B, 1) with `squeeze=False`.
    Parameters: L·D² + D, and with `bias=True` another L·D + 1.
    Weights start as N(0, 1/D), so that each layer preserves the scale of the signal; biases start at 0.
    There is no nonlinearity: the model can only express a linear map, and all its FLOPs are matmuls.
    """

    def __init__(self, d_model: int, layers: int, *, bias: bool = False, squeeze: bool = True, **factory: Any):
        super().__init__()
        width = positive_int("d_model", d_model)
        boolean("bias", bias)
        self.layers = nn.ModuleList(
            nn.Linear(width, width, bias=bias, **factory) for _ in range(positive_int("layers", layers))
        )
        self.final = nn.Linear(d_model, 1, bias=bias, **factory)
        self.squeeze = boolean("squeeze", squeeze)
        for linear in (*self.layers, self.final):
            nn.init.normal_(linear.weight, std=1 / math.sqrt(d_model))
            if bias:
                nn.init.zeros_(linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        x = self.final(x)
        return torch.squeeze(x, -1) if self.squeeze else x


class DecoderOnly(nn.Module):
    """Token ids (B, S) → logits (B, S, V): embedding, L pre-norm blocks, a final norm, the head.

    By default the block of Korthikanti et al. 2022: separate query, key and value matrices, dropout on the attention
    weights and on both outputs of a block (none on the embeddings). Every choice comes from the configuration, so a
    configuration like Llama's gives Llama.

    `attention` is "sdpa", torch's function, or "eager", written out, as the defaults of `predict` count it;
    `checkpointing=True` saves only the input of each block for backward and
    recomputes the block there. `approximate="tanh"` uses GPT-2's formula for the gelu; `rope_pairs` is the pairing of
    rotary positions ("halves", "neighbours"). The head shares the embedding's matrix if `config.tied_head` is true.
    `initial="fan_in"` draws every matrix with standard deviation 1/√inputs, truncated at three of them, and "gpt2" with
    0.02, not truncated; in both, the matrices that write into the residual stream start smaller by a factor √(2L).
    `device` and `dtype` are those of all parameters and tables. Source: Radford et al. 2019, section 2.3.
    """

    def __init__(
        self, config: TransformerConfig, *, attention: str = "sdpa", checkpointing: bool = False,
        norm_eps: float = 1e-5, approximate: str = "none", rope_base: float = 10_000.0, rope_pairs: str = "halves",
        initial: str = "fan_in", **factory: Any,
    ):  # fmt: skip
        super().__init__()
        if not isinstance(config, TransformerConfig):
            raise ValueError(
                f"config must be a TransformerConfig, got {config!r}; predict.MODELS holds well-known ones."
            )
        check_buildable(config)
        self.config, self.checkpointing = config, boolean("checkpointing", checkpointing)
        self.embedding = Embedding(config.vocab, config.d_model, **factory)
        rows = config.context + config.extra_positions
        self.positions = Embedding(rows, config.d_model, **factory) if config.positions == "learned" else None
        self.embedding_norm = make_norm(config, eps=norm_eps, **factory) if config.embedding_norm else None
        self.cosine: Tensor
        self.sine: Tensor
        if config.positions == "rope":
            # Buffers, so that they move with the model; not saved in a checkpoint, since they follow from the config.
            cosine, sine = rope_tables(config.context, config.rotary_width, base=rope_base, **factory)
            self.register_buffer("cosine", cosine, persistent=False)
            self.register_buffer("sine", sine, persistent=False)
        block: dict[str, Any] = {
            "attention": attention, "norm_eps": norm_eps, "approximate": approximate, "rope_pairs": rope_pairs,
        }  # fmt: skip
        #: the options that, with the configuration, determine what the decoder computes
        self.options = {**block, "rope_base": rope_base}
        self.blocks = nn.ModuleList(Block(config, layer=layer, **block, **factory) for layer in range(config.layers))
        self.final_norm = make_norm(config, eps=norm_eps, **factory) if config.final_norm else None
        self.head = Linear(config.d_model, config.vocab, bias=config.head_bias, **factory)
        if config.tied_head:
            self.head.weight = self.embedding.weight
        self._initialize(one_of("initial spread", initial, INITIAL))

    def to_empty(self, **options: Any) -> "DecoderOnly":
        """torch's to_empty for a model made on meta: weights are uninitialized, to be loaded; the rotary tables are filled.

        `options` are those of torch (device, recurse). A head that shares the embedding's matrix still does.
        """
        super().to_empty(**options)
        if self.config.tied_head:
            self.head.weight = self.embedding.weight
        if self.config.positions == "rope":
            made: dict[str, Any] = {"device": self.cosine.device, "dtype": self.cosine.dtype}
            tables = rope_tables(self.config.context, self.config.rotary_width, base=self.options["rope_base"], **made)
            self.cosine.copy_(tables[0])
            self.sine.copy_(tables[1])
        return self

    def _initialize(self, initial: str) -> None:
        """Redraw the residual outputs, smaller; for "gpt2" also every other matrix (embeddings already have 0.02)."""
        for name, module in self.named_modules():
            residual = name.startswith("blocks") and name.endswith((".output", ".down"))
            if isinstance(module, Linear) and (residual or initial == "gpt2"):
                additions = 2 * self.config.layers if residual else 1
                if initial == "gpt2":
                    module.initialize(deviation=0.02 / math.sqrt(additions), cut=math.inf)
                else:
                    module.initialize(deviation=1 / math.sqrt(module.weight.shape[1] * additions))

    def forward(self, tokens: Int[Tensor, "B S"], *, cache: KVCache | None = None) -> Float[Tensor, "B S V"]:
        """Logits for the token after each position. With a cache, `tokens` continue those that it has seen.

        More positions than `config.context` raise ValueError.
        """
        check_tokens(tokens)
        start = 0 if cache is None else self._checked(cache).tokens
        stop = start + tokens.shape[1]
        check_positions(self.config, stop)
        x = embedded(self, tokens, start=start)
        angles = (self.cosine[start:stop], self.sine[start:stop]) if self.config.positions == "rope" else None
        if cache is not None:
            cache.broken = True
        for layer, block in enumerate(self.blocks):
            if self.checkpointing and cache is None and torch.is_grad_enabled():
                x = checkpoint(block, x, angles, use_reentrant=False)
            else:
                x = block(x, angles, None if cache is None else cache.layers[layer])
        if cache is not None:
            cache.tokens, cache.broken = stop, False
        return logits_of(self, x)

    def _checked(self, cache: KVCache) -> KVCache:
        """The cache, if it was made for these layers and no forward pass with it was interrupted; else ValueError."""
        if cache.broken:
            raise ValueError("a forward pass with this cache was interrupted: make a new cache.")
        wanted = [self.config.window_of(layer) for layer in range(self.config.layers)]
        windows = [layer.window for layer in cache.layers]
        if windows != wanted:
            raise ValueError(
                f"the cache was made for {len(windows)} layers with windows {windows}, and the model has {len(wanted)} with "
                f"{wanted}: make it from model.config."
            )
        return cache


def check_tokens(tokens: Tensor) -> None:
    """Raise ValueError unless this is a batch of token ids."""
    if not isinstance(tokens, Tensor) or tokens.dim() != 2 or tokens.dtype not in (torch.int64, torch.int32):
        tensor = isinstance(tokens, Tensor)
        given = f"{tokens.dtype} of shape {tuple(tokens.shape)}" if tensor else type(tokens).__name__
        raise ValueError(
            f"tokens must be a tensor (B, S) of int64 or int32, got {given}: for one text, give "
            "torch.tensor(lm.encode(text)).long()[None]."
        )


def check_positions(config: TransformerConfig, positions: int) -> None:
    """Raise ValueError for more positions than the context has."""
    if positions > config.context:
        raise ValueError(f"{positions} positions are more than the model's context of {config.context}: shorten them.")


def embedded(model: Any, tokens: Tensor, *, start: int) -> Tensor:
    """The input of the first block of a decoder or of its first stage; `start` is the position of the first token."""
    x = model.embedding(tokens)
    if model.config.embedding_scale != 1:
        x = x * model.config.embedding_scale
    if model.positions is not None:
        first = model.config.extra_positions + start
        x = x + model.positions.weight[first : first + x.shape[1]]
    return x if model.embedding_norm is None else model.embedding_norm(x)


def logits_of(model: Any, x: Tensor) -> Tensor:
    """Final norm, head, scale and softcap: what follows the blocks of a decoder or of its last stage."""
    logits = model.head(x if model.final_norm is None else model.final_norm(x))
    if model.config.logit_scale != 1:
        logits = logits * model.config.logit_scale
    cap = model.config.logit_softcap
    return logits if cap is None else torch.tanh(logits / cap) * cap


class Llama(DecoderOnly):
    """Token ids (B, S) → logits (B, S, V) with RMSNorm, rotary positions, grouped causal SDPA and SwiGLU.

    No biases, or those of query, key and value (Qwen2); a sliding window (Mistral) and experts (Mixtral) where the
    configuration has them. Any but norm="rmsnorm", positions="rope" and mlp="swiglu" in it raises ValueError.
    `rope_base` is 10 000 for Llama 1 and 2, 500 000 for Llama 3; the options are those of DecoderOnly.
    Source: Touvron et al. 2023, section 2.2.
    """

    def __init__(self, config: TransformerConfig, *, attention: str = "sdpa", **options: Any):
        for name, value in LLAMA.items():
            if getattr(config, name) != value:
                raise ValueError(
                    f"a Llama has {name}={value!r}, and this configuration {getattr(config, name)!r}: "
                    "change it, or build a DecoderOnly."
                )
        super().__init__(config, attention=attention, **options)
