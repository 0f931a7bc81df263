"""Predict, measure, compare: the one table of the course, and the ledger that a lesson fills with it."""

import math

from cs336kit.teach.numbers import UNITS, as_python, check_unit, text
from cs336kit.teach.tables import Table

_HEADERS = ("quantity", "predicted", "measured", "unit", "ratio")
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


def compare(*rows, keep: bool = True) -> Comparison:
    """Set predictions beside measurements.

    rows: ``(quantity, predicted, measured)`` or ``(quantity, predicted, measured, unit)``. Equal values are ``exact``;
    otherwise the last column is measured ÷ predicted to four digits (``differs`` where there is no such number).
    keep: also enter the rows in the lesson's ledger; False for values that differ from machine to machine.

    Raises ValueError for a row of another length, an unknown unit, or GB beside GiB in one table.
    """
    if not rows:
        raise ValueError("compare needs at least one row: (quantity, predicted, measured) or with a unit as the fourth")
    rows = [_complete(row) for row in rows]
    table = _render(rows)
    if keep:
        for quantity, predicted, measured, unit in rows:
            _ledger[quantity, text(predicted), unit] = (quantity, predicted, measured, unit)
    return table


def ledger() -> Comparison:
    """Every row that this lesson has compared so far, in order; running a cell again does not repeat its rows."""
    if not _ledger:
        raise ValueError("the ledger is empty: run the cells above that call teach.compare first")
    return _render(list(_ledger.values()), mixed=True)


def _complete(row) -> tuple:
    if not isinstance(row, (tuple, list)) or len(row) not in (3, 4):
        raise ValueError(f"a row is (quantity, predicted, measured) or (…, unit), not {row!r}")
    quantity, predicted, measured = row[0], as_python(row[1]), as_python(row[2])
    return str(quantity), predicted, measured, check_unit(row[3] if len(row) == 4 else "")


def _render(rows, mixed: bool = False) -> Comparison:
    units = {unit for *_, unit in rows}
    if not mixed and units & set(UNITS["decimal bytes"]) and units & set(UNITS["binary bytes"]):
        raise ValueError(
            f"one table mixes decimal and binary bytes ({', '.join(sorted(units))}): GB is 10**9 bytes and GiB 2**30; "
            "choose one, or make two tables"
        )
    cells = tuple((q, text(p), text(m), unit, _ratio(p, m)) for q, p, m, unit in rows)
    if not units - {""}:
        return Comparison(_HEADERS[:3] + _HEADERS[4:], tuple(c[:3] + c[4:] for c in cells), "<>>>")
    return Comparison(_HEADERS, cells, "<>><>")


def _ratio(predicted, measured) -> str:
    if _equal(predicted, measured):
        return "exact"
    numbers = [value for value in (predicted, measured) if isinstance(value, (int, float)) and type(value) is not bool]
    if len(numbers) < 2 or predicted == 0 or not all(map(math.isfinite, numbers)):
        return "differs"
    ratio = f"{measured / predicted:.4f}"
    # 1.0000 would read as equal, and these two are not.
    return ratio if ratio != "1.0000" else f"1{measured / predicted - 1:+.1e}"


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
            f"these two have no single answer to 'are they equal': {type(predicted).__name__} and "
            f"{type(measured).__name__}. Compare numbers, strings or tuples (a tensor: torch.equal(a, b))"
        ) from None
