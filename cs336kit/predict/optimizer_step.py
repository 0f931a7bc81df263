"""Bytes that one optimizer step needs for a moment, beyond parameters, gradients and state."""

from cs336kit.predict._common.checks import known, positive_int
from cs336kit.predict.optimizer_state import ELEMENT_BYTES

#: Parameter-sized lists of temporaries that torch's foreach implementation has alive at once: without weight decay in
#: the gradient, and with it (decay that is added to the gradient makes a copy of all gradients).
FOREACH_COPIES = {
    "sgd": (0, 1),
    "momentum": (0, 1),
    "adagrad": (2, 2),
    "rmsprop": (1, 2),
    "adam": (1, 1),
    "adamw": (1, 1),
    "adamax": (1, 1),
    "nadam": (1, 2),
    "radam": (1, 1),
    "adadelta": (2, 3),
    "asgd": (1, 1),
}


def optimizer_step_bytes(
    optimizer: str,
    *,
    parameters: int,
    precision: str = "fp32",
    implementation: str = "foreach",
    weight_decay: bool | float = False,
) -> int:
    """Peak of the temporaries of one step, from the second step on, for torch's foreach or fused implementation.

    foreach runs each operation over all tensors at once, so a temporary such as √v̂ exists for all of them together:
    as large as the model, once to three times. Fused kernels keep temporaries in registers: 0. A plain for-loop has
    them for one tensor at a time, a few times the largest tensor; it depends on the order and is left out.
    `weight_decay` says whether the decay is on (AdamW's never costs). On CUDA, foreach is torch's default.
    Errors: ValueError for unknown names. Source: torch.optim 2.13, `_multi_tensor_*`.
    """
    plain, decayed = known("optimizer", optimizer.lower() if isinstance(optimizer, str) else optimizer, FOREACH_COPIES)
    known("implementation", implementation, {"foreach": True, "fused": True})
    element = known("precision", precision, ELEMENT_BYTES)
    if implementation == "fused":
        return 0
    return (decayed if weight_decay else plain) * positive_int("parameters", parameters) * element
