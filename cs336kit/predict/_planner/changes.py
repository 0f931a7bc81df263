"""The changes that may make a run fit, one at a time, each with what it costs in time."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import inf
from typing import Any

from cs336kit.predict._links import link_speed
from cs336kit.predict._planner.memory import extra_flops, mfu_seconds, parameter_count, wire, writes_scores
from cs336kit.predict._planner.question import FUSED, Question
from cs336kit.predict.hardware import Accelerator
from cs336kit.predict.layouts import STAGES, Layout, as_layout, divisors
from cs336kit.predict.operations import ELEMENT_BYTES
from cs336kit.predict.precision import POLICIES
from cs336kit.predict.training import largest
from cs336kit.predict.wires import StepSeconds

#: Bytes that a run lacks after changes of its question: none if it fits, infinitely many if there can be no such run.
Over = Callable[..., float]
#: The axes along which replicas are counted.
REPLICAS = ("dp", *STAGES)
#: Bytes of a step, and the share of it, that are too small to mention.
_LITTLE, _UNSEEN = 5e7, 5e-4
#: The numbers of accelerators and of chunks that are tried are powers of two up to these exponents.
_DOUBLINGS, _CHUNKS = 20, 6


@dataclass(frozen=True)
class Advice:
    """One change (or several together) that makes it fit."""

    #: in words, with the options of the command
    change: str
    #: fields of the question and their new values
    changes: dict[str, Any]
    #: the most additional seconds per second of a step; None if not known
    slower: float | None
    #: what the change costs, in words
    costs: str

    def __str__(self) -> str:
        return f"{self.change}: {self.costs}"


def single_changes(q: Question, chip: Accelerator, over: Over) -> Iterator[Advice]:
    """Every single change that could help."""
    if q.config:
        yield from _of_kernels(q)
        yield from _of_layout(q, chip, over)
    if q.optimizer in FUSED and not q.fused and over(fused=True) < over():  # the optimizer's step is the peak
        costs = "no more FLOPs, and one kernel for the whole step"
        yield Advice("a fused optimizer (--fused)", {"fused": True}, 0.0, costs)
    if q.config:
        yield from _of_activations(q, chip, over)
    yield from _of_states(q)
    if q.layout is None and not q.sharded and q.count > 1 and over(sharded=True) < inf:
        yield _sharding(q, chip)
    found = enough(q, over, {})
    if found:
        words, changes = found
        times = changes["count"] // q.count
        costs = f"{times} times the accelerators{other_batch(q, changes)}"
        yield Advice(f"sharding over {words}", changes, None, costs)


def _of_kernels(q: Question) -> Iterator[Advice]:
    """Changes that save less and take less time."""
    if q.attention == "eager":
        costs = "less time: scores never leave the chip, though the backward pass computes them again"
        yield Advice("fused attention (--attention sdpa)", {"attention": "sdpa"}, 0.0, costs)
    if writes_scores(q):
        costs = "less time: scores never leave the chip"
        change = "a kernel that knows windows, caps and sinks (--attention flash_attention)"
        yield Advice(change, {"attention": "flash_attention"}, 0.0, costs)


def _of_layout(q: Question, chip: Accelerator, over: Over) -> Iterator[Advice]:
    """Ranks may share more: the sequence, states, gradients, and parameters, too."""
    placed = asked_layout(q)
    if placed.tp > 1 and not placed.sp:
        sequence = replace(placed, sp=True)
        yield from _sharing(q, chip, over, f"sequence parallelism (--layout {sequence})", sequence)
    ranks = placed.dp * placed.shards
    alone: dict[str, Any] = dict.fromkeys(REPLICAS, 1)
    by = {name: replace(placed, **alone | {name: ranks}) for name in STAGES}
    name = "zero2" if over(layout=by["zero1"]) > max(0, over(layout=by["zero2"])) else "zero1"
    if by[name] != placed and placed.stage <= STAGES[name]:
        shared = "optimizer state" + " and gradients" * (name == "zero2")
        out = ", without --replicated" * (q.layout is None)
        yield from _sharing(q, chip, over, f"sharing {shared} over the replicas (--layout {by[name]}{out})", by[name])
    if q.layout is not None and by["fsdp"] != placed:
        words = f"sharding over {q.count:,} accelerators (--layout {by['fsdp']})"
        yield from _sharing(q, chip, over, words, by["fsdp"], "parameters are gathered for each micro-batch, ")


def _sharing(
    q: Question, chip: Accelerator, over: Over, change: str, layout: Layout, how: str = "no more FLOPs, "
) -> Iterator[Advice]:
    changes = {"layout": layout}
    if over(**changes) == inf:
        return
    more, seconds, slower = _sent(q, chip, changes)
    if (slower or 0) < _UNSEEN and more < _LITTLE:
        yield Advice(change, changes, 0.0, f"{how}and as many bytes on the wire")
    else:
        yield Advice(change, changes, slower, how + _on_the_wire(more, seconds, slower))


def _of_states(q: Question) -> Iterator[Advice]:
    """Changes that keep less of the parameters and their states."""
    if q.lora_rank and q.base is None:
        change = f"a frozen base of 4 bits (--qlora {q.lora_rank} in place of --lora {q.lora_rank})"
        yield Advice(change, {"base": "nf4"}, None, "rounded weights, unpacked for every product")
    if q.optimizer == "adamw":
        change = f"an optimizer with states of 8 bits (--optimizer adamw8bit{', without --fused' * q.fused})"
        yield Advice(change, {"optimizer": "adamw8bit", "fused": False}, None, "rounded states")


def _of_activations(q: Question, chip: Accelerator, over: Over) -> Iterator[Advice]:
    assert q.batch
    if q.batch > 1:
        whole = divisors(q.batch, q.batch // 2)
        size = whole[max(0, largest(lambda n: over(**_split(q, whole[n - 1])) <= 0, len(whole)) - 1)]
        split = _split(q, size)
        change = in_passes(size, split["accumulate"], f" --layout {split['layout']}" if "layout" in split else "")
        if over(**split) < inf:
            more, seconds, slower = _sent(q, chip, split)
            costs = "no more FLOPs; smaller matrix products may run less well"
            costs += f"; {_on_the_wire(more, seconds, slower)}" if more else ""
            yield Advice(change, split, slower if more else 0.0, costs)
    if q.chunks == 1:
        chunks = next((2**i for i in range(1, _CHUNKS) if over(chunks=2**i) <= 0), 2**3)
        extra = extra_flops(q, chunks=chunks) - extra_flops(q)
        yield Advice(f"the loss in {chunks} chunks (--chunks {chunks})", {"chunks": chunks}, extra, percent(extra))
    if not q.checkpointing:
        extra = extra_flops(q, checkpointing=True) - extra_flops(q)
        yield Advice("activation checkpointing (--checkpointing)", {"checkpointing": True}, extra, f"{percent(extra)}")
    if q.batch > 1:
        size = largest(lambda n: over(batch=n, global_batch=None) <= 0, q.batch - 1) or 1
        changes = {"batch": size, "global_batch": None}
        costs = "another global batch, and smaller matrix products may run less well"
        without = "" if q.global_batch is None else f"{_accumulate(q)}, without --global-batch"
        yield Advice(f"a batch of {size} per accelerator (--batch {size}{without})", changes, None, costs)


def in_passes(size: int, passes: int, layout: str = "") -> str:
    return f"the same batch in more micro-batches (--batch {size} --accumulate {passes}{layout})"


def _split(q: Question, size: int) -> dict[str, Any]:
    """The same sequences of a step, in micro-batches of `size`."""
    assert q.batch
    changes: dict[str, Any] = {"batch": size, "accumulate": q.passes * q.batch // size, "global_batch": None}
    if q.layout is None or (layout := _of_passes(as_layout(q.layout), changes["accumulate"])) == as_layout(q.layout):
        return changes
    return {**changes, "layout": layout}


def _sharding(q: Question, chip: Accelerator) -> Advice:
    """ZeRO 3 gathers the weights twice and scatters gradients once; replicas reduce gradients: two ways of a ring."""
    change = f"sharding over the {q.count} accelerators (leave --replicated out)"
    if q.config:
        more, seconds, slower = _sent(q, chip, {"sharded": True})
        return Advice(change, {"sharded": True}, slower, _on_the_wire(more, seconds, slower))
    kind = POLICIES[q.precision]
    share = parameter_count(q) * (q.count - 1) / q.count
    more = int((2 * ELEMENT_BYTES[kind.products] - ELEMENT_BYTES[kind.gradients]) * share)
    link = link_speed(chip)
    seconds = more / link if link and q.count <= q.per_node else None
    return Advice(change, {"sharded": True}, None, _on_the_wire(more, seconds, None))


def _sent(q: Question, chip: Accelerator, changes: dict[str, Any]) -> tuple[int, float | None, float | None]:
    """What a step of these changes sends beyond that of the question: bytes, seconds, and seconds per second of a step.

    Seconds of rings over their own links, with nothing overlapping; per second of a step at the MFU. None where the speed of
    a link is not known.
    """
    changed = replace(q, **changes)
    (after, then, _), (before, now, _) = wire(changed, chip), wire(q, chip)
    more = (after.total if after else 0) - (before.total if before else 0)
    step = mfu_seconds(q, chip)
    if then is None or now is None or not step:
        return more, None, None
    seconds = max(0.0, _sending(then, changed) - _sending(now, q))
    return more, seconds, seconds / step


def _sending(s: StepSeconds, q: Question) -> float:
    """Seconds of a step that are not computing, where nothing overlaps."""
    return s.upper - s.compute / (1 - q.placed.bubble)


def _on_the_wire(more: int, seconds: float | None, slower: float | None) -> str:
    costs = f"{more / 1e9:,.1f} GB more on the wire for each step and accelerator"
    if seconds is None:
        return costs + "; how long depends on links of which no speed is known" * (more >= _LITTLE)
    if not seconds:
        return f"{costs}, in no more time"
    costs += f", {seconds:,.2f} s if nothing overlaps"
    return costs + ("" if slower is None else f": up to {100 * slower:,.1f} % of a step")


def percent(extra: float) -> str:
    return f"{100 * extra:.1f} % more FLOPs" if extra else "no more FLOPs"


def asked_layout(q: Question) -> Layout:
    """The layout as given, or the one that `count` and `sharded` mean."""
    return q.placed if q.layout is None else as_layout(q.layout)


def enough(q: Question, over: Over, beside: dict[str, Any]) -> tuple[str, dict[str, Any]] | None:
    """Everything sharded over the fewest times the accelerators that suffice with other changes, in words and as changes."""
    last = None
    for doublings in range(1, _DOUBLINGS + 1):
        words, changes = _shared(q, 2**doublings, beside)
        lacking = over(**changes)
        if lacking <= 0:
            return words, changes
        # Each tensor has at least one row on a rank, so beyond some number of ranks each of them holds more, not less.
        if last is not None and lacking > last:
            return None
        last = lacking
    return None


def _shared(q: Question, times: int, beside: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Parameters, gradients and states sharded over `times` times the data ranks."""
    count = q.count * times
    changes: dict[str, Any] = {**beside, "count": count}
    if q.layout is None:
        changes["sharded"] = True
        changes.pop("layout", None)  # that of fewer ranks
        option = f"--count {count}"
    else:
        placed = as_layout(beside.get("layout", q.layout))
        changes["layout"] = replace(placed, dp=1, zero1=1, zero2=1, fsdp=placed.dp * placed.shards * times)
    words, same = _same_batch(q, changes)
    words = "" if "accumulate" in beside else words  # the words of that change give it
    changes |= same
    if q.layout is not None:
        changes["layout"] = _of_passes(changes["layout"], changes.get("accumulate", q.passes))
        option = f"--layout {changes['layout']}"
    out = [*["--replicated"] * (q.layout is None and not q.sharded), *["--global-batch"] * _is_other_batch(q, changes)]
    without = f", without {' and '.join(out)}" if out else ""
    return f"{count:,} accelerators ({option}{words}{without})", changes


