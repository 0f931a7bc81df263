"""Take a number apart by its bits: choose a format, a value or the bits, and see the other two."""

import html
import math

from cs336kit.predict import FORMATS, NumberFormat

# Light enough for black text; the fields are also labelled, so nothing depends on colour.
_COLORS = {"sign": "#f0c9df", "exponent": "#ffe0a3", "fraction": "#c4e4f8"}


class BitExplorer:
    """One number in one format. Shown as controls where ipywidgets and a kernel are there, else as a static picture."""

    def __init__(self, number_format: NumberFormat, code: int):
        self.number_format = number_format
        self.code = code

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
            return "no neighbours"
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
            raise ValueError("NaN has no neighbours: it is not a number.")
        if abs(place) >= negative or code >= number_format.codes or math.isnan(number_format.decode(code)):
            raise ValueError(
                f"{self.value!r} is the {'largest' if way > 0 else 'smallest'} value of {number_format.name}."
            )
        return code

    def __repr__(self) -> str:
        lines = [self.number_format.name + "  " + "  ".join(f"{name} {bits}" for name, bits in self.fields())]
        return "\n".join([*lines, self.formula(), self.neighbours()])

    def _repr_html_(self) -> str:
        boxes = []
        for name, bits in self.fields():
            cells = "".join(
                f'<span style="display:inline-block;width:1.15em;text-align:center;border:1px solid #666;'
                f'background:{_COLORS[name]};color:#111;">{bit}</span>'
                for bit in bits
            )
            label = f'<div style="font-size:85%;">{name}</div>'
            boxes.append(f'<div style="display:inline-block;margin-right:0.8em;">{label}<div>{cells}</div></div>')
        name, formula, neighbours = map(html.escape, (self.number_format.name, self.formula(), self.neighbours()))
        return (
            f'<div style="font-family:monospace;line-height:1.6;"><div><b>{name}</b>, code {self.code}</div>'
            f"<div>{''.join(boxes)}</div><div>{formula}</div><div>{neighbours}</div></div>"
        )

    def _repr_mimebundle_(self, include=None, exclude=None):
        bundle = {"text/plain": repr(self), "text/html": self._repr_html_()}
        try:
            controls = self.widget()
        except ImportError:
            return bundle
        return {**controls._repr_mimebundle_(), **bundle}

    def widget(self):
        """The controls, as an ipywidgets box; raises ImportError without ipywidgets."""
        import ipywidgets as widgets

        names = [name for name, entry in FORMATS.items() if isinstance(entry, NumberFormat)]
        wide = {"style": {"description_width": "5em"}, "layout": {"width": "26em"}, "continuous_update": False}
        choice = widgets.Dropdown(options=names, description="format", style=wide["style"], layout=wide["layout"])
        number = widgets.Text(description="value", **wide)
        pattern = widgets.Text(description="bits", **wide)
        step = widgets.Box([widgets.Button(description="next below"), widgets.Button(description="next above")])
        picture = widgets.HTML()
        choice.value = self.number_format.name if self.number_format.name in names else names[0]
        busy = []

        def show(note=""):
            busy.append(True)  # writing into the boxes must not be read as the reader's typing
            number.value, pattern.value = repr(self.value), self.number_format.fields(self.code)
            picture.value = self._repr_html_() + f"<div>{html.escape(note)}</div>"
            busy.pop()

        def attempt(action):
            def run(change):
                if busy:
                    return
                try:
                    action(change)
                    show()
                except (ValueError, OverflowError) as error:
                    show(str(error))

            return run

        def choose(change):
            value, self.number_format = self.value, FORMATS[choice.value]
            self.code = 0
            self.code = self.number_format.encode(value)

        def type_value(change):
            try:
                value = float(number.value)
            except ValueError:
                raise ValueError(f"{number.value!r} is no number; write it as 0.1, 1e-8, inf or nan.") from None
            self.code = self.number_format.encode(value)

        def type_bits(change):
            digits = pattern.value.replace(".", "").replace(" ", "")
            if len(digits) != self.number_format.bits or set(digits) - {"0", "1"}:
                raise ValueError(f"{self.number_format.name} has {self.number_format.bits} bits, each 0 or 1.")
            self.code = int(digits, 2)

        choice.observe(attempt(choose), "value")
        number.observe(attempt(type_value), "value")
        pattern.observe(attempt(type_bits), "value")
        for button, way in zip(step.children, (-1, 1), strict=True):
            button.on_click(attempt(lambda _, way=way: setattr(self, "code", self.neighbour(way))))
        show()
        return widgets.VBox([choice, number, pattern, step, picture])


def bits(value: float = 0.1, name: str = "fp16") -> BitExplorer:
    """The bits of the value that a float rounds to in a format of `predict.FORMATS`, to look at and to change.

    Raises ValueError for a block format, whose numbers have no bits of their own, and for unknown names.
    """
    number_format = FORMATS[name]
    if not isinstance(number_format, NumberFormat):
        raise ValueError(f"{name} shares a scale between numbers: look at {number_format.element.name} instead.")
    return BitExplorer(number_format, number_format.encode(value))
