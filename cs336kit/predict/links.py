"""Which ranks of a group are in one node, over which links the group communicates, and how fast."""

from bisect import bisect_left
from functools import lru_cache
from math import gcd
from typing import NamedTuple

from cs336kit.predict.checks import positive_number
from cs336kit.predict.engine.operations import Collective
from cs336kit.predict.hardware import Accelerator
from cs336kit.predict.hardware import accelerator as device_of
from cs336kit.predict.layouts import Layout

#: What one rank sends to one other, over its own link.
PAIRWISE = frozenset({"send", "ring", "all-to-all"})

#: Accelerators of one node, unless the caller says otherwise: what an HGX board holds.
NODE = 8


def node_of(name: str | Accelerator | None, count: int) -> int:
    """Accelerators of a node if none are given: as many as the table's links join, else NODE.

    With several nodes, it is as many as layouts of powers of two use of each: 64 of 72.
    """
    try:
        joined = device_of(name).facts.get("joined") if name else None
    except (LookupError, ValueError):  # the error for a wrong name comes where its numbers are needed
        joined = None
    if joined is None:
        return NODE
    most = int(joined.value)
    return most if count <= most else 1 << (most.bit_length() - 1)


def crosses(wire: Collective, node: int, layout: Layout) -> bool:
    """Whether some of the ranks that it joins are in different nodes of `node` accelerators."""
    return layout.count > node and node % wire.span > 0


def at_best(wire: Collective, here: int = 1) -> tuple[float, float]:
    """The shares of a ring's time that its ranks need at least to send, and to receive, over the same links.

    In an all-reduce of n ranks, each gets every sum once, if a switch adds; a ring moves 2(n − 1)/n times as much. Measured:
    NVLink SHARP with 8 ranks exceeds the rate of H100's links of 450 GB/s (NCCL's bus bandwidth: 480 GB/s).
    Its two halves can overlap: in an all-gather, a switch takes a share once and copies it; in a reduce-scatter, it returns
    only a sum. The `here` ranks that are in one node get the shares of other nodes once for all of them. The ring of cp
    brings every rank all keys and values, and the sum of its gradients: here over all links instead of one.
    In an all-to-all, a token goes once to ranks near each other that have several of its experts, and comes back as one sum.
    Source: NVIDIA/nccl, issue 1455; Khalilov et al. 2024, arXiv 2408.13356; DeepSeek-AI 2024, section 3.2.2, and
    deepseek-ai/DeepEP.
    """
    n = wire.ranks
    own, others = here / (n - 1), (n - here) / (n - 1)
    if wire.kind == "all-reduce":
        return n / (2 * (n - 1)), n / (2 * (n - 1))
    if wire.kind == "all-gather":
        return own, others
    if wire.kind == "reduce-scatter":
        return others, own
    if wire.kind == "ring" and wire.when == "forward":
        return own / here, others / here
    if wire.kind == "ring":  # keys and values n − 1 times, their gradients n times
        return n / (2 * n - 1) / here, n / (2 * n - 1) / here
    return 1 / wire.alike, 1 / wire.alike


def together(wire: Collective, node: int, layout: Layout) -> int:
    """The fewest ranks that a group has in one node, over all groups that leave their nodes."""
    return _together(wire.ranks, wire.stride, node, layout.count)