def _same_batch(q: Question, changes: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """With as many micro-batches as the given global batch needs after these changes, or without it: options, and changes."""
    if q.global_batch is None:
        return "", {"global_batch": None}
    changed = replace(q, **changes)
    assert changed.batch
    passes, rest = divmod(q.global_batch, changed.batch * changed.placed.data_ranks)
    if passes and not rest:
        return "" if passes == changed.passes else f" --accumulate {passes}", {
            "global_batch": q.global_batch, "accumulate": passes,
        }  # fmt: skip
    return _accumulate(changed), {"global_batch": None}


def _accumulate(q: Question) -> str:
    """The option for as many micro-batches, unless they are those of a step by default."""
    usual = 1 if q.layout is None else as_layout(q.layout).pp
    return "" if q.passes == usual else f" --accumulate {q.passes}"


def _is_other_batch(q: Question, changes: dict[str, Any]) -> bool:
    """Whether these changes drop a global batch that was given."""
    return q.global_batch is not None and changes["global_batch"] is None


def _of_passes(layout: Layout, passes: int) -> Layout:
    """The layout, without asking for another number of micro-batches than `passes`."""
    return layout if layout.microbatches in (1, layout.pp) else replace(layout, microbatches=passes)


def other_batch(q: Question, changes: dict[str, Any]) -> str:
    """What it costs where the sequences of a step change."""
    return ", and another global batch" if replace(q, **changes).step_sequences != q.step_sequences else ""
