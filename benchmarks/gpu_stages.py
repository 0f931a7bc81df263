"""What `make gpu` measures: each stage is a generator of rows for the record of one GPU.

Nothing but torch, numpy and the kit is needed.
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product as pairs
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.gpu_decoding import decoding
from benchmarks.gpu_peer import nanogpt
from benchmarks.gpu_power import power
from benchmarks.gpu_ranks import ranks
from benchmarks.gpu_rows import Run, row
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
        operations.append((f"linear on {n} tokens", lambda n=n: x[:n] @ w, cost))
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
    config = TINY if run.tiny else _gpt2()
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


def memory(run: Run) -> Iterator[dict]:
    """Saved activations and the peak of a training step, for a GPT-2 and a Llama, beside their predictions."""
    models = {"gpt2": (_gpt2(), lm.DecoderOnly), "llama": (predict.MODELS["smollm2-135m"], lm.Llama)}
    if run.tiny:
        models = {"gpt2": (TINY, lm.DecoderOnly)}
    sequence, batches = (32, (16,)) if run.tiny else (1024, (1, 4, 8))
    cases = pairs(models.items(), ("fp32", "bf16", "autocast"), (False, True), batches)
    for (name, (config, make)), precision, checkpointing, batch in cases:
        how = {"precision": precision, "checkpointing": checkpointing, "batch": batch, "sequence": sequence}
        setting = {"model": name, **how}
        how |= {"attention": "sdpa", "device": run.device.type}
        model = step = loss = None
        try:
            with sdpa_kernel(KERNELS["flash"]):
                start = torch.cuda.memory_allocated() if run.device.type == "cuda" else 0
                # At once where and in what it stays: drawing on the host takes seconds, and copies that were converted there
                # would leave pieces of memory that the step is not predicted to find.
                weights = torch.bfloat16 if predict.POLICIES[precision].weights == "bf16" else torch.float32
                model = make(config, attention="sdpa", checkpointing=checkpointing, device=run.device, dtype=weights)
                run.free()
                step, loss, lasting = _step(model, config, batch, sequence, precision, run.device)
                stats = None
                if run.device.type == "cuda":
                    torch.cuda.reset_peak_memory_stats()
                    step()
                step()  # the second step has its optimizer state
                if run.device.type == "cuda":
                    torch.cuda.synchronize()
                    # Before anything else is done: pieces of memory that another pass left would be taken by none of these.
                    stats = torch.cuda.memory_stats()
                saved = measure.saved_activation_bytes(loss).total
                expected = predict.saved_activation_bytes(config, **how).total
                yield row("saved activations", saved, "bytes", predicted=expected, **setting)
                if stats is None:
                    peak = lasting() + measure.peak_bytes(step, device=run.device)
                    expected = predict.step_peak(config, foreach=True, **how).total
                    yield row("peak of a step", peak, "bytes", predicted=expected, **setting)
                    continue
            found = predict.step_allocation(config, capability=torch.cuda.get_device_capability()[0], **how)
            measured = {
                "peak of a step": (stats["allocated_bytes.all.peak"] - start, found.allocated),
                "requested at the peak": (stats["requested_bytes.all.peak"] - start, found.requested),
                "reserved at the peak": (stats["reserved_bytes.all.peak"], found.reserved),
            }
            for label, (counted, predicted) in measured.items():
                yield row(label, counted, "bytes", predicted=predicted, **setting)
        except torch.OutOfMemoryError as error:
            run.skip(f"{name} {precision} at batch {batch}", error)
        finally:
            model = step = loss = lasting = None
            run.free()


def training_step(run: Run) -> Iterator[dict]:
    """Seconds, tokens per second, MFU and idle share of a GPT-2 training step in bf16 and in autocast, as it is and compiled.

    Attention and AdamW are fused. What matters most comes first: a stage that is stopped keeps the rows before.
    """
    # Rows of 50,257 logits do not begin at multiples of 16 bytes, for which tensor cores have no fast kernel. As nanoGPT.
    config = TINY if run.tiny else replace(_gpt2(), vocab=50304)
    sequence = 32 if run.tiny else 1024
    cases = [(64, True, "cudnn", "bf16"), (64, True, "cudnn", "autocast"), (64, True, "flash", "autocast"), None,
             (32, False, "flash", "autocast"), (16, False, "flash", "autocast"), (128, True, "cudnn", "bf16")]  # fmt: skip
    if run.tiny:
        cases = [(4, True, "flash", "autocast"), None, (2, True, "flash", "bf16"), (2, False, "flash", "autocast")]
    for case in cases:
        if case is None:  # nanoGPT's, of the size of the first
            batch = cases[0][0]
            work = predict.training_flops(config, batch=batch, sequence=sequence).total
            yield from nanogpt(run, config, batch=batch, sequence=sequence, flops=work)
            continue
        batch, compiled, attention, precision = case
        setting = {"batch": batch, "sequence": sequence, "vocab": config.vocab, "precision": precision,
                   "compiled": compiled, "attention": attention, "optimizer": "fused"}  # fmt: skip
        model = step = idle = None
        try:
            # What was compiled is found again by what was written, whatever the kernel of attention that it took then.
            fresh = torch.compiler.config.patch(force_disable_caches=True)
            with fresh, sdpa_kernel(KERNELS[attention], set_priority=True):
                weights = torch.bfloat16 if precision == "bf16" else torch.float32
                model = lm.DecoderOnly(config, attention="sdpa", device=run.device, dtype=weights)
                step = _step(model, config, batch, sequence, precision, run.device, fused=True, compiled=compiled)[0]
                timing = measure.seconds(step, device=run.device, **run.timing)
                if run.device.type == "cuda":
                    idle = _idle(run, step, setting)
        except RuntimeError as error:
            run.skip(f"training step {setting}", error)
            continue
        finally:
            model = step = None
            if compiled:
                torch.compiler.reset()
            run.free()
        work = predict.training_flops(config, batch=batch, sequence=sequence).total
        peak = run.peak("bf16")
        yield row("step", timing, "s", predicted=peak and work / peak, flops=work, **setting)
        yield row("throughput", batch * sequence / timing.median, "tokens/s", **setting)
        if peak:
            yield row("MFU", work / timing.median / peak, "fraction", **setting)
        if idle is not None:
            yield row("idle", idle, "fraction", **setting)
    if run.device.type != "cuda":
        run.skip("idle share of the GPU", "this run has no CUDA device")


def _idle(run: Run, step: Callable[[], object], setting: dict) -> float | None:
    """The idle share of a step, or None with a reason: a profiler that sees nothing costs no time that was measured."""
    try:
        return idle_share(step)
    except Exception as error:
        run.skip(f"idle share {setting}", error)
        return None


def idle_share(step: Callable[[], object], steps: int = 5) -> float:
    """The part of the time from the first kernel of some steps to the last in which no kernel or copy ran.

    RuntimeError where the profiler saw none.
    """
    # What Python does is left out: to write that down, too, makes a GPU wait.
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(steps):
            step()
        torch.cuda.synchronize()
    # A region that has a name ("Optimizer.step") lies over its kernels and the gaps between them.
    on_device = [
        (event.time_range.start, event.time_range.end)
        for event in profile.events() or ()
        if event.device_type == torch.autograd.DeviceType.CUDA and not event.is_user_annotation
    ]
    if not on_device:
        raise RuntimeError("the profiler saw no kernel")
    return idle_between(on_device)


def idle_between(spans: list[tuple[float, float]]) -> float:
    """The part of the time from the first start to the last end that no span covers; spans may overlap."""
    spans = sorted(spans)
    busy, until = 0.0, spans[0][0]
    for start, end in spans:
        busy += max(0.0, end - max(start, until))
        until = max(until, end)
    return 1 - busy / (until - spans[0][0])


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
            step = _step(model, wide, batch, wide.context, "autocast", run.device, fused=True, compiled=True)[0]
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
    "products": Stage(products, 110, 1),
    "power": Stage(power, 40, 1),
    "bandwidths": Stage(bandwidths, 70, 1),
    "overlap": Stage(overlap, 40, 1),
    "roofline": Stage(roofline, 50, 1),
    "optimizers": Stage(optimizers, 50, 1),
    "memory": Stage(memory, 180, 1),
    "training step": Stage(training_step, 280, 2),
    "fp8 training": Stage(fp8_training, 150, 2),
    "decoding": Stage(decoding, 60, 2),
    "ranks": Stage(ranks, 40, 2),
}
TINY = predict.TransformerConfig(layers=2, d_model=64, heads=4, vocab=256, context=32)
_FLASH = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
#: Torch takes cuDNN's attention, on Hopper the fastest, only where it is asked to, and predictions of memory are flash's.
#: cuDNN's alone: where torch cannot take it, it would say nothing and take the next, and the row would be flash's.
KERNELS = {"flash": _FLASH, "cudnn": [SDPBackend.CUDNN_ATTENTION]}


def _gpt2() -> predict.TransformerConfig:
    return replace(predict.MODELS["gpt2"], dropout=0.0)


def _step(
    model, config, batch: int, sequence: int, precision: str, device: torch.device, *, fused: bool = False,
    compiled: bool = False,
):  # fmt: skip
    """A training step as a function, its loss alone, and the bytes that last between steps (parameters and state)."""
    kind = predict.POLICIES[precision]
    # Foreach is the default on CUDA.
    how = {"fused": True} if fused and device.type == "cuda" else {"foreach": True}
    optimizer = torch.optim.AdamW(model.parameters(), **how)
    x = torch.randint(config.vocab, (batch, sequence), device=device)

    def loss():
        with torch.autocast(device.type, dtype=torch.bfloat16) if kind.casts else contextlib.nullcontext():
            logits = model(x)
        return F.cross_entropy(logits.float().view(-1, config.vocab), x.view(-1))

    if compiled:
        # The loss with it: alone, it writes the logits three times in fp32. Static: else a second batch makes sizes symbols.
        loss = torch.compile(loss, dynamic=False, backend="inductor" if device.type == "cuda" else "eager")

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    def lasting():
        return sum(p.nbytes for p in model.parameters()) + measure.state_bytes(optimizer).total

    return step, loss, lasting
