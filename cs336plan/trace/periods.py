"""Layers repeat: what a whole model needs, from the same module with three and with four periods of its layers.

Parameters apart, counts are affine in the number of periods. A peak is not, since it is a maximum, but the most that is alive
in one segment of the passes is: each segment is extrapolated by itself, and the maximum taken then.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass

from cs336plan.trace.counting import Passes
from cs336plan.trace.result import CacheLayer

#: With three, each of first, second, next to last and last is there; with four, the second is not the next to last.
FEW, MORE = 3, 4


@dataclass(frozen=True)
class Pattern:
    """Layers by number: `before`, then `periods` times `length` that repeat, then `after`."""

    before: int
    length: int
    periods: int
    after: int

    def chosen(self, periods: int) -> list[int]:
        """The numbers of the layers of a model with so many periods."""
        repeated = self.before + self.length * self.periods
        return [*range(self.before + self.length * periods), *range(repeated, repeated + self.after)]

    def role(self, layer: int, periods: int) -> Hashable:
        """Which segment a layer of a model with so many periods is: the same in one with more, and None in the middle."""
        if layer < self.before:
            return "before", layer
        period, inside = divmod(layer - self.before, self.length)
        if period >= periods:
            return "after", layer - self.before - self.length * periods
        if period < 2:
            return "first", period, inside
        return ("last", periods - period, inside) if period >= periods - 2 else None


def pattern(signatures: Sequence[Hashable], few: int = FEW, more: int = MORE) -> Pattern | None:
    """The pattern that needs the fewest layers in models of so many periods; None where tracing all layers is as cheap."""
    count, best, cost = len(signatures), None, len(signatures)
    for length in range(1, count // (few + more) + 1):
        # Runs in which each layer is as the one a period before.
        start = 0
        for end in range(length, count + 1):
            if end < count and signatures[end] == signatures[end - length]:
                continue
            periods = (end - start) // length
            rest = count - length * periods
            needed = 2 * rest + (few + more) * length
            if periods > more and needed < cost:
                best, cost = Pattern(start, length, periods, rest - start), needed
            start = end - length + 1
    return best


def _line(few: int, more: int, periods: int, start: int = FEW) -> int:
    return few + (periods - start) * (more - few)


def extrapolated(few: Passes, more: Passes, found: Pattern) -> Passes:
    """The passes of the whole model."""
    forward, training, saved = (
        _line(getattr(few, name), getattr(more, name), found.periods)
        for name in ("forward_flops", "training_flops", "saved_bytes")
    )
    peaks, again = (_peaks(*each, found) for each in ((few.peaks, more.peaks), (few.again, more.again)))
    return Passes(forward, training, saved, peaks, again)


def _peaks(
    few: Mapping[tuple[str, int], int], more: Mapping[tuple[str, int], int], found: Pattern
) -> dict[tuple[str, int], int]:
    """The segments of a model with all periods, each from the same segment of two models."""
    peaks: list[dict[Hashable, int]] = []
    for each, periods in ((few, FEW), (more, MORE)):
        by_role: dict[Hashable, int] = {}
        for (what, layer), size in each.items():
            role = found.role(layer, periods) if what in ("forward", "backward") else what
            if periods == FEW and role == ("first", 1, (layer - found.before) % found.length):
                # The second of three periods is the next to last as well.
                by_role[what, ("last", 2, (layer - found.before) % found.length)] = size
            by_role[what, role] = size
        peaks.append(by_role)
    return {
        (str(key), 0): _line(size, peaks[1][key], found.periods) for key, size in peaks[0].items() if key in peaks[1]
    }


def caches(count: Callable[[int], Sequence[CacheLayer]], found: Pattern | None) -> tuple[tuple[int, CacheLayer], ...]:
    """How many layers have which cache; `count(periods)` gives those of a model with so many periods, 0: of the whole."""
    if found is None:
        return _listed(Counter(count(0)))
    one, two = Counter(count(1)), Counter(count(2))
    return _listed({layer: _line(one[layer], two[layer], found.periods, 1) for layer in {**one, **two}})


def _listed(counted: Mapping[CacheLayer, int]) -> tuple[tuple[int, CacheLayer], ...]:
    return tuple((number, layer) for layer, number in counted.items() if number)


def line(count: Callable[[int], Sequence[int]], found: Pattern | None) -> list[int]:
    """Numbers that are affine in the periods, of the whole model."""
    if found is None:
        return list(count(0))
    return [_line(one, two, found.periods, 1) for one, two in zip(count(1), count(2), strict=True)]
