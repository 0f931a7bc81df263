"""What fits: the layouts for a cluster, as a table and as plain values, and the largest batch."""

from dataclasses import replace

from cs336kit.predict.grid import as_text
from cs336kit.predict.layout_search import FoundLayout, find_layouts
from cs336kit.predict.layouts import STAGES, Layout
from cs336kit.predict.network import StepSeconds
from cs336kit.predict.training import largest
from cs336kit.predict.words import folded, size
from cs336plan.answers import Note
from cs336plan.training import memory as of
from cs336plan.training.answer import Answer, seconds_as_dict
from cs336plan.training.question import Question, settled, step_program

#: How many times the rows to search for: some found layouts are not worth a row.
_SPARE = 4
#: The share by which two layouts' seconds may differ and still count as equal: predicted seconds are no closer than that.
_EQUAL = 0.05


def before_layouts(q: Question) -> Question:
    """The question answered above the layouts: without a global batch that only some of them can split into micro-batches."""
    if q.config is None or q.layout is not None or q.accumulate is not None:
        return q
    if q.global_batch is None or not q.global_batch % max(1, (q.batch or 1) * q.count):
        return q
    alone = replace(q, global_batch=None)
    if q.steps is None or q.tokens is not None:
        return alone
    # The steps in the question are steps of the global batch.
    sequence = settled(alone).sequence
    return replace(alone, tokens=q.steps * q.global_batch * (sequence or 1))


def batch_note(q: Question, global_batch: int | None) -> tuple[Note, ...]:
    """A note if the layouts have another global batch than the rest of the answer."""
    if global_batch in (None, q.step_sequences):
        return ()
    numbers = {"asked": global_batch, "count": q.count, "batch": q.batch, "made": q.step_sequences}
    return (Note("batch of layouts", numbers),)


def found(plan: Answer, *, global_batch: int | None = None, limit: int = 10) -> list[FoundLayout]:
    """The fastest layouts of as many accelerators whose peak and allowance fit, without those that another beats in all.

    They are in the order of `StepSeconds.likely`, and of those that take as long, the ones with fewer kinds of ranks come first.
    `global_batch` is that of the layouts; None: that of the plan. Errors: ValueError for what is missing.
    """
    q = plan.question
    if q.config is None or not q.batch or not q.sequence:
        raise ValueError("a layout divides layers and heads, which a number of parameters does not tell: name a model")
    if q.layout is not None:
        raise ValueError("--find looks for a layout, and one is given: leave one of them out")
    if not plan.chip.peaks:
        raise ValueError("layouts are ordered by time, which needs a peak: give peak_flops_per_second (--peak)")
    of_a_pass = step_program(q)
    del of_a_pass["layout"]
    layouts = find_layouts(
        q.config, count=q.count, accelerator=plan.chip, global_batch=global_batch or q.step_sequences,
        between_nodes=q.between_nodes, node=q.per_node, matmul_efficiency=q.product_rate,
        memory_bytes=plan.chip.memory_bytes - plan.allowance.total, limit=_SPARE * limit, by="likely", optimizer=q.optimizer,
        fused=q.fused, **of_a_pass,
    )  # fmt: skip
    return [replace(one, seconds=_at_least(plan, one)) for one in _worth_a_row(_in_order(layouts))[:limit]]


def _in_order(layouts: list[FoundLayout]) -> list[FoundLayout]:
    """The quickest first; of those that take no more than `_EQUAL` longer than the quickest left, the simplest and roomiest."""
    ordered: list[FoundLayout] = []
    left = sorted(layouts, key=lambda one: one.seconds.likely)
    while left:
        alike = [one for one in left if one.seconds.likely <= (1 + _EQUAL) * left[0].seconds.likely]
        left = left[len(alike) :]
        ordered += sorted(alike, key=lambda one: (_kinds(one.layout), -one.margin))
    return ordered


def _kinds(layout: Layout) -> int:
    """In how many ways a layout divides the work: the axes along which it has several ranks."""
    return sum(getattr(layout, axis) > 1 for axis in ("pp", "dp", *STAGES, "cp", "ep", "tp"))


def _worth_a_row(layouts: list[FoundLayout]) -> list[FoundLayout]:
    """Without layouts beaten by one that comes before them, holds no more, and has no larger bounds."""
    kept: list[FoundLayout] = []
    for one in layouts:
        mine = one.peak.total, one.seconds.lower, one.seconds.upper
        others = ((each.peak.total, each.seconds.lower, each.seconds.upper) for each in kept)
        if not any(all(a <= b for a, b in zip(its, mine, strict=True)) for its in others):
            kept.append(one)
    return kept


def _at_least(plan: Answer, one: FoundLayout) -> StepSeconds:
    """The lower bound and its bubble are with causal attention, as in the answer for one layout."""
    placed = replace(plan.question, layout=one.layout, accumulate=one.layout.microbatches)
    causal = of.causal_seconds(placed, plan.chip) or one.seconds
    return replace(one.seconds, lower=causal.lower, bubble=causal.bubble)


def largest_batch(plan: Answer) -> int:
    """The largest micro-batch whose peak and allowance fit, 0 if not one sequence does. Errors: ValueError without a shape."""
    if plan.question.config is None:
        raise ValueError("a batch has activations, which a number of parameters does not tell: name a model")
    room = plan.chip.memory_bytes - plan.allowance.total
    return largest(lambda size: of.memory(replace(plan.question, batch=size)).total <= room)


def as_rows(layouts: list[FoundLayout]) -> list[dict[str, object]]:
    """Plain values for JSON."""
    return [
        {
            "layout": str(one.layout), "total_bytes": one.peak.total, "step_seconds": seconds_as_dict(one.seconds),
            "fits": True,
        }
        for one in layouts
    ]  # fmt: skip


def found_text(plan: Answer, layouts: list[FoundLayout]) -> str:
    """The layouts as a table, and what to do if there is none."""
    q = plan.question
    if not layouts:
        sentence = (
            f"no layout of {q.count:,} accelerator{'s' * (q.count > 1)} fits: --checkpointing and --chunks 8 need less "
            "memory, and so does a smaller --batch with the same --global-batch"
        )
        return "\n".join(folded(sentence))
    rows = [("layouts that fit, quickest first", "GiB", "s a step", "bounds")]
    for one in layouts:
        bounds = f"{one.seconds.lower:,.3g} to {one.seconds.upper:,.3g}"
        rows.append((str(one.layout), size(one.peak.total), f"{one.seconds.likely:,.3g}", bounds))
    how = (
        f"seconds with matrix products at {q.product_rate:g} of the peak (--product-rate), however small tp and cp make them. In "
        "this order: what products wait for is added (sums of tp, tokens of ep, keys and values of cp, the pipeline), and "
        f"parameters and gradients are sent meanwhile; of those within {100 * _EQUAL:g} %, fewer kinds of ranks come first, then "
        "fewer bytes. Bounds: if all overlaps, and if nothing does"
    )
    return "\n".join([as_text(rows, "<>>>", gap=2), *folded(how)])
