"""The two napkin questions: how long does a training run take, and how large a model fits?

Symbols: P parameters, N tokens. One FLOP is one multiply or one add. Time is in days of 86,400 seconds.
"""

from cs336kit.predict.breakdown import Breakdown
from cs336kit.predict.checks import boolean, count, finite_results, fraction, positive_int, positive_number
from cs336kit.predict.optimizers import OPTIMIZERS, optimizer_spec
from cs336kit.predict.precision import ELEMENT_BYTES, PrecisionPolicy, policy

SECONDS_PER_DAY = 24 * 60 * 60

#: Optimizers whose state is a fixed number of values for every parameter.
NAPKIN_OPTIMIZERS = tuple(name for name, spec in OPTIMIZERS.items() if not spec.shaped)


def matmul_flops(M: int, K: int, N: int, *, batch: int = 1) -> int:
    """FLOPs of `batch` products of an M × K by a K × N matrix: 2·M·K·N each.

    Convention: a multiply and an add are two FLOPs, so an output element costs K multiplies and K adds
    (the first add is to zero). Left out: reading and writing the operands. Errors: ValueError for sizes below 1.
    """
    M, K, N, batch = (positive_int(name, n) for name, n in {"M": M, "K": K, "N": N, "batch": batch}.items())
    return 2 * batch * M * K * N


def six_nd(parameters: float, *, tokens: float) -> int:
    """FLOPs of training P parameters on N tokens: 6PN, which the literature writes 6ND with N parameters and D tokens.

    Each token multiplies and adds once with each weight in the forward pass (2), and twice in the backward pass: for
    the gradient of the input and for that of the weight (4). Left out: the S² part of attention, embeddings (looked
    up, not multiplied), element-wise work, recomputation. Errors: ValueError for counts below 1.
    Source: Kaplan et al. 2020, "Scaling Laws for Neural Language Models", section 2.1.
    """
    return 6 * count("parameters", parameters) * count("tokens", tokens)


@finite_results()
def delivered_flops(accelerators: int, *, peak_flops_per_second: float, days: float, mfu: float = 1.0) -> float:
    """FLOPs that `accelerators` deliver in `days`, each at the fraction `mfu` of its peak FLOP/s.

    Give the dense peak: the sparse one on a datasheet is twice as large, and training does not reach it.
    Errors: ValueError for impossible values, such as an MFU of 50 instead of 0.5.
    """
    accelerators = count("accelerators", accelerators)
    peak = positive_number("peak_flops_per_second", peak_flops_per_second)
    days = positive_number("days", days)
    return float(accelerators * peak * fraction("mfu", mfu) * SECONDS_PER_DAY * days)


@finite_results()
def training_days(
    parameters: float, *, tokens: float, accelerators: int, peak_flops_per_second: float, mfu: float
) -> float:
    """Days to train P parameters on N tokens: 6PN over the FLOPs that the accelerators deliver in a day.

    `mfu` is the model FLOPs utilization, the part of the (dense) peak that the run reaches: 0.4 to 0.5 is good.
    Left out: what 6PN leaves out, restarts, evaluation. Errors: ValueError for impossible values.
    """
    a_day = delivered_flops(accelerators, peak_flops_per_second=peak_flops_per_second, days=1, mfu=mfu)
    return six_nd(parameters, tokens=tokens) / a_day


def bytes_per_parameter(optimizer: str = "adamw", *, precision: str | PrecisionPolicy = "fp32") -> Breakdown:
    """Bytes that training keeps for every parameter, by part: parameters, gradients, master weights, optimizer state.

    Left out: activations, temporary copies, the optimizer's step counters (4 bytes per tensor, not per parameter).
    Errors: ValueError for an unknown optimizer or precision, and for optimizers whose state depends on shapes (Adafactor,
    Muon, 8 bits). Source: Rajbhandari et al. 2020, "ZeRO", section 3.1.
    """
    spec = optimizer_spec(optimizer)
    if spec.shaped:
        raise ValueError(
            f"{optimizer} keeps state by the shapes of the parameters, not a fixed number of bytes for each: call "
            f"optimizer_state_bytes({optimizer!r}, shapes=…), or training_memory(…, optimizer={optimizer!r})."
        )
    kind = policy(precision)
    parts = {
        "parameters": ELEMENT_BYTES[kind.weights],
        "gradients": ELEMENT_BYTES[kind.gradients],
        "master weights": ELEMENT_BYTES[kind.master_weights] if kind.master_weights else 0,
        "optimizer state": len(spec.tensors) * ELEMENT_BYTES[kind.states],
    }
    return Breakdown(parts, unit="bytes/parameter")


@finite_results()
def largest_model(accelerators: int, *, memory_bytes: float, bytes_per_parameter: float, sharded: bool = True) -> int:
    """Parameters that fit in `accelerators` × `memory_bytes`, if only their own bytes need memory.

    `sharded`: every part is split over all accelerators (ZeRO stage 3, FSDP). With `sharded=False` each of them holds
    a full replica (plain data parallelism), so more accelerators do not fit a larger model.
    Left out: activations, buffers, fragmentation. Rounded down. Errors: ValueError for impossible values.
    """
    accelerators = count("accelerators", accelerators)
    memory = positive_number("memory_bytes", memory_bytes)
    each = positive_number("bytes_per_parameter", bytes_per_parameter)
    return int((accelerators if boolean("sharded", sharded) else 1) * memory // each)
