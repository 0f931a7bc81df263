"""One complete run: a decoder from its seed to its held-out loss, with its exact FLOPs; `cs336kit train` calls it."""

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from cs336kit.lm.data import Batch, Batches, Tokens, course_text, encode
from cs336kit.lm.models import DecoderOnly
from cs336kit.lm.precision import Policy
from cs336kit.lm.precision import precision as policy_of
from cs336kit.lm.runs import seed_everything
from cs336kit.lm.tokens import TokenFile
from cs336kit.lm.training import clip_gradients, cosine_schedule, mean_loss, train
from cs336kit.predict.accounting import parameters, training_flops
from cs336kit.predict.checks import boolean, non_negative_int, positive_int, positive_number
from cs336kit.predict.layouts import Layout
from cs336kit.predict.transformer import TransformerConfig

#: Gradients with a larger norm are clipped to this one.
LONGEST = 1.0
#: Policies that need neither autocast nor loss scaling, which are not implemented across ranks.
OF_RANKS = ("fp32", "tf32", "bf16")


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
    given = check_run(config, batch=batch, sequence=sequence, steps=steps, max_lr=max_lr, seed=seed)
    batch, sequence, steps, max_lr, seed = given.values()
    divided = layout is not None or "WORLD_SIZE" in os.environ
    if divided and precision not in OF_RANKS:
        raise ValueError(
            f"ranks can train in {', '.join(OF_RANKS)}, not in {precision!r}: change it, or leave out layout and torchrun."
        )
    learned, held_out = split(encode(course_text()) if data is None else data, config=config, sequence=sequence)
    with joined(device) if divided else nullcontext(torch.device(device)) as where:
        policy = policy_of(precision, device=where)

        def undivided() -> nn.Module:
            return policy.prepare(DecoderOnly(config, attention=attention).to(where))

        def of_ranks(x: Tensor, y: Tensor) -> Tensor:
            with policy.forward():
                return model.backward(x, y)

        seed_everything(seed)
        model: Any = undivided()
        how: dict[str, Any] = {"clip": lambda weights: clip_gradients(weights, max_norm=LONGEST)}
        if divided:
            from cs336kit.lm.parallel import parallelize  # takes long, and one process does without

            count = dist.get_world_size() if dist.is_initialized() else 1
            model = parallelize(model, Layout(dp=count) if layout is None else layout)
            optimizer = model.optimizer(lambda weights: adamw(weights, max_lr))
            how = {"gradients": of_ranks, "clip": lambda _: model.clip(max_norm=LONGEST)}
            progress = progress and not any(model.at.values())  # the first rank alone
        else:
            optimizer = adamw(model.parameters(), max_lr)
        batches = Batches(learned, batch=batch, sequence=sequence, seed=seed, device=where)
        clock = time.process_time if where.type == "cpu" else time.perf_counter
        start = clock()
        history = train(
            model, optimizer, batches, steps=steps, policy=policy, progress=progress,
            schedule=lambda step: rate(step, max_lr=max_lr, steps=steps), **how,
        )  # fmt: skip
        seconds = clock() - start
        if divided:
            whole, model = model.gathered(), undivided()
            model.load_state_dict(whole | ({"head.weight": whole["embedding.weight"]} if config.tied_head else {}))
        return Pretraining(
            config=config, **given, precision=policy.name, parameters=parameters(config).total,
            tokens=steps * batch * sequence, text_tokens=len(learned), losses=tuple(history.losses), seconds=seconds,
            flops=steps * training_flops(config, batch=batch, sequence=sequence).total, torch=torch.__version__,
            validation_loss=held_out_loss(model, held_out, sequence=sequence, policy=policy),
        )  # fmt: skip


@contextmanager
def joined(device: torch.device | str) -> Iterator[torch.device]:
    """Join the ranks that torchrun has started, if any, with gloo on a CPU and NCCL on CUDA; yields this rank's device."""
    where = torch.device(device)
    own = "WORLD_SIZE" in os.environ and not dist.is_initialized()
    if where.type == "cuda" and "LOCAL_RANK" in os.environ:
        where = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(where)
    if own:
        on_gpu = {"device_id": where} if where.type == "cuda" else {}
        dist.init_process_group("nccl" if on_gpu else "gloo", **on_gpu)
    try:
        yield where
    finally:
        if own:
            dist.destroy_process_group()


def adamw(weights: Iterable[nn.Parameter], max_lr: float) -> torch.optim.Optimizer:
    """The optimizer of every run."""
    return torch.optim.AdamW(weights, lr=max_lr, betas=(0.9, 0.95), weight_decay=0.1)


def rate(step: int, *, max_lr: float, steps: int) -> float:
    """The learning rate of a step."""
    return cosine_schedule(step, max_lr=max_lr, warmup_steps=steps // 10, total_steps=steps)


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
