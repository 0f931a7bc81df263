"""The changes that may make a run fit, one at a time, and what one or several of them cost in time."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from cs336kit.predict.engine.operations import ELEMENT_BYTES
from cs336kit.predict.hardware import Accelerator
from cs336kit.predict.layouts import STAGES, Layout, as_layout, divisors
from cs336kit.predict.links import link_speed
from cs336kit.predict.precision import POLICIES
from cs336kit.predict.training import largest
from cs336kit.predict.wires import StepSeconds
from cs336plan.training.memory import extra_flops, mfu_seconds, parameter_count, wire, writes_scores
from cs336plan.training.question import FUSED, Question, usual_attention

#: Bytes that a run lacks after changes of its question: none if it fits, infinitely many if there can be no such run.
Over = Callable[..., float]
#: The axes along which replicas are counted.
REPLICAS = ("dp", *STAGES)
#: Bytes of a step, and the share of it, that are too small to mention.
_LITTLE, _UNSEEN = 5e7, 5e-4
#: The numbers of accelerators and of chunks that are tried are powers of two up to these exponents.
_DOUBLINGS, _CHUNKS = 20, 6
#: The option of a new layout in the words of a change, with what joins it to them.
OF_LAYOUT = re.compile(r" \(--layout \{layout\}\)| --layout \{layout\}|--layout \{layout\}, ")


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


class Change(NamedTuple):
    """One change, before it is known what it costs."""

    #: with the options of the command; in braces, fields whose new values belong there
    words: str
    changes: dict[str, Any]
    #: what it costs besides FLOPs and what is sent
    said: str = ""
    #: whether that takes time of which nobody knows how long
    unknown: bool = False


def single_changes(q: Question, over: Over) -> Iterator[Change]:
    """Every single change that could help."""
    if q.config and q.attention == "eager":
        costs = "less time: scores never leave the chip, though the backward pass computes them again"
        kind = usual_attention(q)
        yield Change(f"fused attention (--attention {kind})", {"attention": kind}, costs)
    if writes_scores(q):
        change = "a kernel that knows windows, caps and sinks (--attention flash_attention)"
        yield Change(change, {"attention": "flash_attention"}, "less time: scores never leave the chip")
    if q.config:
        yield from _of_layout(q, over)
    if q.optimizer in FUSED and not q.fused and over(fused=True) < over():  # the optimizer's step is the peak
        yield Change("a fused optimizer (--fused)", {"fused": True}, "no more FLOPs, and one kernel for the whole step")
    if q.config:
        yield from _of_activations(q, over)
    if q.lora_rank and q.base is None:
        change = f"a frozen base of 4 bits (--qlora {q.lora_rank} in place of --lora {q.lora_rank})"
        yield Change(change, {"base": "nf4"}, "rounded weights, unpacked for every product", True)
    if q.optimizer == "adamw":
        change = f"an optimizer with states of 8 bits (--optimizer adamw8bit{', without --fused' * q.fused})"
        yield Change(change, {"optimizer": "adamw8bit", "fused": False}, "rounded states", True)
    if q.layout is None and not q.sharded and q.count > 1:
        yield Change(f"sharding over the {q.count} accelerators (leave --replicated out)", {"sharded": True})


def _of_layout(q: Question, over: Over) -> Iterator[Change]:
    """Ranks may share more: the sequence, states, gradients, and parameters, too."""
    placed = asked_layout(q)
    if placed.tp > 1 and not placed.sp:
        yield Change("sequence parallelism (--layout {layout})", {"layout": replace(placed, sp=True)})
    ranks = placed.dp * placed.shards
    alone: dict[str, Any] = dict.fromkeys(REPLICAS, 1)
    by = {name: replace(placed, **alone | {name: ranks}) for name in STAGES}
    name = "zero2" if over(layout=by["zero1"]) > max(0, over(layout=by["zero2"])) else "zero1"
    if by[name] != placed and placed.stage <= STAGES[name]:
        shared = "optimizer state" + " and gradients" * (name == "zero2")
        out = ", without --replicated" * (q.layout is None)
        yield Change(f"sharing {shared} over the replicas (--layout {{layout}}{out})", {"layout": by[name]})
    if q.layout is not None and by["fsdp"] != placed:
        words = f"sharding over {q.count:,} accelerators (--layout {{layout}})"
        yield Change(words, {"layout": by["fsdp"]}, "parameters are gathered for each micro-batch")


def _of_activations(q: Question, over: Over) -> Iterator[Change]:
    assert q.batch
    if q.batch > 1:
        whole = divisors(q.batch, q.batch // 2)
        size = whole[max(0, largest(lambda n: over(**_split(q, whole[n - 1])) <= 0, len(whole)) - 1)]
        split = _split(q, size)
        placed = " --layout {layout}" * ("layout" in split)
        words = f"the same batch in more micro-batches (--batch {{batch}} --accumulate {{accumulate}}{placed})"
        yield Change(words, split, "no more FLOPs; smaller matrix products may run less well")
    if q.chunks == 1:
        chunks = next((2**i for i in range(1, _CHUNKS) if over(chunks=2**i) <= 0), 2**3)
        yield Change("the loss in {chunks} chunks (--chunks {chunks})", {"chunks": chunks})
    if not q.checkpointing:
        yield Change("activation checkpointing (--checkpointing)", {"checkpointing": True})
    if q.batch > 1:
        size = largest(lambda n: over(batch=n, global_batch=None) <= 0, q.batch - 1) or 1
        costs = "another global batch, and smaller matrix products may run less well"
        without = "" if q.global_batch is None else f"{_accumulate(q)}, without --global-batch"
        change = f"a batch of {{batch}} per accelerator (--batch {{batch}}{without})"
        yield Change(change, {"batch": size, "global_batch": None}, costs, True)


def _split(q: Question, size: int) -> dict[str, Any]:
    """The same sequences of a step, in micro-batches of `size`."""
    assert q.batch
    changes: dict[str, Any] = {"batch": size, "accumulate": q.passes * q.batch // size, "global_batch": None}
    if q.layout is None or (layout := _of_passes(as_layout(q.layout), changes["accumulate"])) == as_layout(q.layout):
        return changes
    return {**changes, "layout": layout}


def cost(q: Question, chip: Accelerator, chosen: Sequence[Change], changed: Question) -> tuple[float | None, str]:
    """What all these changes together cost: seconds per second of a step, None if one alone is not known, and words."""
    extra = 0.0
    if q.config:
        before, after = (extra_flops(q, checkpointing=run.checkpointing, chunks=run.chunks) for run in (q, changed))
        extra = after - before
    more, seconds, sending = _sent(q, chip, changed) if q.count > 1 else (0, 0.0, 0.0)
    seen = more >= _LITTLE or (sending or 0) >= _UNSEEN
    costs = f"{100 * extra:.1f} % more FLOPs" if extra else "no more FLOPs"
    if alone := len(chosen) == 1:
        costs = chosen[0].said or costs
    if seen:
        costs += ("; " if alone and chosen[0].said else ", ") + _on_the_wire(more, seconds, sending)
    elif any(one.changes.keys() & {"layout", "sharded"} for one in chosen):
        costs += f", and {'fewer' if more <= -_LITTLE else 'as many'} bytes on the wire"
    slower = extra + (sending or 0.0) * seen
    if alone:
        return None if chosen[0].unknown or (seen and sending is None) else slower, costs
    return slower, costs + "".join(f"; {one.said}" for one in chosen if one.unknown)


def _sent(q: Question, chip: Accelerator, changed: Question) -> tuple[int, float | None, float | None]:
    """What a step of the changed question sends beyond that of `q`: bytes, seconds, and seconds per second of a step.

    Seconds of rings over their own links, with nothing overlapping; per second of a step at the MFU. None where the speed of
    a link is not known. Of a number of parameters, ZeRO 3 gathers the weights twice and scatters gradients once, and replicas
    reduce gradients: two ways of a ring.
    """
    if q.config is None:
        kind = POLICIES[q.precision]
        share = parameter_count(q) * (q.count - 1) / q.count * (changed.sharded and not q.sharded)
        more = int((2 * ELEMENT_BYTES[kind.products] - ELEMENT_BYTES[kind.gradients]) * share)
        link = link_speed(chip)
        return more, more / link if link and q.count <= q.per_node else None, None
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
        return f"{costs}; how long depends on links of which no speed is known"
    if not seconds:
        return f"{costs}, in no more time"
    costs += f", {seconds:,.2f} s if nothing overlaps"
    return costs + ("" if slower is None else f": up to {100 * slower:,.1f} % of a step")


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
    other = q.global_batch is not None and changes["global_batch"] is None
    out = [*["--replicated"] * (q.layout is None and not q.sharded), *["--global-batch"] * other]
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


def _of_passes(layout: Layout, passes: int) -> Layout:
    """The layout, without asking for another number of micro-batches than `passes`."""
    return layout if layout.microbatches in (1, layout.pp) else replace(layout, microbatches=passes)


def other_batch(q: Question, changes: dict[str, Any]) -> str:
    """What it costs where the sequences of a step change."""
    return ", and another global batch" if replace(q, **changes).step_sequences != q.step_sequences else ""
