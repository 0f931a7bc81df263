"""The two napkin questions: how long does a training run take, and how large a model fits?

Symbols: P parameters, N tokens. One FLOP is one multiply or one add. Time is in days of 86,400 seconds.
"""

from cs336kit.predict._common.breakdown import Breakdown
from cs336kit.predict._common.checks import count, fraction, known, positive_int, positive_number
from cs336kit.predict.optimizer_state import OPTIMIZERS

SECONDS_PER_DAY = 24 * 60 * 60

#: Values that an optimizer remembers for every parameter, besides the parameter and its gradient.
STATES_PER_PARAMETER = {
    **{name: len(OPTIMIZERS[name].tensors) for name in ("sgd", "momentum", "adagrad", "rmsprop", "adam", "adamw")},
    "lion": 1,  # not in torch.optim: Chen et al. 2023, "Symbolic Discovery of Optimization Algorithms", algorithm 2
}

#: Bytes of one value of each part, in the usual ways to mix precisions.
BYTES_OF_PARTS = {
    # everything in single precision
    "fp32": {"weights": 4, "gradients": 4, "master weights": 0, "state": 4},
    # torch.autocast: its bf16 copies of the weights live as long as the activations and are counted with them
    "autocast": {"weights": 4, "gradients": 4, "master weights": 0, "state": 4},
    # bf16 weights to compute with, an fp32 copy to update (ZeRO, Megatron-LM)
    "mixed": {"weights": 2, "gradients": 2, "master weights": 4, "state": 4},
    # the same, with gradients accumulated in fp32
    "mixed, fp32 gradients": {"weights": 2, "gradients": 4, "master weights": 4, "state": 4},
    # no fp32 anywhere: cheapest, and small updates are lost
    "bf16": {"weights": 2, "gradients": 2, "master weights": 0, "state": 2},
}


def matmul_flops(rows: int, inner: int, columns: int, *, batch: int = 1) -> int:
    """FLOPs of `batch` products of a (rows, inner) by an (inner, columns) matrix: 2 · rows · inner · columns each.

    Convention: a multiply and an add are two FLOPs, so an output element costs `inner` multiplies and `inner` adds
    (the first add is to zero). Left out: reading and writing the operands. Errors: ValueError for sizes below 1.
    """
    sizes = {"rows": rows, "inner": inner, "columns": columns, "batch": batch}
    rows, inner, columns, batch = (positive_int(name, value) for name, value in sizes.items())
    return 2 * batch * rows * inner * columns


def six_pn_flops(parameters: float, *, tokens: float) -> int:
    """FLOPs of training P parameters on N tokens: 6PN.

    Each token multiplies and adds once with each weight in the forward pass (2), and twice in the backward pass: for
    the gradient of the input and for that of the weight (4). Left out: the S² part of attention, embeddings (looked
    up, not multiplied), element-wise work, recomputation. Errors: ValueError for counts below 1.
    Source: Kaplan et al. 2020, "Scaling Laws for Neural Language Models", section 2.1.
    """
    return 6 * count("parameters", parameters) * count("tokens", tokens)


def delivered_flops(accelerators: int, *, peak_flops_per_second: float, days: float, mfu: float = 1.0) -> float:
    """FLOPs that `accelerators` deliver in `days`, each at the fraction `mfu` of its peak FLOP/s.

    Give the dense peak: the sparse one on a datasheet is twice as large and not reached by training.
    Errors: ValueError for nonsense, such as an MFU of 50 instead of 0.5.
    """
    accelerators = count("accelerators", accelerators)
    peak = positive_number("peak_flops_per_second", peak_flops_per_second)
    days = positive_number("days", days)
    return float(accelerators * peak * fraction("mfu", mfu) * SECONDS_PER_DAY * days)


def training_days(
    parameters: float, *, tokens: float, accelerators: int, peak_flops_per_second: float, mfu: float
) -> float:
    """Days to train P parameters on N tokens: 6PN over the FLOPs that the accelerators deliver in a day.

    `mfu` is the model FLOPs utilization, the part of the (dense) peak that the run reaches: 0.4 to 0.5 is good.
    Left out: what 6PN leaves out, restarts, evaluation. Errors: ValueError for nonsense.
    """
    a_day = delivered_flops(accelerators, peak_flops_per_second=peak_flops_per_second, days=1, mfu=mfu)
    return six_pn_flops(parameters, tokens=tokens) / a_day


def bytes_per_parameter(optimizer: str = "adamw", *, precision: str = "fp32") -> Breakdown:
    """Bytes that training keeps for every parameter, by part: weights, gradients, master weights, optimizer states.

    Left out: activations, temporary copies, the optimizer's step counters (4 bytes a tensor, not a parameter).
    Errors: ValueError for an unknown optimizer or precision. Source: Rajbhandari et al. 2020, "ZeRO", section 3.1.
    """
    states = known("optimizer", optimizer, STATES_PER_PARAMETER)
    parts = known("precision", precision, BYTES_OF_PARTS)
    amounts = {name: parts[name] for name in ("weights", "gradients", "master weights")}
    return Breakdown({**amounts, "optimizer states": states * parts["state"]}, unit="bytes/parameter")


def largest_model(accelerators: int, *, memory_bytes: float, bytes_per_parameter: float, sharded: bool = True) -> int:
    """Parameters that fit in `accelerators` × `memory_bytes`, if nothing but their own bytes needs room.

    `sharded`: every part is split over all accelerators (ZeRO stage 3, FSDP). With `sharded=False` each of them holds
    a full replica (plain data parallelism), so that more accelerators do not fit a larger model.
    Left out: activations, buffers, fragmentation. Rounded down. Errors: ValueError for nonsense.
    """
    accelerators = count("accelerators", accelerators)
    memory = positive_number("memory_bytes", memory_bytes)
    each = positive_number("bytes_per_parameter", bytes_per_parameter)
    if not isinstance(sharded, bool):
        raise ValueError(f"sharded must be True or False, got {sharded!r}.")
    return int((accelerators if sharded else 1) * memory // each)
