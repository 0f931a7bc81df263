"""A step in the text of an answer: its seconds and their bounds, and what is sent over which links."""

from collections.abc import Iterator

from cs336kit.predict.chip import listed
from cs336kit.predict.layouts import Layout
from cs336kit.predict.links import PAIRWISE
from cs336kit.predict.network import StepSeconds
from cs336kit.predict.words import amount, digits, duration, folded
from cs336plan.training.answer import Answer


def step(plan: Answer) -> Iterator[str]:
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


def _seconds(plan: Answer) -> Iterator[str]:
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


def links(lower: float, s: StepSeconds, layout: Layout, digits: str = ",.3g") -> tuple[str, str]:
    """The seconds of rings inside a node and between nodes, and behind the longer one what makes the lower bound less."""
    less = "less at best: switches add and copy"
    less += ", a token goes once to several experts of a node" if layout.ep > 1 else ""
    longer = max(s.inside, s.between)
    through = f"{s.through:{digits}} s of them rings that leave the node, whose hops inside it are the slower ones"
    all_links = ", rings can use all links of a rank" if s.through else ""
    inside = [through] * bool(s.through) + [less + all_links] * (lower < longer == s.inside)
    between = [less] * (lower < longer > s.inside)
    behind = [f" ({'; '.join(words)})" if words else "" for words in (inside, between)]
    return f"links inside a node {s.inside:{digits}} s{behind[0]}", f"between nodes {s.between:{digits}} s{behind[1]}"


def _run(plan: Answer) -> Iterator[str]:
    """How long the tokens take in steps of these bounds."""
    if plan.run_days is None:
        return
    does = [f"takes {_between(*map(duration, plan.run_days))}"]
    if plan.run_cost is not None:
        does.append(f"costs {_between(*map(amount, plan.run_cost))}")
    if plan.run_energy_kwh is not None:
        does.append(f"uses {_between(*map(amount, plan.run_energy_kwh))} kWh")
    yield from folded(f"in such steps the run {listed(does)}", indent="    ", first="    ")


def _asked(plan: Answer) -> Iterator[str]:
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


def _between(least: str, most: str) -> str:
    """A range of two values as they are shown, with the unit only once if both have the same."""
    return most if least == most else f"{least.removesuffix(most.lstrip('0123456789.,e+-'))} to {most}"


def _ring(name: str) -> str:
    """A collective in words; a ring sends mostly to ranks of the same node, even if it leaves the node."""
    kind = name.partition(",")[0].split()[-1]
    return name if kind in PAIRWISE else name.replace(", between nodes", " in rings that leave the node")
