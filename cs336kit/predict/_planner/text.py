"""The answer to a question about a training run as text, for a terminal of 80 columns."""

from collections.abc import Iterator
from textwrap import wrap
from typing import TYPE_CHECKING

from cs336kit.predict._links import PAIRWISE, node_of
from cs336kit.predict._planner.advice import elsewhere
from cs336kit.predict._planner.memory import largest_bytes_per_parameter

if TYPE_CHECKING:
    from cs336kit.predict._planner.answer import Plan
    from cs336kit.predict._planner.question import Question
    from cs336kit.predict.layouts import Layout
    from cs336kit.predict.wires import StepSeconds

_GIB = 2**30
#: The share by which a number has to change before an answer mentions it.
SEEN = 0.05
#: Width of a terminal, in columns.
WIDTH = 80


def text(plan: "Plan") -> str:
    """The answer, one idea per line."""
    return "\n".join(
        line
        for part in (_model(plan), _time(plan), _batch(plan), _step(plan), _memory(plan), _verdict(plan))
        for line in part
    )


def folded(sentence: str, *, indent: str = "", first: str | None = None) -> list[str]:
    """A sentence in lines of a terminal, with those after the first one indented."""
    first = indent if first is None else first
    return wrap(sentence, WIDTH, initial_indent=first, subsequent_indent=indent, break_on_hyphens=False)


def size(value: int) -> str:
    """Bytes as GiB, small ones with more digits."""
    gib = value / _GIB
    return f"{gib:,.2f}" if gib >= 0.01 or not value else f"{gib:,.4f}"


def row(name: str, value: int, remark: str = "") -> str:
    return f"  {name:<23}{size(value):>11} GiB" + (f"  {remark}" if remark else "")


def _model(plan: "Plan") -> Iterator[str]:
    q = plan.question
    line = f"{q.name}: {plan.parameters:,} parameters"
    if plan.active_parameters < plan.parameters:
        line += f", {plan.active_parameters:,} of them active for a token"
    if plan.trainable is not None and plan.trainable != plan.parameters:
        adapters = f", and {plan.trainable:,} of adapters (rank {q.lora_rank})"
        line += adapters if q.lora_rank else f", {plan.trainable:,} of them trained"
    yield from folded(line, indent="  ", first="")


def _time(plan: "Plan") -> Iterator[str]:
    q = plan.question
    if plan.days is None or plan.flops is None:
        return
    yield (
        f"time: {duration(plan.days)} for {plan.flops:.4g} FLOPs (6ND: {plan.six_nd_flops:.4g})\n"
        f"  on {accelerators(q.count, plan.chip.name)} ({(plan.chip.peak or 0) / 1e12:,.4g} TFLOP/s each) at an MFU of {q.mfu:g}"
    )
    if plan.accelerators_within_days is not None:
        many = plan.accelerators_within_days
        node = q.node or node_of(q.accelerator, many)
        nodes = f" ({many // node:,} nodes of {node})" * (many > node)
        sentence = f"within {q.within_days:g} days it takes {many:,} of them{nodes} at this MFU"
        able = q.layout is None and (q.global_batch is None or q.global_batch % ((q.batch or 1) * many) == 0)
        if many > q.count:
            sentence += f"; all else here is for {q.count:,}" + f", and --count {many} plans those" * able
        yield from folded(sentence, indent="    ", first="  ")
    if plan.recomputed:
        yield f"  and {100 * plan.recomputed:.1f} % more FLOPs that are computed again, which MFU leaves out"
    if plan.cost is not None:
        hours = amount(plan.accelerator_hours or 0)
        yield f"cost: {amount(plan.cost)} for {hours} accelerator hours at {q.price_per_hour:g} each"
    if plan.energy_kwh is not None:
        yield f"energy: {amount(plan.energy_kwh)} kWh at {q.watts:,g} W for each accelerator"


def duration(days: float) -> str:
    """Days, or hours, minutes and seconds if they are few."""
    if days >= 2:
        return f"{days:,.1f} days"
    for unit, size in (("hours", 24), ("minutes", 24 * 60)):
        if days * size >= 1:
            return f"{days * size:,.2f} {unit}"
    return f"{days * 86400:,.3g} seconds"


def amount(value: float) -> str:
    """A whole number, a small one with three digits."""
    return f"{value:,.0f}" if value >= 10 else f"{value:,.3g}"


