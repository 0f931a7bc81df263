"""Bytes that a forward pass keeps for its backward pass, by component, exact for `lm.DecoderOnly` and `lm.Llama`.

B batch · S sequence · D d_model · A heads · K kv_heads · h head_dim · F d_ff · V vocab · L layers.
"""

from dataclasses import dataclass

from cs336kit.predict._common.breakdown import Breakdown
from cs336kit.predict._common.checks import known, positive_int
from cs336kit.predict.transformer import TransformerConfig
from cs336kit.predict.transformer_flops import ATTENTION_BACKWARD_MATMULS, check_sizes


@dataclass(frozen=True)
class _Bytes:
    """Bytes per element under one precision policy."""

    #: the residual stream and the norms' inputs
    stream: int
    #: what linear layers and attention take and give
    matmul: int
    #: a LayerNorm's mean and 1/deviation
    statistic: int
    #: whether each linear layer casts its input and its weight for itself
    casts: bool


#: "bf16" is a model in bf16 throughout; "autocast" is torch.autocast to bf16 over fp32 weights.
ACTIVATION_PRECISIONS = {
    "fp32": _Bytes(stream=4, matmul=4, statistic=4, casts=False),
    "bf16": _Bytes(stream=2, matmul=2, statistic=2, casts=False),
    "autocast": _Bytes(stream=4, matmul=2, statistic=4, casts=True),
}


def _norm_bytes(config: TransformerConfig, tokens: int, size: _Bytes) -> int:
    """What one norm keeps: its input and the numbers per token; RMSNorm works in fp32 and keeps the normed input too."""
    if config.norm == "rmsnorm":
        return 8 * tokens * config.d_model + 4 * tokens
    return size.stream * tokens * config.d_model + 2 * size.statistic * tokens


def _attention_bytes(config, batch, sequence, size, method) -> dict[str, int]:
    """Between the projections of one layer: what the two products, the softmax and its dropout keep."""
    c, tokens, pairs = config, batch * sequence, batch * config.heads * sequence**2
    wide = size.matmul * tokens * c.query_width
    narrow = size.matmul * tokens * c.kv_width
    if method == "sdpa" and not c.dropout:
        parts = {"query": wide, "key": narrow, "value": narrow, "logsumexp": 4 * batch * c.heads * sequence}
        if c.window is not None and c.window < sequence:
            # The kernel knows the causal mask by itself; a window is an S×S tensor.
            parts["window mask"] = size.matmul * sequence**2
    else:
        one = size.matmul
        if method == "sdpa":
            # On a CPU, dropout sends the fused attention to a path that works in fp32 and expands grouped heads.
            one = 4
            parts = dict.fromkeys(("query", "key", "value"), one * tokens * c.query_width)
        else:
            parts = {"query": wide, "key": narrow, "value": narrow}
        parts["softmax output"] = one * pairs
        if c.dropout:
            parts["weights' dropout mask"] = parts["dropped weights"] = one * pairs
    # The fused kernel's output and the input of the output projection are one tensor.
    parts["attention output's input"] = wide
    return parts


def _mlp_bytes(config, tokens, size) -> dict[str, int]:
    """Inside the MLP of one layer, or inside all experts together: their tokens add up to experts_per_token each."""
    c = config
    visits = c.experts_per_token * tokens if c.experts else tokens
    hidden = size.matmul * visits * c.d_ff
    if c.mlp == "swiglu":
        parts = {"gate": hidden, "silu": hidden, "up": hidden, "mlp down's input": hidden}
    else:
        parts = {"gelu input": hidden, "mlp down's input": hidden}
    if c.dropout:
        parts["mlp dropout mask"] = size.matmul * visits * c.d_model
    if c.experts:
        # The routing weights multiply the experts' outputs: both factors stay, and so does what is added up.
        parts["expert outputs"] = (size.matmul + size.stream) * visits * c.d_model
        parts["routing weights"] = (4 + size.stream) * visits
    return parts


def _linear_inputs(config, tokens, size) -> dict[str, int]:
    """The outputs of the norms, kept as inputs of linear layers: once, or, under autocast, cast once for each."""
    c, row = config, size.matmul * tokens * config.d_model
    branches = 2 if c.mlp == "swiglu" else 1
    visits = c.experts_per_token if c.experts else 0
    if size.casts:
        parts = {"query, key, value inputs": 3 * row}
        parts["mlp inputs"] = branches * row * visits + row if c.experts else branches * row
    else:
        parts = {"query, key, value inputs": row}
        shared = c.norms_per_block == 1
        parts["mlp inputs"] = (0 if shared else row) + row * visits
    return parts


def _weight_copies(config: TransformerConfig) -> int:
    """bf16 copies of one layer's matrices, which autocast makes and the backward pass needs."""
    c = config
    mlp = (3 if c.mlp == "swiglu" else 2) * c.d_model * c.d_ff
    mlp = c.experts * mlp + c.d_model * c.experts if c.experts else mlp
    return 2 * (2 * c.d_model * (c.query_width + c.kv_width) + mlp)


