"""Which layouts of a model fit a cluster, the quickest first."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from cs336kit.predict._common.breakdown import Breakdown
from cs336kit.predict._common.checks import at_most, boolean, finite_results, positive_int, positive_number
from cs336kit.predict._links import NODE
from cs336kit.predict._settle import LARGEST
from cs336kit.predict.hardware import Accelerator
from cs336kit.predict.hardware import accelerator as device_of
from cs336kit.predict.layouts import Layout, check_layout, divisors
from cs336kit.predict.precision import PrecisionPolicy, policy
from cs336kit.predict.programs import check_sizes, whole_blocks
from cs336kit.predict.training import step_peak
from cs336kit.predict.transformer import TransformerConfig
from cs336kit.predict.wires import StepSeconds, seconds_of, speed_of, stage_programs

#: A rank's part of a sequence is at least so long: below, passing keys and values around is all that cp does.
SHORTEST = 1024


@dataclass(frozen=True)
class FoundLayout:
    """A layout that fits: what a rank holds at the peak, what is left beside it, and the seconds of a step."""

    layout: Layout
    peak: Breakdown
    #: bytes of the device that stay free
    margin: int
    seconds: StepSeconds

    def __str__(self) -> str:
        return f"{self.layout}: {self.peak.total / 2**30:.2f} GiB, {self.margin / 2**30:.2f} GiB free, {self.seconds}"


@finite_results()
def find_layouts(
    config: TransformerConfig,
    *,
    count: int,
    accelerator: str | Accelerator,
    sequence: int,
    batch: int = 1,
    global_batch: int | None = None,
    between_nodes: float | None = None,
    node: int = NODE,
    mfu: float = 0.4,
    memory_bytes: float | None = None,
    limit: int = 10,
    precision: str | PrecisionPolicy = "mixed",
    attention: str = "sdpa",
    optimizer: str = "adamw",
    foreach: bool = True,
    fused: bool = False,
    **options: Any,
) -> list[FoundLayout]:
    """The `limit` best layouts that use all of `count` accelerators and fit, by the upper bound of a step's seconds, then margin.

    All work on the same `global_batch` of sequences (None: `batch` for each accelerator), in micro-batches of `batch`: what the
    data ranks do not take at once is accumulated. Tried are the sizes that divide heads, experts, sequence and the
    cluster, with tp inside a node, and every way to share state; sp wherever there is tp; GPipe where a pipeline has fewer
    microbatches than stages, else 1F1B. `memory_bytes`: what has to be enough (None: the accelerator's memory; leave some
    per cent free for what `step_peak` leaves out). The other arguments are those of `step_seconds` and `step_peak`;
    `device`, unless given, is the accelerator's. An empty list: nothing fits.
    Errors: ValueError for a global batch that no layout can make of such micro-batches.
    """
    for name, given in {"foreach": foreach, "fused": fused}.items():
        boolean(name, given)
    batch, sequence = check_sizes(config, batch=batch, sequence=sequence)
    at_most("sequence", sequence, LARGEST["context"])
    count, node, limit = positive_int("count", count), positive_int("node", node), positive_int("limit", limit)
    if between_nodes is not None:
        positive_number("between_nodes", between_nodes)
    device = device_of(accelerator)
    room = _room(device) if memory_bytes is None else positive_number("memory_bytes", memory_bytes)
    wanted = batch * count if global_batch is None else positive_int("global_batch", global_batch)
    kind = policy(precision)
    how: dict[str, Any] = {"device": device.rules, "precision": kind, "attention": attention, **options}
    step = {"batch": batch, "sequence": sequence, **how}
    rest = device, speed_of(device, kind, mfu), node, between_nodes, wanted, sequence
    timed = []
    for layouts in candidates(config, count=count, sequence=sequence, node=node, batch=batch, global_batch=wanted):
        if options.get("flavour", "course") != "course":
            layouts = [layout for layout in layouts if whole_blocks(config, layout)]
            if not layouts:
                continue
        # Layouts that differ in how state is shared run the same operations between their collectives.
        programs = stage_programs(config, layout=layouts[0], **step)
        for layout in layouts:
            seconds = seconds_of(programs, layout, *rest)
            timed.append((seconds.upper, str(layout), layout, seconds))
    if not timed:
        raise ValueError(
            f"no layout of {count} ranks makes a global batch of {wanted} sequences from micro-batches of {batch}: give a "
            f"multiple of {batch}, such as {batch * count}"
        )
    found: list[FoundLayout] = []
    for upper, _, layout, seconds in sorted(timed, key=lambda each: each[:2]):
        if len(found) >= limit and upper > found[-1].seconds.upper:
            break
        peak = step_peak(config, layout=layout, optimizer=optimizer, foreach=foreach and not fused, fused=fused, **step)
        if peak.total <= room:
            found.append(FoundLayout(layout, peak, int(room) - peak.total, seconds))
    return sorted(found, key=lambda each: (each.seconds.upper, -each.margin))[:limit]


def candidates(
    config: TransformerConfig, *, count: int, sequence: int, node: int, batch: int, global_batch: int
) -> Iterator[list[Layout]]:
    """Layouts of `count` ranks whose sizes divide what they divide, with the accumulation that makes the global batch.

    Those of a list are alike but for how the data ranks share state.
    """
    for tp in divisors(config.heads, min(node, count)):
        if node % tp:
            continue
        for pp in divisors(count, config.layers):
            for cp in divisors(sequence, max(1, sequence // SHORTEST)):
                for ep in divisors(config.experts or 1, config.experts or 1):
                    rest, left = divmod(count, tp * pp * cp * ep)
                    micro, over = divmod(global_batch, batch * max(1, rest) * ep)
                    if left or over or not micro:
                        continue
                    common: dict[str, Any] = {"tp": tp, "pp": pp, "cp": cp, "ep": ep, "microbatches": micro}
                    if micro < pp:  # fewer than there are stages do not take turns: torch runs them by GPipe alone
                        common["schedule"] = "gpipe"
                    sp = tp > 1 and sequence % (cp * tp) == 0
                    inside = max(1, node // (tp * cp * ep))
                    layouts = [Layout(**common | shared, sp=sp) for shared in _shared(rest, inside)]
                    try:
                        check_layout(config, layouts[0], sequence=sequence)
                    except ValueError:
                        continue
                    yield layouts


def _shared(ranks: int, in_node: int) -> Iterator[dict[str, int]]:
    """How state is shared over these data ranks: not at all, by each stage of ZeRO, or by stage 3 in each node and replicated."""
    yield {"dp": ranks}
    if ranks > 1:
        for name in ("zero1", "zero2", "fsdp"):
            yield {name: ranks}
        if 1 < in_node < ranks and ranks % in_node == 0:
            yield {"fsdp": in_node, "dp": ranks // in_node}


def _room(device: Accelerator) -> int:
    try:
        return device.memory_bytes
    except LookupError as error:
        raise ValueError(f"{error} Give memory_bytes.") from None
