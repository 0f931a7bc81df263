"""What `make gpu` measures: each stage is a generator of rows for the record of one GPU.

Nothing but torch, numpy and the kit is needed.
"""

from collections.abc import Callable, Iterator
from itertools import product as pairs
from typing import NamedTuple

import torch
import torch.nn.functional as F

from benchmarks.gpu_decoding import decoding
from benchmarks.gpu_memory import decoders, memory
from benchmarks.gpu_power import power
from benchmarks.gpu_ranks import ranks
from benchmarks.gpu_rows import Run, row
from benchmarks.gpu_training import GPT2, TINY, step_of, training_step
from cs336kit import lm, measure, predict

GIB = 2**30


def products(run: Run) -> Iterator[dict]:
    """Seconds of matrix products in every precision: the lecture's shape and squares, beside the time at the peak."""
    shapes = [(n, n, n) for n in ((32, 64) if run.tiny else (1024, 2048, 4096, 8192, 16384))]
    if not run.tiny:
        shapes.insert(0, measure.LECTURE_PRODUCT)
    for precision in ("fp32", "tf32", "bf16", "fp16", "fp8"):
        if precision not in measure.precisions(run.device):
            run.skip(precision, f"{run.device.type} has no units for it")
            continue
        for shape in shapes:
            one = measure.product(*shape, precision=precision, device=run.device, **run.timing)
            peak = run.peak(precision)
            bound = peak and one.flops / peak
            setting = dict(zip(("rows", "inner", "columns"), shape, strict=True))
            yield row("product", one.timing, "s", predicted=bound, precision=precision, **setting)
            run.free()


def bandwidths(run: Run) -> Iterator[dict]:
    """Bytes per second of copies: between host and device, pinned or not, and within the device."""
    size = 2**16 if run.tiny else 2**30
    kinds = [("host to host", False)]
    if run.device.type == "cuda":
        kinds += [*pairs(("host to device", "device to host"), (True, False)), ("device to device", False)]
    else:
        run.skip("copies to and from a device", "this run has no CUDA device")
    for direction, pinned in kinds:
        copy = measure.transfer(size, direction=direction, pinned=pinned, **run.timing)
        memory = run.fact("bandwidth")
        # Within a device every byte is read and written.
        bound = (memory and memory / 2) if direction == "device to device" else run.fact("host_link")
        predicted = None if direction == "host to host" else bound
        rates = [size / seconds for seconds in copy.timing.repeats]
        yield row("copy", copy.bytes_per_second, "byte/s", predicted=predicted, repeats=rates, direction=direction,
                  pinned=pinned, size_bytes=size)  # fmt: skip


def overlap(run: Run) -> Iterator[dict]:
    """Spans of copies and computations on two streams, and the whole beside `predict.pipeline_seconds`."""
    if run.device.type != "cuda":
        run.skip("overlap", "this run has no CUDA device")
        return
    for pinned in (True, False):
        spans = measure.overlap_timeline(pinned=pinned, **({"size_bytes": 2**20, "width": 256} if run.tiny else {}))
        for lane, batch, start, end in spans:
            yield row(lane, end - start, "s", pinned=pinned, batch=batch, start=start)
        copies, computations = ([e - s for lane, _, s, e in spans if lane == name] for name in ("copy", "compute"))
        mean = {
            "copy_seconds": sum(copies) / len(copies),
            "compute_seconds": sum(computations) / len(computations),
        }
        # From pageable memory, too: the host waits for its copy, and no other stream does.
        predicted = predict.pipeline_seconds(len(copies), overlap=True, **mean)
        whole = max(end for *_, end in spans) - min(start for *_, start, _ in spans)
        yield row("whole", whole, "s", predicted=predicted, pinned=pinned)


def roofline(run: Run) -> Iterator[dict]:
    """FLOP/s of operations from one FLOP per ten bytes to thousands, beside the roof at their intensity."""
    width, tokens = (64, (1, 8)) if run.tiny else (8192, (1, 8, 32, 128, 256, 512, 2048, 8192))
    rows = 128 if run.tiny else 16384
    x, y = (torch.randn(rows, width, device=run.device, dtype=torch.bfloat16) for _ in range(2))
    w = torch.randn(width, width, device=run.device, dtype=torch.bfloat16)
    operations: list[tuple[str, Callable[[], object], predict.Cost]] = [
        ("x + y", lambda: x + y, predict.elementwise_cost(x.numel(), reads=2)),
        ("gelu", lambda: F.gelu(x), predict.elementwise_cost(x.numel(), flops_per_element=8)),
        ("softmax", lambda: x.softmax(-1), predict.softmax_cost(rows, width)),
    ]
    for n in tokens:
        cost = predict.matmul_cost(n, width, width)
        operations.append((f"linear on {n} tokens", lambda n=n: F.linear(x[:n], w), cost))
    for name, function, cost in operations:
        timing = measure.seconds(function, device=run.device, **run.timing)
        bound = None
        if run.peak("bf16"):
            bound = predict.roofline(cost, accelerator=run.chip).flops_per_second
        rates = [cost.flops / seconds for seconds in timing.repeats]
        yield row(name, cost.flops / timing.median, "FLOP/s", predicted=bound, repeats=rates, flops=cost.flops,
                  bytes=cost.bytes)  # fmt: skip


