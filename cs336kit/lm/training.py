"""The training loop and its parts: loss, learning-rate schedule, gradient clipping. For any model and any batches."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import islice

import torch
from torch import Tensor, nn

from cs336kit.lm._shapes import Float, Int
from cs336kit.lm.precision import Policy
from cs336kit.lm.runs import ProgressBar, evaluating
from cs336kit.predict.checks import boolean, non_negative_int, positive_int, positive_number

Loss = Callable[[Tensor, Tensor], Tensor]


def cross_entropy(logits: Float[Tensor, "... V"], targets: Int[Tensor, "..."]) -> Float[Tensor, ""]:
    """Mean over all positions of −ln softmax(logits)[target], in nats; exp of it is the perplexity.

    log softmax(x) = x − ln Σ eˣ, computed in fp32 from the logits minus their maximum, so that nothing overflows. A model
    that knows nothing has ln V. Saved for backward: the V log-probabilities of every position, 4·B·S·V bytes.
    Equal to torch.nn.functional.cross_entropy. Mismatched shapes raise ValueError.
    """
    if targets.shape != logits.shape[:-1]:
        raise ValueError(
            f"targets of shape {tuple(targets.shape)} do not fit logits of shape {tuple(logits.shape)}: "
            "one target per position, so targets.shape must be logits.shape[:-1]."
        )
    log_probabilities = torch.log_softmax(logits.to(torch.promote_types(logits.dtype, torch.float32)), dim=-1)
    return -log_probabilities.gather(-1, targets.unsqueeze(-1)).mean()


def cosine_schedule(step: int, *, max_lr: float, warmup_steps: int, total_steps: int, min_lr: float = 0.0) -> float:
    """Learning rate of `step`, counted from 0: up to max_lr over the warm-up, down to min_lr at total_steps.

    Warm-up: max_lr · step / warmup_steps, so step 0 has rate 0. Then min_lr + ½(1 + cos πt)(max_lr − min_lr), where t
    runs from 0 at the end of the warm-up to 1 at total_steps; after that the rate stays at min_lr.
    Source: Loshchilov and Hutter 2017, equation 5 (without restarts); warm-up as in Touvron et al. 2023, section 2.3.
    """
    non_negative_int("step", step)
    non_negative_int("warmup_steps", warmup_steps)
    positive_int("total_steps", total_steps)
    positive_number("max_lr", max_lr)
    if warmup_steps >= total_steps:
        raise ValueError(f"warmup_steps={warmup_steps} leaves no step of total_steps={total_steps} for the decay.")
    if not 0 <= min_lr <= max_lr:
        raise ValueError(f"min_lr must be from 0 to max_lr={max_lr!r}, got {min_lr!r}.")
    if step < warmup_steps:
        return max_lr * step / warmup_steps
    progress = min(1.0, (step - warmup_steps) / (total_steps - warmup_steps))
    return min_lr + (1 + math.cos(math.pi * progress)) / 2 * (max_lr - min_lr)


@torch.no_grad()
def clip_gradients(parameters: Tensor | Iterable[nn.Parameter], *, max_norm: float) -> Tensor:
    """Scale all gradients in place so that their joint L2 norm is at most `max_norm`; return the norm they had.

    The direction of the gradient stays: all of it is multiplied by max_norm / (norm + 1e-6) if that is below 1.
    Parameters without a gradient are skipped. The returned 0-d tensor stays on the gradients' device, so clipping itself
    never synchronizes with a GPU. A norm that is NaN or infinite is returned as it is, so check it.
    Equal to torch.nn.utils.clip_grad_norm_. Source: Pascanu et al. 2013, section 3.2.
    """
    positive_number("max_norm", max_norm)
    several = [parameters] if isinstance(parameters, Tensor) else parameters
    gradients = [parameter.grad for parameter in several if parameter.grad is not None]
    if not gradients:
        return torch.tensor(0.0)
    device = gradients[0].device
    norms = [torch.linalg.vector_norm(gradient).to(device) for gradient in gradients]
    total = torch.linalg.vector_norm(torch.stack(norms))
    scale = (max_norm / (total + 1e-6)).clamp(max=1.0)
    for gradient in gradients:
        gradient.mul_(scale.to(gradient.device))
    return total


@dataclass
class History:
    """The history of a run, one entry per step: losses, learning rates, gradient norms (if clipped)."""

    first_step: int = 0
    losses: list[float] = field(default_factory=list)
    learning_rates: list[float] = field(default_factory=list)
    gradient_norms: list[float] = field(default_factory=list)
    skipped: list[int] = field(default_factory=list)  #: steps whose gradients overflowed under loss scaling
    evaluations: list[tuple[int, float]] = field(default_factory=list)  #: (steps done, value)


def train(
    model: nn.Module, optimizer: torch.optim.Optimizer, batches: Iterable[tuple[Tensor, Tensor]], *, steps: int,
    loss: Loss = cross_entropy, gradients: Loss | None = None, schedule: Callable[[int], float] | None = None,
    clip: Callable[[Iterable[nn.Parameter]], Tensor | float] | None = None, accumulate: int = 1,
    policy: Policy | None = None, evaluate: Callable[[], float] | None = None, evaluate_every: int | None = None,
    after_step: Callable[[int], None] | None = None, first_step: int = 0, progress: bool = False,
) -> History:  # fmt: skip
    """Take `steps` optimizer steps and return their history.

    A step draws `accumulate` batches (x, y) and uses the gradient of the mean of their losses, `loss(model(x), y)`;
    for batches of equal size that is the gradient of the one large batch. `gradients(x, y)` takes the place of model and
    loss: it adds the gradients of a batch to those that are there and returns its loss, both divided by `accumulate`.
    `Parallel.backward` is one, for a single batch.
    `schedule(step)` is the learning rate of a step, counted from 0; `clip(parameters)` clips the gradients, after
    unscaling, and returns their norm; `evaluate()` runs in eval mode without gradients every `evaluate_every` steps and
    after the last one; `after_step(steps_done)` is the place to save a checkpoint; `first_step` continues a count.
    Reading the loss synchronizes with the GPU once per step. A loss or norm that is NaN or infinite raises FloatingPointError
    before the step is taken (with loss scaling, such a norm skips the step); batches that end early raise ValueError.
    """
    positive_int("steps", steps)
    positive_int("accumulate", accumulate)
    boolean("progress", progress)
    functions = dict(gradients=gradients, schedule=schedule, clip=clip, evaluate=evaluate, after_step=after_step)
    for name, given in functions.items():
        if given is not None and not callable(given):
            raise ValueError(
                f"{name} must be a function or None, got {given!r}: see the docstring for what it is called with."
            )
    policy = Policy() if policy is None else policy
    last_step = non_negative_int("first_step", first_step) + steps
    evaluate_every = steps if evaluate_every is None else positive_int("evaluate_every", evaluate_every)
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    history, batches = History(first_step), iter(batches)

    def of_the_mean(x: Tensor, y: Tensor) -> Tensor:
        with policy.forward():
            value = loss(model(x), y) / accumulate
        policy.backward(value)
        return value

    gradients = of_the_mean if gradients is None else gradients
    model.train()
    with ProgressBar(steps, unit="steps", label="train", shown=progress) as bar:
        for step in range(first_step, last_step):
            if schedule is not None:
                for group in optimizer.param_groups:
                    group["lr"] = float(schedule(step))  # a NumPy number could not be read back from a checkpoint
            optimizer.zero_grad(set_to_none=True)
            shares = [gradients(x, y).detach().float() for x, y in islice(batches, accumulate)]
            if len(shares) < accumulate:
                raise ValueError(f"the batches ended in step {step}: give more of them or take fewer steps.")
            value = float(sum(shares))
            rate = float(optimizer.param_groups[0]["lr"])
            before = f"the loss before was {history.losses[-1]:.4g}" if history.losses else "it is the first step"
            where = f"in step {step} (learning rate {rate:.3g}; {before}). The step was not made."
            if not math.isfinite(value):
                raise FloatingPointError(
                    f"the loss is {value} {where} Lower the learning rate, clip the gradients, or look for a bad batch."
                )
            policy.unscale(optimizer)
            if clip is not None:
                norm = float(clip(parameters))
                # Under loss scaling an overflow is expected: the policy skips the step.
                if policy.scaler is None and not math.isfinite(norm):
                    raise FloatingPointError(
                        f"the gradients' norm is {norm} while the loss is {value:.4g}, {where} Lower the learning rate, or look "
                        "for a bad batch or an operation whose slope is infinite."
                    )
                history.gradient_norms.append(norm)
            if not policy.step(optimizer):
                history.skipped.append(step)
            history.losses.append(value)
            history.learning_rates.append(rate)
            done = step + 1
            if evaluate is not None and (done % evaluate_every == 0 or done == last_step):
                with evaluating(model), torch.no_grad():
                    history.evaluations.append((done, float(evaluate())))
            if after_step is not None:
                after_step(done)
            bar.update(1, loss=value)
    return history


def mean_loss(
    model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]], *, count: int, loss: Loss = cross_entropy,
    policy: Policy | None = None,
) -> float:  # fmt: skip
    """Mean loss of the model over `count` batches, without gradients and in eval mode, which is undone afterward.

    Batches that end early raise ValueError.
    """
    positive_int("count", count)
    policy = Policy() if policy is None else policy
    with evaluating(model), torch.no_grad(), policy.forward():
        values = [float(loss(model(x), y)) for x, y in islice(batches, count)]
    if len(values) < count:
        raise ValueError(f"the batches ended after {len(values)} of {count}: give more of them or a smaller count.")
    return math.fsum(values) / count
