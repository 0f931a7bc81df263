"""Memory of a training step: by bucket, over time, and at its peak, with what is alive then.

P parameters · B batch · S sequence. Everything is per replica: one model on one device, unless a layout says otherwise.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar, Unpack

from cs336kit.predict.accounting import saved_activation_bytes
from cs336kit.predict.allocator import BLOCK_BYTES
from cs336kit.predict.breakdown import Breakdown
from cs336kit.predict.checks import boolean, positive_int, positive_number
from cs336kit.predict.decoder.layers import stages
from cs336kit.predict.decoder.programs import program
from cs336kit.predict.decoder.step import Options, StepOptions
from cs336kit.predict.engine.ledger import Alive, Ledger
from cs336kit.predict.engine.operations import Program, Storage
from cs336kit.predict.engine.states import block_count, gradient_bytes, states, step_bytes
from cs336kit.predict.engine.walk import Walk
from cs336kit.predict.layouts import Layout, as_layout
from cs336kit.predict.optimizers import optimizer_spec
from cs336kit.predict.precision import PrecisionPolicy
from cs336kit.predict.transformer import TransformerConfig

T = TypeVar("T")
#: Buckets that sharding (ZeRO stage 3, FSDP) splits over all ranks.
SHARDED = ("parameters", "gradients", "optimizer state", "master weights")


class Moment(NamedTuple):
    """A stage of the step and the bytes alive at its end, beyond parameters and optimizer state."""

    stage: str
    live_bytes: int


def training_memory(
    config: TransformerConfig,
    *,
    batch: int,
    sequence: int,
    precision: str | PrecisionPolicy = "fp32",
    optimizer: str = "adamw",
    attention: str = "eager",
    checkpointing: bool = False,
    device: str = "cpu",
    layout: Layout | str | None = None,
) -> Breakdown:
    """Bytes of training by bucket: parameters, gradients, optimizer state, activations saved for backward.

    - `precision`: "fp32"; "autocast" (everything in fp32, matrix products in bf16); "bf16" (everything in bf16);
      "autocast-fp16" and "fp16", the same with fp16; "mixed" (bf16 model and gradients, fp32 master weights in the optimizer);
      "mixed-fp32-gradients"; "bf16-fp32-moments" (bf16 without master weights, the optimizer's state in fp32).
    - `layout`: the bytes are those of one rank (of the first pipeline stage, and of one micro-batch).

    In fp32 with AdamW, parameters, gradients and state are 16P bytes, plus 4 for each parameter tensor's step counter. The
    total is what exists when the forward pass ends and old gradients are kept. What has to fit is what is alive at once, see
    `step_peak`. Left out: temporary tensors, the CUDA context, fragmentation, communication buffers.
    """
    policy: dict[str, Any] = {
        "precision": precision, "attention": attention, "checkpointing": checkpointing, "device": device,
        "layout": layout,
    }  # fmt: skip
    saved = saved_activation_bytes(config, batch=batch, sequence=sequence, **policy)
    held = states(program(config, batch=batch, sequence=sequence, **policy), optimizer)
    return Breakdown({**held, "activations": saved.total}, unit="bytes")


def _walked(walked: Program, *, again: bool = False, sums_in_place: bool = False, round_to: int = 1) -> Walk:
    """Both passes of a micro-batch, the first of a step or a later one (`again`)."""
    before = gradient_bytes(walked, round_to) if again else 0
    ledger = Ledger(before=before, round_to=round_to)
    return both_passes(Walk(walked, sums_in_place=sums_in_place, ledger=ledger), walked)


def both_passes(walk: Walk, walked: Program) -> Walk:
    """A forward and a backward pass.

    The caller of backward holds the gradient of the output until backward returns, and a stage holds its output as long; the
    loss is held longer.
    """
    ledger = walk.ledger
    before = ledger.live
    walk.forward(walked.items)
    walk.marks.append(("loss", ledger.live))
    walk.microbatch = ledger.live - before
    root = Storage("gradient of the output", walked.output.bytes)
    ledger.hold(root)
    ledger.hold(root)
    walk.waiting[walked.output.source] = root
    walk.gathering.loss()  # also for a stage's output, which has none
    walk.backward(walked.items)
    walk.gathering.end()
    walk.gradients.end()
    ledger.drop(root)
    if walked.stage < walked.layout.pp - 1:
        ledger.drop(walked.output.storage)
    walk.marks.append(("backward", ledger.live))
    return walk


def step_timeline(
    config: TransformerConfig, *, batch: int, sequence: int, allocated: bool = False, **options: Unpack[StepOptions]
) -> list[Moment]:
    """Live bytes beyond parameters and optimizer state at the end of each stage of a step that starts without gradients.

    Stages: "embedding", "block 1 forward" … "loss", "block L backward" … "block 1 backward", "backward", "step". Between two of
    them, only tensors saved for backward, the residual stream or its gradient, the gradients so far, and the loss are alive.
    `allocated`: every tensor rounded up as CUDA's allocator does. `options` are those of `predict.program`. Left out:
    temporary tensors inside a stage, see `peak_moments`.
    """
    boolean("allocated", allocated)
    walked = program(config, batch=batch, sequence=sequence, **options)
    walk = _walked(walked, sums_in_place=allocated, round_to=BLOCK_BYTES if allocated else 1)
    moments, forward, backward = [], 0, block_count(walked) + 1
    for name, live in walk.marks:
        if name == "block forward":
            forward += 1
            name = f"block {forward} forward"
        elif name == "block backward":
            backward -= 1
            name = f"block {backward} backward"
        moments.append(Moment(name, live))
    return [*moments, Moment("step", 0)]


@lru_cache(maxsize=64)
def _moments(walked: Program, optimizer: str, implementation: str, allocated: bool) -> dict[str, Alive]:
    """What is alive at each moment."""
    microbatches, flight = walked.layout.microbatches, walked.layout.in_flight(walked.stage)
    how: dict[str, Any] = {"sums_in_place": allocated, "round_to": BLOCK_BYTES if allocated else 1}
    # The first micro-batch finds no gradients, and the others in flight keep their saved tensors meanwhile. A later one finds
    # gradients beside as many others in flight, or one fewer where no new one takes the place of the first.
    walks = []
    if microbatches <= flight:
        walks.append((_walked(walked, **how), flight - 1))
    if microbatches > 1:
        walks.append((_walked(walked, again=True, **how), flight - (1 if microbatches > flight else 2)))
    passes: dict[str, Alive] = {}
    for walk, others in walks:
        kept = others * walk.microbatch
        for name, alive in walk.ledger.peaks.items():
            if name not in passes or alive.bytes + kept > passes[name].bytes:
                passes[name] = alive._replace(bytes=alive.bytes + kept, kept=alive.kept + kept)
    # Each of these walks ends with all gradients.
    more = step_bytes(walked, optimizer, implementation, how["round_to"])
    return passes | {"optimizer step": Alive(walk.ledger.live + more, walk.ledger.gradients, 0, optimizer)}


def _alive(
    config: TransformerConfig, layout: Layout, *, optimizer: str, foreach: bool | None, accumulate: int,
    stage: int | None, fused: bool, allocated: bool, batch: int, sequence: int, **options: Unpack[Options],
) -> tuple[dict[str, Alive], Breakdown]:  # fmt: skip
    """What is alive at each moment, and the peak by bucket, of one pipeline stage; None: of the one with the highest peak."""
    for name, given in {"foreach": foreach, "fused": fused, "allocated": allocated}.items():
        if given is not None:
            boolean(name, given)
    optimizer_spec(optimizer)
    if foreach and fused:
        raise ValueError("foreach=True with fused=True: an optimizer is only one of them; leave one out")
    if positive_int("accumulate", accumulate) > 1:
        if layout.microbatches not in (1, accumulate):
            raise ValueError(
                f"accumulate={accumulate} with {layout}, whose microbatches={layout.microbatches} also set it: leave one out"
            )
        layout = replace(layout, microbatches=accumulate)
    found = []
    for each in stages(config, layout, stage, options.get("expert_tokens")):
        walked = program(config, batch=batch, sequence=sequence, layout=layout, stage=each, **options)
        implementation = "fused" if fused else "foreach" if (walked.foreach if foreach is None else foreach) else "loop"
        moments = _moments(walked, optimizer.lower(), implementation, allocated)
        held = states(walked, optimizer.lower(), allocated=implementation if allocated else "")
        found.append((moments, _peak(walked, moments, held)))
    return max(found, key=lambda each: each[1].total)


def _peak(walked: Program, moments: dict[str, Alive], held: Breakdown) -> Breakdown:
    peak = max(moments.values(), key=lambda alive: alive.bytes)
    parts = {name: size for name, size in held.items() if name != "gradients"}
    if walked.layout.zero_stage == 3:
        parts["gathered parameters"] = peak.gathered
    parts["gradients"] = peak.gradients
    parts["activations"] = peak.kept
    parts["temporary tensors"] = peak.bytes - peak.gradients - peak.kept - peak.gathered
    return Breakdown(parts, unit="bytes")


def peak_moments(
    config: TransformerConfig,
    *,
    batch: int,
    sequence: int,
    optimizer: str = "adamw",
    foreach: bool | None = None,
    shards: int = 1,
    accumulate: int = 1,
    fused: bool = False,
    allocated: bool = False,
    layout: Layout | str | None = None,
    stage: int | None = None,
    **options: Unpack[Options],
) -> dict[str, int]:
    """The most bytes alive, beyond parameters and optimizer state, at each moment of a step that can be its peak.

    - "forward"
    - "loss": two gradients of the logits beside everything saved
    - "head backward"
    - "norm backward", "mlp backward", "attention backward": in whichever block each is highest
    - "recomputation" of a checkpointed block
    - "embedding backward": the two gradients of a tied table are alive together
    - "optimizer step": all gradients, and the optimizer's temporary tensors: those of one tensor at a time, of all tensors
      (`foreach`), or none (`fused=True`)
    - "all-gather" and "reduce-scatter", with fsdp: parameters beside the buffer that they arrived in, and gradients beside the
      buffer that they leave from

    `layout`, `shards`, `accumulate`, `foreach` and `allocated` as for `step_peak`; `options` are those of `predict.program`.
    Equal to what `measure.step_memory` counts on a CPU, to the byte. A mixture of experts needs `expert_tokens` for that;
    without them, its experts are taken to share the tokens equally.
    Left out: the temporary tensors of optimizers for which they are not known (Muon, Adafactor, Lion and others).
    """
    moments, _ = _alive(
        config, as_layout(layout, shards=shards), batch=batch, sequence=sequence, optimizer=optimizer, foreach=foreach,
        accumulate=accumulate, fused=fused, allocated=allocated, stage=stage, **options,
    )  # fmt: skip
    return {name: moment.bytes for name, moment in moments.items()}


def step_peak(
    config: TransformerConfig,
    *,
    batch: int,
    sequence: int,
    optimizer: str = "adamw",
    foreach: bool | None = None,
    shards: int = 1,
    accumulate: int = 1,
    fused: bool = False,
    allocated: bool = False,
    layout: Layout | str | None = None,
    stage: int | None = None,
    **options: Unpack[Options],
) -> Breakdown:
    """Bytes alive at the peak of a training step that starts without gradients, by bucket. This is what has to fit.

    Activations are the tensors saved for backward at that moment; temporary tensors are the gradients of activations and
    everything else. The total is less than the buckets of `training_memory` where gradients replace activations, and more where
    temporary tensors are large.

    - `layout`: the bytes are those of the rank that holds most, or of the pipeline `stage` that is given; `shards=n` is short for
      `layout="fsdp=n"`.
    - `accumulate`: micro-batches whose gradients one step adds up (a layout's microbatches); from the second one on, gradients
      are alive from the start.
    - `foreach`: whether the optimizer works on all tensors at once; None: torch's default on the device, which is True on CUDA.
    - `fused=True`: the optimizer is one kernel.
    - `allocated`: bytes as `torch.cuda.max_memory_allocated` counts them, with every tensor rounded up to 512, and without the
      counters that torch keeps in host memory; what `step_allocation` adds is not included.
    - `options`: those of `predict.program`. Without them: fp32, eager attention and a CPU; `plan` counts
      `precision="mixed", attention="sdpa", device="cuda"`.

    While a block runs, a rank of fsdp holds the gathered parameters of two blocks and of what is outside the blocks, the block's
    whole gradients, and those of the block before until they are reduced. A pipeline stage holds what its micro-batches in
    flight have saved. With zero2, a block's gradients are reduced together; with zero1, whole gradients stay until the
    optimizer step is done, as in usual implementations. Left out with both: what a reduction allocates beside a gradient, that is
    its result and, where rows do not divide, a padded copy. `lm.parallelize`, which allocates these and frees each gradient as
    soon as it can, may need more or less.
    The moment of the peak: `peak_moments`.
    On CUDA, rounding and the temporary tensors of backward kernels (`predict.devices`) are computed from torch's sources and not
    measured.
    """
    _, peak = _alive(
        config, as_layout(layout, shards=shards), batch=batch, sequence=sequence, optimizer=optimizer, foreach=foreach,
        accumulate=accumulate, fused=fused, allocated=allocated, stage=stage, **options,
    )  # fmt: skip
    return peak


def largest_batch(
    config: TransformerConfig, *, sequence: int, memory_bytes: float, shards: int = 1, **options: Any
) -> int:
    """The largest batch whose peak fits into `memory_bytes`; 0 if not even one sequence does.

    `options` are those of `step_peak`; without them: fp32 on a CPU. Left out: the CUDA context, fragmentation,
    communication buffers, so leave a few per cent of the device free.
    """
    room = positive_number("memory_bytes", memory_bytes)

    def fits(batch: int) -> bool:
        return step_peak(config, batch=batch, sequence=sequence, shards=shards, **options).total <= room

    return largest(fits)


def largest(fits: Callable[[int], bool], limit: int | None = None) -> int:
    """The largest whole number (up to `limit`) that fits, 0 if none does. If a number fits, every smaller one has to fit, too."""
    low, high = 0, 1
    while (limit is None or high <= limit) and fits(high):
        low, high = high, 2 * high
    high = high if limit is None else min(high, limit + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def first(values: Sequence[T], holds: Callable[[T], bool]) -> T | None:
    """The first value that holds, None if none does. If a value holds, every later one has to hold, too."""
    number = largest(lambda last: holds(values[-last]), len(values))
    return values[-number] if number else None


def _affine(config: TransformerConfig, sequence: int, options: dict[str, Any]) -> tuple[int, int]:
    """The buckets are fixed + each · batch: the weights do not grow with the batch, activations do."""
    one = training_memory(config, batch=1, sequence=sequence, **options).total
    two = training_memory(config, batch=2, sequence=sequence, **options).total
    return 2 * one - two, two - one


def break_even_batch(
    config: TransformerConfig,
    *,
    sequence: int,
    precision: str = "mixed-fp32-gradients",
    than: str = "fp32",
    **options: Any,
) -> int:
    """B_min: the smallest batch at which the buckets of training in `precision` take no more memory than in `than`.

    A mixed policy keeps more for each parameter (a second copy of the weights) and less for each token, so below B_min it
    costs memory. Options are those of `training_memory`. Errors: ValueError if no batch is large enough.
    """
    fixed, each = _affine(config, sequence, {**options, "precision": precision})
    other_fixed, other_each = _affine(config, sequence, {**options, "precision": than})
    extra, saving = fixed - other_fixed, other_each - each
    if extra <= 0:
        return 1
    if saving <= 0:
        raise ValueError(
            f"{precision!r} saves nothing per sequence over {than!r} here, so no batch makes up for its weights"
        )
    return -(-extra // saving)
