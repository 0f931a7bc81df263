"""What every optimizer of the course shares: groups, missing gradients, checks. Each family adds one `update`."""

import math

import torch


class Optimizer(torch.optim.Optimizer):
    """A torch optimizer whose whole arithmetic is `update`, called once per parameter that has a gradient.

    Parameter groups, `zero_grad`, hooks, schedulers and `state_dict` come from torch.optim.Optimizer, and the
    state and group names are torch's, so that a `state_dict` can be exchanged with torch's optimizer of that name.
    Errors: ValueError for hyper-parameters, RuntimeError for sparse or complex gradients.
    """

    # Options of torch's optimizer of the same name that this class leaves out, with the only value it can honour.
    left_out: dict = {}  # noqa: RUF012

    def __init__(self, params, **options):
        super().__init__(params, {**self.left_out, **options})

    def update(self, parameter, gradient, group):
        """Change one parameter in place, and `self.state[parameter]`, a dict that is empty before the first step."""
        raise TypeError(f"{type(self).__name__} has no update rule: write update(parameter, gradient, group).")

    def check(self, group):
        """Refuse hyper-parameters that have no meaning; families with more of them extend this."""
        for name in ("lr", "weight_decay"):
            at_least_zero(name, group[name])
        for name, value in self.left_out.items():
            if group[name] != value:
                raise ValueError(
                    f"{name} is {group[name]!r}; {type(self).__name__} is written for {name}={value!r} alone: "
                    "leave it out, or use the torch.optim optimizer that has this option."
                )

    @torch.no_grad()
    def step(self, closure=None):
        """One update of every parameter that has a gradient; returns the closure's loss, or None without one."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self.refuse_gradients()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    gradient = -parameter.grad if group["maximize"] else parameter.grad
                    self.update(parameter, gradient, group)
        return loss

    def refuse_gradients(self):
        """Look at all gradients before the first update, so that a refusal leaves every parameter untouched."""
        for group in self.param_groups:
            for gradient in (p.grad for p in group["params"] if p.grad is not None):
                if gradient.layout != torch.strided or gradient.is_complex():
                    kind = "complex" if gradient.is_complex() else "sparse"
                    raise RuntimeError(
                        f"{type(self).__name__} was given a {kind} gradient of shape {tuple(gradient.shape)}; "
                        "only dense, real gradients are allowed: use a torch.optim optimizer that names this kind."
                    )

    def add_param_group(self, param_group):
        self.check({**self.defaults, **param_group})
        super().add_param_group(param_group)

    def __setstate__(self, state):
        super().__setstate__(state)  # called by load_state_dict and by unpickling
        for group in self.param_groups:
            for name, value in self.left_out.items():
                group.setdefault(name, value)
            group.setdefault("maximize", False)
            self.check(group)


def at_least_zero(name, value):
    """Return `value` if it is a finite real number ≥ 0; else ValueError."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise ValueError(f"{name} is {value!r}; it must be a finite number of at least 0, such as 0.01.")
    return value


def decay_rate(name, value):
    """Return `value` if it is in [0, 1), the share of the past that a running average keeps; else ValueError."""
    if at_least_zero(name, value) >= 1:
        raise ValueError(f"{name} is {value!r}; it must be at least 0 and below 1, such as 0.9.")
    return value


def counter():
    """A step counter as torch keeps it: a 0-d float tensor on the CPU, 4 bytes for each parameter tensor."""
    return torch.tensor(0.0, dtype=torch.float64 if torch.get_default_dtype() == torch.float64 else torch.float32)
