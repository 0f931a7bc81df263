"""What an optimizer keeps between steps, and the temporary tensors of one step."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import prod

from cs336kit.predict.breakdown import Breakdown
from cs336kit.predict.checks import (
    boolean,
    known,
    non_negative_int,
    non_negative_number,
    one_of,
    positive_int,
    several,
    shown,
)
from cs336kit.predict.precision import ELEMENT_BYTES

#: A step counter, or another scalar that torch keeps for each parameter tensor, is a 0-d fp32 tensor.
SCALAR_BYTES = 4
#: Scalars that torch keeps in the host's memory, whatever device the parameters are on, unless the optimizer is fused.
ON_HOST = frozenset({"step", "mu_product"})
#: Element types in which torch's optimizers keep their state.
STATE_TYPES = {name: ELEMENT_BYTES[name] for name in ("fp64", "fp32", "bf16", "fp16")}


@dataclass(frozen=True)
class OptimizerSpec:
    """What torch.optim keeps for each parameter tensor, under torch's names, and the temporary tensors of a step."""

    #: tensors of the parameter's shape and type
    tensors: tuple[str, ...] = ()
    #: 0-d fp32 tensors
    scalars: tuple[str, ...] = ("step",)
    #: option → the one more tensor that it costs
    options: dict[str, str] = field(default_factory=dict)
    #: temporary lists as large as the model in torch's foreach implementation: (without weight decay in the gradient, with it)
    foreach: tuple[int, int] | None = None
    #: the loop over tensors: (temporaries of this parameter's size, those of the one before that are still held)
    loop: tuple[tuple[int, int], ...] | None = None
    #: "factored" (a number per row and column), "matrices" (refuses other shapes), "blockwise" (one byte an element and one
    #: fp32 for every BLOCKWISE of them), or "" for the parameter's own shape
    shaped: str = ""


_MOMENTS = ("exp_avg", "exp_avg_sq")
_MOMENTUM, _AMSGRAD = {"momentum": "momentum_buffer"}, {"amsgrad": "max_exp_avg_sq"}
#: By the lower-case name of torch's class; "momentum" is SGD with momentum. Source: torch.optim 2.13, `_single_tensor_*`
#: and `_multi_tensor_*`; lion, which torch does not have: Chen et al. 2023, algorithm 2.
OPTIMIZERS = {
    "sgd": OptimizerSpec((), (), options=_MOMENTUM, foreach=(0, 1), loop=((0, 0),)),
    "momentum": OptimizerSpec(("momentum_buffer",), (), foreach=(0, 1), loop=((0, 0),)),
    "adagrad": OptimizerSpec(("sum",), foreach=(2, 2), loop=((1, 1),)),
    "rmsprop": OptimizerSpec(
        ("square_avg",), options=_MOMENTUM | {"centered": "grad_avg"}, foreach=(1, 2), loop=((1, 1),)
    ),
    "adam": OptimizerSpec(_MOMENTS, options=_AMSGRAD, foreach=(1, 1), loop=((2, 1),)),
    "adamw": OptimizerSpec(_MOMENTS, options=_AMSGRAD, foreach=(1, 1), loop=((2, 1),)),
    "adamax": OptimizerSpec(("exp_avg", "exp_inf"), foreach=(1, 1), loop=((1, 0),)),
    "nadam": OptimizerSpec(_MOMENTS, ("step", "mu_product"), foreach=(1, 2), loop=((2, 1),)),
    "radam": OptimizerSpec(_MOMENTS, foreach=(1, 1), loop=((2, 0),)),
    "adadelta": OptimizerSpec(("square_avg", "acc_delta"), foreach=(2, 3), loop=((1, 2), (2, 1))),
    "asgd": OptimizerSpec(("ax",), ("step", "eta", "mu"), foreach=(1, 1)),
    "rprop": OptimizerSpec(("prev", "step_size")),
    "sparseadam": OptimizerSpec(_MOMENTS, ()),
    "muon": OptimizerSpec(("momentum_buffer",), (), shaped="matrices"),
    "adafactor": OptimizerSpec(("row_var", "col_var", "variance"), shaped="factored"),
    "lion": OptimizerSpec(("exp_avg",), ()),
    "adamw8bit": OptimizerSpec(_MOMENTS, (), foreach=(0, 0), loop=((0, 0),), shaped="blockwise"),
    "lion8bit": OptimizerSpec(("exp_avg",), (), foreach=(0, 0), loop=((0, 0),), shaped="blockwise"),
}
#: Elements of an 8-bit state that share one fp32, and the smallest tensor whose state is of 8 bits; smaller ones keep fp32.
#: Source: Dettmers et al. 2021, arXiv:2110.02861; bitsandbytes 0.4x, block-wise, min_8bit_size.
BLOCKWISE, SMALLEST_BLOCKWISE = 256, 4096