def saved_block_bytes(
    config: TransformerConfig, batch: int, sequence: int, *, precision: str = "fp32", attention: str = "eager"
) -> Breakdown:
    """Bytes that one block keeps for its backward pass, by component; its arguments are `saved_activation_bytes`'s."""
    check_sizes(config, batch, sequence)
    size = known("precision", precision, ACTIVATION_PRECISIONS)
    known("attention", attention, ATTENTION_BACKWARD_MATMULS)
    c, tokens = config, batch * sequence
    norm = _norm_bytes(c, tokens, size)
    inputs = _linear_inputs(c, tokens, size)
    parts = {"attention norm": norm, "query, key, value inputs": inputs["query, key, value inputs"]}
    parts |= _attention_bytes(c, batch, sequence, size, attention)
    if c.dropout:
        parts["attention dropout mask"] = size.matmul * tokens * c.d_model
    if c.norms_per_block == 2:
        parts["mlp norm"] = norm
    parts["mlp inputs"] = inputs["mlp inputs"]
    parts |= _mlp_bytes(c, tokens, size)
    if size.casts:
        parts["bf16 copies of weights"] = _weight_copies(c)
    return Breakdown(parts, unit="bytes")


def saved_activation_bytes(
    config: TransformerConfig,
    batch: int,
    sequence: int,
    *,
    precision: str = "fp32",
    attention: str = "eager",
    checkpointing: bool = False,
) -> Breakdown:
    """Bytes that a forward pass with its cross-entropy loss keeps for the backward pass, by component.

    `precision`: "fp32", "bf16" (a bf16 model), or "autocast" (torch.autocast to bf16 over fp32 weights, whose bf16
    copies are kept too). `attention`: "eager" (softmax written out) or "sdpa" (torch's fused function).
    `checkpointing`: keep only each block's input (torch.utils.checkpoint, use_reentrant=False).
    Convention: every storage once, 0 bytes off `lm.DecoderOnly` and `lm.Llama` on a CPU; the loss is torch's
    F.cross_entropy of fp32 logits (`lm.cross_entropy` keeps 4 bytes less, bf16 logits half of its part).
    Grouped heads are not expanded; with dropout above 0 each of its three places in a block counts (a mask as wide as
    its input). A mixture of experts drops no token. On CUDA dropout masks take one byte, and the softmax works in fp32
    under autocast. Left out: parameters, buffers, token ids, the logits, temporary tensors, allocator rounding.
    Source: after Korthikanti et al. 2022, arXiv:2205.05198, section 4.1, term by term against torch.
    """
    size = known("precision", precision, ACTIVATION_PRECISIONS)
    block = saved_block_bytes(config, batch, sequence, precision=precision, attention=attention)
    c, tokens = config, batch * sequence
    if checkpointing:
        parts = {"block inputs": c.layers * size.stream * tokens * c.d_model}
    else:
        parts = {name: c.layers * value for name, value in block.items()}
    parts["final norm"] = _norm_bytes(c, tokens, size)
    parts["head's input"] = size.matmul * tokens * c.d_model
    if size.casts:
        parts["bf16 copy of head"] = 2 * c.d_model * c.vocab
    # Log-probabilities in fp32, and one number for the mean.
    parts["cross-entropy"] = 4 * (tokens * c.vocab + 1)
    return Breakdown(parts, unit="bytes")


def paper_block_bytes(config: TransformerConfig, batch: int, sequence: int, *, bytes_per_element: int = 2) -> Breakdown:
    """Bytes that one GPT block keeps according to the paper of 2022, term by term: 34·BSD + 5·ABS² at 2 bytes, F = 4D.

    With p bytes per element: 2BSD(p(E + 4) + 1) + ABS²(2p + 1), E = F/D, dropout everywhere, one byte per mask element.
    Left out there: mean and 1/deviation of the norms. The two norms keep their inputs, the linear layers theirs.
    Source: Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer Models", equation 2.
    """
    check_sizes(config, batch, sequence)
    p = positive_int("bytes_per_element", bytes_per_element)
    row = batch * sequence * config.d_model
    pairs = config.heads * batch * sequence**2
    hidden = batch * sequence * config.d_ff
    parts = {
        "layer norm inputs": 2 * p * row,
        "query, key, value input": p * row,
        "query and key": 2 * p * row,
        "value": p * row,
        "attention output's input": p * row,
        "mlp up's input": p * row,
        "gelu input": p * hidden,
        "mlp down's input": p * hidden,
        "softmax output": p * pairs,
        "weights' dropout mask": pairs,
        "dropped weights": p * pairs,
        "attention dropout mask": row,
        "mlp dropout mask": row,
    }
    return Breakdown(parts, unit="bytes")
