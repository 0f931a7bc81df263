"""Stochastic gradient descent, plain and with momentum."""

from cs336kit.lm.optimizers.base import Optimizer, at_least_zero


class SGD(Optimizer):
    """p ← p − lr·g; keeps no state.

    `weight_decay` λ adds λp to the gradient (the L2 penalty λ‖p‖²/2). Equal to torch.optim.SGD without momentum to
    the last bit: one `add` with `alpha` (a scaled addition rounds once) for each of the two lines.
    """

    left_out = {"momentum": 0, "dampening": 0, "nesterov": False}  # noqa: RUF012

    def __init__(self, params, lr=1e-3, *, weight_decay=0, maximize=False):
        super().__init__(params, lr=lr, weight_decay=weight_decay, maximize=maximize)

    def update(self, parameter, gradient, group):
        if group["weight_decay"] != 0:
            gradient = gradient.add(parameter, alpha=group["weight_decay"])
        parameter.add_(gradient, alpha=-group["lr"])


class Momentum(Optimizer):
    """v ← μv + (1 − τ)g, p ← p − lr·v, with dampening τ; the first step sets v = g. One tensor of state.

    With τ = 0, torch's default, v is a decayed *sum* that grows towards g/(1 − μ), not an average.
    `nesterov` steps along g + μv instead. Equal to torch.optim.SGD(momentum=μ) to the last bit.
    Source: Polyak 1964; Sutskever et al. 2013, "On the importance of initialization and momentum", section 2.
    """

    def __init__(self, params, lr=1e-3, momentum=0.9, dampening=0, weight_decay=0, nesterov=False, *, maximize=False):
        super().__init__(
            params,
            lr=lr,
            momentum=momentum,
            dampening=dampening,
            weight_decay=weight_decay,
            nesterov=nesterov,
            maximize=maximize,
        )

    def check(self, group):
        super().check(group)
        at_least_zero("momentum", group["momentum"])
        at_least_zero("dampening", group["dampening"])
        if group["momentum"] == 0:
            raise ValueError("momentum is 0; it must be above 0, such as 0.9: without momentum use SGD.")
        if group["nesterov"] and group["dampening"] != 0:
            raise ValueError(f"dampening is {group['dampening']}; with nesterov=True only 0 is allowed.")

    def update(self, parameter, gradient, group):
        state, momentum = self.state[parameter], group["momentum"]
        if group["weight_decay"] != 0:
            gradient = gradient.add(parameter, alpha=group["weight_decay"])
        if state.get("momentum_buffer") is None:
            velocity = state["momentum_buffer"] = gradient.detach().clone()
        else:
            velocity = state["momentum_buffer"]
            velocity.mul_(momentum).add_(gradient, alpha=1 - group["dampening"])
        direction = gradient.add(velocity, alpha=momentum) if group["nesterov"] else velocity
        parameter.add_(direction, alpha=-group["lr"])