def optimizer_spec(name: str) -> OptimizerSpec:
    """The optimizer called `name`, in upper or lower case; an unknown name raises ValueError."""
    return known("optimizer", name.lower() if isinstance(name, str) else name, OPTIMIZERS)


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
    and Muon need the shapes. `precision` is the dtype of the parameters, which is also that of their state: pure bf16 training
    keeps bf16 state. Names are torch's, in upper or lower case ("AdamW"); "momentum" is SGD with momentum.
    Convention: each tensor also costs 4 bytes per fp32 scalar, such as the step (8 under an fp64 default dtype).
    Left out: master weights, LBFGS (its history depends on the run). Errors: ValueError for unknown names, options
    that the optimizer does not have, and shapes that it refuses. Source: the state dictionaries of torch.optim 2.13.
    """
    spec = optimizer_spec(optimizer)
    element = known("precision", precision, STATE_TYPES)
    names = list(spec.tensors)
    _number_or_bool("momentum", momentum)
    boolean("centered", centered)
    boolean("amsgrad", amsgrad)
    for option, value in {"momentum": momentum, "centered": centered, "amsgrad": amsgrad}.items():
        if value and option in spec.options:
            names.append(spec.options[option])
        elif value and not (option == "momentum" and optimizer.lower() in ("momentum", "muon")):
            has = ", ".join(spec.options) or "none"
            raise ValueError(
                f"{optimizer} keeps no state for {option}={shown(value)}; options that cost state here: {has}."
            )
    if shapes is None:
        if spec.shaped:
            raise ValueError(f"{optimizer} keeps state by shape: give shapes=[(rows, columns), …], not counts.")
        if parameters is None or tensors is None:
            raise ValueError("the size of the model is missing: give shapes=…, or both parameters=… and tensors=….")
        parts = dict.fromkeys(names, element * positive_int("parameters", parameters))
        tensors = positive_int("tensors", tensors)
    else:
        if parameters is not None or tensors is not None:
            raise ValueError("shapes already say how many parameters and tensors there are: leave those two out.")
        checked = _checked_shapes(shapes)
        parts = _by_shape(optimizer, names, checked, element)
        tensors = len(checked)
    return Breakdown(parts | dict.fromkeys(spec.scalars, SCALAR_BYTES * tensors), unit="bytes")


def _by_shape(optimizer: str, names: list[str], shapes: list[tuple[int, ...]], element: int) -> dict[str, int]:
    """Bytes of each state tensor, summed over the parameters."""
    shaped = optimizer_spec(optimizer).shaped
    if shaped == "factored":
        return {name: element * size for name, size in _factored(shapes).items()}
    if shaped == "blockwise":
        return dict.fromkeys(names, sum(_blockwise(prod(shape)) for shape in shapes))
    other = [shape for shape in shapes if len(shape) != 2]
    if shaped == "matrices" and other:
        raise ValueError(
            f"{optimizer} takes matrices only, and {len(other)} of {len(shapes)} tensors are not matrices, the first of shape "
            f"{other[0]}: give those to AdamW."
        )
    return dict.fromkeys(names, element * sum(map(prod, shapes)))


def _checked_shapes(shapes: object) -> list[tuple[int, ...]]:
    checked = []
    for shape in shapes if isinstance(shapes, Iterable) else [shapes]:
        if not isinstance(shape, tuple | list):
            raise ValueError(
                f"shapes must be one tuple for each parameter tensor, such as [(4, 3), (4,)], got {shown(shape)}."
            )
        checked.append(tuple(non_negative_int("a dimension", size) for size in shape))
    return checked


def _number_or_bool(name: str, value: object) -> None:
    """torch takes a number; all that matters here is whether it is 0."""
    if not isinstance(value, bool):
        non_negative_number(name, value)


def _blockwise(elements: int) -> int:
    """Bytes of one 8-bit state of a tensor with the largest magnitude of each block; a small tensor's state is in fp32."""
    return elements + 4 * -(-elements // BLOCKWISE) if elements >= SMALLEST_BLOCKWISE else 4 * elements


def _factored(shapes: list[tuple[int, ...]]) -> dict[str, int]:
    """Adafactor keeps one number per row and one per column of each matrix, in place of one per element."""
    matrices = [shape for shape in shapes if len(shape) > 1]
    sizes = {
        "row_var": sum(prod(shape[:-1]) for shape in matrices),
        "col_var": sum(prod(shape[:-2]) * shape[-1] for shape in matrices),
        "variance": sum(prod(shape) for shape in shapes if len(shape) < 2),
    }
    return {name: size for name, size in sizes.items() if size}


def optimizer_step_bytes(
    optimizer: str,
    *,
    parameters: int | None = None,
    sizes: Iterable[int] | None = None,
    precision: str = "fp32",
    implementation: str = "foreach",
    weight_decay: bool | float = False,
) -> int:
    """Peak of the temporary tensors of one step, from the second step on, for torch's three implementations.

    - "foreach" runs each operation over all tensors at once, so a temporary such as √v̂ exists for all of them together: as
      large as the model, once to three times.
    - "fused" kernels keep temporaries in registers: 0.
    - "loop" has them for one tensor at a time; give `sizes`, the elements of each parameter tensor in order, because some
      temporaries of one tensor live until the next tensor's replace them.

    `weight_decay` says whether the decay is on (AdamW's never costs anything; the loop's numbers are without it). Torch's
    default is foreach on CUDA, the loop on a CPU. Errors: ValueError for unknown names, and for optimizers whose
    temporaries are not known. Source: torch.optim 2.13, `_multi_tensor_*`, `_single_tensor_*`.
    """
    spec = optimizer_spec(optimizer)
    _number_or_bool("weight_decay", weight_decay)
    sizes = None if sizes is None else [non_negative_int("a size in sizes", size) for size in several("sizes", sizes)]
    one_of("implementation", implementation, ("foreach", "fused", "loop"))
    element = known("precision", precision, STATE_TYPES)
    if implementation == "fused":
        return 0
    if implementation == "loop":
        if sizes is None or spec.loop is None:
            what = "give sizes=…" if spec.loop else "its temporary tensors are not known"
            raise ValueError(f"the loop of {optimizer} depends on the parameter tensors: {what}.")
        return element * _loop_elements(spec.loop, sizes)
    table = {name: spec.foreach for name, spec in OPTIMIZERS.items() if spec.foreach}
    plain, decayed = known("optimizer with a known foreach implementation", optimizer.lower(), table)
    count = positive_int("parameters", sum(sizes) if sizes is not None else parameters)
    return (decayed if weight_decay else plain) * count * element


def _loop_elements(loop: tuple[tuple[int, int], ...], sizes: list[int]) -> int:
    return max(
        (own * now + held * before for before, now in zip([0, *sizes], sizes, strict=False) for own, held in loop),
        default=0,
    )
