"""Parameters of a Transformer, component by component."""

from functools import lru_cache

from cs336kit.predict._common.breakdown import Breakdown
from cs336kit.predict.transformer import TransformerConfig, check_config


def parameters(config: TransformerConfig) -> Breakdown:
    """Parameters of the whole model by component; a shared matrix is counted once.

    A linear layer from n to m features has n·m weights, and m biases where `config.bias` says so (the head and a
    router have none). A tied head costs nothing. Exact: equal to the sum of `numel` over a real model's parameters.
    """
    check_config(config)
    return _parameters(config)


@lru_cache(maxsize=256)
def _parameters(config: TransformerConfig) -> Breakdown:
    # Both sides are frozen, and the memory of one training step asks for the same count several times.
    c = config
    D, Q, KV, F = c.d_model, c.query_width, c.kv_width, c.d_ff
    qkv_bias = c.bias != "none"
    all_bias = c.bias == "all"
    copies = c.layers * max(c.experts, 1)
    norm = (1 + c.norm_bias) * D
    parts = {"token embedding": c.vocab * D}
    if c.positions == "learned":
        parts["position embedding"] = c.context * D
    parts["query"] = c.layers * (D + qkv_bias) * Q
    parts["key"] = parts["value"] = c.layers * (D + qkv_bias) * KV
    parts["attention output"] = c.layers * (Q + all_bias) * D
    if c.experts:
        parts["router"] = c.layers * D * c.experts
    if c.mlp == "swiglu":
        parts["mlp gate"] = copies * (D + all_bias) * F
    parts["mlp up"] = copies * (D + all_bias) * F
    parts["mlp down"] = copies * (F + all_bias) * D
    parts["norms"] = c.layers * c.norms_per_block * norm
    parts["final norm"] = norm
    parts["head"] = 0 if c.tied_head else c.vocab * D
    return Breakdown(parts, unit="parameters")


def parameter_shapes(config: TransformerConfig) -> list[tuple[int, ...]]:
    """The shape of every parameter tensor in the order of `lm.DecoderOnly`, (outputs, inputs) for a matrix.

    What an optimizer keeps its state for. A tied head has no tensor of its own.
    """
    first, block, last = shapes_of_parts(config)
    return first + config.layers * block + last


def shapes_of_parts(config: TransformerConfig) -> tuple[list, list, list]:
    """The shapes before the blocks, of one block, and after the blocks."""
    c = config
    D, Q, KV, F = c.d_model, c.query_width, c.kv_width, c.d_ff
    qkv_bias, all_bias = c.bias != "none", c.bias == "all"
    norm = [(D,)] * (1 + c.norm_bias)

    def linear(inputs: int, outputs: int, bias: bool) -> list[tuple[int, ...]]:
        return [(outputs, inputs), (outputs,)] if bias else [(outputs, inputs)]

    hidden = linear(D, F, all_bias) * (2 if c.mlp == "swiglu" else 1)
    mlp = (hidden + linear(F, D, all_bias)) * max(c.experts, 1)
    if c.experts:
        mlp = [(c.experts, D), *mlp]
    attention = linear(D, Q, qkv_bias) + 2 * linear(D, KV, qkv_bias) + linear(Q, D, all_bias)
    block = norm + attention + (norm if c.norms_per_block == 2 else []) + mlp
    first = [(c.vocab, D)] + ([(c.context, D)] if c.positions == "learned" else [])
    return first, block, norm + ([] if c.tied_head else [(c.vocab, D)])


def active_parameters(config: TransformerConfig) -> Breakdown:
    """Parameters that take part in the computation for one token: of each layer's experts, only those it visits.

    Equal to `parameters` for a dense model. Embedding tables are counted whole, as published counts do.
    """
    parts = dict(parameters(config).items())
    if config.experts:
        for name in ("mlp gate", "mlp up", "mlp down"):
            if name in parts:
                parts[name] = parts[name] // config.experts * config.experts_per_token
    return Breakdown(parts, unit="parameters")


def matmul_parameters(config: TransformerConfig) -> int:
    """Weights that one token is multiplied by in a forward pass, P in 2·P FLOPs per token.

    Biases, norms and embedding look-ups multiply nothing; the head counts whether tied or not; of the experts only the
    visited ones count.
    """
    c = config
    attention = c.d_model * (2 * c.query_width + 2 * c.kv_width)
    mlp = (3 if c.mlp == "swiglu" else 2) * c.d_model * c.d_ff
    mlp = mlp * c.experts_per_token + c.d_model * c.experts if c.experts else mlp
    return c.layers * (attention + mlp) + c.vocab * c.d_model
