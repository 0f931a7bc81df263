"""The changes that may make a run fit, one at a time."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from cs336kit.predict.layouts import STAGES, Layout, as_layout, divisors
from cs336kit.predict.training import first, largest
from cs336plan.training import words
from cs336plan.training.costs import Change, Cost
from cs336plan.training.question import FUSED, Question, usual_attention, writes_scores

#: Bytes that a run lacks after changes of its question: none if it fits, infinitely many if there can be no such run.
Over = Callable[..., float]
#: The axes along which replicas are counted.
REPLICAS = ("dp", *STAGES)
#: The numbers of accelerators and of chunks that are tried are powers of two up to these exponents.
_DOUBLINGS, _CHUNKS = 20, 6


@dataclass(frozen=True)
class Advice:
    """One change (or several together) that makes it fit."""

    #: the run that does not fit
    question: Question
    chosen: tuple[Change, ...]
    #: fields of the question and their new values, of all changes together and of more accelerators
    changes: dict[str, Any]
    #: the most additional seconds per second of a step; None if not known
    slower: float | None
    #: what `chosen` costs; None for more accelerators alone
    cost: Cost | None

    @property
    def change(self) -> str:
        """In words, with the options of the command."""
        return words.change(self.question, self.chosen, self.changes)

    @property
    def costs(self) -> str:
        """What the change costs, in words."""
        return words.costs(self.question, self.chosen, self.changes, self.cost)

    def __str__(self) -> str:
        return f"{self.change}: {self.costs}"


def single_changes(q: Question, over: Over) -> Iterator[Change]:
    """Every single change that could help."""
    if q.config and q.attention == "eager":
        yield Change("fused attention", {"attention": usual_attention(q)})
    if writes_scores(q):
        yield Change("kernel", {"attention": "flash_attention"})
    if q.config:
        yield from _of_layout(q, over)
    if q.optimizer in FUSED and not q.fused and over(fused=True) < over():  # the optimizer's step is the peak
        yield Change("fused optimizer", {"fused": True})
    if q.config:
        yield from _of_activations(q, over)
    if q.lora_rank and q.base is None:
        yield Change("packed base", {"base": "nf4"}, unknown=True)
    if q.optimizer == "adamw":
        yield Change("adamw8bit", {"optimizer": "adamw8bit", "fused": False}, unknown=True)
    if q.layout is None and not q.sharded and q.count > 1:
        yield Change("sharded", {"sharded": True})


def _of_layout(q: Question, over: Over) -> Iterator[Change]:
    """Ranks may share more: the sequence, states, gradients, and parameters, too."""
    placed = asked_layout(q)
    if placed.tp > 1 and not placed.sp:
        yield Change("sequence parallel", {"layout": replace(placed, sp=True)})
    ranks = placed.dp * placed.shards
    alone: dict[str, Any] = dict.fromkeys(REPLICAS, 1)
    by = {name: replace(placed, **alone | {name: ranks}) for name in STAGES}
    name = "zero2" if over(layout=by["zero1"]) > max(0, over(layout=by["zero2"])) else "zero1"
    if by[name] != placed and placed.zero_stage <= STAGES[name]:
        yield Change(name, {"layout": by[name]})
    if q.layout is not None and by["fsdp"] != placed:
        yield Change("fsdp", {"layout": by["fsdp"]})


def _of_activations(q: Question, over: Over) -> Iterator[Change]:
    assert q.batch
    if q.batch > 1:
        whole = divisors(q.batch, q.batch // 2)
        size = whole[max(0, largest(lambda n: over(**_split(q, whole[n - 1])) <= 0, len(whole)) - 1)]
        yield Change("micro-batches", _split(q, size))
    if q.chunks == 1:
        chunks = first([2**i for i in range(1, _CHUNKS)], lambda n: over(chunks=n) <= 0) or 2**3
        yield Change("chunks", {"chunks": chunks})
    if not q.checkpointing:
        yield Change("checkpointing", {"checkpointing": True})
    if q.batch > 1:
        size = largest(lambda n: over(batch=n, global_batch=None) <= 0, q.batch - 1) or 1
        yield Change("batch", {"batch": size, "global_batch": None}, unknown=True)


def _split(q: Question, size: int) -> dict[str, Any]:
    """The same sequences of a step, in micro-batches of `size`."""
    assert q.batch
    changes: dict[str, Any] = {"batch": size, "accumulate": q.passes * q.batch // size, "global_batch": None}
    if q.layout is None or (layout := _of_passes(as_layout(q.layout), changes["accumulate"])) == as_layout(q.layout):
        return changes
    return {**changes, "layout": layout}


def asked_layout(q: Question) -> Layout:
    """The layout as given, or the one that `count` and `sharded` mean."""
    return q.placed if q.layout is None else as_layout(q.layout)


def enough(q: Question, over: Over, beside: dict[str, Any]) -> dict[str, Any] | None:
    """The changes that share everything over the fewest times the accelerators that suffice with other changes."""
    last = None
    for doublings in range(1, _DOUBLINGS + 1):
        changes = shared(q, 2**doublings, beside)
        lacking = over(**changes)
        if lacking <= 0:
            return changes
        # Twice the ranks halve what they share: all further doublings together save no more than the last one did. Not so with
        # a global batch, whose passes are fewer with more ranks; but at some number each rank holds more, not less.
        if last is not None and lacking > last - (lacking if q.global_batch is None else 0):
            return None
        last = lacking
    return None


def shared(q: Question, times: int, beside: dict[str, Any]) -> dict[str, Any]:
    """Parameters, gradients and states shared by `times` times the data ranks; the same global batch, if they can make it."""
    changes: dict[str, Any] = {**beside, "count": q.count * times, "global_batch": None}
    if q.layout is None:
        changes["sharded"] = True
        changes.pop("layout", None)  # that of fewer ranks
    else:
        placed = as_layout(beside.get("layout", q.layout))
        changes["layout"] = replace(placed, dp=1, zero1=1, zero2=1, fsdp=placed.dp * placed.shards * times)
    if q.global_batch is not None:
        changed = replace(q, **changes)
        assert changed.batch
        passes, rest = divmod(q.global_batch, changed.batch * changed.placed.data_ranks)
        if passes and not rest:
            changes |= {"global_batch": q.global_batch, "accumulate": passes}
    if q.layout is not None:
        changes["layout"] = _of_passes(changes["layout"], changes.get("accumulate", q.passes))
    return changes


def _of_passes(layout: Layout, passes: int) -> Layout:
    """The layout, without asking for another number of micro-batches than `passes`."""
    return layout if layout.microbatches in (1, layout.pp) else replace(layout, microbatches=passes)
