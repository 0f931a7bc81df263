"""Sums over a program: parameters, FLOPs, bytes saved for backward, cache, memory traffic.

B batch · S sequence · D d_model · A heads · K kv_heads · h head_dim · F d_ff · V vocab · L layers.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Unpack

from cs336kit.predict.breakdown import Breakdown
from cs336kit.predict.checks import known, positive_int
from cs336kit.predict.decoder.programs import model_leaves, program
from cs336kit.predict.decoder.step import StepOptions
from cs336kit.predict.engine.collectives import OF_EXPERTS
from cs336kit.predict.engine.operations import HOST_INDICES, INDICES, Item, Op, Repeat, Storage, blocks, shapes
from cs336kit.predict.engine.products import computed_again, products
from cs336kit.predict.precision import ELEMENT_BYTES
from cs336kit.predict.transformer import TransformerConfig, check_config

# -- parameters ------------------------------------------------------------------------------------------------------


def parameters(config: TransformerConfig) -> Breakdown:
    """Parameters of the whole model by component; a shared matrix is counted once.

    A linear layer from n to m features has n·m weights, and m biases where `config.bias` says so (for the head and the router:
    `head_bias` and `router_bias`). A tied head costs nothing. Exact: equal to the sum of `numel` over a real model's parameters.
    """
    check_config(config)
    parts = Counter[str]()
    for leaf in model_leaves(config):
        parts[leaf.component] += leaf.count * leaf.tensor.elements
    return Breakdown({name: parts[name] for name in _in_order(parts)}, unit="parameters")


def without_embeddings(config: TransformerConfig) -> int:
    """All parameters except those of the tables and the head."""
    counted = parameters(config)
    return counted.total - sum(counted.get(name, 0) for name in ("token embedding", "position embedding", "head"))


def _in_order(parts: dict[str, int]) -> list[str]:
    """Tables first, then the block's components in its order, the norms, and the head (even if it is tied)."""
    last = ("norms", "final norm", "head")
    return [*(name for name in parts if name not in last), *last]


def parameter_shapes(config: TransformerConfig) -> list[tuple[int, ...]]:
    """The shape of every parameter tensor of `lm.DecoderOnly`, (outputs, inputs) for a matrix; equal ones side by side.

    An optimizer keeps its state for these tensors. A tied head has no tensor of its own.
    """
    check_config(config)
    return shapes(model_leaves(config))


def active_parameters(config: TransformerConfig) -> Breakdown:
    """Parameters used in computing one token: of each layer's experts, only those that it visits.

    Equal to `parameters` for a dense model. Embedding tables are counted whole, as published counts do.
    """
    parts = dict(parameters(config).items())
    if config.experts:
        for name in OF_EXPERTS & parts.keys():
            parts[name] = parts[name] // config.experts * config.experts_per_token
    return Breakdown(parts, unit="parameters")


def matmul_parameters(config: TransformerConfig) -> int:
    """Weights that one token is multiplied by in a forward pass: P in 2·P FLOPs per token.

    Biases, norms and embedding look-ups are not matrix products. The head counts whether tied or not; of the experts, only the
    visited ones count.
    """
    flops = forward_flops(config, batch=1, sequence=1)
    products: int = sum(count for name, count in flops.items() if name not in ("attention scores", "attention values"))
    return products // 2


# -- FLOPs -----------------------------------------------------------------------------------------------------------


def forward_flops(config: TransformerConfig, *, batch: int, sequence: int, causal: bool = False) -> Breakdown:
    """FLOPs of one forward pass over `batch` sequences of `sequence` tokens, logits included, by component.

    Convention: matrix products only, 2·m·n·k each. Attention is counted over all S×S pairs, as counters and kernels
    without masking do, whatever the window; `causal=True` counts half of them, or the band of a sliding window.
    In a mixture of experts, each token counts the router and the experts that it visits. Left out: embedding look-ups,
    norms, softmax, activations. Errors: ValueError for sizes below 1 or beyond the positions.
    """
    parts = Counter[str]()
    walked = program(config, batch=batch, sequence=sequence, causal=causal, attention="sdpa", phase="forward")
    for op, count in walked.operations():
        for component, flops in op.flops:
            parts[component] += count * flops
    return Breakdown(parts, unit="FLOPs")


def training_flops(
    config: TransformerConfig,
    *,
    batch: int,
    sequence: int,
    **options: Unpack[StepOptions],
) -> Breakdown:
    """FLOPs of one forward and backward pass by component, with the recomputation of checkpointing as one more.

    Each matrix product of the forward pass has two in the backward pass, one for each of its inputs that needs a gradient: 3×
    forward, exactly, when everything is trained. With `attention="sdpa"`, attention has five in its backward pass instead of
    four, because the fused kernel computes the scores again. It has four where torch does not take the fused kernel: on a CPU
    with dropout, and on CUDA (`device="cuda"`) in fp32 with grouped heads. `options` are those of `program`: checkpointing,
    frozen components, LoRA.

    Recomputation follows torch.utils.checkpoint with use_reentrant=False: it stops as soon as every saved tensor is back. A dense
    block's last linear saves only its input, so it is not run again, unless dropout follows it. In a mixture of experts it is,
    because the routing weights multiply its output.

    Convention and what is left out: as in `forward_flops`; the optimizer's element-wise work is left out, too.
    """
    walked = program(config, batch=batch, sequence=sequence, **options)
    parts = Counter[str]()
    for op, count in walked.operations():
        for row in products(op):
            parts[row.component] += count * (row.forward + row.backward)
    if again := sum(count * op.forward_flops for op, count in computed_again(walked.items)):
        parts["recomputed forward"] = again
    return Breakdown(parts, unit="FLOPs")


