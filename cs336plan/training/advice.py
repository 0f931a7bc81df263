"""What to change if a run does not fit, the cheapest change first, or as many together as it takes."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from math import inf
from typing import Any

from cs336kit.predict.chip import allowance
from cs336kit.predict.hardware import Accelerator
from cs336kit.predict.layouts import AXES, Layout, divisors
from cs336plan.training.changes import (
    OF_LAYOUT,
    REPLICAS,
    Advice,
    Change,
    Over,
    asked_layout,
    cost,
    enough,
    other_batch,
    single_changes,
)
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
        changes = _merged(q, chosen)
        slower, costs = cost(q, chip, chosen, replace(q, **changes))
        words = " and ".join(_in_words(chosen, changes))
        return Advice(words, changes, slower, "together " * (len(chosen) > 1) + costs)

    singles = [(priced([one]), one) for one in single_changes(q, over) if over(**one.changes) < inf]
    singles.sort(key=lambda pair: (pair[0].slower is None, pair[0].slower or 0))
    more = tuple(_sharding(q, over))
    if helps := [alone for alone, one in singles if over(**one.changes) <= 0]:
        return (*helps, *more)
    chosen: list[Change] = []
    for _, one in singles:
        if one.changes.items() <= _merged(q, chosen).items():
            continue
        chosen.append(one)
        if over(**_merged(q, chosen)) <= 0:
            return (priced(_needed(chosen, lambda some: over(**_merged(q, some)) <= 0)), *more)
    beside = [one for one in chosen if not one.unknown]
    here = [priced(_needed(some, lambda part: over(**_merged(q, part)) <= 0)) for some in _divided(q, over, beside)]
    return (*here, *(more or _more_accelerators(q, chip, over, beside)))


def _divided(q: Question, over: Over, beside: list[Change]) -> Iterator[list[Change]]:
    """Changes that make it fit on as many accelerators: the fewest ranks of a node that divide each layer.

    Only where nothing but the data is divided so far. If it takes other changes, too, they are `beside`.
    """
    placed = asked_layout(q)
    if q.config is None or placed.count != placed.dp * placed.shards or q.count == 1:
        return
    others = [one for one in beside if not one.changes.keys() & {"layout", "sharded", "accumulate", "batch", "count"}]
    for some in [[], others] if others else [[]]:
        for change in _divisions(q, placed):
            if over(**_merged(q, [*some, change])) <= 0:
                yield [*some, change]
                return


def _divisions(q: Question, placed: Layout) -> Iterator[Change]:
    """Tensor parallel ranks inside a node, fewest first, with parameters sharded over the others; the same global batch."""
    assert q.config
    out = ", without --replicated" * (q.layout is None and not q.sharded)
    alone: dict[str, Any] = dict.fromkeys(REPLICAS, 1)
    for tp in divisors(q.config.heads, min(q.per_node, q.count))[1:]:
        if q.per_node % tp == 0 == q.count % tp:
            layout = replace(placed, **alone | {"fsdp": q.count // tp}, tp=tp, sp=True, microbatches=1)
            changes: dict[str, Any] = {"layout": layout, "accumulate": q.passes * tp}
            words = f"tensor parallel inside a node (--layout {{layout}} --accumulate {{accumulate}}{out})"
            yield Change(words, changes)


def _in_words(chosen: list[Change], changes: dict[str, Any], *, placed: bool = False) -> list[str]:
    """Each change in words. All layouts are one option, which the last of them gives, or what follows if it is `placed` there."""
    words = []
    for one in reversed(chosen):
        text = OF_LAYOUT.sub("", one.words) if placed else one.words
        placed = placed or "{layout}" in text
        words.append(text.format(**changes))
    return words[::-1]


def _sharding(q: Question, over: Over) -> Iterator[Advice]:
    """As many more accelerators as suffice alone."""
    if found := enough(q, over, {}):
        words, changes = found
        costs = f"{changes['count'] // q.count} times the accelerators{other_batch(q, changes)}"
        yield Advice(f"sharding over {words}", changes, None, costs)


def _needed(chosen: list[Change], holds: Callable[[list[Change]], bool]) -> list[Change]:
    """Without those that are not needed; the most expensive ones, which stand last, are dropped first."""
    for one in reversed(chosen):
        others = [other for other in chosen if other is not one]
        if holds(others):
            chosen = others
    return chosen


def other_layouts(q: Question, found: tuple[Advice, ...]) -> str:
    """What may help if nothing else does on the same accelerators: other ways to divide the model; or ""."""
    if q.count == 1 or q.config is None or any("count" not in one.changes for one in found):
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

    def beside(some: list[Change]) -> tuple[str, dict[str, Any]] | None:
        return enough(q, over, _merged(q, some))

    if (found := beside(chosen)) is None:
        return
    most = found[1]["count"]
    chosen = _needed(chosen, lambda some: (other := beside(some)) is not None and other[1]["count"] <= most)
    option, changes = beside(chosen) or found
    slower, costs = cost(q, chip, chosen, replace(q, **_merged(q, chosen)))
    words = ", ".join([*_in_words(chosen, changes, placed=True), option])
    yield Advice(words, changes, slower, f"{costs}, and more accelerators{other_batch(q, changes)}")
