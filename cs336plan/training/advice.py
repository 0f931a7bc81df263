"""What to change if a run does not fit, the cheapest change first, or as many together as it takes."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from math import inf
from typing import Any

from cs336kit.predict.chip import allowance
from cs336kit.predict.hardware import Accelerator
from cs336kit.predict.layouts import AXES, Layout, divisors
from cs336kit.predict.training import first
from cs336plan.training.changes import REPLICAS, Advice, Over, asked_layout, enough, shared, single_changes
from cs336plan.training.costs import Change, cost
from cs336plan.training.memory import memory
from cs336plan.training.question import Question, settled


def advice(q: Question, chip: Accelerator) -> tuple[Advice, ...]:
    """Each single change that makes it fit, cheapest first; if there is none, as many of them together as it takes.

    If all of them are not enough, the layers are divided on the accelerators at hand, and only then are there more of these.
    """

    @cache  # several changes are tried more than once
    def over(**changes: Any) -> float:
        try:
            changed = settled(replace(q, **changes))
            free, _ = allowance(q.allowance, device=chip, count=changed.count)
            return memory(changed).total + free.total - chip.memory_bytes
        except ValueError:
            return inf  # an impossible question is no advice

    def priced(chosen: list[Change]) -> Advice:
        return _priced(q, chip, chosen, _merged(q, chosen))

    singles = [(priced([one]), one) for one in single_changes(q, over) if over(**one.changes) < inf]
    singles.sort(key=lambda pair: (pair[0].slower is None, pair[0].slower or 0))
    alone = enough(q, over, {})
    more = () if alone is None else (Advice(q, (), alone, None, None),)
    if helps := [advised for advised, one in singles if over(**one.changes) <= 0]:
        return (*helps, *more)
    chosen: list[Change] = []
    for _, one in singles:
        if one.changes.items() <= _merged(q, chosen).items():
            continue
        chosen.append(one)
        if over(**_merged(q, chosen)) <= 0:
            return (priced(_needed(chosen, lambda some: over(**_merged(q, some)) <= 0)), *more)
    beside = [one for one in chosen if not one.unknown]
    divided = _divided(q, over, beside)
    here = [priced(_needed(divided, lambda part: over(**_merged(q, part)) <= 0))] if divided else []
    return (*here, *(more or _more_accelerators(q, chip, over, beside)))


def _divided(q: Question, over: Over, beside: list[Change]) -> list[Change] | None:
    """Changes that make it fit on as many accelerators: the fewest ranks of a node that divide each layer.

    Only where nothing but the data is divided so far. If it takes other changes, too, they are `beside`.
    """
    placed = asked_layout(q)
    if q.config is None or placed.count != placed.dp * placed.shards or q.count == 1:
        return None
    others = [one for one in beside if not one.changes.keys() & {"layout", "sharded", "accumulate", "batch", "count"}]

    def with_(some: list[Change]) -> list[Change] | None:
        least = first([*_divisions(q, placed)], lambda one: over(**_merged(q, [*some, one])) <= 0)
        return least and [*some, least]

    return with_([]) or (with_(others) if others else None)


def _divisions(q: Question, placed: Layout) -> Iterator[Change]:
    """Tensor parallel ranks inside a node, fewest first, with parameters sharded over the others; the same global batch."""
    assert q.config
    alone: dict[str, Any] = dict.fromkeys(REPLICAS, 1)
    for tp in divisors(q.config.heads, min(q.per_node, q.count))[1:]:
        if q.per_node % tp == 0 == q.count % tp:
            layout = replace(placed, **alone | {"fsdp": q.count // tp}, tp=tp, sp=True, microbatches=1)
            changes: dict[str, Any] = {"layout": layout, "accumulate": q.passes * tp}
            yield Change("tensor parallel", changes)


def _priced(q: Question, chip: Accelerator, chosen: list[Change], changes: dict[str, Any]) -> Advice:
    """These changes with what they cost; one alone takes unknown time if it does, or if that of what it sends is not known."""
    price = cost(q, chip, replace(q, **_merged(q, chosen)))
    slower = price.flops + (price.share or 0.0) * price.seen
    unknown = len(chosen) == 1 and (chosen[0].unknown or (price.seen and price.share is None))
    return Advice(q, tuple(chosen), changes, None if unknown else slower, price)


def _needed(chosen: list[Change], holds: Callable[[list[Change]], bool]) -> list[Change]:
    """Without those that are not needed; the most expensive ones, which stand last, are dropped first."""
    for one in reversed(chosen):
        others = [other for other in chosen if other is not one]
        if holds(others):
            chosen = others
    return chosen


def layouts_may_fit(q: Question, found: tuple[Advice, ...]) -> bool:
    """Whether other ways to divide the model are what may help, since nothing else does on the same accelerators."""
    helps = any("count" not in one.changes for one in found)
    return q.count > 1 and q.config is not None and not helps


def _merged(q: Question, chosen: list[Change]) -> dict[str, Any]:
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


def _more_accelerators(q: Question, chip: Accelerator, over: Over, chosen: list[Change]) -> Iterator[Advice]:
    """As many accelerators as are needed besides these changes, and those of these that are then still needed."""
    if (found := enough(q, over, _merged(q, chosen))) is None:
        return

    def beside(some: list[Change]) -> dict[str, Any]:
        return shared(q, found["count"] // q.count, _merged(q, some))

    chosen = _needed(chosen, lambda some: over(**beside(some)) <= 0)
    yield _priced(q, chip, chosen, beside(chosen))
