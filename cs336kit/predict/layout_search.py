"""Which layouts of a model fit a cluster, the fastest first."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Unpack

from cs336kit.predict.breakdown import Breakdown
from cs336kit.predict.checks import at_most, boolean, finite_results, one_of, positive_int, positive_number
from cs336kit.predict.decoder.step import Options, check_sizes
from cs336kit.predict.hardware import Accelerator
from cs336kit.predict.layouts import Layout, check_layout, divisors
from cs336kit.predict.links import NODE
from cs336kit.predict.network import StepSeconds, cluster_of, seconds_of, stage_programs
from cs336kit.predict.precision import policy
from cs336kit.predict.settle import LARGEST
from cs336kit.predict.training import step_peak
from cs336kit.predict.transformer import TransformerConfig

#: The shortest part of a sequence for a rank: below it, cp does little but pass keys and values around.
SHORTEST = 1024


@dataclass(frozen=True)
class FoundLayout:
    """A layout that fits: what a rank holds at the peak, what is left free, and the seconds of a step."""

    layout: Layout
    peak: Breakdown
    #: bytes of the device's memory that stay free
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
    matmul_efficiency: float = 0.4,
    memory_bytes: float | None = None,
    limit: int = 10,
    by: str = "upper",
    optimizer: str = "adamw",
    fused: bool = False,
    **options: Unpack[Options],
) -> list[FoundLayout]:
    """The `limit` best layouts that use all `count` accelerators and fit, by the seconds of a step, then by margin.

    - `by`: "upper", the bound if nothing overlaps, or "likely", where only what products wait for is added (see StepSeconds).
    - `global_batch`: sequences of a step, the same for all layouts (None: `batch` for each accelerator), in micro-batches of
      `batch`; what the data ranks do not take at once is accumulated.
    - `memory_bytes`: the memory that has to be enough (None: the accelerator's; leave some per cent free for what `step_peak`
      leaves out).
    - The other arguments are those of `step_seconds` and `step_peak`; unless given, `precision` is "mixed",
      `attention` "sdpa", and `device` the accelerator's.

    It tries the sizes that divide heads, experts, sequence and the cluster, with tp inside a node, and every way to share
    state; sp wherever there is tp; GPipe where a pipeline has fewer micro-batches than stages, else 1F1B. If nothing fits, the
    list is empty. Errors: ValueError for a global batch that no layout can make of such micro-batches.
    """
    boolean("fused", fused)
    batch, sequence = check_sizes(config, batch=batch, sequence=sequence)
    at_most("sequence", sequence, LARGEST["context"])
    count, limit, kind = (
        positive_int("count", count),
        positive_int("limit", limit),
        policy(options.get("precision", "mixed")),
    )
    cluster = cluster_of(accelerator, kind, matmul_efficiency=matmul_efficiency, node=node, between_nodes=between_nodes)
    room = _room(cluster.device) if memory_bytes is None else positive_number("memory_bytes", memory_bytes)
    one_of("by", by, ("upper", "likely"))
    wanted = batch * count if global_batch is None else positive_int("global_batch", global_batch)
    how: dict[str, Any] = {"device": cluster.device.rules, "attention": "sdpa", **options, "precision": kind}
    step = {"batch": batch, "sequence": sequence, **how}
    timed = []
    for layouts in candidates(
        config, count=count, sequence=sequence, node=cluster.node, batch=batch, global_batch=wanted
    ):
        # Layouts that differ in how state is shared run the same operations between their collectives.
        programs = stage_programs(config, layout=layouts[0], **step)
        for layout in layouts:
            seconds = seconds_of(programs, layout, cluster, wanted, sequence)
            timed.append((getattr(seconds, by), str(layout), layout, seconds))
    if not timed:
        raise ValueError(
            f"no layout of {count} ranks makes a global batch of {wanted} sequences from micro-batches of {batch}: give a "
            f"multiple of {batch}, such as {batch * count}"
        )
    found: list[FoundLayout] = []
    for took, _, layout, seconds in sorted(timed, key=lambda each: each[:2]):
        if len(found) >= limit and took > getattr(found[-1].seconds, by):
            break
        peak = step_peak(config, layout=layout, optimizer=optimizer, fused=fused, **step)
        if peak.total <= room:
            found.append(FoundLayout(layout, peak, int(room) - peak.total, seconds))
    return sorted(found, key=lambda each: (getattr(each.seconds, by), -each.margin))[:limit]


def candidates(
    config: TransformerConfig, *, count: int, sequence: int, node: int, batch: int, global_batch: int
) -> Iterator[list[Layout]]:
    """Layouts of `count` ranks whose sizes divide the model, the sequence and the cluster, with the accumulation needed.

    Layouts in the same list differ only in how the data ranks share state.
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
                    if micro < pp:  # 1F1B needs a micro-batch for each stage: with fewer, torch runs GPipe alone
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
    """Ways to share state over these data ranks: none, each stage of ZeRO, and stage 3 in each node with replicas of it."""
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
