"""The decoder block, with the norms, the attention and the MLP that a configuration names."""

from typing import Any

from torch import Tensor, nn

from cs336kit.lm._shapes import Float
from cs336kit.lm.attention import BIASES, MultiHeadAttention
from cs336kit.lm.caches import LayerCache
from cs336kit.lm.latent import LatentAttention
from cs336kit.lm.layers import LayerNorm, Linear, RMSNorm
from cs336kit.lm.mlp import MLP, MixtureOfExperts, SharedExpert, with_formula
from cs336kit.predict import TransformerConfig


def make_norm(config: TransformerConfig, *, eps: float, width: int | None = None, **factory: Any) -> nn.Module:
    """The norm that the configuration names, over D or over `width`."""
    width = config.d_model if width is None else width
    if config.norm == "rmsnorm":
        return RMSNorm(width, scale=config.norm_scale, eps=eps, **factory)
    return LayerNorm(width, scale=config.norm_scale, bias=bool(config.norm_bias), eps=eps, **factory)


def _qk_norm(config: TransformerConfig, width: int, *, eps: float, **factory: Any) -> nn.Module:
    if config.norm == "rmsnorm":
        return RMSNorm(width, eps=eps, **factory)
    return LayerNorm(width, bias=config.qk_norm_bias, eps=eps, **factory)


def make_mlp(
    config: TransformerConfig, *, approximate: str, layer: int = 0, eps: float = 1e-5, **factory: Any
) -> nn.Module:  # fmt: skip
    """The MLP that the configuration names, or a mixture of such experts (with dropout in each expert)."""
    kind = with_formula(config.mlp, approximate)
    biases = [name for name in ("gate", "up", "down") if config.has_bias(name)]

    def one(width: int) -> nn.Module:
        inner = make_norm(config, eps=eps, width=width, **factory) if config.inner_norms else None
        options: dict[str, Any] = {"dropout": config.dropout, "inner_norm": inner, **factory}
        return MLP(config.d_model, width, kind=kind, biases=biases, **options)

    if not config.is_sparse(layer):
        return one(config.dense_width)
    mixture = MixtureOfExperts(
        config.d_model, [one(config.d_ff) for _ in range(config.experts)], experts_per_token=config.experts_per_token,
        bias=config.router_bias, **factory,
    )  # fmt: skip
    if not config.shared_d_ff:
        return mixture
    gate = Linear(config.d_model, 1, bias=False, **factory) if config.shared_gate else None
    return SharedExpert(mixture, one(config.shared_d_ff), gate=gate)


class Block(nn.Module):
    """z₁ = x + attention(norm₁(x)), then z₁ + mlp(norm₂(z₁)): each residual adds to its own input.

    With one norm per block (Falcon 7B), attention and MLP run in parallel: x + attention(norm(x)) + mlp(norm(x)).
    The options are those of DecoderOnly. `Block.from_sizes` makes a single block without a configuration.
    """

    def __init__(
        self, config: TransformerConfig, *, attention: str = "sdpa", norm_eps: float = 1e-5,
        approximate: str = "none", rope_pairs: str = "halves", layer: int = 0, **factory: Any,
    ):  # fmt: skip
        super().__init__()
        self.placement, self.scale = config.norm_placement, config.residual_scale
        self.side_by_side = config.side_by_side
        # Whatever config.positions is, angles passed to forward rotate queries and keys, except in layers without rope.
        self.turns = config.rope_layers is None or config.rope_layers[layer]
        self.norm1 = make_norm(config, eps=norm_eps, **factory)
        self.attention = self._attention(
            config, attention, norm_eps=norm_eps, rope_pairs=rope_pairs, layer=layer, **factory
        )
        self.norm2 = make_norm(config, eps=norm_eps, **factory) if config.norms_per_block == 2 else None
        self.mlp = make_mlp(config, approximate=approximate, layer=layer, eps=norm_eps, **factory)
        both = config.norm_placement == "sandwich"
        self.post1 = make_norm(config, eps=norm_eps, **factory) if both else None
        self.post2 = make_norm(config, eps=norm_eps, **factory) if both else None

    @classmethod
    def _attention(
        cls, config: TransformerConfig, method: str, *, norm_eps: float, rope_pairs: str, layer: int, **factory: Any
    ) -> nn.Module:  # fmt: skip
        width = config.heads * config.value_head_dim
        usual: dict[str, Any] = {
            "bias": [name for name in BIASES["all"] if config.has_bias(name)],
            "dropout": config.dropout,
            "method": method,
            "rope_pairs": rope_pairs,
            "inner_norm": make_norm(config, eps=norm_eps, width=width, **factory) if config.inner_norms else None,
        }
        if config.kv_latent:
            return LatentAttention(
                config.d_model, config.heads, kv_latent=config.kv_latent, rotary_dim=config.rotary_width,
                query_latent=config.query_latent, head_dim=config.head_dim, value_dim=config.value_head_dim,
                norm_eps=norm_eps, **usual, **factory,
            )  # fmt: skip
        return MultiHeadAttention(
            config.d_model, config.heads, kv_heads=config.kv_heads, head_dim=config.head_dim,
            window=config.window_of(layer), softcap=config.attention_softcap, qk_norm=config.qk_norm,
            make_norm=lambda width: _qk_norm(config, width, eps=norm_eps, **factory), **usual, **factory,
        )  # fmt: skip

    @classmethod
    def from_sizes(cls, d_model: int, heads: int, d_ff: int | None = None, **choices: Any) -> "Block":
        """A block from its sizes alone: Block.from_sizes(64, 4, 256, norm="rmsnorm", mlp="swiglu", bias="none").

        `choices` are fields of a TransformerConfig (norm, mlp, bias, kv_heads, window, …) and options of a Block
        (attention, norm_eps, device, …). For rotary positions, pass `angles` to forward.
        """
        names = TransformerConfig.__dataclass_fields__.keys() & choices.keys()
        fields = {name: choices.pop(name) for name in names} | {"d_ff": d_ff}
        config = TransformerConfig(layers=1, vocab=1, context=1, d_model=d_model, heads=heads, **fields)
        return cls(config, **choices)

    def forward(
        self, x: Float[Tensor, "... S D"], angles: tuple[Tensor, Tensor] | None = None,
        cache: LayerCache | None = None, mask: Tensor | None = None,
    ) -> Float[Tensor, "... S D"]:  # fmt: skip
        def attend(x: Tensor) -> Tensor:
            return self.attention(x, angles=angles if self.turns else None, cache=cache, mask=mask)

        if self.norm2 is None:
            normed = self.norm1(x)
            return x + self._scaled(attend(normed)) + self._scaled(self.mlp(normed))
        if self.placement == "residual":
            x = self.norm1(x + self._scaled(attend(x)))
            return self.norm2(x + self._scaled(self.mlp(x)))
        if self.placement == "post":
            x = x + self._scaled(self.norm1(attend(x)))
            return x + self._scaled(self.norm2(self.mlp(x)))
        if self.post1 is not None and self.post2 is not None:
            x = x + self._scaled(self.post1(attend(self.norm1(x))))
            return x + self._scaled(self.post2(self.mlp(self.norm2(x))))
        if self.side_by_side:
            return x + self._scaled(attend(self.norm1(x))) + self._scaled(self.mlp(self.norm2(x)))
        x = x + self._scaled(attend(self.norm1(x)))
        return x + self._scaled(self.mlp(self.norm2(x)))

    def _scaled(self, z: Tensor) -> Tensor:
        return z if self.scale == 1 else z * self.scale
