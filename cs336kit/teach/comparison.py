"""Predict, measure, compare: the comparison table of the course."""

import math
from collections.abc import Sequence
from typing import Any

from cs336kit.journal import is_number
from cs336kit.predict.breakdown import Breakdown
from cs336kit.teach.numbers import UNITS, as_python, check_unit, text
from cs336kit.teach.tables import Table

#: Where the second number comes from: an instrument (a clock, an allocator, bytes read back), torch's count of what ran
#: or of its shapes, a different formula, or a manufacturer.
SOURCES = ("measured", "counted", "computed", "datasheet")
_ABSENT = "–"


def compare(*rows: Any, how: str = "measured") -> Table:
    """Compare predictions with measurements.

    rows: ``(quantity, predicted, measured)`` or ``(quantity, predicted, measured, unit)``; or two Breakdowns, predicted
    and measured, which are compared component by component and in total. Equal values are ``exact``; otherwise the last
    column is measured ÷ predicted (``differs`` if there is no such number, as when one side lacks a component).
    how: one of SOURCES, the heading of the second number.

    Raises ValueError for a row of a different length, an unknown unit, GB and GiB in one table, or Breakdowns of two units.
    """
    if how not in SOURCES:
        raise ValueError(f"how={how!r} is not known: where does the second number come from? {', '.join(SOURCES)}")
    if not rows:
        raise ValueError("compare needs at least one row: (quantity, predicted, measured) or with a unit as the fourth")
    parts = any(isinstance(row, Breakdown) for row in rows)
    quantities, predicted, measured, units = zip(*(_components(rows) if parts else map(_complete, rows)), strict=True)
    if {*units} & {*UNITS["decimal bytes"]} and {*units} & {*UNITS["binary bytes"]}:
        raise ValueError(
            f"one table mixes decimal and binary bytes ({', '.join(sorted({*units}))}): GB is 10**9 bytes and GiB 2**30; "
            "choose one, or make two tables"
        )
    columns = [("quantity", "<", quantities), ("predicted", ">", map(text, predicted)), (how, ">", map(text, measured))]
    columns += [("unit", "<", units)] if any(units) else []
    headers, align, cells = zip(*columns, ("ratio", ">", map(_ratio, predicted, measured)), strict=True)
    return Table(headers, tuple(zip(*cells, strict=True)), "".join(align))


def _complete(row: Any) -> tuple:
    if not isinstance(row, (tuple, list)) or len(row) not in (3, 4):
        raise ValueError(f"a row is (quantity, predicted, measured) or (…, unit), not {row!r}")
    quantity, predicted, measured = row[0], as_python(row[1]), as_python(row[2])
    return str(quantity), predicted, measured, check_unit(row[3] if len(row) == 4 else "")


def _components(pair: Sequence) -> list[tuple]:
    if len(pair) != 2 or not all(isinstance(side, Breakdown) for side in pair):
        given = ", ".join(type(side).__name__ for side in pair)
        raise ValueError(f"a Breakdown is compared with one other Breakdown, but you gave ({given}); give two, or rows")
    predicted, measured = pair
    if predicted.unit != measured.unit:
        raise ValueError(f"{predicted.unit} cannot be compared with {measured.unit}: count both in one unit")
    names = dict.fromkeys([*predicted, *measured])
    rows = [(name, *(side.get(name, _ABSENT) for side in pair), predicted.unit) for name in names]
    return [*rows, ("total", predicted.total, measured.total, predicted.unit)]


def _ratio(predicted: Any, measured: Any) -> str:
    if _equal(predicted, measured):
        return "exact"
    if not (is_number(predicted) and is_number(measured)) or predicted == 0:
        return "differs"
    # 1.0000 would read as equal, which these two are not: write as many digits as show a difference.
    written = (f"{measured / predicted:.{digits}f}" for digits in range(4, 17))
    return next((ratio for ratio in written if float(ratio) != 1), "differs")


def _equal(predicted: Any, measured: Any) -> bool:
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
