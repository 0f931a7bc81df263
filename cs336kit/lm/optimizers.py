"""Six optimizers, each one update rule, equal to torch.optim's to the last bit.

"Equal" refers to torch's for-loop, `foreach=False`: foreach, the default on a GPU, rounds differently in bf16.
"""

from collections.abc import Callable
from difflib import get_close_matches
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from cs336kit.predict.checks import boolean, non_negative_number, shown

Group = dict[str, Any]


class Optimizer(torch.optim.Optimizer):
    """A torch optimizer whose whole arithmetic is `update`, called once per parameter that has a gradient, and `decay`.

    Parameter groups, `zero_grad`, hooks, schedulers and `state_dict` come from torch.optim.Optimizer, and the
    state and group names are torch's, so a `state_dict` can be exchanged with torch's optimizer of the same name.
    Hyper-parameters are checked when a group is added and again at every step, since schedulers change them.
    Errors: ValueError for hyper-parameters, RuntimeError for sparse or complex gradients.
    """

    # Options of torch's optimizer of the same name that this class leaves out, with the only value that it supports. They
    # are in the groups, where a state_dict needs them, and not in the defaults, where schedulers look for a momentum.
    left_out: dict[str, Any] = {}  # noqa: RUF012
    #: The hyper-parameters that must be at least 0, and those that must also be below 1.
    numbers: tuple[str, ...] = ("lr", "weight_decay")
    shares: tuple[str, ...] = ()

    def __init__(self, params: ParamsT, **options: Any):
        super().__init__(params, options)

    def update(self, parameter: Tensor, gradient: Tensor, group: Group) -> None:
        """Change one parameter in place, and `self.state[parameter]`, a dict that is empty before the first step."""
        raise TypeError(f"{type(self).__name__} has no update rule: write update(parameter, gradient, group).")

    def decay(self, parameter: Tensor, gradient: Tensor, group: Group) -> Tensor:
        """Return the gradient plus that of the L2 penalty λ‖p‖²/2, before the update."""
        return gradient.add(parameter, alpha=group["weight_decay"])

    def check(self, group: Group) -> None:
        """Refuse invalid hyper-parameters, and convert NumPy's numbers to Python's; subclasses extend this."""
        for name in self.numbers:
            group[name] = non_negative_number(name, group[name])
        for name in self.shares:
            group[name] = decay_rate(name, group[name])
        for name in ("maximize", "nesterov", "centered"):
            boolean(name, group.get(name, False))
        for name, value in self.left_out.items():
            if group.setdefault(name, value) != value:
                raise ValueError(
                    f"{name} is {shown(group[name])}; {type(self).__name__} supports only {name}={value!r}: "
                    "leave it out, or use the torch.optim optimizer that has this option."
                )

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One update of every parameter that has a gradient; returns the closure's loss, or None without one."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            self.check(group)
        self.refuse_gradients()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    gradient = -parameter.grad if group["maximize"] else parameter.grad
                    if group.get("weight_decay", 0) != 0:
                        gradient = self.decay(parameter, gradient, group)
                    self.update(parameter, gradient, group)
        return loss

    def refuse_gradients(self) -> None:
        """Check all gradients before the first update, so that a refusal leaves every parameter untouched."""
        for group in self.param_groups:
            for gradient in (p.grad for p in group["params"] if p.grad is not None):
                if gradient.layout != torch.strided or gradient.is_complex():
                    kind = "complex" if gradient.is_complex() else "sparse"
                    raise RuntimeError(
                        f"{type(self).__name__} was given a {kind} gradient of shape {tuple(gradient.shape)}; "
                        "only dense, real gradients are allowed: use a torch.optim optimizer that names this kind."
                    )

    def add_param_group(self, param_group: Group) -> None:
        self.check({**self.defaults, **param_group})  # before it is added; then in place, to convert NumPy's numbers
        self._check_names(param_group)
        if not isinstance(several := param_group["params"], set):  # torch refuses a set
            param_group["params"] = [several] if isinstance(several, Tensor) else list(several)
            self._check_parameters(param_group["params"])
        super().add_param_group(param_group)
        self.check(self.param_groups[-1])

    def _check_names(self, group: Group) -> None:
        """Refuse a misspelled option, which would have no effect; other unknown names are kept, as in torch."""
        options = {*self.defaults, *self.left_out, "params"}
        for name in group.keys() - options:
            if close := get_close_matches(name, options, n=1, cutoff=0.8):
                raise ValueError(f"{name} is not an option of {type(self).__name__}. Did you mean {close[0]!r}?")

    def _check_parameters(self, several: list[Any]) -> None:
        """Refuse what torch accepts: duplicate parameters, which would be updated twice, and integers, which have no gradient."""
        tensors = [each[1] if isinstance(each, tuple) else each for each in several]  # or pairs of names and parameters
        if len({id(tensor) for tensor in tensors}) < len(tensors):
            raise ValueError("a parameter is in the group twice and would be updated twice: give it once.")
        for tensor in tensors:
            if isinstance(tensor, Tensor) and not (tensor.is_floating_point() or tensor.is_complex()):
                raise ValueError(f"a parameter of {tensor.dtype} can have no gradient: leave it out.")

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # called by load_state_dict and by unpickling
        for group in self.param_groups:
            group.setdefault("maximize", False)
            self.check(group)


