"""Loss scaling: lift small gradients above the smallest fp16 number, and survive the overflow that this risks."""

import torch
from torch import Tensor

from cs336kit.predict._common.checks import positive_int, positive_number


class LossScaler:
    """Multiply the loss by a power of two before backward, divide the gradients before the step, adapt the factor.

    A step whose gradients hold an infinity or NaN is skipped and halves the scale; after `growth_interval` clean steps
    in a row the scale doubles. The numbers, and the scale after every step, are those of torch.amp.GradScaler.
    The order in a step: `scale(loss).backward()`, `unscale(optimizer)`, clip, `step(optimizer)`.
    Asking whether a gradient overflowed waits for the GPU once per step. Source: Micikevicius et al. 2018, section 3.2.
    """

    def __init__(
        self, *, scale: float = 65536.0, growth: float = 2.0, backoff: float = 0.5, growth_interval: int = 2000
    ):
        self.factor = float(positive_number("scale", scale))
        self.growth, self.backoff = positive_number("growth", growth), positive_number("backoff", backoff)
        self.growth_interval = positive_int("growth_interval", growth_interval)
        if not self.backoff < 1 < self.growth:
            raise ValueError(f"growth must be above 1 and backoff below 1, got {growth} and {backoff}.")
        self.clean_steps = 0
        self.finite: bool | None = None  # of the gradients unscaled in this step; None before unscale

    def scale(self, loss: Tensor) -> Tensor:
        """Return the loss times the factor: every gradient of it is larger by that factor."""
        return loss * self.factor

    @torch.no_grad()
    def unscale(self, optimizer: torch.optim.Optimizer) -> None:
        """Divide the gradients in place by the factor and note whether all are finite.

        Gradients in fp16 raise ValueError: divided, the small ones would be lost again. The parameters must be fp32.
        """
        if self.finite is not None:
            raise RuntimeError("the gradients of this step are unscaled already: call unscale once, before clipping.")
        gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        if any(gradient.dtype == torch.float16 for gradient in gradients):
            raise ValueError("fp16 gradients would underflow when they are unscaled: keep the parameters in fp32.")
        for gradient in gradients:
            gradient.mul_(1 / self.factor)
        self.finite = all(bool(torch.isfinite(gradient).all()) for gradient in gradients)

    def step(self, optimizer: torch.optim.Optimizer) -> bool:
        """Step if the gradients are finite, adapt the factor, and return whether the step was made."""
        if self.finite is None:
            self.unscale(optimizer)
        stepped, self.finite = self.finite, None
        if stepped:
            optimizer.step()
            self.clean_steps += 1
            if self.clean_steps == self.growth_interval:
                self.factor, self.clean_steps = self.factor * self.growth, 0
        else:
            self.factor, self.clean_steps = self.factor * self.backoff, 0
        return stepped

    def state_dict(self) -> dict:
        return {"scale": self.factor, "clean_steps": self.clean_steps}

    def load_state_dict(self, state: dict) -> None:
        self.factor, self.clean_steps = state["scale"], state["clean_steps"]
