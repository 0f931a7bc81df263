"""The parts of every run of `lm.pretrain`, on one process or on several ranks: checks, optimizer, data split, result."""

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from cs336kit.lm.data import Batch, Tokens
from cs336kit.lm.precision import Policy
from cs336kit.lm.tokens import TokenFile
from cs336kit.lm.training import cosine_schedule, mean_loss
from cs336kit.predict._common.checks import non_negative_int, positive_int, positive_number
from cs336kit.predict.accounting import parameters, training_flops
from cs336kit.predict.transformer import TransformerConfig

#: Gradients with a larger norm are clipped to this one.
LONGEST = 1.0


@dataclass(frozen=True)
class Pretraining:
    """The settings and the results of a run. `losses` has one entry per step, in nats per token."""

    config: TransformerConfig
    batch: int
    sequence: int
    steps: int
    max_lr: float
    seed: int
    precision: str
    #: of the whole model, embeddings included
    parameters: int
    #: trained on, counted each time they are repeated
    tokens: int
    #: in the training part of the text; `tokens` / `text_tokens` is the number of epochs
    text_tokens: int
    #: of all steps, with the masked half of attention, without the evaluation
    flops: int
    losses: tuple[float, ...]
    #: mean over the whole held-out part at the end of the run
    validation_loss: float
    #: of the steps on this machine: processor time (all threads) on a CPU, wall-clock time on a GPU
    seconds: float
    torch: str

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON; the configuration as the fields that `TransformerConfig.from_dict` reads."""
        return asdict(self) | {"losses": list(self.losses)}

    def __str__(self) -> str:
        return (
            f"{self.parameters:,} parameters, {self.tokens:,} tokens ({self.tokens / self.text_tokens:.1f} times the "
            f"text), {self.flops:.3g} FLOPs: {self.validation_loss:.3f} nats held out, in {self.seconds:.1f} s"
        )


def adamw(weights: Iterable[nn.Parameter], max_lr: float) -> torch.optim.Optimizer:
    """The optimizer of every run."""
    return torch.optim.AdamW(weights, lr=max_lr, betas=(0.9, 0.95), weight_decay=0.1)


def rate(step: int, *, max_lr: float, steps: int) -> float:
    """The learning rate of a step."""
    return cosine_schedule(step, max_lr=max_lr, warmup_steps=steps // 10, total_steps=steps)


def summed_up(
    config: TransformerConfig, given: dict[str, Any], learned: np.ndarray, held_out: np.ndarray, model: nn.Module,
    policy: Policy, losses: list[float], seconds: float,
) -> Pretraining:  # fmt: skip
    """The result of a finished run, with its held-out loss."""
    batch, sequence, steps = given["batch"], given["sequence"], given["steps"]
    return Pretraining(
        config=config, **given, precision=policy.name, parameters=parameters(config).total,
        tokens=steps * batch * sequence, text_tokens=len(learned), losses=tuple(losses), seconds=seconds,
        flops=steps * training_flops(config, batch=batch, sequence=sequence).total, torch=torch.__version__,
        validation_loss=held_out_loss(model, held_out, sequence=sequence, policy=policy),
    )  # fmt: skip


def check_run(
    config: TransformerConfig, *, batch: int, sequence: int, steps: int, max_lr: float, seed: int
) -> dict[str, Any]:  # fmt: skip
    """The settings of a run, by name, as Python numbers; ValueError, with what is allowed, if one of them is invalid."""
    if not isinstance(config, TransformerConfig):
        raise ValueError(f"config must be a TransformerConfig, got {config!r}; predict.MODELS holds well-known ones.")
    given: dict[str, Any] = {
        name: positive_int(name, value)
        for name, value in {"batch": batch, "sequence": sequence, "steps": steps}.items()
    }
    given |= {"max_lr": positive_number("max_lr", max_lr), "seed": non_negative_int("seed", seed)}
    if given["seed"] >= 2**32:
        raise ValueError(f"seed must be below 2**32 = {2**32}, got {seed}.")
    if sequence > config.context:
        raise ValueError(
            f"sequence={sequence} is longer than the model's context of {config.context}: shorten it, or give the "
            "model a longer context."
        )
    return given


def split(data: Tokens, *, config: TransformerConfig, sequence: int) -> tuple[np.ndarray, np.ndarray]:
    """Nine tenths of the tokens to train on and the last tenth held out; each must have room for a sequence and its target."""
    tokens = np.asarray(data.tokens if isinstance(data, TokenFile) else data)
    held = len(tokens) // 10
    if held < sequence + 1:
        raise ValueError(
            f"the held-out tenth of {len(tokens):,} tokens has {held:,}, and a sequence of {sequence} with its target "
            f"takes {sequence + 1}: give more text, or a shorter sequence."
        )
    if (largest := int(tokens.max())) >= config.vocab:
        raise ValueError(
            f"the data contain token {largest}, but a vocabulary of {config.vocab} ends at {config.vocab - 1}: give the "
            "model a larger one (256 for bytes)."
        )
    return tokens[: len(tokens) - held], tokens[len(tokens) - held :]


def held_out_loss(model: nn.Module, tokens: np.ndarray, *, sequence: int, policy: Policy) -> float:
    """Mean loss over all whole sequences of `tokens`, one after the other, each target once."""
    windows = (len(tokens) - 1) // sequence
    rows = np.lib.stride_tricks.sliding_window_view(tokens, sequence + 1)[::sequence][:windows]
    # Batches of equal size, so that the mean of their means is the overall mean: the largest divisor up to 32.
    size = max(size for size in range(1, 33) if windows % size == 0)

    def batches() -> Iterator[Batch]:
        for first in range(0, windows, size):
            block = torch.from_numpy(rows[first : first + size].astype(np.int64)).to(policy.device)
            yield block[:, :-1], block[:, 1:]

    return mean_loss(model, batches(), count=windows // size, policy=policy)