def optimizers(run: Run) -> Iterator[dict]:
    """Seconds and temporary bytes of one AdamW step on GPT-2's parameters: a loop, foreach, fused, and the course's own."""
    config = TINY if run.tiny else GPT2
    count = predict.parameters(config).total
    memory = run.fact("bandwidth")
    # Parameter and two moments are read and written, the gradient is read: 7 numbers of 4 bytes.
    bound = memory and 28 * count / memory
    ways = {
        "loop": lambda p: torch.optim.AdamW(p, foreach=False),
        "foreach": lambda p: torch.optim.AdamW(p, foreach=True),
        "fused": lambda p: torch.optim.AdamW(p, fused=True),
        "course": lambda p: lm.AdamW(p, lr=1e-3),
    }
    for name, make in ways.items():
        model = lm.DecoderOnly(config, device=run.device)
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        sizes = [parameter.numel() for parameter in model.parameters()]
        optimizer = make(list(model.parameters()))
        timing = measure.seconds(optimizer.step, device=run.device, **run.timing)
        yield row("AdamW step", timing, "s", predicted=bound, way=name, parameters=count)
        temporary = measure.peak_bytes(optimizer.step, device=run.device)
        # The course's own is a loop, too.
        expected = predict.optimizer_step_bytes(
            "adamw", sizes=sizes, implementation="loop" if name == "course" else name, weight_decay=True
        )
        yield row("AdamW temporaries", temporary, "bytes", predicted=expected, way=name, parameters=count)
        del model, optimizer
        run.free()


def fp8_training(run: Run) -> Iterator[dict]:
    """The course's decoder on the course's text in bf16 and in fp8, from the same seed: losses, and seconds of a step.

    Its products are too small to be faster in fp8, so that compiled steps of a wide one follow.
    """
    width, steps, batch, sequence = (32, 3, 2, 16) if run.tiny else (512, 300, 32, 256)
    config = predict.TransformerConfig(layers=2 if run.tiny else 6, d_model=width, heads=4, vocab=256, context=sequence)
    tokens = lm.encode(lm.course_text())
    names = ["autocast", "fp8"]
    if run.device.type == "cuda" and "fp8" not in measure.precisions(run.device):
        run.skip("fp8", "this GPU has no fp8 units")
        names.remove("fp8")
    for name in names:
        lm.seed_everything(0)
        policy = lm.precision(name, device=run.device)
        model = policy.prepare(lm.DecoderOnly(config, attention="sdpa").to(run.device))
        optimizer = lm.AdamW(model.parameters(), lr=1e-3)
        batches = lm.Batches(tokens, batch=batch, sequence=sequence, seed=0, device=run.device)
        history = lm.train(model, optimizer, batches, steps=steps, policy=policy)
        every = max(1, steps // 30)
        for step in range(0, steps, every):
            yield row("loss", history.losses[step], "loss", precision=name, step=step)
        timing = measure.seconds(
            lambda: lm.train(model, optimizer, batches, steps=1, policy=policy),  # noqa: B023 - runs at once
            device=run.device,
            **run.timing,
        )
        yield row("step", timing, "s", precision=name, batch=batch, sequence=sequence, d_model=width, compiled=False)
        model = optimizer = None
        run.free()
    batch, wide = (
        (2, TINY)
        if run.tiny
        else (8, predict.TransformerConfig(layers=4, d_model=4096, heads=32, vocab=256, context=1024))
    )
    for name in names:
        try:
            model = lm.DecoderOnly(wide, attention="sdpa", device=run.device)
            model = lm.precision(name, device=run.device).prepare(model)
            step = step_of(model, wide, batch, wide.context, "autocast", run.device, fused=True, compiled=True)[0]
            timing = measure.seconds(step, device=run.device, **run.timing)
            yield row("step", timing, "s", precision=name, batch=batch, sequence=wide.context, d_model=wide.d_model,
                      compiled=True)  # fmt: skip
        except RuntimeError as error:
            run.skip(f"{name} step of width {wide.d_model}, compiled", error)
        finally:
            model = step = None
            torch.compiler.reset()
            run.free()


class Stage(NamedTuple):
    """What measures, and the seconds after which it is stopped: `make gpu` is two calls of at most nine minutes."""

    measure: Callable[[Run], Iterator[dict]]
    seconds: int
    half: int


STAGES = {
    "products": Stage(products, 90, 1),
    "power": Stage(power, 30, 1),
    "bandwidths": Stage(bandwidths, 50, 1),
    "overlap": Stage(overlap, 30, 1),
    "roofline": Stage(roofline, 30, 1),
    "optimizers": Stage(optimizers, 40, 1),
    "memory": Stage(memory, 120, 1),
    "decoders": Stage(decoders, 150, 1),
    "training step": Stage(training_step, 280, 2),
    "fp8 training": Stage(fp8_training, 150, 2),
    "decoding": Stage(decoding, 60, 2),
    "ranks": Stage(ranks, 40, 2),
}