def digits(value: float) -> str:
    """A number with three digits, or all of those before the point."""
    return f"{value:,.3g}" if value < 100 else f"{value:,.0f}"


def accelerators(count: int, name: str) -> str:
    """So many of the table, or as they were given."""
    return f"{count:,} accelerator{'s' * (count > 1)} as given" if name == "given" else f"{count:,} × {name}"


def billions(value: int) -> str:
    """A number of parameters as it is usually written: 39.5B."""
    for size, letter in ((10**12, "T"), (10**9, "B"), (10**6, "M")):
        if value >= size:
            scaled = value / size
            return f"{scaled:.3g}{letter}" if scaled < 999.5 else f"{scaled:,.0f}{letter}"
    return f"{value:,}"


def _between(least: str, most: str) -> str:
    """A range of two values as they are shown, with the unit only once if both have the same."""
    return most if least == most else f"{least.removesuffix(most.lstrip('0123456789.,e+-'))} to {most}"


def _batch(plan: "Plan") -> Iterator[str]:
    q = plan.question
    if q.batch and q.sequence and q.step_sequences:
        ranks = q.placed.data_ranks
        on = f" on each of {ranks:,}" if ranks > 1 else ""
        several = f", {q.passes:,} a step (gradient accumulation)" * (q.passes > 1)
        yield from folded(f"micro-batch: {q.batch} × {q.sequence:,} tokens{on}{several}", indent="  ", first="")
        sequences = f"{q.step_sequences:,} sequence{'s' * (q.step_sequences > 1)}"
        yield f"  a step takes {sequences}, {q.step_sequences * q.sequence:,} tokens (global batch)"
        if plan.steps is not None and q.steps is None:
            yield f"  {plan.steps:,} steps for {int(q.tokens or 0):,} tokens"
    if plan.implied_batch is not None and q.steps is not None:
        per = f"{plan.implied_batch:,} tokens a step"
        if q.sequence:
            per += f", {-(-plan.implied_batch // q.sequence):,} sequences of {q.sequence:,}"
        agrees = q.step_sequences is None or q.steps * q.step_sequences * (q.sequence or 0) == q.tokens
        other = "" if agrees else f": another global batch than this one{_nearest(plan.implied_batch, q)}"
        yield from folded(
            f"{int(q.tokens or 0):,} tokens in {q.steps:,} steps imply {per}{other}", indent="    ", first="  "
        )


def _nearest(tokens: int, q: "Question") -> str:
    """The option for a global batch of about `tokens` tokens, which the ranks can split into whole micro-batches."""
    if not q.batch or not q.sequence:
        return ""
    together = q.batch * q.placed.data_ranks
    return f" (--global-batch {max(1, round(tokens / q.sequence / together)) * together})"


def _step(plan: "Plan") -> Iterator[str]:
    """What is sent, and the bounds of a step; on one accelerator, nothing is sent."""
    yield from _seconds(plan)
    if plan.wire is None:
        return
    sent = ", ".join(f"{_ring(name)} {_sent(part)}" for name, part in plan.wire.items() if part)
    yield from folded(f"each accelerator sends in a step: {sent or 'nothing'}", indent="    ", first="  ")
    if plan.link_bytes and plan.link_bytes < sum(part for name, part in plan.wire.items() if "between nodes" in name):
        share = f"of what leaves the node, {_sent(plan.link_bytes)} crosses each accelerator's own link"
        yield from folded(share, indent="    ", first="  ")


def _sent(value: int) -> str:
    """Bytes on the wire, few of them in MB."""
    return f"{digits(value / 1e9)} GB" if value >= 1e7 or not value else f"{digits(value / 1e6)} MB"


