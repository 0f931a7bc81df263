"""FLOPs of a Transformer by component, as a counter of matrix products sees them, and the bytes of its KV cache.

B batch · S sequence · D d_model · A heads · K kv_heads · h head_dim · F d_ff · V vocab · L layers.
"""

from cs336kit.predict._common.breakdown import Breakdown
from cs336kit.predict._common.checks import known, positive_int
from cs336kit.predict.transformer import TransformerConfig, check_config

#: Matrix products in the backward pass of attention, where the forward pass has two: the explicit path keeps the S×S
#: weights, the fused one ("sdpa") computes the scores again.
ATTENTION_BACKWARD_MATMULS = {"eager": 4, "sdpa": 5}

#: Bytes of one element of a cache.
ELEMENT_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1, "int8": 1}


def check_sizes(config: TransformerConfig, batch: int, sequence: int) -> None:
    """Raise ValueError unless the model can run on `batch` sequences of `sequence` tokens."""
    check_config(config)
    positive_int("batch", batch)
    positive_int("sequence", sequence)
    if config.positions == "learned" and sequence > config.context:
        raise ValueError(
            f"sequence={sequence} is longer than context={config.context}, and learned positions end there: "
            "shorten the sequence or give a configuration with a longer context"
        )


def _attention_matmul_flops(config: TransformerConfig, batch: int, sequence: int, causal: bool) -> int:
    """One of the two products of attention (scores, or weights times values), over all layers."""
    if not causal:
        twice_pairs = 2 * sequence**2
    else:
        window = min(config.window or sequence, sequence)
        # The triangle's area, S²/2; a sliding window cuts its far corner off.
        twice_pairs = 2 * sequence * window - window**2
    return config.layers * batch * config.query_width * twice_pairs


def forward_flops(config: TransformerConfig, *, batch: int, sequence: int, causal: bool = False) -> Breakdown:
    """FLOPs of one forward pass over `batch` sequences of `sequence` tokens, logits included, by component.

    Convention: matrix products only, 2·m·n·k each. Attention is counted over all S×S pairs, as counters and kernels
    without masking do, whatever the window; `causal=True` counts half of them, or the band of a sliding window.
    Of a mixture of experts, each token pays for the router and the experts it visits. Left out: embedding look-ups,
    norms, softmax, activations. Errors: ValueError for sizes below 1 or beyond learned positions.
    """
    check_sizes(config, batch, sequence)
    c = config
    per_weight = 2 * batch * sequence * c.layers
    visits = c.experts_per_token if c.experts else 1
    scores = _attention_matmul_flops(c, batch, sequence, causal)
    mlp = per_weight * visits * c.d_model * c.d_ff
    parts = {
        "query": per_weight * c.d_model * c.query_width,
        "key": per_weight * c.d_model * c.kv_width,
        "value": per_weight * c.d_model * c.kv_width,
        "attention scores": scores,
        "attention values": scores,
        "attention output": per_weight * c.query_width * c.d_model,
    }
    if c.experts:
        parts["router"] = per_weight * c.d_model * c.experts
    if c.mlp == "swiglu":
        parts["mlp gate"] = mlp
    parts["mlp up"] = parts["mlp down"] = mlp
    parts["head"] = 2 * batch * sequence * c.d_model * c.vocab
    return Breakdown(parts, unit="FLOPs")


def recomputed_flops(config: TransformerConfig, *, batch: int, sequence: int, causal: bool = False) -> Breakdown:
    """FLOPs that activation checkpointing of every block adds to a step: the blocks' forward pass once more.

    The recomputation stops as soon as every saved tensor is back. A dense block's last linear saves only its input,
    so it is not run again, unless dropout follows it; in a mixture of experts, the routing weights multiply its
    output, which must be there. Follows torch.utils.checkpoint with use_reentrant=False.
    """
    parts = dict(forward_flops(config, batch=batch, sequence=sequence, causal=causal).items())
    del parts["head"]
    if not config.dropout and not config.experts:
        parts["mlp down"] = 0
    return Breakdown(parts, unit="FLOPs")


def training_flops(
    config: TransformerConfig,
    *,
    batch: int,
    sequence: int,
    causal: bool = False,
    checkpointing: bool = False,
    attention: str = "eager",
) -> Breakdown:
    """FLOPs of one forward and backward pass by component, with the recomputation of checkpointing as one more.

    Each product of the forward pass has two in the backward pass, one for each of its inputs: 3× forward, exactly.
    `attention="sdpa"` has five instead of four for attention, as the fused kernel computes the scores again; with
    dropout above 0 four, because torch then leaves the fused kernel on a CPU (on CUDA it does not: five).
    Convention and what is left out: as in `forward_flops`; the optimizer's element-wise work too.
    """
    backward = known("attention", attention, ATTENTION_BACKWARD_MATMULS)
    if config.dropout:
        backward = ATTENTION_BACKWARD_MATMULS["eager"]
    forward = forward_flops(config, batch=batch, sequence=sequence, causal=causal)
    parts = {name: 3 * value for name, value in forward.items()}
    scores = forward["attention scores"]
    # Both parts together are a whole number also where five products and an odd count of pairs make halves.
    parts["attention scores"] = scores * (2 + backward) // 2
    parts["attention values"] = scores * (2 + backward) - parts["attention scores"]
    if checkpointing:
        again = recomputed_flops(config, batch=batch, sequence=sequence, causal=causal)
        parts["recomputed forward"] = again.total
    return Breakdown(parts, unit="FLOPs")


def kv_cache_bytes(config: TransformerConfig, *, batch: int, sequence: int, precision: str = "bf16") -> int:
    """Bytes of the keys and values of `sequence` tokens in every layer: 2·L·B·S·K·h elements.

    A sliding window keeps the last `window` tokens only. Left out: allocation in pages, scales of quantised caches.
    """
    check_sizes(config, batch, sequence)
    kept = min(sequence, config.window or sequence)
    return 2 * config.layers * batch * kept * config.kv_width * known("precision of a cache", precision, ELEMENT_BYTES)
