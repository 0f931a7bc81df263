"""Predict, measure, compare: the comparison table of the course, and the ledger that collects a lesson's rows."""

import math
from collections.abc import Sequence

from cs336kit._journal import is_number
from cs336kit.predict._common.breakdown import Breakdown
from cs336kit.predict._common.checks import boolean
from cs336kit.teach.numbers import UNITS, as_python, check_unit, text
from cs336kit.teach.tables import Table

#: Where the second number comes from: an instrument (a clock, an allocator, bytes read back), torch's count of what ran
#: or of its shapes, a different formula, or a manufacturer.
SOURCES = ("measured", "counted", "computed", "datasheet")
_ABSENT = "–"
_ledger: dict[tuple[str, str, str], tuple] = {}


class Comparison(Table):
    """A table of predictions and measurements; `.exact` says whether every row is equal."""

    @property
    def exact(self) -> bool:
        """True when every prediction equals its measurement."""
        return all(row[-1] == "exact" for row in self.rows)

    @property
    def ratios(self) -> dict[str, str]:
        """Quantity → ``exact`` or measured ÷ predicted, as the table shows it."""
        return {row[0]: row[-1] for row in self.rows}


def compare(*rows, how: str = "measured", total: str = "total", keep: bool = True, caption: str = "") -> Comparison:
    """Compare predictions with measurements.

    rows: ``(quantity, predicted, measured)`` or ``(quantity, predicted, measured, unit)``; or two Breakdowns, predicted
    and measured, which are compared component by component and in total. Equal values are ``exact``; otherwise the last
    column is measured ÷ predicted (``differs`` if there is no such number, as when one side lacks a component).
    how: one of SOURCES, the heading of the second number. total: what the last row of two Breakdowns is called.
    keep: also enter the rows (for two Breakdowns, the total) in the lesson's ledger; False for values that differ from
    machine to machine. caption: a line above the table.

    Raises ValueError for a row of a different length, an unknown unit, GB and GiB in one table, or Breakdowns of two units.
    """
    if how not in SOURCES:
        raise ValueError(f"how={how!r} is not known: where does the second number come from? {', '.join(SOURCES)}")
    if not rows:
        raise ValueError("compare needs at least one row: (quantity, predicted, measured) or with a unit as the fourth")
    boolean("keep", keep)
    parts = any(isinstance(row, Breakdown) for row in rows)
    entries = [(*row, how) for row in (_components(rows, total) if parts else map(_complete, rows))]
    table = _render(entries, caption=caption)
    for row in entries[-1:] if parts else entries:
        if keep:
            _ledger[row[0], text(row[1]), row[3]] = row
    return table


def ledger() -> Comparison:
    """All rows that this lesson has compared so far, in order; running a cell again does not repeat its rows."""
    if not _ledger:
        raise ValueError("the ledger is empty: run the cells above that call teach.compare first")
    return _render(list(_ledger.values()), mixed=True)


def _complete(row) -> tuple:
    if not isinstance(row, (tuple, list)) or len(row) not in (3, 4):
        raise ValueError(f"a row is (quantity, predicted, measured) or (…, unit), not {row!r}")
    quantity, predicted, measured = row[0], as_python(row[1]), as_python(row[2])
    return str(quantity), predicted, measured, check_unit(row[3] if len(row) == 4 else "")


def _components(pair: Sequence, total: str) -> list[tuple]:
    if len(pair) != 2 or not all(isinstance(side, Breakdown) for side in pair):
        given = ", ".join(type(side).__name__ for side in pair)
        raise ValueError(f"a Breakdown is compared with one other Breakdown, but you gave ({given}); give two, or rows")
    predicted, measured = pair
    if predicted.unit != measured.unit:
        raise ValueError(f"{predicted.unit} cannot be compared with {measured.unit}: count both in one unit")
    names = dict.fromkeys([*predicted, *measured])
    rows = [(name, *(side.get(name, _ABSENT) for side in pair), predicted.unit) for name in names]
    return [*rows, (total, predicted.total, measured.total, predicted.unit)]


def _render(rows: Sequence[tuple], mixed: bool = False, caption: str = "") -> Comparison:
    quantities, predicted, measured, units, sources = zip(*rows, strict=True)
    if not mixed and {*units} & {*UNITS["decimal bytes"]} and {*units} & {*UNITS["binary bytes"]}:
        raise ValueError(
            f"one table mixes decimal and binary bytes ({', '.join(sorted({*units}))}): GB is 10**9 bytes and GiB 2**30; "
            "choose one, or make two tables"
        )
    several = len({*sources}) > 1
    columns = [("quantity", "<", quantities), ("predicted", ">", map(text, predicted))]
    columns += [("found" if several else sources[0], ">", map(text, measured))]
    columns += [("how", "<", sources)] if several else []
    columns += [("unit", "<", units)] if any(units) else []
    headers, align, cells = zip(*columns, ("ratio", ">", map(_ratio, predicted, measured)), strict=True)
    return Comparison(headers, tuple(zip(*cells, strict=True)), "".join(align), caption)


def _ratio(predicted, measured) -> str:
    if _equal(predicted, measured):
        return "exact"
    if not (is_number(predicted) and is_number(measured)) or predicted == 0:
        return "differs"
    # 1.0000 would read as equal, which these two are not: write as many digits as show a difference.
    written = (f"{measured / predicted:.{digits}f}" for digits in range(4, 17))
    return next((ratio for ratio in written if float(ratio) != 1), "differs")


def _equal(predicted, measured) -> bool:
    if isinstance(predicted, (list, tuple)) and isinstance(measured, (list, tuple)):
        return len(predicted) == len(measured) and all(map(_equal, predicted, measured))
    if isinstance(predicted, float) and isinstance(measured, float) and math.isnan(predicted):
        return math.isnan(measured)
    if isinstance(predicted, bool) is not isinstance(measured, bool):
        return False
    try:
        return bool(predicted == measured)
    except Exception:
        raise ValueError(
            f"whether these two are equal has no single answer: {type(predicted).__name__} and "
            f"{type(measured).__name__}. Compare numbers, strings or tuples (a tensor: torch.equal(a, b))"
        ) from None