def _seconds(plan: "Plan") -> Iterator[str]:
    """A step at the MFU, and its bounds; on one accelerator, attention without and with the pairs that a mask hides."""
    q = plan.question
    if (rate := plan.mfu_tokens_per_second) is not None:
        each = f", {amount(rate / q.count)} on each accelerator" * (q.count > 1)
        step = f"a step takes {plan.mfu_seconds:,.3g} s at an MFU of {q.mfu:g}"
        yield from folded(f"{step}: {amount(rate)} tokens per second{each}", indent="  ", first="")
    if plan.seconds is None or plan.step_mfu is None:
        return
    s, least = plan.seconds, plan.causal or plan.seconds
    worst, best = (f"{mfu:.3g}" for mfu in plan.step_mfu)
    # What is computed again takes time, and is no part of an MFU.
    again = ", which leaves out what the backward pass computes again" * (plan.step_mfu[0] < 0.995 * q.product_rate)
    counted = "and nothing else" + " but sending" * (plan.wire is not None)
    how = f"with matrix products at {q.product_rate:g} of the peak (--product-rate) {counted}"
    if plan.wire is not None:
        bounds = f"{least.lower:,.3g} s if all overlaps (an MFU of {best}), {s.upper:,.3g} s if nothing does ({worst})"
    elif least.lower < s.upper:
        bounds = (
            f"{least.lower:,.3g} s with causal attention (an MFU of {best}), {s.upper:,.3g} s over all pairs "
            f"({worst}{again})"
        )
    else:
        bounds = f"{s.upper:,.3g} s (an MFU of {worst}{again})"
    yield from folded(f"{how}: {bounds}", indent="    ", first="  ")
    if plan.wire is not None:
        computes = f"compute {s.compute:,.3g} s"
        if least.compute < s.compute:
            computes = f"compute {least.compute:,.3g} s (causal attention) to {s.compute:,.3g} s"
        parts = [
            computes,
            *links(least.lower, s, q.placed),
        ]
        if least.bubble:
            parts.append(f"{100 * least.bubble:.1f} % pipeline bubble")
        yield from folded(", ".join(parts), indent="    ", first="    ")
    yield from _run(plan)
    yield from _asked(plan)


def links(lower: float, s: "StepSeconds", layout: "Layout", digits: str = ",.3g") -> tuple[str, str]:
    """The seconds of rings inside a node and between nodes, and behind the longer one what makes the lower bound less."""
    less = "less at best: switches add and copy"
    less += ", a token goes once to several experts of a node" if layout.ep > 1 else ""
    longer = max(s.inside, s.between)
    through = f"{s.through:{digits}} s of them rings that leave the node, whose hops inside it are the slower ones"
    inside = [through] * bool(s.through) + [less] * (lower < longer == s.inside)
    between = [less] * (lower < longer > s.inside)
    behind = [f" ({'; '.join(words)})" if words else "" for words in (inside, between)]
    return f"links inside a node {s.inside:{digits}} s{behind[0]}", f"between nodes {s.between:{digits}} s{behind[1]}"


def _run(plan: "Plan") -> Iterator[str]:
    """How long the tokens take in steps of these bounds."""
    if plan.run_days is None:
        return
    does = [f"takes {_between(*map(duration, plan.run_days))}"]
    if plan.run_cost is not None:
        does.append(f"costs {_between(*map(amount, plan.run_cost))}")
    if plan.run_energy_kwh is not None:
        does.append(f"uses {_between(*map(amount, plan.run_energy_kwh))} kWh")
    yield from folded(f"in such steps the run {_listed(does)}", indent="    ", first="    ")


def _asked(plan: "Plan") -> Iterator[str]:
    """The rate of matrix products that the MFU requires; it is out of reach if the peak is not enough."""
    asked, mfu = plan.asked, plan.question.mfu
    if asked is None:
        return
    if asked.lower is None:
        sentence = (
            f"an MFU of {mfu:g} is out of reach with this layout and network: with matrix products at the peak and "
            f"everything overlapping it is {asked.highest_mfu:.3g}"
        )
    elif plan.wire is None:
        rates = _between(f"{asked.lower:.3g}", "more than 1" if asked.upper is None else f"{asked.upper:.3g}")
        sentence = f"an MFU of {mfu:g} asks for matrix products at {rates} of the peak"
    else:
        upper = "more than 1" if asked.upper is None else f"{asked.upper:.3g}"
        sentence = (
            f"an MFU of {mfu:g} asks for matrix products at {asked.lower:.3g} of the peak if all overlaps, at {upper} if "
            "nothing does"
        )
    yield from folded(sentence, indent="    ", first="  ")


def _listed(words: list[str]) -> str:
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def _ring(name: str) -> str:
    """A collective in words; a ring sends mostly to ranks of the same node, even if it leaves the node."""
    kind = name.partition(",")[0].split()[-1]
    return name if kind in PAIRWISE else name.replace(", between nodes", " in rings that leave the node")


