"""Whether the state of an optimizer, as read from a file, fits the optimizer that is to go on with it."""

import math
from collections import OrderedDict, defaultdict
from collections.abc import Iterator
from typing import Any

import torch

#: Optimizer state that has the shape of its parameter, or broadcasts to it (one number per row or column), by its names in
#: torch and here. Other state has a shape of its own: LBFGS keeps vectors over all parameters together.
SHAPED = {
    "exp_avg", "exp_avg_sq", "max_exp_avg_sq", "exp_inf", "momentum_buffer", "sum", "square_avg", "grad_avg", "acc_delta", "ax",
    "prev", "step_size", "row_var", "col_var", "variance",
}  # fmt: skip
#: A parameter of two rows and columns, in as many dimensions as a real one, takes a step in microseconds.
_SIDE = 2

State = dict[str, Any]


def differences(optimizer: torch.optim.Optimizer, found: Any, found_class: Any) -> list[str]:
    """Why this state of an optimizer of class `found_class` does not fit, in sentences without a full stop; none if it does.

    Compared are the groups and their numbers, and for each parameter that has state: the names that one step of this
    optimizer gives, shapes, dtypes, and that a step count is one. Moments that are NaN are a run's own and are accepted.
    """
    if type(optimizer).__name__ != found_class:
        return [f"the optimizer is {type(optimizer).__name__}, and the file holds the state of {found_class}"]
    try:
        sizes = [len(group["params"]) for group in optimizer.param_groups]
        found_sizes = [len(group["params"]) for group in found["param_groups"]]
        if sizes != found_sizes:
            return [f"the optimizer has groups of {sizes} parameters, the file of {found_sizes}"]
        problems = []
        for number, (mine, theirs) in enumerate(zip(optimizer.param_groups, found["param_groups"], strict=True)):
            for name in optimizer.defaults.keys() & mine.keys():
                value, other = mine[name], theirs.get(name)
                if type(value) in (int, float) and not isinstance(other, int | float | torch.Tensor):
                    problems.append(f"{name} of the optimizer's group {number} is {other!r} in the file")
        for mine, theirs in zip(optimizer.param_groups, found["param_groups"], strict=True):
            expected: dict[tuple[int, torch.dtype], State | None] = {}
            for index, parameter in zip(theirs["params"], mine["params"], strict=True):
                state = found["state"].get(index, {})
                key = parameter.dim(), parameter.dtype
                if state and key not in expected:
                    expected[key] = after_a_step(optimizer, mine, theirs, parameter)
                if state:
                    problems += [f"optimizer state {each}" for each in _of_one(index, parameter, state, expected[key])]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        return [f"its optimizer state is malformed: {error!r}"]
    return problems


def after_a_step(
    optimizer: torch.optim.Optimizer, group: dict[str, Any], loaded: dict[str, Any], parameter: torch.Tensor
) -> State | None:
    """The state that one step gives a small parameter of the same dimensions and dtype; None if it cannot be told so.

    The step is taken by a twin of the optimizer with a parameter of its own: nothing of the real one changes, and no hook
    is called. `loaded` are the group's options as the file has them, which loading will set.
    """
    with torch.random.fork_rng(devices=[]):
        small = torch.ones([_SIDE] * parameter.dim(), dtype=parameter.dtype, requires_grad=True)
        small.grad = torch.ones_like(small)
        twin = object.__new__(type(optimizer))
        twin.__dict__.update({name: value for name, value in vars(optimizer).items() if name != "step"})
        for name, value in vars(optimizer).items():
            if name.endswith("_hooks"):
                twin.__dict__[name] = OrderedDict() if isinstance(value, OrderedDict) else type(value)()
        twin.state = defaultdict(dict)
        twin.param_groups = [{**group, **loaded, "params": [small]}]
        try:
            type(optimizer).step(twin)
        except Exception:  # an optimizer that needs a closure, sparse gradients, a GPU, or all of its parameters
            return None
        return dict(twin.state[small])


def _of_one(index: int, parameter: torch.Tensor, state: State, expected: State | None) -> Iterator[str]:
    """What is wrong with the state of the parameter with this number."""
    if expected is not None:
        for name in sorted(expected.keys() ^ state.keys()):
            where = "is missing in the file" if name in expected else "is in the file, and this optimizer keeps none"
            yield f"{name} of parameter {index} {where}"
    for name, value in state.items():
        mine = (expected or {}).get(name)
        if name == "step":
            if not _counts(value):
                yield f"step of parameter {index} is {value!r} in the file, which is not a count"
        elif not isinstance(value, torch.Tensor):
            if isinstance(mine, torch.Tensor) or (expected is None and name in SHAPED):
                yield f"{name} of parameter {index} is a {type(value).__name__} in the file, not a tensor"
        elif isinstance(mine, torch.Tensor) and value.dtype != mine.dtype:
            yield f"{name} of parameter {index} is {value.dtype} in the file and {mine.dtype} in this optimizer"
        elif name in SHAPED and not _stretches(value.shape, parameter.shape):
            yield (
                f"{name} of parameter {index} has shape {tuple(value.shape)} in the file, its parameter "
                f"{tuple(parameter.shape)}"
            )


def _counts(value: Any) -> bool:
    """Whether a step count is one: a finite number that is not negative, or a tensor of one."""
    if isinstance(value, torch.Tensor):
        value = value.item() if value.numel() == 1 and not value.is_complex() else None
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0


def _stretches(shape: torch.Size, target: torch.Size) -> bool:
    return len(shape) <= len(target) and all(
        have in (1, want) for have, want in zip(reversed(shape), reversed(target), strict=False)
    )
