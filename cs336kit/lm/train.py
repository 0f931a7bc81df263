"""The training loop, for any model, any optimizer and any batches."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from cs336kit.lm.loss import cross_entropy
from cs336kit.lm.precision import Policy
from cs336kit.lm.progress import ProgressBar
from cs336kit.predict._common.checks import non_negative_int, positive_int

Loss = Callable[[Tensor, Tensor], Tensor]


@dataclass
class History:
    """What a run left behind, one entry per step: losses, learning rates, gradient norms (if clipped)."""

    first_step: int = 0
    losses: list[float] = field(default_factory=list)
    learning_rates: list[float] = field(default_factory=list)
    gradient_norms: list[float] = field(default_factory=list)
    skipped: list[int] = field(default_factory=list)  #: steps whose gradients overflowed under loss scaling
    evaluations: list[tuple[int, float]] = field(default_factory=list)  #: (steps done, value)


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batches: Iterable[tuple[Tensor, Tensor]],
    *,
    steps: int,
    loss: Loss = cross_entropy,
    schedule: Callable[[int], float] | None = None,
    clip: Callable[[Iterable[nn.Parameter]], Tensor | float] | None = None,
    accumulate: int = 1,
    policy: Policy | None = None,
    evaluate: Callable[[], float] | None = None,
    evaluate_every: int | None = None,
    after_step: Callable[[int], None] | None = None,
    first_step: int = 0,
    progress: bool = False,
) -> History:
    """Take `steps` optimizer steps and return their history.

    A step draws `accumulate` batches (x, y) and follows the gradient of the mean of their losses, `loss(model(x), y)`;
    for batches of one size that is the gradient of the one large batch.
    `schedule(step)` is the learning rate of a step, counted from 0; `clip(parameters)` clips the gradients, after
    unscaling, and returns their norm; `evaluate()` runs in eval mode without gradients every `evaluate_every` steps and
    after the last one; `after_step(steps_done)` is the place to save a checkpoint; `first_step` continues a count.
    Reading the loss waits for the GPU once per step. A loss that is NaN or infinite raises FloatingPointError before
    the step is made; batches that end early raise ValueError.
    """
    positive_int("steps", steps)
    positive_int("accumulate", accumulate)
    policy = Policy() if policy is None else policy
    last_step = non_negative_int("first_step", first_step) + steps
    evaluate_every = steps if evaluate_every is None else positive_int("evaluate_every", evaluate_every)
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    history, batches = History(first_step), iter(batches)
    model.train()
    with ProgressBar(steps if progress else 0, unit="steps", label="train") as bar:
        for step in range(first_step, last_step):
            if schedule is not None:
                for group in optimizer.param_groups:
                    group["lr"] = schedule(step)
            optimizer.zero_grad(set_to_none=True)
            value = _accumulate_gradients(model, batches, loss=loss, count=accumulate, policy=policy, step=step)
            rate = float(optimizer.param_groups[0]["lr"])
            _refuse_nan(value, step=step, rate=rate, history=history)
            policy.unscale(optimizer)
            if clip is not None:
                history.gradient_norms.append(float(clip(parameters)))
            if not policy.step(optimizer):
                history.skipped.append(step)
            history.losses.append(value)
            history.learning_rates.append(rate)
            done = step + 1
            if evaluate is not None and (done % evaluate_every == 0 or done == last_step):
                history.evaluations.append((done, _evaluated(model, evaluate)))
            if after_step is not None:
                after_step(done)
            if progress:
                bar.update(1, loss=value)
    return history


def _accumulate_gradients(model, batches, *, loss: Loss, count: int, policy: Policy, step: int) -> float:
    """Add up the gradients of `count` batches, each divided by `count`, and return the mean loss."""
    total = 0.0
    for _ in range(count):
        try:
            x, y = next(batches)
        except StopIteration:
            raise ValueError(f"the batches ended in step {step}: give more of them or take fewer steps.") from None
        with policy.forward():
            value = loss(model(x), y) / count
        policy.backward(value)
        total = total + value.detach().float()
    return float(total)


def _refuse_nan(value: float, *, step: int, rate: float, history: History) -> None:
    if not math.isfinite(value):
        before = f"the loss before was {history.losses[-1]:.4g}" if history.losses else "it is the first step"
        raise FloatingPointError(
            f"the loss is {value} in step {step} (learning rate {rate:.3g}; {before}). The step was not made. "
            "Lower the learning rate, clip the gradients, or look for a bad batch."
        )


def _evaluated(model: nn.Module, evaluate: Callable[[], float]) -> float:
    model.eval()
    with torch.no_grad():
        value = float(evaluate())
    model.train()
    return value


def mean_loss(
    model: nn.Module,
    batches: Iterable[tuple[Tensor, Tensor]],
    *,
    count: int,
    loss: Loss = cross_entropy,
    policy: Policy | None = None,
) -> float:
    """Mean loss of the model over `count` batches, without gradients and in eval mode, which is put back afterwards."""
    positive_int("count", count)
    policy = Policy() if policy is None else policy
    was_training, batches = model.training, iter(batches)
    model.eval()
    with torch.no_grad(), policy.forward():
        values = [float(loss(model(x), y)) for x, y in (next(batches) for _ in range(count))]
    model.train(was_training)
    return math.fsum(values) / count
