"""Memory of a training step: the four buckets, the moment of its peak, and what follows from them.

P parameters · B batch · S sequence. Everything is per replica: one model on one device, before any sharding.
"""

from cs336kit.predict._common.breakdown import Breakdown
from cs336kit.predict._common.checks import known, positive_int, positive_number
from cs336kit.predict.activations import saved_activation_bytes
from cs336kit.predict.napkin import BYTES_OF_PARTS
from cs336kit.predict.optimizer_state import optimizer_state_bytes
from cs336kit.predict.parameters import parameter_shapes, parameters, shapes_of_parts
from cs336kit.predict.transformer import TransformerConfig

#: Training precision → precision of the activations, and of the tensors that the optimizer updates.
TRAINING_PRECISIONS = {
    "fp32": ("fp32", "fp32"),
    "bf16": ("bf16", "bf16"),
    "autocast": ("autocast", "fp32"),
    "mixed": ("bf16", "fp32"),
    "mixed, fp32 gradients": ("bf16", "fp32"),
}


def training_memory(
    config: TransformerConfig,
    batch: int,
    sequence: int,
    *,
    precision: str = "fp32",
    optimizer: str = "adamw",
    attention: str = "eager",
    checkpointing: bool = False,
) -> Breakdown:
    """Bytes of the buckets of training: parameters, gradients, optimizer state, activations kept for backward.

    `precision`: "fp32"; "autocast" (fp32 everything, bf16 products); "bf16" (bf16 everything); "mixed" (bf16 model and
    gradients, fp32 master weights in the optimizer); "mixed, fp32 gradients". In fp32 with AdamW, parameters, gradients
    and state are 16P bytes, plus 4 for each parameter tensor's step counter.
    They add up to what exists when the forward pass ends and old gradients are kept; `step_peak` says what is alive at
    once. Left out: temporary tensors, the CUDA context, fragmentation, communication buffers.
    """
    activations, updated = known("training precision", precision, TRAINING_PRECISIONS)
    parts = _per_parameter(config, precision, optimizer, updated)
    saved = saved_activation_bytes(
        config, batch, sequence, precision=activations, attention=attention, checkpointing=checkpointing
    )
    return Breakdown({**parts, "activations": saved.total}, unit="bytes")


def _per_parameter(config, precision, optimizer, updated) -> dict[str, int]:
    size = BYTES_OF_PARTS[precision]
    count = parameters(config).total
    # Two optimizers keep state by shape; for all others the counts are enough, and quicker.
    if isinstance(optimizer, str) and optimizer.lower() in ("adafactor", "muon"):
        state = optimizer_state_bytes(optimizer, shapes=parameter_shapes(config), precision=updated)
    else:
        first, block, last = shapes_of_parts(config)
        tensors = len(first) + config.layers * len(block) + len(last)
        state = optimizer_state_bytes(optimizer, parameters=count, tensors=tensors, precision=updated)
    parts = {
        "parameters": size["weights"] * count,
        "gradients": size["gradients"] * count,
        "optimizer state": state.total,
    }
    if size["master weights"]:
        parts["master weights"] = size["master weights"] * count
    return parts


def _affine(config, sequence, options) -> tuple[int, int]:
    """Total training memory is fixed + each · batch: the weights do not grow with the batch, activations do."""
    one = training_memory(config, 1, sequence, **options).total
    two = training_memory(config, 2, sequence, **options).total
    return 2 * one - two, two - one


def largest_batch(config: TransformerConfig, sequence: int, *, memory_bytes: float, **options) -> int:
    """The largest batch whose buckets fit into `memory_bytes`; 0 if not even one sequence does.

    `options` are those of `training_memory`. Left out: temporary tensors, so leave a few per cent of the device free.
    """
    fixed, each = _affine(config, sequence, options)
    return max(0, int((positive_number("memory_bytes", memory_bytes) - fixed) // each))


def break_even_batch(
    config: TransformerConfig, sequence: int, *, precision: str = "mixed, fp32 gradients", than: str = "fp32", **options
) -> int:
    """B_min: the smallest batch at which training in `precision` takes no more memory than in `than`.

    A mixed policy keeps more for each parameter (a second copy of the weights) and less for each token. Below B_min it
    costs memory. Options are those of `training_memory`. Errors: ValueError if it never pays.
    """
    fixed, each = _affine(config, sequence, {**options, "precision": precision})
    other_fixed, other_each = _affine(config, sequence, {**options, "precision": than})
    extra, saving = fixed - other_fixed, other_each - each
    if extra <= 0:
        return 1
    if saving <= 0:
        raise ValueError(
            f"{precision!r} saves nothing per sequence over {than!r} here, so no batch makes up for its weights"
        )
    return -(-extra // saving)


def paper_break_even_batch(config: TransformerConfig, sequence: int) -> float:
    """B_min of the decoder notes, 6D²/(8DS + AS²): activations of the 2022 paper at E = 4, weights 12LD² only."""
    S = positive_int("sequence", sequence)
    return 6 * config.d_model**2 / (8 * config.d_model * S + config.heads * S**2)
