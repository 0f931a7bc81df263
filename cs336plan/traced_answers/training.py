"""A training run of a file that is counted by tracing: time, and the memory of one accelerator."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from cs336kit.predict.breakdown import Breakdown
from cs336kit.predict.checks import fraction, positive_int, positive_number
from cs336kit.predict.chip import allowance, check_room, chip, peak_of
from cs336kit.predict.hardware import Accelerator
from cs336kit.predict.layouts import Layout, as_layout, shard_shape
from cs336kit.predict.optimizers import optimizer_spec, optimizer_state_bytes, optimizer_step_bytes
from cs336kit.predict.precision import ELEMENT_BYTES, POLICIES
from cs336kit.predict.words import accelerators, amount, duration, folded, row, size
from cs336plan.traced_answers.counted import Counted, File, count, refuse_others, rules_of
from cs336plan.training.schema import KEYS, SCHEMA

#: Policy of the plan → how the module is traced. Gradients have the type of their parameters there.
PRECISIONS = {
    "bf16": "bf16", "mixed": "bf16", "bf16-fp32-moments": "bf16", "fp16": "fp16", "autocast": "autocast",
    "autocast-fp16": "autocast-fp16", "fp32": "fp32",
}  # fmt: skip
#: Options that go into such an answer, by the names that the parser gives them.
TAKEN = {
    "tokens", "batch", "sequence", "precision", "optimizer", "fused", "attention", "checkpointing", "accelerator", "count",
    "memory_bytes", "peak_flops_per_second", "allowance", "mfu", "layout", "sharded", "lora_rank", "lora_targets",
    "price_per_hour", "device", "accumulate",
}  # fmt: skip
_DEFAULTS: dict[str, Any] = {
    "tokens": None, "batch": 1, "precision": "mixed", "optimizer": "adamw", "fused": False, "attention": "sdpa",
    "checkpointing": False, "accelerator": "h100-sxm", "count": None, "memory_bytes": None, "peak_flops_per_second": None,
    "allowance": None, "mfu": 0.4, "layout": None, "lora_rank": None, "lora_targets": ("q_proj", "v_proj"),
    "price_per_hour": None, "accumulate": None, "device": "cuda",
}  # fmt: skip
#: Tokens of a sequence where none are given, unless the model takes fewer.
_SEQUENCE = 4096


@dataclass(frozen=True)
class TracedPlan:
    """The answer. Bytes are those of one accelerator, FLOPs those of a step of one accelerator's sequences."""

    counted: Counted
    asked: Mapping[str, Any]
    chip: Accelerator
    layout: Layout
    #: micro-batches of a step
    passes: int
    #: without what checkpointing computes again
    step_flops: int
    days: float | None
    memory: Breakdown
    moment: str
    #: bytes of the optimizer's step, which is exact where the passes are an upper bound
    certain: int
    allowance: Breakdown
    reason: str
    notes: tuple[str, ...]

    @property
    def room(self) -> int:
        return self.chip.memory_bytes - self.allowance.total

    @property
    def fits(self) -> bool | None:
        """None where an upper bound does not fit, which says nothing."""
        if self.memory.total <= self.room:
            return True
        return None if self.counted.found.upper_bound and self.certain <= self.room else False

    @property
    def step_tokens(self) -> int:
        """Of one accelerator."""
        return int(self.asked["batch"] * self.asked["sequence"] * self.passes)

    @property
    def flops_per_token(self) -> float:
        return self.step_flops / self.step_tokens

    @property
    def cost(self) -> float | None:
        price = self.asked["price_per_hour"]
        return None if price is None or self.days is None else 24 * self.days * self.layout.count * price

    def __str__(self) -> str:
        return "\n".join([*self.counted.head(), *self._time(), *self._memory(), *self._verdict()])

    def _time(self) -> Iterator[str]:
        q = self.asked
        each = " of one accelerator" * (self.layout.count > 1)
        line = f"FLOPs: {self.step_flops:.4g} of a step of {self.step_tokens:,} tokens{each}"
        line += f", {self.flops_per_token:.4g} a token"
        yield from folded(line, indent="  ", first="")
        if self.days is not None:
            peak = (peak_of(self.chip) or 0) / 1e12
            yield f"time: {duration(self.days)} for {self.flops_per_token * q['tokens']:.4g} FLOPs"
            yield f"  on {accelerators(self.layout.count, self.chip.name)} ({peak:,.4g} TFLOP/s each) at an MFU of {q['mfu']:g}"
        if self.cost is not None:
            yield f"cost: {amount(self.cost)} at {q['price_per_hour']:g} for an hour of each accelerator"

    def _memory(self) -> Iterator[str]:
        q, found = self.asked, self.counted.found
        yield from folded(f"memory per accelerator at the peak, {self.moment}", indent="  ", first="")
        how = [q["precision"], "fused " * q["fused"] + q["optimizer"], f"batch {q['batch']} × {q['sequence']}"]
        how += [f"{found.attention} attention", *["checkpointing"] * found.checkpointing]
        how += [f"adapters of rank {q['lora_rank']}"] * bool(q["lora_rank"])
        how += [f"{self.passes:,} a step (gradient accumulation)"] * (self.passes > 1)
        how += [f"layout {self.layout}"] * (self.layout.count > 1)
        yield from folded(f"({', '.join(how)})", indent="   ", first="  ")
        for name, value in self.memory.items():
            yield row(name, value)
        yield row("together", self.memory.total, "at most" * found.upper_bound)
        yield row("allowance", self.allowance.total)
        yield from folded(self.reason, indent="    ")
        yield row("available", self.chip.memory_bytes)
        yield from folded(f"(saved for backward: {size(found.saved_bytes)} GiB)", indent="   ", first="  ")

    def _verdict(self) -> Iterator[str]:
        left = self.room - self.memory.total
        if self.fits:
            yield f"it fits, and {size(left)} GiB are left"
        elif self.fits is None:
            sentence = (
                f"it may fit: this upper bound is {size(-left)} GiB too much, and the kernels that people run save less; "
                f"{size(self.certain)} GiB are certain"
            )
            yield from folded(sentence, indent="  ", first="")
        else:
            yield f"it does not fit: {size(-left)} GiB too much"
        for note in self.notes:
            yield from folded(note, indent="  ", first="note: ")

    def as_dict(self) -> dict[str, object]:
        """Plain values for JSON, under the names of every plan; null where tracing says nothing."""
        q, found = self.asked, self.counted.found
        same = (
            "precision", "optimizer", "fused", "batch", "sequence", "tokens", "mfu", "lora_rank",
        )  # fmt: skip
        known = {
            **{name: q[name] for name in same}, "schema": SCHEMA, "command": "plan", "model": self.counted.file.name,
            "parameters": found.parameters.total, "active_parameters": found.active_parameters,
            "trainable_parameters": found.trainable_parameters, "device": found.device, "accelerator": self.chip.name,
            "count": self.layout.count, "layout": str(self.layout), "sharded": self.layout.zero_stage == 3,
            "accumulate": self.passes, "attention": found.attention,
            "checkpointing": found.checkpointing, "peak_flops_per_second": peak_of(self.chip),
            "flops": None if q["tokens"] is None else self.flops_per_token * q["tokens"], "days": self.days,
            "memory_bytes": dict(self.memory.items()), "peak_moment": self.moment, "total_bytes": self.memory.total,
            "allowance_bytes": dict(self.allowance.items()), "available_bytes": self.chip.memory_bytes, "fits": self.fits,
            "accelerator_hours": None if self.days is None else 24 * self.days * self.layout.count, "cost": self.cost,
            "notes": list(self.notes),
            "traced": self.counted.values() | {"step_flops": self.step_flops, "flops_per_token": self.flops_per_token},
        }  # fmt: skip
        return {**dict.fromkeys(KEYS), **known}


