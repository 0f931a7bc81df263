"""Adam and AdamW: momentum over RMSProp's scale, with bias correction."""

import torch

from cs336kit.lm.optimizers.base import Optimizer, at_least_zero, counter, decay_rate


class Adam(Optimizer):
    """m ← β₁m + (1 − β₁)g, v ← β₂v + (1 − β₂)g², p ← p − lr·m̂/(√v̂ + ε), with m̂ = m/(1 − β₁ᵗ), v̂ = v/(1 − β₂ᵗ).

    Two tensors and a counter of state. `weight_decay` λ adds λp to the gradient, so it too is divided by √v̂.
    Equal to torch.optim.Adam to the last bit. That needs this order: m by `lerp`; v by multiply, then `addcmul`;
    the root of v first, then its correction by √(1 − β₂ᵗ), then ε; m's correction inside the step size.
    Left out: amsgrad. Source: Kingma and Ba 2015, algorithm 1 (ε as there, not as in the end of its section 2).
    """

    left_out = {"amsgrad": False, "decoupled_weight_decay": False}  # noqa: RUF012

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0, *, maximize=False):
        super().__init__(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, maximize=maximize)

    def check(self, group):
        super().check(group)
        if not isinstance(group["betas"], tuple | list) or len(group["betas"]) != 2:
            raise ValueError(f"betas is {group['betas']!r}; it must be a pair of numbers, such as (0.9, 0.999).")
        for index, beta in enumerate(group["betas"]):
            decay_rate(f"betas[{index}]", beta)
        at_least_zero("eps", group["eps"])

    def decay(self, parameter, gradient, group):
        """Return the gradient with the L2 penalty's part added: the penalty goes through m and v."""
        return gradient.add(parameter, alpha=group["weight_decay"])

    def update(self, parameter, gradient, group):
        state = self.state[parameter]
        if not state:
            state["step"] = counter()
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
        state["step"] += 1
        if group["weight_decay"] != 0:
            gradient = self.decay(parameter, gradient, group)
        (beta1, beta2), step = group["betas"], state["step"].item()
        mean = state["exp_avg"].lerp_(gradient, 1 - beta1)
        square = state["exp_avg_sq"].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        scale = (square.sqrt() / (1 - beta2**step) ** 0.5).add_(group["eps"])
        parameter.addcdiv_(mean, scale, value=-group["lr"] / (1 - beta1**step))


class AdamW(Adam):
    """Adam whose weight decay shrinks the parameter itself, p ← (1 − lr·λ)p before the step, and leaves m and v alone.

    Equal to torch.optim.AdamW to the last bit. Source: Loshchilov and Hutter 2019, algorithm 2 (with its schedule
    multiplier inside lr, as torch has it).
    """

    left_out = {"amsgrad": False, "decoupled_weight_decay": True}  # noqa: RUF012

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=1e-2, *, maximize=False):
        super().__init__(params, lr, betas, eps, weight_decay, maximize=maximize)

    def decay(self, parameter, gradient, group):
        """Shrink the parameter in place; return the gradient unchanged."""
        parameter.mul_(1 - group["lr"] * group["weight_decay"])
        return gradient