def decay_rate(name: str, value: Any) -> int | float:
    """Return `value` if it is in [0, 1), the share of the past that a running average keeps; else ValueError."""
    if (rate := non_negative_number(name, value)) >= 1:
        raise ValueError(f"{name} must be at least 0 and below 1, such as 0.9, got {value!r}.")
    return rate


def counter() -> Tensor:
    """A step counter like torch's: a 0-d float tensor on the CPU, 4 bytes for each parameter tensor."""
    dtype = torch.float64 if torch.get_default_dtype() == torch.float64 else torch.float32
    return torch.tensor(0.0, dtype=dtype, device="cpu")


class SGD(Optimizer):
    """p ← p − lr·g; keeps no state.

    `weight_decay` λ adds λp to the gradient (the L2 penalty λ‖p‖²/2). Equal to torch.optim.SGD(foreach=False) to the
    last bit, because either is one `add` with `alpha` (a scaled addition rounds once).
    """

    left_out = {"momentum": 0, "dampening": 0, "nesterov": False}  # noqa: RUF012

    def __init__(self, params: ParamsT, lr: float = 1e-3, *, weight_decay: float = 0, maximize: bool = False):
        super().__init__(params, lr=lr, weight_decay=weight_decay, maximize=maximize)

    def update(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        parameter.add_(gradient, alpha=-group["lr"])


class Momentum(Optimizer):
    """v ← μv + (1 − τ)g, p ← p − lr·v, with dampening τ; the first step sets v = g. One tensor of state.

    With τ = 0, torch's default, v is a decayed *sum* that grows toward g/(1 − μ), not an average.
    `nesterov` steps along g + μv instead. Equal to torch.optim.SGD(momentum=μ, foreach=False) to the last
    bit.
    Source: Polyak 1964; Sutskever et al. 2013, "On the importance of initialization and momentum", section 2.
    """

    numbers = ("lr", "weight_decay", "momentum", "dampening")

    def __init__(
        self, params: ParamsT, lr: float = 1e-3, momentum: float = 0.9, dampening: float = 0,
        weight_decay: float = 0, nesterov: bool = False, *, maximize: bool = False,
    ):  # fmt: skip
        super().__init__(
            params, lr=lr, momentum=momentum, dampening=dampening, weight_decay=weight_decay, nesterov=nesterov,
            maximize=maximize,
        )  # fmt: skip

    def check(self, group: Group) -> None:
        super().check(group)
        if group["momentum"] == 0:
            raise ValueError("momentum is 0; it must be above 0, such as 0.9: without momentum use SGD.")
        if group["nesterov"] and group["dampening"] != 0:
            raise ValueError(f"dampening is {group['dampening']}; with nesterov=True only 0 is allowed.")

    def update(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        state, momentum = self.state[parameter], group["momentum"]
        if state.get("momentum_buffer") is None:
            velocity = state["momentum_buffer"] = gradient.detach().clone()
        else:
            velocity = state["momentum_buffer"]
            velocity.mul_(momentum).add_(gradient, alpha=1 - group["dampening"])
        direction = gradient.add(velocity, alpha=momentum) if group["nesterov"] else velocity
        parameter.add_(direction, alpha=-group["lr"])


class AdaGrad(Optimizer):
    """s ← s + g², p ← p − lr·g/(√s + ε); a running sum that never decays. One tensor and a counter of state.

    At step t the rate is lr/(1 + (t − 1)·lr_decay). Equal to torch.optim.Adagrad(foreach=False) to the last bit, which needs ε
    *outside* the root and the quotient inside one `addcdiv`. State is created at once, not at the first step.
    Source: Duchi, Hazan, Singer 2011, "Adaptive Subgradient Methods", figure 1.
    """

    numbers = ("lr", "weight_decay", "lr_decay", "initial_accumulator_value", "eps")

    def __init__(
        self, params: ParamsT, lr: float = 1e-2, lr_decay: float = 0, weight_decay: float = 0,
        initial_accumulator_value: float = 0, eps: float = 1e-10, *, maximize: bool = False,
    ):  # fmt: skip
        super().__init__(
            params, lr=lr, lr_decay=lr_decay, weight_decay=weight_decay, initial_accumulator_value=initial_accumulator_value,
            eps=eps, maximize=maximize,
        )  # fmt: skip

    def add_param_group(self, param_group: Group) -> None:
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        for parameter in group["params"]:
            self.start(parameter, group)

    def start(self, parameter: Tensor, group: Group) -> None:
        start = torch.full_like(parameter, group["initial_accumulator_value"])
        self.state[parameter] = {"step": counter(), "sum": start}

    def update(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        if not self.state[parameter]:  # a loaded state_dict may lack this parameter
            self.start(parameter, group)
        state = self.state[parameter]
        state["step"] += 1
        rate = group["lr"] / (1 + (state["step"].item() - 1) * group["lr_decay"])
        state["sum"].addcmul_(gradient, gradient, value=1)
        parameter.addcdiv_(gradient, state["sum"].sqrt().add_(group["eps"]), value=-rate)


class RMSProp(Optimizer):
    """s ← αs + (1 − α)g², p ← p − lr·g/(√s + ε). One tensor and a counter of state.

    `centered` subtracts the squared running mean of the gradient (one more tensor): the root is then that of its variance.
    `momentum` accumulates the quotients in a buffer (one more tensor). There is no bias correction: early steps are
    longer by 1/√(1 − αᵗ). Equal to torch.optim.RMSprop(foreach=False) to the last bit; the mean is then a `lerp`,
    m + (1 − α)(g − m), which rounds differently from αm + (1 − α)g.
    Source: Tieleman and Hinton 2012, lecture 6.5; centered: Graves 2013, "Generating Sequences", equations 38–45.
    """

    numbers, shares = ("lr", "weight_decay", "eps", "momentum"), ("alpha",)

    def __init__(
        self, params: ParamsT, lr: float = 1e-2, alpha: float = 0.99, eps: float = 1e-8, weight_decay: float = 0,
        momentum: float = 0, centered: bool = False, *, maximize: bool = False,
    ):  # fmt: skip
        super().__init__(
            params, lr=lr, alpha=alpha, eps=eps, weight_decay=weight_decay, momentum=momentum, centered=centered,
            maximize=maximize,
        )  # fmt: skip

    def start(self, parameter: Tensor, group: Group) -> dict[str, Tensor]:
        names = ["square_avg"] + ["momentum_buffer"] * (group["momentum"] > 0) + ["grad_avg"] * group["centered"]
        return {"step": counter()} | {name: torch.zeros_like(parameter) for name in names}

    def update(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            state.update(self.start(parameter, group))
        state["step"] += 1
        square = state["square_avg"]
        square.mul_(group["alpha"]).addcmul_(gradient, gradient, value=1 - group["alpha"])
        if group["centered"]:
            mean = state["grad_avg"].lerp_(gradient, 1 - group["alpha"])
            scale = square.addcmul(mean, mean, value=-1).sqrt_().add_(group["eps"])
        else:
            scale = square.sqrt().add_(group["eps"])
        if group["momentum"] > 0:
            velocity = state["momentum_buffer"].mul_(group["momentum"]).addcdiv_(gradient, scale)
            parameter.add_(velocity, alpha=-group["lr"])
        else:
            parameter.addcdiv_(gradient, scale, value=-group["lr"])


class Adam(Optimizer):
    """m ← β₁m + (1 − β₁)g, v ← β₂v + (1 − β₂)g², p ← p − lr·m̂/(√v̂ + ε), with m̂ = m/(1 − β₁ᵗ), v̂ = v/(1 − β₂ᵗ).

    Two tensors and a counter of state. `weight_decay` λ adds λp to the gradient, so it, too, is divided by √v̂.
    Equal to torch.optim.Adam(foreach=False) to the last bit, which needs this order: m by `lerp`; v by multiply, then `addcmul`;
    the root of v first, then its correction by √(1 − β₂ᵗ), then ε; m's correction inside the step size.
    Left out: amsgrad. Source: Kingma and Ba 2015, algorithm 1 (ε as there, not as in the end of its section 2).
    """

    left_out = {"amsgrad": False, "decoupled_weight_decay": False}  # noqa: RUF012
    numbers = ("lr", "weight_decay", "eps")

    def __init__(
        self, params: ParamsT, lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8,
        weight_decay: float = 0, *, maximize: bool = False,
    ):  # fmt: skip
        super().__init__(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, maximize=maximize)

    def check(self, group: Group) -> None:
        super().check(group)
        if not isinstance(group["betas"], tuple | list) or len(group["betas"]) != 2:
            raise ValueError(f"betas is {shown(group['betas'])}; it must be a pair of numbers, such as (0.9, 0.999).")
        group["betas"] = tuple(decay_rate(f"betas[{index}]", beta) for index, beta in enumerate(group["betas"]))

    def update(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            state["step"] = counter()
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
        state["step"] += 1
        (beta1, beta2), step = group["betas"], state["step"].item()
        mean = state["exp_avg"].lerp_(gradient, 1 - beta1)
        square = state["exp_avg_sq"].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        scale = (square.sqrt() / (1 - beta2**step) ** 0.5).add_(group["eps"])
        parameter.addcdiv_(mean, scale, value=-group["lr"] / (1 - beta1**step))


class AdamW(Adam):
    """Adam whose weight decay shrinks the parameter itself, p ← (1 − lr·λ)p before the step, and leaves m and v alone.

    Equal to torch.optim.AdamW(foreach=False) to the last bit. Source: Loshchilov and Hutter 2019, algorithm 2 (with its schedule
    multiplier inside lr, as torch has it).
    """

    left_out = {"amsgrad": False, "decoupled_weight_decay": True}  # noqa: RUF012

    def __init__(
        self, params: ParamsT, lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8,
        weight_decay: float = 1e-2, *, maximize: bool = False,
    ):  # fmt: skip
        super().__init__(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, maximize=maximize)

    def decay(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> Tensor:
        """Shrink the parameter in place; return the gradient unchanged."""
        parameter.mul_(1 - group["lr"] * group["weight_decay"])
        return gradient
