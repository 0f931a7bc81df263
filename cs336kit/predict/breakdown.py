"""A quantity with parts: component → int, and their total."""

from collections.abc import Iterator, Mapping

from cs336kit.predict.checks import non_negative_int, one_of, shown
from cs336kit.predict.grid import as_html, as_text

#: What a Breakdown may count, which is also the heading of its column.
UNITS = ("bytes", "FLOPs", "parameters", "elements", "tokens", "bytes/parameter")


class Breakdown(Mapping[str, int]):
    """A frozen, ordered mapping from component to a whole number, shown as a table with a total row.

    `Breakdown({"weights": 4, "gradients": 4}, unit="bytes")["weights"]` is 4, and `.total` is 8.
    Two breakdowns of the same unit add component by component; `breakdown * 32` multiplies every component.
    Equality compares components and unit, not their order. A value that is not a whole number of at least 0
    raises ValueError, as does adding different units.
    """

    unit: str
    _parts: dict[str, int]

    def __init__(self, parts: Mapping[str, int], *, unit: str):
        if not isinstance(parts, Mapping):
            raise ValueError(f"a Breakdown takes a mapping from component to int, got {shown(parts)}.")
        checked = {
            str(name): value if type(value) is int and value >= 0 else non_negative_int(f"component {name!r}", value)
            for name, value in parts.items()
        }
        object.__setattr__(self, "_parts", checked)
        object.__setattr__(self, "unit", one_of("unit", unit, UNITS))

    @property
    def total(self) -> int:
        return sum(self._parts.values())

    def __int__(self) -> int:
        return self.total

    def __getitem__(self, component: str) -> int:
        if component not in self._parts:
            raise KeyError(f"no component {component!r}; this breakdown has: {', '.join(self._parts)}")
        return self._parts[component]

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._parts)

    def __contains__(self, component: object) -> bool:
        return component in self._parts

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a Breakdown is frozen: {name} cannot be set. Build a new one.")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"a Breakdown is frozen: {name} cannot be deleted. Build a new one.")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Breakdown):
            return NotImplemented
        return self.unit == other.unit and self._parts == other._parts

    def __hash__(self) -> int:
        return hash((self.unit, frozenset(self._parts.items())))

    def __add__(self, other: object) -> "Breakdown":
        if not isinstance(other, Breakdown):
            return NotImplemented
        if other.unit != self.unit:
            raise ValueError(f"a breakdown in {self.unit} cannot be added to one in {other.unit}.")
        names = [*self, *(name for name in other if name not in self)]
        return Breakdown({name: self.get(name, 0) + other.get(name, 0) for name in names}, unit=self.unit)

    def __radd__(self, other: object) -> "Breakdown":
        # sum([...]) starts from 0.
        return self if other == 0 else NotImplemented

    def __mul__(self, factor: object) -> "Breakdown":
        factor = non_negative_int("the factor of a Breakdown", factor)
        return Breakdown({name: value * factor for name, value in self.items()}, unit=self.unit)

    __rmul__ = __mul__

    def _rows(self) -> list[tuple[str, str, str]]:
        total = self.total
        rows = [(name, value) for name, value in self.items()] + [("total", total)]
        return [(name, f"{value:,}", f"{100 * value / total:.1f} %" if total else "–") for name, value in rows]

    def __repr__(self) -> str:
        return as_text([("component", self.unit, "share"), *self._rows()], "<>>", gap=2)

    def _repr_html_(self) -> str:
        return as_html(("component", self.unit, "share"), self._rows(), "<>>", total=True)
