"""A GPT-2 training step on a GPU: its seconds, its share of the peak, and how long the GPU had nothing to do."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.gpu_peer import nanogpt
from benchmarks.gpu_rows import Run, row
from cs336kit import lm, measure, predict

TINY = predict.TransformerConfig(layers=2, d_model=64, heads=4, vocab=256, context=32)
_FLASH = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
#: Torch takes cuDNN's attention, on Hopper the fastest, only where it is asked to, and predictions of memory are flash's.
#: cuDNN's alone: where torch cannot take it, it would say nothing and take the next, and the row would be flash's.
KERNELS = {"flash": _FLASH, "cudnn": [SDPBackend.CUDNN_ATTENTION]}
GPT2 = replace(predict.MODELS["gpt2"], dropout=0.0)


def training_step(run: Run) -> Iterator[dict]:
    """Seconds, tokens per second, MFU and idle share of a GPT-2 training step in bf16 and in autocast, as it is and compiled.

    Attention and AdamW are fused. What matters most comes first: a stage that is stopped keeps the rows before.
    """
    # Rows of 50,257 logits do not begin at multiples of 16 bytes, for which tensor cores have no fast kernel. As nanoGPT.
    config = TINY if run.tiny else replace(GPT2, vocab=50304)
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
                step = step_of(model, config, batch, sequence, precision, run.device, fused=True, compiled=compiled)[0]
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


def step_of(
    model, config, batch: int, sequence: int, precision: str, device: torch.device, *, fused: bool = False,
    compiled: bool = False,
):  # fmt: skip
    """A training step as a function, its loss alone, and the bytes that last between steps (parameters and state)."""
    kind = predict.POLICIES[precision]
    # Foreach is the default on CUDA.
    how = {"fused": True} if fused and device.type == "cuda" else {"foreach": True}
    optimizer = torch.optim.AdamW(model.parameters(), **how)
    x = torch.randint(config.vocab, (batch, sequence), device=device)

    def logits():
        with torch.autocast(device.type, dtype=torch.bfloat16) if kind.casts else contextlib.nullcontext():
            return model(x)

    def loss():
        # No variable holds logits in half precision beside those in fp32.
        return F.cross_entropy(logits().float().view(-1, config.vocab), x.view(-1))

    if compiled:
        # The loss with it: alone, it writes the logits three times in fp32. Static: else a second batch makes sizes symbols.
        loss = torch.compile(loss, dynamic=False, backend="inductor" if device.type == "cuda" else "eager")

    def step():
        optimizer.zero_grad(set_to_none=True)
        value = loss()  # alive until the step ends, as in most loops
        value.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    def lasting():
        return sum(p.nbytes for p in model.parameters()) + measure.state_bytes(optimizer).total

    return step, loss, lasting
