"""What to change if a run does not fit, the cheapest change first, or as many together as it takes."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from math import inf
from typing import Any

from cs336kit.predict._planner.changes import (
    REPLICAS,
    Advice,
    Over,
    asked_layout,
    enough,
    in_passes,
    other_batch,
    percent,
    single_changes,
)
from cs336kit.predict._planner.chip import allowance
from cs336kit.predict._planner.memory import memory
from cs336kit.predict._planner.question import Question, settled
from cs336kit.predict.hardware import Accelerator
from cs336kit.predict.layouts import AXES, Layout


def advice(q: Question, chip: Accelerator) -> tuple[Advice, ...]:
    """Each single change that makes it fit, cheapest first; if there is none, as many of them together as it takes."""

    @cache  # several changes are tried more than once
    def over(**changes: Any) -> float:
        try:
            changed = settled(replace(q, **changes))
            free, _ = allowance(q.allowance, device=chip, count=changed.count)
            return memory(changed).total + free.total - chip.memory_bytes
        except ValueError:
            return inf  # an impossible question is no advice

    options = sorted(single_changes(q, chip, over), key=lambda one: (one.slower is None, one.slower or 0))
    options = [one for one in options if over(**one.changes) < inf]
    helps = [one for one in options if over(**one.changes) <= 0]
    if any("count" not in one.changes for one in helps):
        return tuple(helps)
    chosen: list[Advice] = []
    together: dict[str, Any] = {}
    for one in options:
        if "count" in one.changes or one.changes.items() <= together.items():
            continue
        chosen.append(one)
        together = _merged(q, chosen)
        if over(**together) <= 0:
            return (_together(q, chosen, over), *helps)
    # Of changes without a known cost, more passes: what they send is not known where the speed between nodes is not.
    beside = [one for one in chosen if one.slower is not None or "accumulate" in one.changes]
    return tuple(helps) or tuple(_more_accelerators(q, over, beside))


def other_layouts(q: Question, found: tuple[Advice, ...]) -> str:
    """What may help if nothing else does on the same accelerators: other ways to divide the model; or ""."""
    if q.count == 1 or q.config is None or any("count" not in one.changes for one in found):
        return ""
    if q.flavour != "course":
        return ""
    checkpointing = "" if q.checkpointing else "--checkpointing "
    instead = "--find" if q.layout is None else f"--count {q.count} --find in place of --layout"
    if q.count > q.per_node and q.between_nodes is None:
        instead += " --between-nodes RATE"
    other = "" if q.layout is None else "other "
    return (
        f"{other}layouts that divide a sequence or a layer may fit on these {q.count:,} accelerators: "
        f"{checkpointing}{instead}"
    )


def _together(q: Question, chosen: list[Advice], over: Over) -> Advice:
    """Several changes together, without those that are not needed; the most expensive ones are dropped first."""
    for one in reversed(chosen[:-1]):
        others = [other for other in chosen if other is not one]
        if over(**_merged(q, others)) <= 0:
            chosen = others
    slower = sum(one.slower or 0 for one in chosen)
    costs = "together " * (len(chosen) > 1) + _computing_and_sending(chosen)
    changes = _merged(q, chosen)
    return Advice(" and ".join(_of_all(one, changes) for one in chosen), changes, slower, costs)


def _of_all(one: Advice, changes: dict[str, Any]) -> str:
    """The words of a change next to others: its option gives the layout of all of them."""
    return one.change.replace(f"--layout {one.changes.get('layout')}", f"--layout {changes.get('layout')}")


def _merged(q: Question, chosen: list[Advice]) -> dict[str, Any]:
    """All changes together; for layouts, what each of them changes in that of the question."""
    merged = {name: value for one in chosen for name, value in one.changes.items()}
    if "layout" not in merged:
        return merged
    asked = asked_layout(q)
    for one in chosen:
        layout = one.changes.get("layout", Layout(fsdp=q.count) if "sharded" in one.changes else asked)
        # How state is shared is one choice, though it has several axes.
        for axes in (REPLICAS, *((axis,) for axis in AXES if axis not in REPLICAS)):
            changed = {axis: getattr(layout, axis) for axis in axes}
            if changed != {axis: getattr(asked, axis) for axis in axes}:
                merged["layout"] = replace(merged["layout"], **changed)
    return merged


def _more_accelerators(q: Question, over: Over, chosen: list[Advice]) -> Iterator[Advice]:
    """As many accelerators as are needed besides the changes of known cost, and those of these that are then still needed."""
    found = enough(q, over, _merged(q, chosen))
    if found is None:
        return
    for one in sorted(chosen, key=lambda one: -(one.slower or 0)):
        others = [other for other in chosen if other is not one]
        without = enough(q, over, _merged(q, others))
        if without and without[1]["count"] <= found[1]["count"]:
            chosen, found = others, without
    option, changes = found
    words = [
        in_passes(changes["batch"], changes["accumulate"]) if "accumulate" in one.changes else _of_all(one, changes)
        for one in chosen
    ]
    costs = f"{_computing_and_sending(chosen)}, and more accelerators{other_batch(q, changes)}"
    yield Advice(", ".join([*words, option]), changes, sum(one.slower or 0 for one in chosen), costs)


def _computing_and_sending(chosen: list[Advice]) -> str:
    """What is slower about all of these: FLOPs, what sharding and more passes send, and what has no known cost."""
    sends = [one for one in chosen if one.changes.keys() & {"sharded", "accumulate", "layout"}]
    sending = sum(one.slower or 0 for one in sends)
    costs = percent(sum(one.slower or 0 for one in chosen if one not in sends))
    costs += f", and sending for up to {100 * sending:,.1f} % of a step" if sending else ""
    return costs + "".join(f"; {one.costs.removeprefix('no more FLOPs; ')}" for one in chosen if one.slower is None)
