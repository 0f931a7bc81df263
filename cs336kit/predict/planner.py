"""The two napkin questions in one answer: how long does a training run take, and does it fit?"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from cs336kit.predict._common.breakdown import Breakdown
from cs336kit.predict._common.checks import count as whole
from cs336kit.predict._common.checks import fraction, known, positive_int
from cs336kit.predict.accounting import active_parameters, parameters, training_flops
from cs336kit.predict.hardware import Accelerator, accelerator
from cs336kit.predict.napkin import NAPKIN_OPTIMIZERS, bytes_per_parameter, delivered_flops, largest_model, six_nd
from cs336kit.predict.precision import POLICIES
from cs336kit.predict.programs import check_sizes
from cs336kit.predict.training import SHARDED, largest, peak_moments, step_peak
from cs336kit.predict.transformer import TransformerConfig

T = TypeVar("T")


@dataclass(frozen=True)
class Question:
    """A training run: what, on what, how. `model` is a configuration, or a number of parameters.

    `batch` and `sequence` are what one accelerator works on at a time; a number of parameters has no activations, so
    it takes neither. `sharded` splits parameters, gradients and optimizer state over all accelerators.
    """

    model: TransformerConfig | int | float
    name: str = "model"
    accelerator: str = "h100-sxm"
    count: int = 1
    tokens: int | float | None = None
    batch: int | None = None
    sequence: int | None = None
    precision: str = "mixed"
    optimizer: str = "adamw"
    attention: str | None = None
    checkpointing: bool = False
    mfu: float = 0.4
    sharded: bool = True


@dataclass(frozen=True)
class Plan:
    """The answer: FLOPs, days, bytes per accelerator by bucket, whether they fit, and what to change."""

    question: Question
    device: Accelerator
    parameters: int
    flops: int | None
    six_nd_flops: int | None
    days: float | None
    memory: Breakdown
    #: the moment of a step in which that is alive; None for a number of parameters
    moment: str | None
    #: the same in total if every token chose the same experts; None without experts
    uneven: int | None
    fits: bool
    advice: tuple[str, ...]
    largest_model: int

    def __str__(self) -> str:
        """The answer as text, in GiB and days."""
        q = self.question
        lines = [f"{q.name}: {self.parameters:,} parameters"]
        if self.days is not None:
            lines.append(
                f"time: {self.flops:.4g} FLOPs (6PN: {self.six_nd_flops:.4g}) on {q.count:,} × {self.device.name} "
                f"at MFU {q.mfu:g}: {self.days:,.1f} days"
            )
        how = [f"{q.precision}, {q.optimizer}"]
        if q.batch:
            how.append(f"batch {q.batch} × {q.sequence}, {q.attention} attention")
        how += ["checkpointing"] * q.checkpointing
        if q.count > 1:
            how.append("sharded" if q.sharded else "replicated")
        when = f" at the peak, {self.moment}" if self.moment else ""
        lines.append(f"memory per accelerator{when} ({', '.join(how)}):")
        room = self.device.memory_bytes
        rows = [*self.memory.items(), ("together", self.memory.total), ("available", room)]
        lines += [f"  {name:<22}{size / 2**30:>12,.2f} GiB" for name, size in rows]
        if self.uneven is not None:
            lines.append(
                f"(experts that share the tokens equally; if all tokens chose the same ones: {self.uneven / 2**30:,.2f} GiB)"
            )
        lines.append("it fits" if self.fits else "it does not fit; what would help:")
        lines += [f"  - {sentence}" for sentence in self.advice]
        kind = "over all accelerators" if q.sharded and q.count > 1 else "on each accelerator"
        lines.append(f"largest model {kind}, without activations: {self.largest_model:.3g} parameters")
        return "\n".join(lines)

    def as_dict(self) -> dict[str, object]:
        """Plain values for JSON: counts are ints, bytes are bytes, days a float."""
        q = self.question
        return {
            "model": q.name,
            "parameters": self.parameters,
            "accelerator": self.device.name,
            "count": q.count,
            "precision": q.precision,
            "optimizer": q.optimizer,
            "batch": q.batch,
            "sequence": q.sequence,
            "attention": q.attention,
            "checkpointing": q.checkpointing,
            "sharded": q.sharded,
            "mfu": q.mfu,
            "tokens": None if q.tokens is None else int(q.tokens),
            "flops": self.flops,
            "six_nd_flops": self.six_nd_flops,
            "days": self.days,
            "memory_bytes": dict(self.memory.items()),
            "peak_moment": self.moment,
            "total_bytes": self.memory.total,
            "uneven_experts_bytes": self.uneven,
            "available_bytes": self.device.memory_bytes,
            "fits": self.fits,
            "advice": list(self.advice),
            "largest_model": self.largest_model,
        }


def plan(question: Question) -> Plan:
    """Answer a question. Impossible or contradictory ones raise a ValueError that says what to change.

    Time: the FLOPs of a run over count · peak · MFU, with the dense peak of the precision. The FLOPs of a configuration
    are exact (attention over all pairs, no recomputation, which MFU leaves out); of a number of parameters, 6PN.
    Memory per accelerator: what is alive at the peak of a step, by bucket; that has to fit. The optimizer's temporary tensors
    are those of torch's foreach implementation, its default on CUDA. Experts are taken to share the
    tokens equally, and the answer also says what the least equal shares would need. Left out: communication buffers,
    fragmentation, the CUDA context: leave some per cent free.
    """
    q, device, config = _checked(question)
    peak = _sentence(device.peak, "fp32" if q.precision == "fp32" else "bf16")
    room = _sentence(lambda: device.memory_bytes)
    P = parameters(config).total if config else whole("parameters", q.model)
    flops = six_nd_flops = days = None
    if q.tokens is not None:
        tokens = whole("tokens", q.tokens)
        active = active_parameters(config).total if config else P
        six_nd_flops = flops = int(six_nd(active, tokens=tokens))
        if config and q.sequence:
            flops = training_flops(config, batch=1, sequence=q.sequence).total * tokens // q.sequence
        try:
            days = flops / delivered_flops(q.count, peak_flops_per_second=peak, days=1, mfu=q.mfu)
        except OverflowError:
            raise ValueError(f"{tokens:.3g} tokens take more FLOPs than can be divided into days: give fewer") from None
    memory = _memory(q, P)
    fits = memory.total <= room
    each = bytes_per_parameter(q.optimizer, precision=q.precision).total
    largest = largest_model(q.count, memory_bytes=room, bytes_per_parameter=each, sharded=q.sharded)
    advice = () if fits else tuple(_advice(q, P, room))
    uneven = _uneven(q) if config and config.experts else None
    moment = _highest(peak_moments(**_step(q))) if config else None
    return Plan(q, device, P, flops, six_nd_flops, days, memory, moment, uneven, fits, advice, largest)


def _sentence(function: Callable[..., T], *arguments: str) -> T:
    """A fact that the table of accelerators lacks is as impossible an input as a wrong number."""
    try:
        return function(*arguments)
    except LookupError as error:
        raise ValueError(str(error)) from None


def _checked(q: Question) -> tuple[Question, Accelerator, TransformerConfig | None]:
    device = accelerator(q.accelerator)
    positive_int("count", q.count)
    fraction("mfu", q.mfu)
    known("precision", q.precision, POLICIES)
    known("optimizer", q.optimizer, dict.fromkeys(NAPKIN_OPTIMIZERS))
    if isinstance(q.model, TransformerConfig):
        sequence = min(q.model.context, 4096) if q.sequence is None else q.sequence
        batch, sequence = check_sizes(q.model, batch=1 if q.batch is None else q.batch, sequence=sequence)
        return replace(q, batch=batch, sequence=sequence, attention=q.attention or "sdpa"), device, q.model
    whole("parameters", q.model)
    for name in ("batch", "sequence", "attention", "checkpointing"):
        if getattr(q, name) is not None and getattr(q, name) is not False:
            raise ValueError(
                f"{name} is about activations, which need the shape of the model, not only its number of parameters: "
                f"name a model or give a configuration, or leave {name} out"
            )
    return q, device, None


def _memory(q: Question, P: int) -> Breakdown:
    """Bytes by bucket on one accelerator at the peak of a step."""
    over = q.count if q.sharded else 1
    if not isinstance(q.model, TransformerConfig):
        each = bytes_per_parameter(q.optimizer, precision=q.precision)
        return Breakdown({name: -(-P * each[name] // over) for name in SHARDED if each[name]}, unit="bytes")
    return _peak(q)


def _peak(q: Question, expert_tokens: list[int] | None = None) -> Breakdown:
    return step_peak(**_step(q), expert_tokens=expert_tokens)


def _step(q: Question) -> dict[str, Any]:
    """The step of a configuration, which `_checked` has given a batch and a sequence."""
    return {
        "config": q.model, "batch": q.batch, "sequence": q.sequence, "precision": q.precision, "optimizer": q.optimizer,
        "attention": q.attention, "checkpointing": q.checkpointing, "shards": q.count if q.sharded else 1, "foreach": True,
    }  # fmt: skip


def _highest(moments: dict[str, int]) -> str:
    return max(moments, key=lambda name: moments[name])


def _uneven(q: Question) -> int:
    """Bytes if all tokens chose the same experts, the first or the last of each layer.

    What is alive at any moment is linear in the experts' shares, so its maximum lies where the shares are extreme.
    """
    assert isinstance(q.model, TransformerConfig) and q.batch and q.sequence
    none = [0] * (q.model.experts - q.model.experts_per_token)
    all_tokens = [q.batch * q.sequence] * q.model.experts_per_token
    return max(_peak(q, shares).total for shares in (none + all_tokens, all_tokens + none))


def _advice(q: Question, P: int, room: int) -> list[str]:
    """Each single change that makes it fit; if there is none, all of them and as many accelerators as it takes."""

    def fits(**changes: Any) -> bool:
        return _memory(replace(q, **changes), P).total <= room

    single: dict[str, dict[str, Any]] = {}
    if isinstance(q.model, TransformerConfig):
        if q.attention == "eager":
            single["fused attention (--attention sdpa)"] = {"attention": "sdpa"}
        if not q.checkpointing:
            single["activation checkpointing (--checkpointing)"] = {"checkpointing": True}
        if q.batch and q.batch > 1:
            batch = largest(lambda size: fits(batch=size), q.batch - 1) or 1
            single[f"a batch of {batch} per accelerator (--batch {batch})"] = {"batch": batch}
    if not q.sharded and q.count > 1:
        single[f"sharding over the {q.count} accelerators (leave --replicated out)"] = {"sharded": True}
    enough = next((q.count * 2**i for i in range(1, 21) if fits(sharded=True, count=q.count * 2**i)), None)
    if enough:
        single[f"sharding over {enough} accelerators (--count {enough})"] = {"sharded": True, "count": enough}
    helps = [sentence for sentence, change in single.items() if fits(**change)]
    if helps:
        return helps
    together = {name: value for change in single.values() for name, value in change.items() if name != "count"}
    together |= {"sharded": True, "batch": 1 if q.batch else None}
    for count in (q.count * 2**i for i in range(21)):
        if fits(**together, count=count):
            return [f"all of these together: {', '.join(single)}, on {count} accelerators (--count {count})"]
    return ["a shorter sequence or a smaller model: what cannot be sharded does not fit by itself"]
