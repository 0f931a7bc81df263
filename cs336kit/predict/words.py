"""Numbers and sentences as an answer shows them in a terminal of 80 columns."""

from textwrap import wrap

_GIB = 2**30
#: Width of a terminal, in columns.
WIDTH = 80


def folded(sentence: str, *, indent: str = "", first: str | None = None) -> list[str]:
    """A sentence in lines of a terminal, with those after the first one indented."""
    first = indent if first is None else first
    return wrap(sentence, WIDTH, initial_indent=first, subsequent_indent=indent, break_on_hyphens=False)


def size(value: int) -> str:
    """Bytes as GiB, small ones with more digits."""
    gib = value / _GIB
    return f"{gib:,.2f}" if gib >= 0.01 or not value else f"{gib:,.4f}"


def row(name: str, value: int, remark: str = "") -> str:
    return f"  {name:<23}{size(value):>11} GiB" + (f"  {remark}" if remark else "")


def duration(days: float) -> str:
    """Days, or hours, minutes and seconds if they are few."""
    if days >= 2:
        return f"{days:,.1f} days"
    for unit, size in (("hours", 24), ("minutes", 24 * 60)):
        if days * size >= 1:
            return f"{days * size:,.2f} {unit}"
    return f"{days * 86400:,.3g} seconds"


def amount(value: float) -> str:
    """A whole number, a small one with three digits."""
    return f"{value:,.0f}" if value >= 10 else f"{value:,.3g}"


def digits(value: float) -> str:
    """A number with three digits, or all of those before the point."""
    return f"{value:,.3g}" if value < 100 else f"{value:,.0f}"


def accelerators(count: int, name: str) -> str:
    """So many of the table, or as they were given."""
    return f"{count:,} accelerator{'s' * (count > 1)} as given" if name == "given" else f"{count:,} × {name}"


def short(value: float) -> str:
    """A number as parameters and tokens are written, with three digits and a suffix: 39.5B; from 1e16 on a power of ten."""
    if value >= 1e16:
        return f"{value:.3g}"
    for letter, size in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("K", 1e3)):
        if value >= size:
            return digits(value / size) + letter
    return digits(value)