def plan(file: File, given: Mapping[str, Any], options: Mapping[str, str]) -> TracedPlan:
    """The answer to these options, under the parser's names; `options`: name → the option, for what is refused."""
    refuse_others(given, TAKEN, options)
    q = {**_DEFAULTS, "sequence": min(file.context or _SEQUENCE, _SEQUENCE), **given}
    if q["lora_targets"] == ("all",):
        q["lora_targets"] = "all-linear"
    for name, known in (("precision", tuple(PRECISIONS)), ("attention", ("sdpa", "eager"))):
        if q[name] not in known:
            raise ValueError(f"{name} in {q[name]} cannot be counted by tracing: give {', '.join(known)}")
    optimizer_spec(q["optimizer"])
    if optimizer_spec(q["optimizer"]).shaped == "matrices":
        raise ValueError(
            f"{q['optimizer']} takes some of the matrices only, and tracing does not tell which: give another"
        )
    layout, passes = _placed(q)
    what, sourced = chip(
        q["accelerator"], memory_bytes=q["memory_bytes"], peak_flops_per_second=q["peak_flops_per_second"],
        precision=POLICIES[q["precision"]].products, needs_peak=q["tokens"] is not None,
    )  # fmt: skip
    free, reason = allowance(q["allowance"], device=what, count=layout.count)
    check_room(free, what.memory_bytes)
    peak, mfu = peak_of(what), fraction("mfu", q["mfu"])
    tokens = None if q["tokens"] is None else positive_number("tokens", q["tokens"])
    how = {name: q[name] for name in ("batch", "sequence", "attention", "lora_rank", "lora_targets")}
    device, unseen = rules_of(q["device"], layout)
    how |= {"precision": PRECISIONS[q["precision"]], "answering": False, "device": device}
    counted = count(file, **how, layout=layout, accumulating=passes > 1, checkpointing=q["checkpointing"])
    # What is computed again is no part of an MFU.
    usual = count(file, **how) if q["checkpointing"] else counted
    flops = usual.found.training_flops
    days = None
    if tokens is not None and peak is not None:
        rate = layout.count * peak * mfu
        days = flops / (q["batch"] * q["sequence"]) * tokens / rate / 86400
    memory, moment, certain, notes = _memory(counted, q, layout)
    return TracedPlan(
        counted=counted, asked=q, chip=what, layout=layout, passes=passes, step_flops=passes * flops, days=days,
        memory=memory, moment=moment, certain=certain, allowance=free, reason=reason,
        notes=(*sourced, *unseen, *counted.notes, *notes),
    )  # fmt: skip


