"""What to change where a run does not fit, the cheapest change first, each with what it costs in time."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from cs336kit.predict._planner.chip import Chip
from cs336kit.predict._planner.memory import extra_flops, memory, pass_flops, wire
from cs336kit.predict._planner.question import Question
from cs336kit.predict.layouts import divisors
from cs336kit.predict.operations import ELEMENT_BYTES
from cs336kit.predict.precision import POLICIES
from cs336kit.predict.training import largest
from cs336kit.predict.transformer import TransformerConfig

#: Numbers of accelerators and of chunks that are tried are powers of two up to these.
_DOUBLINGS, _CHUNKS = 20, 6


@dataclass(frozen=True)
class Advice:
    """One change (or several at once) that makes it fit."""

    #: in words, with the options of the command
    change: str
    #: fields of the question and their new values
    changes: dict[str, Any]
    #: seconds more per second of computing, at most; None where nothing can be said
    slower: float | None
    #: what the change costs, in words
    costs: str

    def __str__(self) -> str:
        return f"{self.change}: {self.costs}"


def advice(q: Question, P: int, chip: Chip, room: int) -> tuple[Advice, ...]:
    """Each single change that makes it fit, cheapest first; if there is none, as many of them as it takes."""

    def fits(**changes: Any) -> bool:
        return memory(replace(q, **changes), P).total <= room

    options = sorted(_options(q, P, chip, fits), key=lambda one: (one.slower is None, one.slower or 0))
    helps = [one for one in options if fits(**one.changes)]
    if helps:
        return tuple(helps)
    together: dict[str, Any] = {}
    words: list[str] = []
    slower = 0.0
    for one in options:
        if "count" in one.changes or one.changes.items() <= together.items():
            continue
        together |= one.changes
        words.append(one.change)
        slower += one.slower or 0
        if fits(**together):
            return (Advice(" and ".join(words), together, slower, f"together {_percent(slower)}"),)
    return tuple(_more_accelerators(q, fits, together, words, slower))


def _more_accelerators(
    q: Question, fits: Callable[..., bool], together: dict[str, Any], words: list[str], slower: float
) -> Iterator[Advice]:
    if q.layout is not None:
        return
    for count in (q.count * 2**i for i in range(_DOUBLINGS + 1)):
        changes = {**together, "sharded": True, "count": count, "global_batch": None}
        if fits(**changes):
            words = [*words, f"{count:,} accelerators (--count {count})"]
            yield Advice(", ".join(words), changes, slower, f"{_percent(slower)}, and more accelerators")
            return


def _options(q: Question, P: int, chip: Chip, fits: Callable[..., bool]) -> Iterator[Advice]:
    """Every single change that could help."""
    if isinstance(q.model, TransformerConfig):
        yield from _of_activations(q, fits)
    if q.layout is not None:
        return
    if not q.sharded and q.count > 1:
        yield _sharding(q, P, chip)
    enough = next((n for n in (q.count * 2**i for i in range(1, _DOUBLINGS + 1)) if fits(sharded=True, count=n)), None)
    if enough:
        change = f"sharding over {enough:,} accelerators (--count {enough})"
        costs = f"{enough // q.count} times the accelerators"
        yield Advice(change, {"sharded": True, "count": enough, "global_batch": None}, None, costs)


def _of_activations(q: Question, fits: Callable[..., bool]) -> Iterator[Advice]:
    assert q.batch
    if q.attention == "eager":
        costs = "less time: scores never leave the chip, though the backward pass computes them again"
        yield Advice("fused attention (--attention sdpa)", {"attention": "sdpa"}, 0.0, costs)
    if q.batch > 1:
        whole = divisors(q.batch, q.batch // 2)
        size = whole[max(0, largest(lambda n: fits(**_split(q, whole[n - 1])), len(whole)) - 1)]
        passes = q.passes * q.batch // size
        change = f"the same batch in more passes (--batch {size} --accumulate {passes})"
        yield Advice(change, _split(q, size), 0.0, "no more FLOPs; smaller products may run less well")
    if q.chunks == 1:
        chunks = next((2**i for i in range(1, _CHUNKS) if fits(chunks=2**i)), 2**3)
        extra = extra_flops(q, chunks=chunks) - extra_flops(q)
        yield Advice(f"the loss in {chunks} chunks (--chunks {chunks})", {"chunks": chunks}, extra, _percent(extra))
    if not q.checkpointing:
        extra = extra_flops(q, checkpointing=True) - extra_flops(q)
        yield Advice("activation checkpointing (--checkpointing)", {"checkpointing": True}, extra, f"{_percent(extra)}")
    if q.batch > 1:
        size = largest(lambda n: fits(batch=n, global_batch=None), q.batch - 1) or 1
        changes = {"batch": size, "global_batch": None}
        costs = "another global batch, and smaller products may run less well"
        yield Advice(f"a batch of {size} per accelerator (--batch {size})", changes, None, costs)


def _split(q: Question, size: int) -> dict[str, Any]:
    """The same sequences of a step, `size` at a time."""
    assert q.batch
    return {"batch": size, "accumulate": q.passes * q.batch // size, "global_batch": None}


def _sharding(q: Question, P: int, chip: Chip) -> Advice:
    """ZeRO 3 gathers the weights twice and scatters gradients once; replicas reduce gradients: two ways of a ring."""
    if isinstance(q.model, TransformerConfig):
        (after, _, _), (before, _, _) = wire(replace(q, sharded=True), chip), wire(q, chip)
        more = (after.total if after else 0) - (before.total if before else 0)
    else:
        kind = POLICIES[q.precision]
        share = P * (q.count - 1) / q.count
        more = int((2 * ELEMENT_BYTES[kind.products] - ELEMENT_BYTES[kind.gradients]) * share)
    costs = f"{more / 1e9:,.1f} GB more on the wire for each step and accelerator"
    slower = None
    if chip.link:
        costs += f", {more / chip.link:,.2f} s at the link's rate if nothing overlaps"
    if chip.link and chip.peak and isinstance(q.model, TransformerConfig) and q.batch:
        slower = more / chip.link / (pass_flops(q).total * q.batch * q.passes / (chip.peak * q.mfu))
        costs += f": up to {100 * slower:,.1f} % of a step"
    change = f"sharding over the {q.count} accelerators (leave --replicated out)"
    return Advice(change, {"sharded": True}, slower, costs)


def _percent(extra: float) -> str:
    return f"{100 * extra:.1f} % more FLOPs" if extra else "no more FLOPs"
