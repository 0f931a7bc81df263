"""AdaGrad: each coordinate's rate falls with the sum of its squared gradients."""

import torch

from cs336kit.lm.optimizers.base import Optimizer, at_least_zero, counter


class AdaGrad(Optimizer):
    """s ← s + g², p ← p − lr·g/(√s + ε); a running sum that never decays. One tensor and a counter of state.

    At step t the rate is lr/(1 + (t − 1)·lr_decay). Equal to torch.optim.Adagrad to the last bit; that needs ε
    *outside* the root and the quotient inside one `addcdiv`. State is made at once, not at the first step.
    Source: Duchi, Hazan, Singer 2011, "Adaptive Subgradient Methods", figure 1.
    """

    def __init__(
        self,
        params,
        lr=1e-2,
        lr_decay=0,
        weight_decay=0,
        initial_accumulator_value=0,
        eps=1e-10,
        *,
        maximize=False,
    ):
        super().__init__(
            params,
            lr=lr,
            lr_decay=lr_decay,
            weight_decay=weight_decay,
            initial_accumulator_value=initial_accumulator_value,
            eps=eps,
            maximize=maximize,
        )

    def check(self, group):
        super().check(group)
        for name in ("lr_decay", "initial_accumulator_value", "eps"):
            at_least_zero(name, group[name])

    def add_param_group(self, param_group):
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        for parameter in group["params"]:
            self.start(parameter, group)

    def start(self, parameter, group):
        start = torch.full_like(parameter, group["initial_accumulator_value"])
        self.state[parameter] = {"step": counter(), "sum": start}

    def update(self, parameter, gradient, group):
        if not self.state[parameter]:  # a loaded state_dict may know nothing of this parameter
            self.start(parameter, group)
        state = self.state[parameter]
        state["step"] += 1
        if group["weight_decay"] != 0:
            gradient = gradient.add(parameter, alpha=group["weight_decay"])
        rate = group["lr"] / (1 + (state["step"].item() - 1) * group["lr_decay"])
        state["sum"].addcmul_(gradient, gradient, value=1)
        parameter.addcdiv_(gradient, state["sum"].sqrt().add_(group["eps"]), value=-rate)
