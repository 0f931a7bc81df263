"""Time bounds from FLOPs and bytes: arithmetic intensity, the roofline, and the costs of common operations.

Conventions: a multiply, an add, a compare, a division, a root and an exponential are one FLOP each; an accumulator
starts from zero (or −∞), so adding up n numbers is n FLOPs, as in a matrix product. Bytes are those that must move
between the chip and its memory if every input is read once and every output is written once.
"""

from dataclasses import dataclass

from cs336kit.predict.checks import finite_results, non_negative_int, one_of, positive_int, positive_number, shown
from cs336kit.predict.hardware import PRECISIONS, Accelerator
from cs336kit.predict.hardware import accelerator as device_of
from cs336kit.predict.napkin import matmul_flops


@dataclass(frozen=True)
class Cost:
    """What an operation does (`flops`) and what it moves (`bytes`); costs add, and multiply by a count."""

    flops: int
    bytes: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "flops", non_negative_int("flops", self.flops))
        object.__setattr__(self, "bytes", positive_int("bytes", self.bytes))

    @property
    @finite_results()
    def intensity(self) -> float:
        """Arithmetic intensity, FLOPs per byte moved."""
        return self.flops / self.bytes

    def __add__(self, other: "Cost") -> "Cost":
        if not isinstance(other, Cost):
            return NotImplemented
        return Cost(self.flops + other.flops, self.bytes + other.bytes)

    def __mul__(self, times: int) -> "Cost":
        times = positive_int("the factor of a Cost", times)
        return Cost(self.flops * times, self.bytes * times)

    __rmul__ = __mul__


def matmul_cost(rows: int, inner: int, columns: int, *, batch: int = 1, bytes_per_element: int = 2) -> Cost:
    """Cost of `batch` products (rows, inner) × (inner, columns): both factors read once, the product written once.

    Left out: rereading tiles that fall out of the cache, which a small cache forces. Source: Williams et al. 2009.
    """
    sizes = {"rows": rows, "inner": inner, "columns": columns, "batch": batch, "bytes_per_element": bytes_per_element}
    rows, inner, columns, batch, size = (positive_int(name, value) for name, value in sizes.items())
    moved = rows * inner + inner * columns + rows * columns
    return Cost(matmul_flops(rows, inner, columns, batch=batch), size * batch * moved)


def elementwise_cost(
    elements: int, *, flops_per_element: int = 1, reads: int = 1, writes: int = 1, bytes_per_element: int = 2
) -> Cost:
    """Cost of an element-wise operation: `x + y` has reads=2, relu reads=1, a copy flops_per_element=0."""
    elements = positive_int("elements", elements)
    moved = non_negative_int("reads", reads) + non_negative_int("writes", writes)
    size = positive_int("bytes_per_element", bytes_per_element)
    return Cost(elements * non_negative_int("flops_per_element", flops_per_element), elements * moved * size)


def softmax_cost(rows: int, columns: int, *, bytes_per_element: int = 2) -> Cost:
    """Cost of a softmax over each row: maximum, subtract, exponential, sum, divide, so 5 FLOPs per element.

    Convention: one kernel reads each element once and writes it once. Source: counting the steps.
    """
    elements = positive_int("rows", rows) * positive_int("columns", columns)
    return Cost(5 * elements, 2 * elements * positive_int("bytes_per_element", bytes_per_element))


@dataclass(frozen=True)
class Roofline:
    """A bound on time: `seconds` = max(compute_seconds, memory_seconds); `bound` names the larger of the two.

    `intensity` and `ridge` are in FLOPs per byte; `flops_per_second` is the most that the roofline allows at this intensity.
    """

    compute_seconds: float
    memory_seconds: float
    intensity: float
    ridge: float
    bandwidth: float

    @property
    def seconds(self) -> float:
        return max(self.compute_seconds, self.memory_seconds)

    @property
    def bound(self) -> str:
        return "compute" if self.compute_seconds >= self.memory_seconds else "memory"

    @property
    def flops_per_second(self) -> float:
        return min(self.ridge, self.intensity) * self.bandwidth


@finite_results()
def roofline(
    cost: Cost,
    *,
    accelerator: str | Accelerator | None = None,
    precision: str = "bf16",
    peak_flops_per_second: float | None = None,
    bandwidth_bytes_per_second: float | None = None,
) -> Roofline:
    """The shortest time that an operation can take on a chip that computes and moves bytes at the same time.

    Give an accelerator and a precision, or the peak and the bandwidth themselves (each replaces the accelerator's).
    Left out: launch overhead, caches, tiles that do not fill the chip. Errors: ValueError if a number is missing,
    LookupError if the accelerator has no sourced one. Source: Williams, Waterman and Patterson 2009, "Roofline".
    """
    if not isinstance(cost, Cost):
        raise ValueError(f"roofline takes a Cost(flops, bytes), such as matmul_cost(...) returns, got {shown(cost)}.")
    one_of("precision", precision, PRECISIONS)
    if accelerator is not None:
        device = device_of(accelerator)
        if peak_flops_per_second is None:
            peak_flops_per_second = device.peak(precision)
        if bandwidth_bytes_per_second is None:
            bandwidth_bytes_per_second = device.bandwidth
    if peak_flops_per_second is None or bandwidth_bytes_per_second is None:
        raise ValueError(
            "a roofline needs an accelerator, or both peak_flops_per_second and bandwidth_bytes_per_second."
        )
    peak = positive_number("peak_flops_per_second", peak_flops_per_second)
    bandwidth = positive_number("bandwidth_bytes_per_second", bandwidth_bytes_per_second)
    return Roofline(cost.flops / peak, cost.bytes / bandwidth, cost.intensity, peak / bandwidth, bandwidth)
