"""Take a number apart by its bits: choose a format, a value or the bits, and see the other two."""

import html
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from cs336kit.predict import FORMATS, NumberFormat
from cs336kit.teach.explorers.explorer import INK, Explorer

#: Light enough for black text; the fields are also labeled, so nothing depends on color.
GROUNDS = {"sign": "#f0c9df", "exponent": "#ffe0a3", "fraction": "#c4e4f8"}
EDGE = "#666666"


class BitExplorer(Explorer):
    """One number in one format, given by its code; `wanted` is what the reader asked for, before any rounding."""

    widths = ("5em", "26em")

    def __init__(self, number_format: NumberFormat, code: int, wanted: float | None = None):
        self.number_format = number_format
        self.code = code
        self.wanted = self.value if wanted is None else wanted

    @property
    def value(self) -> float:
        """What the code stands for."""
        return self.number_format.decode(self.code)

    def fields(self) -> list[tuple[str, str]]:
        """(name, bits) of the fields that the format has."""
        digits = self.number_format.fields(self.code).replace(".", "")
        sign, cut = int(self.number_format.signed), self.number_format.signed + self.number_format.exponent_bits
        parts = (("sign", digits[:sign]), ("exponent", digits[sign:cut]), ("fraction", digits[cut:]))
        return [(name, bits) for name, bits in parts if bits]

    def formula(self) -> str:
        """How the fields make the value, as one line of text."""
        number_format, value = self.number_format, self.value
        if not math.isfinite(value):
            reserved = "all-ones exponent" if number_format.infinities else "reserved code"
            return f"{reserved} → {'NaN' if math.isnan(value) else value}"
        bits = dict(self.fields())
        field, fraction = int(bits["exponent"], 2), int(bits.get("fraction", "0"), 2)
        minus, steps = "-" if bits.get("sign") == "1" else "", 2**number_format.fraction_bits
        if number_format.subnormals and field == 0:
            return (
                f"{minus}(0 + {fraction}/{steps}) × 2^(1 - {number_format.bias}) = {value!r}   (exponent 0: subnormal)"
            )
        return f"{minus}(1 + {fraction}/{steps}) × 2^({field} - {number_format.bias}) = {value!r}"

    def neighbours(self) -> str:
        """The distance to the next value, as text."""
        if not math.isfinite(self.value):
            return "no neighbors"
        spacing = self.number_format.spacing(self.value)
        return f"values here are {spacing!r} apart (2^{int(math.log2(spacing))})"

    def neighbour(self, way: int) -> int:
        """The code of the next value above (way=1) or below (way=-1); raises ValueError where there is none."""
        number_format = self.number_format
        # Codes count magnitudes: from the sign bit on they go down, and +0 and -0 are one place.
        negative = 2 ** (number_format.bits - 1) if number_format.signed else number_format.codes
        place = (self.code if self.code < negative else negative - self.code) + way
        code = place if place >= 0 else negative - place
        if math.isnan(self.value):
            raise ValueError("NaN has no neighbors: it is not a number.")
        if abs(place) >= negative or code >= number_format.codes or math.isnan(number_format.decode(code)):
            raise ValueError(
                f"{self.value!r} is the {'largest' if way > 0 else 'smallest'} value of {number_format.name}."
            )
        return code

    def set_code(self, code: int) -> None:
        """Show this code; its value becomes the wanted one."""
        self.code = code
        self.wanted = self.value

    def set_value(self, value: float) -> None:
        """Show what a value becomes in this format; the exact value is kept for other formats."""
        self.code, self.wanted = self.number_format.encode(value), value

    def set_format(self, name: str) -> None:
        """Show the wanted value, before any rounding, in a different format; a refused one changes nothing."""
        self.code, self.number_format = FORMATS[name].encode(self.wanted), FORMATS[name]

    def flip(self, place: int) -> None:
        """Flip one bit, counted from the right."""
        self.set_code(self.code ^ (1 << place))

    def _lines(self) -> list[str]:
        """The bits, formula and spacing, and what was rounded."""
        first = self.number_format.name + "  " + "  ".join(f"{name} {bits}" for name, bits in self.fields())
        same = self.wanted == self.value or (math.isnan(self.wanted) and math.isnan(self.value))
        rounded = [] if same else [f"{self.wanted!r} becomes this value in {self.number_format.name}"]
        return [first, self.formula(), self.neighbours(), *rounded]

    def live_html(self) -> str:
        title = f"<div><b>{html.escape(self.number_format.name)}</b>, code {self.code}</div>"
        lines = "".join(f"<div>{html.escape(line)}</div>" for line in self._lines()[1:])
        return f'<div style="font-family:monospace;line-height:1.6;">{title}{lines}</div>'

    def _repr_html_(self) -> str:
        boxes = []
        for name, bits in self.fields():
            cells = "".join(
                f'<span style="display:inline-block;width:1.15em;text-align:center;border:1px solid {EDGE};'
                f'background:{GROUNDS[name]};color:{INK};">{bit}</span>'
                for bit in bits
            )
            label = f'<div style="font-size:85%;">{name}</div>'
            boxes.append(f'<div style="display:inline-block;margin-right:0.8em;">{label}<div>{cells}</div></div>')
        return f'<div style="font-family:monospace;line-height:1.6;">{"".join(boxes)}</div>{self.live_html()}'

    @property
    def choices(self) -> dict[str, Any]:  # type: ignore[override] # they follow from the bits
        return {
            "format": self.number_format.name, "value": repr(self.wanted), "bits": self.number_format.fields(self.code),
        }  # fmt: skip

    def offers(self) -> Mapping[str, tuple[str, Sequence | Mapping]]:
        names = [name for name, entry in FORMATS.items() if isinstance(entry, NumberFormat)]
        own = self.number_format.name
        return {
            "format": ("format", names if own in names else [own]),  # a custom format is the only choice
            "value": ("value", ()),
            "bits": ("bits", ()),
            "flip": ("flip a bit", dict(self._places())),
            "neighbour": ("go to", {-1: ("next below", "next below"), 1: ("next above", "next above")}),
        }

    def _places(self) -> Iterator[tuple[int, tuple[str, str, str, str]]]:
        """(place, (bit, description, field, color)) from left to right."""
        place = self.number_format.bits
        for name, bits in self.fields():
            for bit in bits:
                place -= 1
                yield place, (bit, f"bit {place}, {name}: flip it", name, GROUNDS[name])

    def choose(self, **choices: Any) -> None:
        """Do what is chosen from `offers`."""
        ways: dict[str, Callable[[Any], None]] = {
            "format": self.set_format, "value": self.type_value, "bits": self.type_bits, "flip": self.flip,
            "neighbour": lambda way: self.set_code(self.neighbour(way)),
        }  # fmt: skip
        for name, chosen in choices.items():
            ways[name](chosen)

    def type_value(self, text: str) -> None:
        """Show the value that the reader typed."""
        try:
            value = float(text)
        except ValueError:
            raise ValueError(f"{text!r} is not a number: write 0.1, 1e-8, inf or nan.") from None
        self.set_value(value)

    def type_bits(self, text: str) -> None:
        """Show the code that the reader typed, bit by bit."""
        digits = text.replace(".", "").replace(" ", "")
        if len(digits) != self.number_format.bits or set(digits) - {"0", "1"}:
            raise ValueError(f"{self.number_format.name} has {self.number_format.bits} bits, each 0 or 1.")
        self.set_code(int(digits, 2))


def bits(value: float = 0.1, name: str = "fp16") -> BitExplorer:
    """Explore the bits of the value that a float rounds to in a format of `predict.FORMATS`.

    With a kernel the format, the value and each bit can be changed by hand. Raises ValueError for a block format, whose
    numbers have no bits of their own, and for unknown names.
    """
    number_format = FORMATS[name]
    if not isinstance(number_format, NumberFormat):
        raise ValueError(f"{name} shares a scale between numbers: choose {number_format.element.name} instead.")
    return BitExplorer(number_format, number_format.encode(value), value)
