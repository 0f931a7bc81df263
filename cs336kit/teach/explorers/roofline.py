"""Choose an accelerator, an operation and its sizes, and see where it is under the roof and what limits it."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from cs336kit import predict
from cs336kit.predict.checks import known
from cs336kit.predict.hardware import PRECISIONS
from cs336kit.predict.precision import ELEMENT_BYTES
from cs336kit.teach.explorers import drawing as draw
from cs336kit.teach.explorers.explorer import Explorer
from cs336kit.teach.figures.primitives import FAINT, QUIET
from cs336kit.teach.figures.style import COLORS, Figure
from cs336kit.teach.numbers import si

ROOF, POINT, GRID = COLORS[6], COLORS[4], "#e3e3e3"
#: Floating-point types that have a size and a peak.
_TYPES = {name: ELEMENT_BYTES[name] for name in PRECISIONS if name in ELEMENT_BYTES and not name.startswith("int")}
_SIZES = tuple(2**power for power in range(17))


def _product(m: int, n: int, k: int, size: int) -> predict.Cost:
    return predict.matmul_cost(m, k, n, bytes_per_element=size)


def _addition(m: int, n: int, k: int, size: int) -> predict.Cost:
    return predict.elementwise_cost(m * n, reads=2, bytes_per_element=size)


def _decode(m: int, n: int, k: int, size: int) -> predict.Cost:
    scores = predict.matmul_cost(1, k, n, batch=m, bytes_per_element=size)
    softmax = predict.softmax_cost(m, n, bytes_per_element=size)
    return scores + softmax + predict.matmul_cost(1, n, k, batch=m, bytes_per_element=size)


#: Name → (its cost, what the sizes mean).
OPERATIONS = {
    "matrix product": (_product, "({m:,} × {k:,}) · ({k:,} × {n:,})"),
    "x + y": (_addition, "{m:,} × {n:,} elements; K plays no part"),
    "attention, decode": (_decode, "{m:,} heads of all sequences, {n:,} cached positions, {k:,} numbers a head"),
}


def duration(seconds: float) -> str:
    """Seconds in the unit that reads best after rounding: 0.9996 ms is 1 ms."""
    units = [("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)]
    if float(f"{seconds:.3g}") >= 1000:
        units = [("days", 86400.0), ("h", 3600.0), ("min", 60.0)]
    written = ((unit, scale) for unit, scale in units if float(f"{seconds / scale:.3g}") >= 1)
    unit, scale = next(written, ("ns", 1e-9))
    return f"{_short(seconds / scale)} {unit}"


def _short(value: float) -> str:
    """Three digits, without an exponent for large values."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def roofline(
    operation: str = "matrix product",
    *,
    accelerator: str = "h100-sxm",
    element_type: str = "bf16",
    m: int = 4096,
    n: int = 4096,
    k: int = 4096,
) -> "RooflineExplorer":
    """Explore the lower bound on the time of one operation on one accelerator: its point under the roof, and what limits it.

    operation: a name of OPERATIONS. A matrix product is (M × K) · (K × N); x + y has M × N elements; decoding attends from
    M heads, one query each, to N cached positions of K numbers. The flat part of the roof is the peak of matrix
    products, also for operations that reach less. With a kernel everything can be chosen by hand.
    Errors: ValueError for unknown names and sizes, LookupError where the accelerator has no such peak.
    """
    return RooflineExplorer(operation=operation, accelerator=accelerator, element_type=element_type, m=m, n=n, k=k)


