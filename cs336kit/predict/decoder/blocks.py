"""What each block of a model is: its attention, its MLP or experts, and its norms, as the programs take them."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from cs336kit.predict.transformer import TransformerConfig


@dataclass(frozen=True)
class Norm:
    """A norm over the width: "layernorm" or "rmsnorm", with a scale and a shift or without."""

    kind: str
    scale: bool
    shift: bool


@dataclass(frozen=True)
class AttentionKind:
    """Attention of a layer; fields that a TransformerConfig has too mean the same."""

    d_model: int
    heads: int
    kv_heads: int
    head_dim: int
    value_head_dim: int
    #: matrices that have a bias
    biases: Collection[str]
    #: norms of queries and keys, of the kind `norm_kind`
    qk_norm: str
    norm_kind: str
    qk_norm_bias: bool
    #: the norm before the output matrix, if there is one
    inner_norm: Norm | None
    #: whether queries and keys are rotated, and the width of what is rotated
    rope: bool
    rotary_width: int
    alibi: bool
    #: positions that each one sees, of the neighbors or of its chunk; None: all
    window: int | None
    chunked: bool
    sinks: bool
    softcap: float | None
    dropout: float
    kv_latent: int
    query_latent: int


@dataclass(frozen=True)
class MLPKind:
    """An MLP: that of a layer, of one expert, or of the shared experts."""

    d_model: int
    width: int
    #: `mlp` of the configuration
    activation: str
    gated: bool
    biases: Collection[str]
    inner_norm: Norm | None
    dropout: float
    #: its matrices are listed under this name
    component: str


@dataclass(frozen=True)
class ExpertsKind:
    """A mixture: `count` experts, each the MLP `one`, of which every token visits `per_token`, and the `shared` one besides."""

    one: MLPKind
    count: int
    per_token: int
    router_bias: bool
    shared: MLPKind | None
    shared_gate: bool
    #: tokens of each expert; None for equal shares
    routing: tuple[int, ...] | None


# Compared by identity: a program compares many blocks, and those that are alike are one object.
@dataclass(frozen=True, eq=False)
class Block:
    """One block: attention and MLP with their norms, each added to the residual stream."""

    attention: AttentionKind
    mlp: MLPKind | ExpertsKind
    norm: Norm
    #: where the norms are: `norm_placement` of the configuration
    placement: str
    #: whether attention and MLP read the same input, and whether one norm is before both
    side_by_side: bool
    one_norm: bool
    #: factor of both branches
    scale: float


def norm_of(config: TransformerConfig) -> Norm:
    """The norms of a model, except those of queries and keys."""
    return Norm(config.norm, config.norm_scale, config.norm_bias)


def blocks(config: TransformerConfig, routing: Sequence[tuple[int, ...] | None] | None = None) -> list[Block]:
    """The block of each layer in order, one object for all that are alike; `routing`: the tokens of its experts for each."""
    alike = config.window_layers is None and config.rope_layers is None and config.sparse_layers is None
    if alike and routing is None:
        return [_block(config, config.window, config.positions == "rope", config.experts > 0, None)] * config.layers
    each = zip(range(config.layers), routing or (None,) * config.layers, strict=True)
    kinds = [(config.window_of(i), config.has_rope(i), config.is_sparse(i), sizes) for i, sizes in each]
    made = {kind: _block(config, *kind) for kind in dict.fromkeys(kinds)}
    return [made[kind] for kind in kinds]


def _block(
    c: TransformerConfig, window: int | None, rope: bool, sparse: bool, routing: tuple[int, ...] | None
) -> Block:
    norm = norm_of(c)
    inner = norm if c.inner_norms else None

    def mlp_of(width: int, component: str) -> MLPKind:
        return MLPKind(c.d_model, width, c.mlp, c.gated, c.biases, inner, c.dropout, component)

    attention = AttentionKind(
        d_model=c.d_model, heads=c.heads, kv_heads=c.kv_heads, head_dim=c.head_dim, value_head_dim=c.value_head_dim,
        biases=c.biases, qk_norm=c.qk_norm, norm_kind=c.norm, qk_norm_bias=c.qk_norm_bias, inner_norm=inner, rope=rope,
        rotary_width=c.rotary_width, alibi=c.positions == "alibi", window=window, chunked=c.window_kind == "chunked",
        sinks=c.sinks, softcap=c.attention_softcap, dropout=c.dropout, kv_latent=c.kv_latent, query_latent=c.query_latent,
    )  # fmt: skip
    mlp: MLPKind | ExpertsKind
    if sparse:
        shared = mlp_of(c.shared_d_ff, "shared") if c.shared_d_ff else None
        one = mlp_of(c.d_ff, "mlp")
        mlp = ExpertsKind(one, c.experts, c.experts_per_token, c.router_bias, shared, c.shared_gate, routing)
    else:
        mlp = mlp_of(c.dense_width, "dense" if c.experts else "mlp")
    return Block(attention, mlp, norm, c.norm_placement, c.side_by_side, c.norms_per_block == 1, c.residual_scale)
