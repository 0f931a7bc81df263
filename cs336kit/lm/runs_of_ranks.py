"""`lm.pretrain` on the ranks that torchrun has started: one process, one machine or many, with the same call."""

import math
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

from cs336kit.lm.data import Batches, course_text, encode
from cs336kit.lm.models import DecoderOnly
from cs336kit.lm.parallel import check_runnable, parallelize
from cs336kit.lm.precision import precision as policy_of
from cs336kit.lm.pretrain import LONGEST, Pretraining, adamw, check_run, rate, split, summed_up
from cs336kit.lm.runs import ProgressBar, seed_everything
from cs336kit.predict import Layout, TransformerConfig
from cs336kit.predict.layouts import as_layout

#: Policies that need neither autocast nor loss scaling, which are not implemented across ranks.
PRECISIONS = ("fp32", "tf32", "bf16")


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


def pretrain_ranks(
    config: TransformerConfig, layout: Layout | str | None, *, precision: str, data: Any, device: torch.device | str,
    attention: str, progress: bool, **given: Any,
) -> Pretraining:  # fmt: skip
    """`lm.pretrain`, divided over the ranks; every rank returns the same result."""
    given = check_run(config, **given)
    if precision not in PRECISIONS:
        raise ValueError(
            f"ranks can train in {', '.join(PRECISIONS)}, not in {precision!r}: change it, or leave out layout and torchrun."
        )
    batch, sequence, steps, max_lr, seed = (given[name] for name in ("batch", "sequence", "steps", "max_lr", "seed"))
    learned, held_out = split(encode(course_text()) if data is None else data, config=config, sequence=sequence)
    with joined(device) as where:
        count = dist.get_world_size() if dist.is_initialized() else 1
        layout = Layout(dp=count) if layout is None else as_layout(layout)
        policy = policy_of(precision, device=where)
        seed_everything(seed)
        model = policy.prepare(DecoderOnly(config, attention=attention).to(where))
        check_runnable(model, layout, count)
        ranks = parallelize(model, layout)
        optimizer = ranks.optimizer(lambda weights: adamw(weights, max_lr))
        batches = Batches(learned, batch=batch, sequence=sequence, seed=seed, device=where)
        losses: list[float] = []
        clock = time.process_time if where.type == "cpu" else time.perf_counter
        start = clock()
        first = not dist.is_initialized() or dist.get_rank() == 0
        ranks.train()
        with ProgressBar(steps, unit="steps", label="train", shown=progress and first) as bar:
            for step in range(steps):
                for group in optimizer.param_groups:
                    group["lr"] = rate(step, max_lr=max_lr, steps=steps)
                with policy.forward():
                    losses.append(float(ranks.backward(*next(batches))))
                norm = float(ranks.clip(max_norm=LONGEST))
                for what, value in (("the loss", losses[-1]), ("the gradients' norm", norm)):
                    if not math.isfinite(value):
                        raise FloatingPointError(f"{what} is {value} in step {step}: lower the learning rate.")
                optimizer.step()
                optimizer.zero_grad()
                bar.update(1, loss=losses[-1])
        seconds = clock() - start
        whole = ranks.gathered()
        model = policy.prepare(DecoderOnly(config, attention=attention).to(where))
        model.load_state_dict(whole | ({"head.weight": whole["embedding.weight"]} if config.tied_head else {}))
        return summed_up(config, given, learned, held_out, model, policy, losses, seconds)
