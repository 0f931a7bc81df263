"""RMSProp: AdaGrad with a running average in place of the sum."""

import torch

from cs336kit.lm.optimizers.base import Optimizer, at_least_zero, counter, decay_rate


class RMSProp(Optimizer):
    """s ← αs + (1 − α)g², p ← p − lr·g/(√s + ε). One tensor and a counter of state.

    `centered` subtracts the squared running mean of the gradient (one more tensor): the root is then of its variance.
    `momentum` collects the quotients in a buffer (one more tensor). There is no bias correction: early steps are
    longer by 1/√(1 − αᵗ). Equal to torch.optim.RMSprop to the last bit; the mean is then a `lerp`, m + (1 − α)(g − m),
    which rounds differently from αm + (1 − α)g.
    Source: Tieleman and Hinton 2012, lecture 6.5; centred: Graves 2013, "Generating Sequences", equations 38–45.
    """

    def __init__(
        self,
        params,
        lr=1e-2,
        alpha=0.99,
        eps=1e-8,
        weight_decay=0,
        momentum=0,
        centered=False,
        *,
        maximize=False,
    ):
        super().__init__(
            params,
            lr=lr,
            alpha=alpha,
            eps=eps,
            weight_decay=weight_decay,
            momentum=momentum,
            centered=centered,
            maximize=maximize,
        )

    def check(self, group):
        super().check(group)
        decay_rate("alpha", group["alpha"])
        at_least_zero("eps", group["eps"])
        at_least_zero("momentum", group["momentum"])

    def start(self, parameter, group):
        names = ["square_avg"] + ["momentum_buffer"] * (group["momentum"] > 0) + ["grad_avg"] * group["centered"]
        return {"step": counter()} | {name: torch.zeros_like(parameter) for name in names}

    def update(self, parameter, gradient, group):
        state = self.state[parameter]
        if not state:
            state.update(self.start(parameter, group))
        state["step"] += 1
        if group["weight_decay"] != 0:
            gradient = gradient.add(parameter, alpha=group["weight_decay"])
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
