"""One complete run: a decoder from its seed to its held-out loss, with its exact FLOPs; `cs336kit train` calls it."""

import os
import time

import torch

from cs336kit.lm.data import Batches, Tokens, course_text, encode
from cs336kit.lm.models import DecoderOnly
from cs336kit.lm.precision import precision as policy_of
from cs336kit.lm.run_parts import LONGEST, Pretraining, adamw, check_run, rate, split, summed_up
from cs336kit.lm.runs import seed_everything
from cs336kit.lm.training import clip_gradients, train
from cs336kit.predict._common.checks import boolean, positive_int
from cs336kit.predict.layouts import Layout
from cs336kit.predict.transformer import TransformerConfig


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
