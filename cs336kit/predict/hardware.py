"""The datasheet numbers of each accelerator, cell by cell, each with its basis and its source; nothing is guessed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from cs336kit.predict.checks import boolean, known, one_of
from cs336kit.predict.data import data

if TYPE_CHECKING:
    from datetime import date

#: Precisions in the order in which tables show them.
PRECISIONS = ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "fp4", "int8")
#: The engine that a matrix product in this precision runs on, unless the caller names one.
DEFAULT_ENGINE = {precision: "vector" if precision == "fp32" else "tensor" for precision in PRECISIONS}
#: Cells of a device that are not peaks.
FACTS = ("memory_label_bytes", "memory_bytes", "bandwidth", "link", "joined", "host_link", "power")


@dataclass(frozen=True)
class Source:
    """Where a number was read."""

    title: str
    url: str


@dataclass(frozen=True)
class Cell:
    """One number of the table: `value` in `unit`, what it means, where and when it was read."""

    value: int | float
    unit: str
    basis: str
    sources: tuple[Source, ...]
    date: date


@dataclass(frozen=True)
class Accelerator:
    """One accelerator: its peaks, memory, bandwidth, links and power.

    Peaks in FLOP/s (int8: OP/s), dense unless `sparse=True`; memory in bytes; bandwidth and links in bytes per second,
    links each way; power in watts. `cell(...)` gives the same number with basis, sources and date. A number that has no
    source is absent, and asking for it raises LookupError: it is never taken from a similar device.
    """

    name: str
    title: str
    aliases: tuple[str, ...]
    facts: Mapping[str, Cell]
    peaks: Mapping[tuple[str, str, str], Cell]

    def cell(self, what: str, *, sparse: bool = False, engine: str | None = None) -> Cell:
        """The cell behind a fact ("bandwidth") or a peak ("bf16"), with basis, sources and date."""
        if one_of("precision or fact of an accelerator", what, (*PRECISIONS, *FACTS)) in FACTS:
            if what not in self.facts:
                raise LookupError(f"{self.title} has no sourced {what}; it has {self._listed(self.facts)}.")
            return self.facts[what]
        engine = DEFAULT_ENGINE[what] if engine is None else one_of("engine", engine, ("tensor", "vector"))
        key = (what, engine, "sparse" if boolean("sparse", sparse) else "dense")
        if key not in self.peaks:
            same = [" ".join(other) for other in self.peaks if other[0] == what]
            there = self._listed(same or dict.fromkeys(precision for precision, _, _ in self.peaks))
            raise LookupError(f"{self.title} has no sourced {' '.join(key)} peak; it has {there}.")
        return self.peaks[key]

    def peak(self, precision: str, *, sparse: bool = False, engine: str | None = None) -> float:
        """Peak FLOP/s of a precision: dense, on tensor cores (fp32: on vector cores), unless said otherwise."""
        one_of("precision", precision, PRECISIONS)
        return float(self.cell(precision, sparse=sparse, engine=engine).value)

    @property
    def precisions(self) -> tuple[str, ...]:
        """The precisions whose default peak (dense, default engine) is in the table."""
        return tuple(p for p in PRECISIONS if (p, DEFAULT_ENGINE[p], "dense") in self.peaks)

    @property
    def rules(self) -> str:
        """The device whose rules (`predict.DEVICES`) say what operations save: "cuda" for NVIDIA's accelerators, else "cpu"."""
        return "cuda" if self.title.startswith("NVIDIA") else "cpu"

    @property
    def memory_bytes(self) -> int:
        """Bytes of memory as the driver reports them (the number on the box is `memory_label_bytes`)."""
        return int(self.cell("memory_bytes").value)

    @property
    def memory_label_bytes(self) -> int:
        """Bytes of memory as printed on the box, with GB = 10⁹ bytes."""
        return int(self.cell("memory_label_bytes").value)

    @property
    def bandwidth(self) -> float:
        """Bytes per second between the chip and its own memory."""
        return float(self.cell("bandwidth").value)

    @property
    def link(self) -> float:
        """Bytes per second each way to other accelerators (half of the total for both ways that is often printed)."""
        return float(self.cell("link").value)

    @property
    def host_link(self) -> float:
        """Bytes per second each way to the host's memory."""
        return float(self.cell("host_link").value)

    @property
    def power(self) -> int:
        """Board power limit in watts."""
        return int(self.cell("power").value)

    @staticmethod
    def _listed(names: Iterable[str]) -> str:
        return ", ".join(names) or "nothing"

    def __repr__(self) -> str:
        return f"Accelerator({self.name!r}: {self.title})"

    def __hash__(self) -> int:
        return hash(self.name)


@cache
def _table() -> dict[str, Accelerator]:
    raw = data("accelerators.toml")
    sources = {key: Source(**entry) for key, entry in raw.pop("sources").items()}

    def cell(entry: dict[str, Any]) -> Cell:
        cited = tuple(sources[key] for key in entry["source"])
        return Cell(entry["value"], entry["unit"], entry["basis"], cited, entry["date"])

    table = {}
    for name, entry in raw.items():
        peaks = {
            (precision, engine, sparsity): cell(value)
            for precision, engines in entry["peak"].items()
            for engine, kinds in engines.items()
            for sparsity, value in kinds.items()
        }
        facts = {fact: cell(entry[fact]) for fact in FACTS if fact in entry}
        table[name] = Accelerator(
            name, entry["title"], tuple(entry["aliases"]), MappingProxyType(facts), MappingProxyType(peaks)
        )
    return table


def accelerators() -> tuple[Accelerator, ...]:
    """Every accelerator of the table, oldest first within a vendor."""
    return tuple(_table().values())


def accelerator(name: str | Accelerator) -> Accelerator:
    """The accelerator called `name`: a name of the table ("h100-sxm") or what the driver reports ("NVIDIA H200").

    An accelerator is returned as it is, so every function that takes a name takes an accelerator, too.

    Case, spaces and underscores do not matter. Left out: any guess. "H100" alone is three products with different
    peaks, so it raises ValueError and lists them, as does any unknown name. "NVIDIA" may be left out of
    what the driver reports, as in "H200".
    """
    if isinstance(name, Accelerator):
        return name
    table = _table()
    wanted = _folded(name)
    for device in table.values():
        if {wanted, f"nvidia-{wanted}"} & {*map(_folded, (device.name, device.title, *device.aliases))}:
            return device
    family = [key for key in table if wanted and key.startswith(wanted + "-")]
    if len(family) == 1:
        raise ValueError(
            f"{name!r} is sold in more forms than {family[0]}, the one known here: name that if it is meant."
        )
    if family:
        raise ValueError(
            f"{name!r} is sold as {', '.join(family[:-1])} and {family[-1]}, with different numbers: name one of them."
        )
    return known("accelerator", name, table)


def _folded(name: object) -> str:
    return name.strip().lower().replace("_", "-").replace(" ", "-") if isinstance(name, str) else ""
