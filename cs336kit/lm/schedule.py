"""The learning rate over a training run: a linear warm-up, then half a cosine."""

import math

from cs336kit.predict._common.checks import non_negative_int, positive_int, positive_number


def cosine_schedule(step: int, *, max_lr: float, warmup_steps: int, total_steps: int, min_lr: float = 0.0) -> float:
    """Learning rate of `step`, counted from 0: up to max_lr over the warm-up, down to min_lr at total_steps.

    Warm-up: max_lr · step / warmup_steps, so step 0 has rate 0. Then min_lr + ½(1 + cos πt)(max_lr − min_lr), where t
    runs from 0 at the end of the warm-up to 1 at total_steps; afterwards the rate stays at min_lr.
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
