"""What the ranks of a layout send in one step, over which links, and a lower and an upper bound on the step's seconds."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, Unpack

from cs336kit.predict.breakdown import Breakdown
from cs336kit.predict.checks import finite_results, fraction, positive_int, positive_number
from cs336kit.predict.decoder.layers import stage_kinds, stages
from cs336kit.predict.decoder.programs import program
from cs336kit.predict.decoder.step import Options
from cs336kit.predict.engine.collectives import GROUP, parameter_collectives
from cs336kit.predict.engine.collectives import ring_bytes as ring_bytes
from cs336kit.predict.engine.operations import Collective, Program
from cs336kit.predict.engine.products import computed_again, products
from cs336kit.predict.hardware import Accelerator
from cs336kit.predict.hardware import accelerator as device_of
from cs336kit.predict.layouts import Layout, as_layout
from cs336kit.predict.links import NODE, crosses, leaving, taken
from cs336kit.predict.precision import PrecisionPolicy, policy
from cs336kit.predict.transformer import TransformerConfig


@dataclass(frozen=True)
class StepSeconds:
    """A lower and an upper bound on the seconds of one step, and what they are made of."""

    #: communication overlaps with computation: the longer of both, where a stage waits for the pipeline to fill, and where
    #: switches add and copy, tokens go once to several experts, and rings share all links of a rank (`_links.taken`)
    lower: float
    #: nothing overlaps: the sum of both, and every stage is as slow as the slowest
    upper: float
    #: of the matrix products of one rank, for all micro-batches
    compute: float
    #: of what one rank sends over the links inside its node, and between nodes, by rings; a ring that leaves the node counts
    #: where its slower hops are
    inside: float
    between: float
    #: the pipeline bubble: the share of the step in which the slowest stage waits, if everything overlaps
    bubble: float
    #: sequences of the step: micro-batch × data ranks × accumulation
    global_batch: int
    tokens: int
    #: of `inside`, rings that leave the node, whose hops inside it are the slower ones
    through: float = 0.0
    #: what products wait for is added (sums of tp, tokens of ep, keys and values of cp), and all else that is sent overlaps with
    #: them as far as it can: gathered parameters, summed gradients, what stages pass on; an order for layouts, and no bound
    likely: float = 0.0

    def __str__(self) -> str:
        return (
            f"{self.lower:,.3g} to {self.upper:,.3g} s for {self.global_batch:,} sequences: compute {self.compute:,.3g} s, "
            f"links inside a node {self.inside:,.3g} s, between nodes {self.between:,.3g} s, bubble {100 * self.bubble:.1f} %"
        )


#: Axes whose ranks send each other what the next product needs. A ring of cp can hide behind the attention of its layer, which
#: at usual lengths is too short for that.
WAITED = frozenset({"tp", "ep", "cp"})


class Cluster(NamedTuple):
    """Accelerators of one kind and their links: what the seconds of a step depend on besides its programs."""

    device: Accelerator
    #: FLOP/s of the matrix products
    speed: float
    #: accelerators of a node
    node: int
    #: bytes per second each way from one accelerator to other nodes, where they are known
    between_nodes: float | None


def sent(walked: Program, layout: Layout | None = None) -> Iterator[tuple[Collective, int]]:
    """Everything that a rank sends in a step, and how often, with the recomputation of checkpointed blocks.

    `layout`: another one than the program's, which differs only in how its data ranks share state.
    """
    layout = walked.layout if layout is None else layout
    for op, count in walked.operations():
        for wire in op.collectives if op.kind != GROUP else ():
            yield wire, count * layout.microbatches
    for op, count in computed_again(walked.items):
        for wire in op.collectives if op.kind != GROUP else ():
            if wire.when == "forward":
                yield wire, count * layout.microbatches
    for group in walked.groups:
        for wire in parameter_collectives(group, layout, walked.policy):
            yield wire, max(1, group.repeated) * (1 if wire.when == "step" else layout.microbatches)


def communication(
    config: TransformerConfig,
    *,
    layout: Layout | str,
    batch: int,
    sequence: int,
    node: int = NODE,
    stage: int | None = None,
    **options: Unpack[Options],
) -> Breakdown:
    """Bytes that one rank sends in one step, by collective, axis of the layout and link.

    Components read "data all-gather, between nodes". A group counts as between nodes if its ranks are not all in one node of
    `node` accelerators; what they send to each other inside a node is then included.

    - `stage`: of the pipeline; None for the one that sends most.
    - `options`: those of `predict.program`; without them: fp32.

    Convention: ring algorithms, in which each of n ranks sends (n − 1)/n of what is gathered, reduced or exchanged, and twice
    that for an all-reduce; shards are padded as those of parameters are. Under tp, attention, MLP, experts and the shared expert
    are each summed over the ranks by themselves, as in `lm.parallelize`; where two of them run side by side (a parallel block,
    shared experts), other implementations add them first and send one sum less. Parameters that several ranks of tp hold whole
    but use only in part have their gradients summed once a step: latents, a router, one scale of all heads, adapters, key/value
    heads where there are fewer than ranks; with sp also norms, and biases added after the sum.
    With gradients of 2 bytes and Ψ parameters, ZeRO 1 and 2 send 2Ψ elements, ZeRO 3 3Ψ. Left out: the mean of the loss and the
    norm of the gradients (a few bytes), what a tree algorithm saves, and the means of a norm over features that ranks of tp
    divide (all heads, the inside of an MLP). Source: Rajbhandari et al. 2020, section 7.
    """
    layout = as_layout(layout)
    node = positive_int("node", node)
    return _of_fullest(config, layout, stage, node, batch=batch, sequence=sequence, **options)[0]


def leaving_bytes(
    config: TransformerConfig, *, layout: Layout, node: int, batch: int, sequence: int, **options: Unpack[Options]
) -> int:
    """The part of what `communication` counts that leaves the node, in bytes over the link of one accelerator."""
    return _of_fullest(config, layout, None, node, batch=batch, sequence=sequence, **options)[1]


def _of_fullest(
    config: TransformerConfig,
    layout: Layout,
    stage: int | None,
    node: int,
    *,
    batch: int,
    sequence: int,
    **options: Unpack[Options],
) -> tuple[Breakdown, int]:
    """Bytes by name that a rank sends, in the stage that sends most, and how many of them go over its link between nodes."""
    found = []
    for each in stages(config, layout, stage, options.get("expert_tokens")):
        parts: dict[str, int] = {}
        leaves = 0
        for wire, count in sent(program(config, batch=batch, sequence=sequence, layout=layout, stage=each, **options)):
            far = crosses(wire, node, layout)
            name = f"{wire.axis} {wire.kind}, {'between nodes' if far else 'inside a node'}"
            parts[name] = parts.get(name, 0) + wire.bytes * count
            leaves += leaving(wire, node, layout, count) if far else 0
        found.append((Breakdown(parts, unit="bytes"), leaves))
    return max(found, key=lambda each: each[0].total)


@finite_results()
def step_seconds(
    config: TransformerConfig,
    *,
    layout: Layout | str,
    accelerator: str | Accelerator,
    batch: int,
    sequence: int,
    matmul_efficiency: float = 0.4,
    between_nodes: float | None = None,
    node: int = NODE,
    **options: Unpack[Options],
) -> StepSeconds:
    """Seconds of one training step, bounded from below (everything overlaps) and from above (nothing does).

    - `matmul_efficiency`: the share of the dense peak that matrix products reach while they run (`Question.product_rate`). It is
      not the MFU of a whole run, in which recomputation, the pipeline bubble and communication take time, too.
    - `between_nodes`: bytes per second each way from one accelerator to other nodes, such as 50e9 for 400 Gb/s. It is needed
      where a group spans several nodes of `node` accelerators, and no table has it.
    - `options`: those of `predict.program`; unless given, `precision` is "mixed", `attention` "sdpa", and `device` the
      accelerator's.

    Inside a node, the accelerator's `link` counts (its `host_link` if it has none). A ring that spans several nodes leaves each
    of them once, over the links of all ranks that the group has there; the node with the fewest of them counts. The ring of cp
    goes from neighbor to neighbor, over one link. In an all-to-all, what stays in a node goes over the links inside it.
    Left out: latency, contention, the optimizer's step, loading of data.
    """
    layout, kind = as_layout(layout), policy(options.get("precision", "mixed"))
    cluster = cluster_of(accelerator, kind, matmul_efficiency=matmul_efficiency, node=node, between_nodes=between_nodes)
    how: dict[str, Any] = {"device": cluster.device.rules, "attention": "sdpa", **options, "precision": kind}
    programs = stage_programs(config, layout, batch=batch, sequence=sequence, **how)
    return seconds_of(programs, layout, cluster, layout.global_batch(batch), sequence)


def cluster_of(
    accelerator: str | Accelerator,
    kind: PrecisionPolicy,
    *,
    matmul_efficiency: float,
    node: int,
    between_nodes: float | None,
) -> Cluster:
    """The cluster of these accelerators, whose matrix products reach `matmul_efficiency` of the dense peak of their type."""
    device = device_of(accelerator)
    try:
        speed = fraction("matmul_efficiency", matmul_efficiency) * device.peak(kind.products)
    except LookupError as error:
        raise ValueError(str(error)) from None
    if between_nodes is not None:
        positive_number("between_nodes", between_nodes)
    return Cluster(device, speed, positive_int("node", node), between_nodes)


def stage_programs(config: TransformerConfig, layout: Layout, **step: Any) -> list[Program]:
    """The program of each pipeline stage; identical stages share one."""
    alike = stage_kinds(config, layout, step.get("expert_tokens"))
    programs = {stage: program(config, layout=layout, stage=stage, **step) for stage in set(alike)}
    return [programs[stage] for stage in alike]


def seconds_of(programs: Sequence[Program], layout: Layout, cluster: Cluster, batch: int, sequence: int) -> StepSeconds:
    """The seconds of the slowest stage in a step of `batch` sequences over all ranks.

    The layout may share state in another way than that of the programs.
    """
    fill = _fill(programs, layout.microbatches)
    of_stages = (_seconds(walked, layout, fill, cluster, batch, sequence) for walked in dict.fromkeys(programs))
    return max(of_stages, key=lambda each: each.upper)


def _fill(programs: Sequence[Program], microbatches: int) -> int:
    """FLOPs that a step needs in sequence: those of a stage for all micro-batches, and of each stage before it for one.

    No schedule in which each rank has one run of blocks is faster: the stages before a stage run their forward pass before
    it starts, and their backward pass after it ends. Interleaved schedules, where a rank has several runs, wait less. If all
    stages are alike, this is (m + p − 1) times what one of them computes for a micro-batch.
    """
    before, most = 0, 0
    for walked in programs:
        flops = _flops(walked)
        most = max(most, before + microbatches * flops)
        before += flops
    return most


@lru_cache(maxsize=64)
def _flops(walked: Program) -> int:
    """FLOPs of one micro-batch on one rank, forward and backward, recomputation included."""
    flops = sum(count * (row.forward + row.backward) for op, count in walked.operations() for row in products(op))
    return flops + sum(count * op.forward_flops for op, count in computed_again(walked.items))


def _seconds(walked: Program, layout: Layout, fill: int, cluster: Cluster, batch: int, sequence: int) -> StepSeconds:
    device, speed, node, between_nodes = cluster
    flops = layout.microbatches * _flops(walked)
    compute = flops / speed
    # Seconds by (whether between nodes, whether once per step), and the least by (kind of links, sending or receiving).
    spent = {(far, once): 0.0 for far in (False, True) for once in (False, True)}
    waited = {False: 0.0, True: 0.0}
    least = {(links, way): 0.0 for links in range(3) for way in (0, 1)}
    through = 0.0
    for wire, count in sent(walked, layout):
        once, took = wire.when == "step", taken(wire, device, node, between_nodes, layout, count)
        spent[False, once] += took.inside + took.through
        spent[True, once] += took.between
        if wire.axis in WAITED and not once:
            waited[False] += took.inside + took.through
            waited[True] += took.between
        through += took.through
        for links, ways in enumerate(took.least):
            for way, seconds in enumerate(ways):
                least[links, way] += seconds
    inside, between = (spent[far, False] + spent[far, True] for far in (False, True))
    # Filling and draining the pipeline takes what a micro-batch costs, not what is sent once per step. Where nothing overlaps,
    # the stages before and after this one may be as slow as the slowest.
    longer = 1 / (1 - layout.bubble)
    each = spent[False, False] + spent[True, False]
    lower = max(fill / speed, *least.values())
    upper = (compute + each) * longer + spent[False, True] + spent[True, True]
    # What is sent once a step can overlap with one micro-batch, and everything else with all of them.
    hidden = max(spent[far, False] - waited[far] for far in (False, True))
    late = max(0.0, max(spent[far, True] for far in (False, True)) - compute / layout.microbatches)
    likely = (max(compute, hidden) + sum(waited.values())) * longer + late
    bubble = (fill - flops) / fill
    return StepSeconds(lower, upper, compute, inside, between, bubble, batch, batch * sequence, through, likely)