class RooflineExplorer(Explorer):
    """One operation on one accelerator: its `cost` and its `bound`, a predict.Roofline."""

    def __init__(self, **choices: Any):
        cost, sizes = known("operation", choices["operation"], OPERATIONS)
        size = known("element_type", choices["element_type"], _TYPES)
        m, n, k = (choices[name] for name in "mnk")
        self.device = predict.accelerator(choices["accelerator"])
        self.cost = cost(m, n, k, size)
        self.bound = predict.roofline(self.cost, accelerator=self.device, precision=choices["element_type"])
        self.sizes = sizes.format(m=m, n=n, k=k)
        self.choices = {**choices, "accelerator": self.device.name}

    def offers(self) -> Mapping[str, tuple[str, Sequence | Mapping]]:
        devices = [device.name for device in predict.accelerators()]
        sizes = {name: (name.upper(), _SIZES) for name in "mnk"}
        menus = {"operation": list(OPERATIONS), "accelerator": devices, "element_type": list(_TYPES)}
        return {**{name: (name.replace("_", " "), options) for name, options in menus.items()}, **sizes}

    def _lines(self) -> list[str]:
        bound, cost = self.bound, self.cost
        head = f"{self.choices['operation']} in {self.choices['element_type']} on {self.device.title}: {self.sizes}"
        moved = f"{si(cost.flops, 'FLOPs')}, {si(cost.bytes, 'B')} moved: {_short(bound.intensity)} FLOPs per byte"
        times = f"computing takes {duration(bound.compute_seconds)}, moving {duration(bound.memory_seconds)}"
        side = {"compute": "the peak", "memory": "the memory's bandwidth"}[bound.bound]
        limit = f"at least {duration(bound.seconds)}: {side} limits it; the ridge is at {_short(bound.ridge)} FLOPs per byte"
        return [head, moved, times, limit]

    def figure(self) -> Figure:
        """The roof in log–log, with the operation's point."""
        bound, peak = self.bound, self.bound.ridge * self.bound.bandwidth
        low = 10 ** math.floor(math.log10(min(0.1, bound.intensity)))
        high = 10 ** math.ceil(math.log10(max(10_000, bound.intensity)))
        x = draw.logarithmic(low, high, 90, 690)
        y = draw.logarithmic(low * bound.bandwidth, 3 * peak, 300, 20)
        parts = []
        for power in range(round(math.log10(low)), round(math.log10(high)) + 1):
            parts += [draw.path([(x(10**power), 20), (x(10**power), 300)], GRID)]
            parts += [draw.text(x(10.0**power), 318, f"{10.0**power:,g}")]
        first = math.ceil(math.log10(low * bound.bandwidth))
        for power in range(first, math.floor(math.log10(3 * peak)) + 1):
            parts += [draw.path([(90, y(10**power)), (690, y(10**power))], GRID)]
            parts += [draw.text(84, y(10**power) + 4, si(10**power, ""), anchor="end")]
        roof = [(low, low * bound.bandwidth), (bound.ridge, peak), (high, peak)]
        here = x(bound.intensity), y(bound.flops_per_second)
        parts += [
            draw.text(390, 340, "arithmetic intensity, FLOPs per byte"),
            draw.text(20, 160, "FLOP/s", turn=True),
            draw.path([(x(bound.ridge), y(peak)), (x(bound.ridge), 300)], FAINT, 1.2, "3 3"),
            draw.path([(x(i), y(rate)) for i, rate in roof], ROOF, 3),
            draw.path([here, (here[0], 300)], POINT, 1.5, "5 3"),
            # Above the roof no line passes.
            draw.text(x(bound.ridge) - 8, y(peak) - 13, "memory limits", QUIET, anchor="end", over=True),
            draw.text(x(bound.ridge) + 8, y(peak) - 13, "the peak limits", QUIET, anchor="start", over=True),
            draw.dot(*here, POINT),
        ]
        alt = (
            f"A roof that rises to {si(peak, 'FLOP/s')} at {_short(bound.ridge)} FLOPs per byte and is flat from there on; "
            f"{self.choices['operation']} at {_short(bound.intensity)} FLOPs per byte and at most "
            f"{si(bound.flops_per_second, 'FLOP/s')}."
        )
        return draw.drawing(720, 350, parts, alt)
