"""Bytes that an optimizer keeps between steps, and bytes that one step needs for a moment."""

from collections.abc import Iterable
from math import prod
from typing import NamedTuple

from cs336kit.predict._common.breakdown import Breakdown
from cs336kit.predict._common.checks import known, non_negative_int, positive_int

#: Bytes of one element of the precisions in which torch's optimizers keep their state.
ELEMENT_BYTES = {"fp64": 8, "fp32": 4, "bf16": 2, "fp16": 2}

#: A step counter, or another scalar that torch keeps for each parameter tensor, is a 0-d fp32 tensor.
SCALAR_BYTES = 4


class Kept(NamedTuple):
    """What torch.optim keeps for each parameter tensor, under torch's names."""

    #: tensors of the parameter's shape and dtype
    tensors: tuple[str, ...] = ()
    #: 0-d fp32 tensors
    scalars: tuple[str, ...] = ("step",)
    #: option → the one more tensor that it costs
    options: dict[str, str] = {}  # noqa: RUF012


_ADAM = Kept(("exp_avg", "exp_avg_sq"), options={"amsgrad": "max_exp_avg_sq"})

#: The optimizers by the lower-case name of torch's class; "momentum" is SGD with momentum.
OPTIMIZERS = {
    "sgd": Kept((), (), {"momentum": "momentum_buffer"}),
    "momentum": Kept(("momentum_buffer",), ()),
    "adagrad": Kept(("sum",)),
    "rmsprop": Kept(("square_avg",), options={"momentum": "momentum_buffer", "centered": "grad_avg"}),
    "adam": _ADAM,
    "adamw": _ADAM,
    "adamax": Kept(("exp_avg", "exp_inf")),
    "nadam": Kept(("exp_avg", "exp_avg_sq"), ("step", "mu_product")),
    "radam": Kept(("exp_avg", "exp_avg_sq")),
    "adadelta": Kept(("square_avg", "acc_delta")),
    "asgd": Kept(("ax",), ("step", "eta", "mu")),
    "rprop": Kept(("prev", "step_size")),
    "sparseadam": Kept(("exp_avg", "exp_avg_sq"), ()),
    "muon": Kept(("momentum_buffer",), ()),
    "adafactor": Kept(("row_var", "col_var", "variance")),
}


def optimizer_state_bytes(
    optimizer: str,
    *,
    shapes: Iterable[tuple[int, ...]] | None = None,
    parameters: int | None = None,
    tensors: int | None = None,
    precision: str = "fp32",
    momentum: bool | float = False,
    centered: bool = False,
    amsgrad: bool = False,
) -> Breakdown:
    """Bytes of torch.optim's state by state tensor, once every parameter has had a gradient.

    Give `shapes`, one tuple for each parameter tensor, or the counts `parameters` (elements) and `tensors`; Adafactor
    and Muon need the shapes. `precision` is the dtype of the parameters, which their state follows: pure bf16 training
    keeps bf16 state. Names are torch's, in any case ("AdamW"); "momentum" is SGD with momentum.
    Convention: each tensor also costs 4 bytes per fp32 scalar, such as the step (8 under an fp64 default dtype).
    Left out: master weights, LBFGS (its history depends on the run). Errors: ValueError for unknown names, options
    that the optimizer does not have, and shapes that it refuses. Source: the state dictionaries of torch.optim 2.13.
    """
    kept = known("optimizer", optimizer.lower() if isinstance(optimizer, str) else optimizer, OPTIMIZERS)
    element = known("precision", precision, ELEMENT_BYTES)
    names = list(kept.tensors)
    for option, value in {"momentum": momentum, "centered": centered, "amsgrad": amsgrad}.items():
        if value and option in kept.options:
            names.append(kept.options[option])
        elif value and not (option == "momentum" and optimizer.lower() in ("momentum", "muon")):
            has = ", ".join(kept.options) or "none"
            raise ValueError(f"{optimizer} keeps no state for {option}={value!r}; options that cost state here: {has}.")
    sizes, tensors = _sizes(optimizer.lower(), names, shapes, parameters, tensors)
    parts = {name: size * element for name, size in sizes.items()}
    return Breakdown(parts | dict.fromkeys(kept.scalars, SCALAR_BYTES * tensors), unit="bytes")


def _sizes(optimizer, names, shapes, parameters, tensors):
    """Elements of each state tensor, summed over the parameters, and the number of parameter tensors."""
    if shapes is None:
        if optimizer in ("adafactor", "muon"):
            raise ValueError(f"{optimizer} keeps state by shape: give shapes=[(rows, columns), …], not counts.")
        if parameters is None or tensors is None:
            raise ValueError("the size of the model is missing: give shapes=…, or both parameters=… and tensors=….")
        return dict.fromkeys(names, positive_int("parameters", parameters)), positive_int("tensors", tensors)
    if parameters is not None or tensors is not None:
        raise ValueError("shapes already say how many parameters and tensors there are: leave those two out.")
    shapes = list(shapes) if isinstance(shapes, Iterable) else [shapes]
    for shape in shapes:
        if not isinstance(shape, tuple | list):
            raise ValueError(
                f"shapes must be one tuple for each parameter tensor, such as [(4, 3), (4,)], got {shape!r}."
            )
    shapes = [tuple(non_negative_int("a dimension", size) for size in shape) for shape in shapes]
    if optimizer == "muon" and any(len(shape) != 2 for shape in shapes):
        raise ValueError(f"muon takes matrices only, got shapes {shapes!r}: give the other tensors to AdamW.")
    if optimizer == "adafactor":
        return _factored(shapes), len(shapes)
    return dict.fromkeys(names, sum(map(prod, shapes))), len(shapes)


def _factored(shapes):
    """Adafactor keeps one number per row and one per column of each matrix, in place of one per element."""
    matrices = [shape for shape in shapes if len(shape) > 1]
    sizes = {
        "row_var": sum(prod(shape[:-1]) for shape in matrices),
        "col_var": sum(prod(shape[:-2]) * shape[-1] for shape in matrices),
        "variance": sum(prod(shape) for shape in shapes if len(shape) < 2),
    }
    return {name: size for name, size in sizes.items() if size}