def _how(plan: "Plan") -> str:
    q = plan.question
    how = [q.precision, "fused " * q.fused + q.optimizer]
    if q.batch:
        how += [
            f"batch {q.batch} × {q.sequence}",
            {"flash_attention": "flash attention"}.get(q.attention or "", f"{q.attention} attention"),
        ]
    how += ["checkpointing"] * q.checkpointing
    if q.chunks > 1:
        how.append(f"loss in {q.chunks} chunks")
    if q.lora_rank:
        how.append(f"adapters on {', '.join(q.lora_targets)}")
    if q.base:
        how.append(f"frozen matrices in {q.base}")
    if q.frozen:
        how.append(f"frozen: {', '.join(q.frozen)}")
    if q.layout is not None:
        how.append(f"layout {q.placed}")
    elif q.count > 1:
        how.append("sharded" if q.sharded else "replicated")
    return ", ".join(how)


def _memory(plan: "Plan") -> Iterator[str]:
    when = f" at the peak, {plan.moment}" if plan.moment else ", without activations"
    yield f"memory per accelerator{when}"
    yield from folded(f"({_how(plan)})", indent="   ", first="  ")
    for name, value in plan.memory.items():
        yield row(name, value, "(none at this moment)" if name == "gradients" and not value else "")
    yield row("together", plan.memory.total)
    yield row("allowance", plan.allowance.total)
    yield from folded(plan.allowance_reason, indent="    ")
    yield row("available", plan.chip.memory_bytes)
    if plan.uneven is None and getattr(plan.question.model, "experts", None):
        ranks = plan.question.placed.ep
        who = f"each of the {ranks} ranks of ep" if ranks > 1 else "each expert"
        sentence = (
            f"{who} is taken to get an equal share of the tokens; one that gets more needs more, which is not counted"
        )
        yield from folded(f"({sentence})", indent="   ", first="  ")
    elif plan.uneven is not None and plan.uneven > (1 + SEEN) * plan.memory.total:
        sentence = f"experts share the tokens equally; if all chose the same: {size(plan.uneven)} GiB"
        yield from folded(f"({sentence})", indent="   ", first="  ")


def _verdict(plan: "Plan") -> Iterator[str]:
    q = plan.question
    left = plan.chip.memory_bytes - plan.allowance.total - plan.memory.total
    pointer = "" if plan.fits or plan.advice else elsewhere(q, ())
    pointer *= pointer in plan.notes
    if plan.fits and plan.moment is None:
        freed = plan.memory.get("temporary tensors", 0)
        sentence = f"it fits without activations: {size(left + freed)} GiB are left for them"
        if freed:
            sentence += f", and {size(left)} GiB in the optimizer's step, which begins when they are gone"
        yield from folded(sentence, indent="  ", first="")
    elif plan.fits:
        yield f"it fits, and {size(left)} GiB are left"
    elif pointer:
        sentence = f"it does not fit: {size(-left)} GiB too much, and no change that was tried is enough; {pointer}"
        yield from folded(sentence, indent="  ", first="")
    else:
        yield f"it does not fit: {size(-left)} GiB too much" + ("; what helps, cheapest first:" if plan.advice else "")
        if not plan.advice and (plan.moment is None or q.count == 1):
            smaller = "a smaller model" if plan.moment is None else "a shorter sequence or a smaller model"
            more = "sharding over more accelerators is not enough"
            if plan.moment is not None and q.flavour != "course":
                more = (
                    f"sharded experts are not counted for the modules of {q.flavour}, and --flavour course counts them"
                )
            yield from folded(f"{smaller} may fit: {more}", indent="  ")
    for one in plan.advice:
        yield from folded(str(one), indent="    ", first="  - ")
    whose = f"activation bytes: {plan.flavour}; --flavour names others" if plan.moment else ""
    for note in (*plan.notes, whose):
        yield from folded(note, indent="  ", first="note: ") if note and note != pointer else ()
    if q.lora_rank or q.frozen or q.layout is not None:
        return
    shared = q.sharded and q.count > 1
    kind = "over all accelerators" if shared else "on each accelerator"
    without = f"without activations{' and gathered parameters' * shared}"
    each = f"{billions(plan.largest_model)} parameters at {largest_bytes_per_parameter(q)} bytes each"
    yield from folded(f"largest model {kind}, {without}: {each}", indent="  ", first="")