@lru_cache(maxsize=1024)
def _together(ranks: int, stride: int, node: int, count: int) -> int:
    if stride >= node:
        return 1
    span, fewest = ranks * stride, ranks
    # After this many blocks, groups begin at the same places of their nodes again.
    for block in range(min(count // span, node // gcd(span, node))):
        for first in range(block * span, block * span + stride):
            group = range(first, first + span, stride)
            begin, end = group[0] // node, group[-1] // node
            # A node between both ends has as many ranks of the group as the one `stride` nodes before.
            for place in {*range(begin, min(begin + stride + 1, end)), end} if begin < end else ():
                fewest = min(fewest, bisect_left(group, (place + 1) * node) - bisect_left(group, place * node))
    return fewest


def hop_links(wire: Collective, node: int, layout: Layout) -> int:
    """Links over which a group leaves a node: a ring does so once, over the links of all its ranks there.

    In the ring of cp, a rank sends to its neighbor over one link, as in a pipeline.
    """
    return 1 if wire.kind in PAIRWISE else together(wire, node, layout)


def leaving(wire: Collective, node: int, layout: Layout, count: int = 1) -> int:
    """The part of what a rank sends `count` times, in a group that leaves its node, that goes over its own link to other nodes.

    In an all-to-all, a rank sends every other rank as much, including those of its node: the rank with the fewest there counts.
    """
    if wire.kind != "all-to-all":
        return wire.bytes * count // hop_links(wire, node, layout)
    return wire.bytes * count * (wire.ranks - together(wire, node, layout)) // (wire.ranks - 1)


def link_speed(device: Accelerator) -> float | None:
    """Bytes per second to a neighbor in the node; None where no source has it."""
    link = device.facts.get("link") or device.facts.get("host_link")
    return None if link is None else float(link.value)


def bandwidth(wire: Collective, device: Accelerator, node: int, between_nodes: float | None, layout: Layout) -> float:
    """Bytes per second at which a rank sends this; ValueError if the speed is not known."""
    link = link_speed(device)
    if not crosses(wire, node, layout):
        if link is None:
            raise ValueError(
                f"{device.title} has no sourced link to its neighbors: count every link as one between nodes (node=1 "
                "and between_nodes=25e9), or take another accelerator"
            )
        return link
    if between_nodes is None:
        raise ValueError(
            f"the {wire.axis} {wire.kind} of {layout} spans several nodes of {node} accelerators, and no table has the speed "
            "between nodes: give between_nodes, that of one accelerator each way, such as 50e9 bytes per second (400Gb/s)"
        )
    own = float(positive_number("between_nodes", between_nodes))
    if link is None or wire.kind in PAIRWISE:
        return own * hop_links(wire, node, layout)
    return min(own * hop_links(wire, node, layout), link)


#: Seconds to send, and to receive.
Ways = tuple[float, float]


class Taken(NamedTuple):
    """Seconds that a ring takes over each kind of links, and those that no algorithm undercuts."""

    #: over the links inside its node
    inside: float
    #: where a ring leaves its node, and its hops inside it are no faster
    through: float
    #: over the links between nodes
    between: float
    #: at least: over a rank's links inside its node, over those of its node to others, and, where rings leave the node, over
    #: all that a rank has
    least: tuple[Ways, Ways, Ways]


def taken(
    wire: Collective, device: Accelerator, node: int, between_nodes: float | None, layout: Layout, count: int = 1
) -> Taken:
    """How long it takes to send this `count` times.

    The least, for n ranks, k of them in a node, each with a link of L bytes per second to those, and one of b to other nodes:
    what a node lacks comes over k · b, and what a rank lacks over L + b. Both are shares of the W bytes that a rank sends in a
    ring: those of `at_best` for k ranks, and for one. A ring takes W/(k · b), or W/L if that is longer, and then others take
    less. k rings, each of which leaves a node from another rank, have (k − 1)/k of their hops inside nodes: W/L · (k − 1)/k.
    Rings with all hops between nodes take a part of that off L, until L and b are both full: W/(L + b). So L alone bounds only
    what stays in the node. For 2,048 H800 (k = 8, L = 200 GB/s, b = 50 GB/s) and W = 2,815 GB, the three take 14.1, 12.3 and
    11.3 s. A card that has only PCIe sends to other nodes over it, too: L in place of L + b.
    """
    rate, link = bandwidth(wire, device, node, between_nodes, layout), link_speed(device)
    leaves, stays = count * wire.bytes, 0
    if not crosses(wire, node, layout):
        leaves, stays = 0, leaves
    elif wire.kind == "all-to-all" and link is not None:
        # What stays in the node goes over the links inside it.
        leaves = leaving(wire, node, layout, count)
        stays = count * wire.bytes - leaves
    here = together(wire, node, layout) if leaves else 1
    own = between_nodes or 0.0
    # What goes to one other has no hops inside a node.
    ring = leaves if wire.kind not in PAIRWISE else 0
    through = ring if rate == link else 0
    inside, between = (stays / link if link else 0.0), leaves / (own * here if through else rate)
    every = ring / (link + own * ("link" in device.facts)) if link else 0.0
    alone = at_best(wire)
    least = _least(alone, inside), _least(at_best(wire, here), between), _least(alone, every)
    return Taken(inside, through / rate, 0.0 if through else between, least)


def _least(shares: Ways, ring: float) -> Ways:
    return shares[0] * ring, shares[1] * ring