def _placed(q: Mapping[str, Any]) -> tuple[Layout, int]:
    """Who shares what, and the micro-batches of a step."""
    passes = None if q["accumulate"] is None else positive_int("accumulate", q["accumulate"])
    if q["layout"] is None:
        return Layout(dp=positive_int("count", 1 if q["count"] is None else q["count"])), passes or 1
    layout = as_layout(q["layout"])
    if q["count"] not in (None, layout.count):
        raise ValueError(
            f"layout={q['layout']} is for {layout.count}, and count is {q['count']}: leave one of them out"
        )
    if passes is not None and layout.microbatches not in (1, passes):
        raise ValueError(
            f"accumulate={passes} and microbatches={layout.microbatches} of the layout set the same number: leave one out"
        )
    return layout, passes or layout.microbatches


def _memory(counted: Counted, q: Mapping[str, Any], layout: Layout) -> tuple[Breakdown, str, int, list[str]]:
    """Bytes at the peak by bucket, its moment, the bytes of the optimizer's step, and notes."""
    found, policy, notes = counted.found, POLICIES[q["precision"]], list[str]()
    state = master = temporary = 0
    spec = optimizer_spec(q["optimizer"])
    if spec.foreach is None and not q["fused"]:
        notes.append(f"the temporary tensors of a step of {q['optimizer']} are not known here, and left out")
    rows = [(shard_shape(shape, layout.shards), kind) for shape, kind in found.trained]
    for held, kind in rows if found.held is None else found.states:
        # Adapters in fp32 are their own master weights.
        states = policy.states if kind == policy.weights else kind
        state += optimizer_state_bytes(q["optimizer"], shapes=[held], precision=states).total
        if policy.master_weights and kind == policy.weights:
            master += ELEMENT_BYTES[policy.master_weights] * prod(held)
        if spec.foreach is not None and not q["fused"]:
            temporary += optimizer_step_bytes(q["optimizer"], sizes=[prod(held)], precision=states)
    parts = {"parameters": found.parameter_bytes, "optimizer state": state} | (
        {"master weights": master} if master else {}
    )
    gradients = found.gradient_bytes
    step = Breakdown({**parts, "gradients": gradients, "temporary tensors": temporary}, unit="bytes")
    passes = Breakdown({**parts, "gradients, activations": found.passes_peak_bytes}, unit="bytes")
    notes += _of_shards(layout, q["precision"])
    if step.total > passes.total:
        return step, "the optimizer's step", step.total, notes
    return passes, "both passes", step.total, notes


def _of_shards(layout: Layout, precision: str) -> Iterator[str]:
    """How what ranks share is counted."""
    if layout.zero_stage == 2:
        yield (
            "zero2: whole gradients of a layer exist until its backward pass ends; buffers in which gradients are sent are not "
            "counted"
        )
    if layout.zero_stage == 3:
        yield (
            "fsdp is torch's fully_shard around each layer and around the whole: gathered parameters with their buffers, and "
            "gradients on their way to other ranks, are counted with activations"
        )
        if precision.startswith("autocast"):
            wide = POLICIES[precision].products
            yield f"autocast with fsdp: parameters are gathered in {wide}, gradients reduced in fp32 (MixedPrecisionPolicy)"
