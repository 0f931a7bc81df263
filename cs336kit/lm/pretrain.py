"""One complete run: a decoder from its seed to its held-out loss, with its exact FLOPs; `cs336kit train` calls it."""

import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from cs336kit.lm.data import Batch, Batches, Tokens, course_text, encode
from cs336kit.lm.models import DecoderOnly
from cs336kit.lm.precision import Policy
from cs336kit.lm.precision import precision as policy_of
from cs336kit.lm.runs import seed_everything
from cs336kit.lm.tokens import TokenFile
from cs336kit.lm.training import clip_gradients, cosine_schedule, mean_loss, train
from cs336kit.predict._common.checks import boolean, non_negative_int, positive_int, positive_number
from cs336kit.predict.accounting import parameters, training_flops
from cs336kit.predict.layouts import Layout
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


def small_llama(*, layers: int, d_model: int, heads: int, context: int, d_ff: int | None = None) -> TransformerConfig:
    """The models that `cs336kit train` and the sweep train: a Llama over bytes, with an untied head.

    `d_ff`: by default 8/3 of the width, rounded up to a multiple of eight: a gated MLP as large as an ungated one with 4·D.
    """
    width = -(-8 * positive_int("d_model", d_model) // 3 // 8) * 8
    return TransformerConfig(
        layers=layers, d_model=d_model, heads=heads, d_ff=width if d_ff is None else d_ff, context=context, vocab=256,
        norm="rmsnorm", positions="rope", mlp="swiglu", bias="none", tied_head=False,
    )  # fmt: skip


def pretrain(
    config: TransformerConfig, *, batch: int, sequence: int, steps: int, max_lr: float, seed: int = 0,
    precision: str = "fp32", data: Tokens | None = None, device: torch.device | str = "cpu", attention: str = "sdpa",
    progress: bool = False, layout: Layout | str | None = None,
) -> Pretraining:  # fmt: skip
    """Train a `DecoderOnly` of this shape from `seed` on, and return its losses, its held-out loss, tokens and FLOPs.

    `data` are tokens (default: the course's own text, byte by byte), of which the last tenth is held out. AdamW (0.9, 0.95,
    decay 0.1), gradients clipped to norm 1, and a cosine schedule with a warm-up of a tenth of the run. `precision` is a
    name in lm.POLICIES. The same seed, machine, torch and number of threads give the same run to the last bit. FLOPs are
    those of `predict.training_flops`, times the steps.

    Under torchrun, the processes are the ranks of `layout`, or replicas without one. `batch` is the global batch, so the
    losses are those of one process up to rounding. For the held-out loss, every rank gathers the whole model.
    """
    boolean("progress", progress)
    if layout is not None or "WORLD_SIZE" in os.environ:
        from cs336kit.lm.runs_of_ranks import pretrain_ranks

        return pretrain_ranks(
            config, layout, batch=batch, sequence=sequence, steps=steps, max_lr=max_lr, seed=seed, precision=precision,
            data=data, device=device, attention=attention, progress=progress,
        )  # fmt: skip
    given = check_run(config, batch=batch, sequence=sequence, steps=steps, max_lr=max_lr, seed=seed)
    batch, sequence, steps, max_lr, seed = given.values()
    learned, held_out = split(encode(course_text()) if data is None else data, config=config, sequence=sequence)
    policy = policy_of(precision, device=device)
    seed_everything(seed)
    model = policy.prepare(DecoderOnly(config, attention=attention).to(device))
    optimizer = adamw(model.parameters(), max_lr)
    batches = Batches(learned, batch=batch, sequence=sequence, seed=seed, device=device)
    clock = time.process_time if torch.device(device).type == "cpu" else time.perf_counter
    start = clock()
    history = train(
        model, optimizer, batches, steps=steps, policy=policy, progress=progress,
        schedule=lambda step: rate(step, max_lr=max_lr, steps=steps),
        clip=lambda weights: clip_gradients(weights, max_norm=LONGEST),
    )  # fmt: skip
    seconds = clock() - start
    return summed_up(config, given, learned, held_out, model, policy, history.losses, seconds)


# --- what every run has in common, on one process and on the ranks of runs_of_ranks ------------------------------------


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