# -- bytes -----------------------------------------------------------------------------------------------------------


def saved_activation_bytes(
    config: TransformerConfig,
    *,
    batch: int,
    sequence: int,
    **options: Unpack[StepOptions],
) -> Breakdown:
    """Bytes that a forward pass with its cross-entropy loss saves for the backward pass, by component.

    - `precision`: "fp32", "bf16" (a bf16 model), "autocast" (torch.autocast to bf16 over fp32 weights, whose bf16 copies are
      saved too), or "fp16" and "autocast-fp16", the same with fp16.
    - `attention`: "eager" (softmax written out) or "sdpa" (torch's fused function).
    - `checkpointing`: save only each block's input (torch.utils.checkpoint, use_reentrant=False).
    - `options`: these, `device="cuda"` and others of `program`.

    Convention: every storage counts once. Exact to the byte for `lm.DecoderOnly` and `lm.Llama` on both devices. The loss is
    torch's F.cross_entropy of fp32 logits (`lm.cross_entropy` saves 4 bytes less; with bf16 logits, its part is half).
    Grouped heads are not expanded. With dropout above 0, each of its three places in a block counts (a mask as wide as
    its input). A mixture of experts drops no token. On CUDA, dropout masks take one byte, norms save fp32 statistics,
    autocast runs the softmax in fp32, and fused attention supports dropout. Left out: parameters, buffers, token ids and
    routing indices, the logits, temporary tensors, rounding.
    Source: after Korthikanti et al. 2022, arXiv:2205.05198, section 4.1, term by term against torch.
    """
    walked = program(config, batch=batch, sequence=sequence, **options)
    return Breakdown(_kept(walked.items), unit="bytes")


def saved_block_bytes(
    config: TransformerConfig, *, batch: int, sequence: int, **options: Unpack[StepOptions]
) -> Breakdown:
    """Bytes that one block (the first) saves for its backward pass, by component; arguments as in `saved_activation_bytes`."""
    walked = program(config, batch=batch, sequence=sequence, **options)
    block, _ = next(blocks(walked.items))
    return Breakdown(_kept(block.items), unit="bytes")


def _kept(items: Sequence[Item]) -> dict[str, int]:
    """Bytes of the storages that operations keep, each once, by name."""
    parts: dict[str, int] = {}
    seen: set[Storage] = set()

    def walk(items: Sequence[Item], count: int) -> None:
        for item in items:
            if isinstance(item, Op):
                if item.saves:
                    keep(item.saves, count)
            elif isinstance(item, Repeat):
                if item.checkpoint is None:
                    walk(item.items, count * item.count)
                elif item.name == "block":
                    parts["block inputs"] = parts.get("block inputs", 0) + count * item.count * item.checkpoint.bytes
                else:
                    keep((item.checkpoint,), count)

    def keep(storages: tuple[Storage, ...], count: int) -> None:
        for storage in storages:
            if not storage.leaf and storage not in seen and storage.name not in _NO_GRADIENTS:
                seen.add(storage)
                parts[storage.name] = parts.get(storage.name, 0) + storage.bytes * count

    walk(items, 1)
    return parts


#: Storages through which no gradient flows.
_NO_GRADIENTS = (INDICES, HOST_INDICES)


def kv_cache_bytes(
    config: TransformerConfig, *, batch: int, sequence: int, precision: str = "bf16", page: int | None = None,
    scales: str | None = None,
) -> int:  # fmt: skip
    """Bytes of the keys and values of `sequence` tokens in every layer: 2·L·B·S·K·h elements.

    A sliding window keeps only the last `window` tokens; latent attention keeps its latent and the rotary part of a key.

    - `precision`: a type of CACHE_TYPES, or "int4" (two codes in a byte, each row in whole bytes).
    - `page`: tokens of a page; the last page counts whole.
    - `scales`: element type of the scales of a quantized cache, one for each row, that is, for each head and token of keys and of
      values; None leaves them out.
    """
    size = known("precision of a cache", precision, {**CACHE_TYPES, "int4": 0})
    scale = 0 if scales is None else known("type of scales", scales, ELEMENT_BYTES)
    tokens = 1 if page is None else positive_int("page", page)
    walked = program(config, batch=batch, sequence=sequence, phase="prefill", attention="sdpa")
    total = 0
    for (B, K, T, h), count in walked.cached:
        row = (size * h if size else -(-h // 2)) + scale
        total += count * B * K * -(-T // tokens) * tokens * row
    return total


#: Bytes of one element of a cache, by type; both fp8 types may also be given by their own names.
CACHE_TYPES = {name: ELEMENT_BYTES[name] for name in ("fp32", "bf16", "fp16", "fp8", "int8")}
CACHE_TYPES |= dict.fromkeys(("fp8_e4m3", "fp8_e5m2"), ELEMENT_BYTES["fp8"])


def traffic_bytes(config: TransformerConfig, *, batch: int, sequence: int, **options: Unpack[StepOptions]) -> Breakdown:
    """Bytes that a forward pass must at least read and write, by part of the model: each operation's tensors once.

    Views move nothing. `options` are those of `program`. Left out: what stays in an on-chip cache between two operations (less),
    and what a kernel reads twice (more). For a roofline, forward FLOPs over these bytes are the arithmetic intensity.
    """
    parts = Counter[str]()
    for op, count in program(config, batch=batch, sequence=sequence, **options).operations():
        if moved := op.forward_bytes:
            parts[op.part] += count * moved
    return Breakdown(parts, unit="bytes")
