"""Assign cells to slides: which slide a cell goes on, by what it is and by the number of its lines.

How large a slide is drawn, the browser decides (``deck/slides.js``), and a browser test checks that none becomes too small.
"""

import math
from collections.abc import Sequence

from cs336course import cells as kind
from cs336course.cells import Cell
from cs336course.outputs import text_of, unstyled

FURTHER = "## Further"
#: The most lines of code that an audience can read at once, and the most lines of everything on a slide.
SLIDE_LINES, ROOM = 15, 18
#: Letters that a line of text holds, and the lines that a figure counts for.
LETTERS, FIGURE = 80, 15

#: Text that begins a slide of its own.
CARD = "**The card**"
EXERCISE = "### Exercise "
#: How the cell begins that marks a lesson's middle.
PAUSE = "**Pause.**"
_OWN_SLIDE = (EXERCISE, "**Your prediction.**", PAUSE, CARD, "**Discuss**")
#: What a reader works on appears with its question; a fragment waits for the next key.
_WITH_IT = {"prediction", "exercise"}
#: Cells that draw the reader's own guesses, of which slides have none.
_READERS_OWN = ("teach.calibration()",)


def roles(cells: Sequence[Cell]) -> list[str]:
    """The slide role of every cell: a question is on one slide and its answer on the next, and a heading opens its part alone.

    Bold sentences, lists and formulas are on the slide, other prose is for the speaker.
    """
    found: list[str] = []
    lines, height, further, imports, shown, opening = 0, 0, False, True, False, ""
    for place, cell in enumerate(cells):
        # On a slide nothing is folded: the next key opens it.
        text, tags = kind.unfolded(kind.source(cell)), {*kind.tags(cell)}
        further = further or text.startswith(FURTHER)
        code = kind.is_code(cell)
        length, takes = _size([cell])
        # Text that ends with a colon stays with the code that it introduces, if both fit on one slide.
        both = _size(cells[place : place + 2])
        more, below = both if not code and text.endswith(":") and _fits(*both) else (length, takes)
        over = not _fits(lines + more, height + below)
        if (
            further
            or tags & {"solution", "page", "verdict", "aside", "drill"}
            or (code and imports)
            or text in _READERS_OWN
        ):
            role, imports = "skip", imports and (not code or "page" in tags)
        elif not code and text.startswith(("# ", "## ")):
            role, opening = "slide", text.split()[0]
        elif not code and text.startswith("### ") and not text.startswith(EXERCISE):
            # It is for a reader; on slides, the title of the next one says more.
            role, opening = "notes", "###"
        elif not (code or on_slide(text)):
            role = "notes"
        else:
            # The lesson's question stands below its title, and the card below the last heading.
            own = text.startswith(_OWN_SLIDE)
            stays = {"#": not (code or own), "##": text.startswith(CARD)}.get(opening)
            alone = not stays if opening else own or "answer" in tags
            plain = tags & _WITH_IT or not shown
            role = "subslide" if (alone or over) and height else "-" if plain else "fragment"
        if role in ("slide", "subslide"):
            opening = opening if role == "slide" else ""
            lines, height, shown = 0, 0, False
        if role not in ("skip", "notes"):
            lines, height, shown = lines + length, height + takes, shown or role != "slide"
        found.append(role)
    return found


def _size(cells: Sequence[Cell]) -> tuple[int, int]:
    """Lines of code, and all lines, of these cells together."""
    return sum(len(code_of(cell).splitlines()) for cell in cells if kind.is_code(cell)), sum(map(tall, cells))


def _fits(lines: int, height: int) -> bool:
    return lines <= SLIDE_LINES and height <= ROOM


def on_slide(text: str) -> bool:
    """Whether a paragraph of prose is projected, instead of being only for the speaker."""
    return text.startswith(("> ", "**", "- ", "$$", "#", "|", "1. "))


def tall(cell: Cell) -> int:
    """The number of lines that a cell takes on a slide, with its outputs."""
    if not kind.is_code(cell):
        return _lines(kind.unfolded(kind.source(cell)))
    return len(code_of(cell).splitlines()) + sum(map(output_lines, shown(cell)))


def code_of(cell: Cell) -> str:
    """The code of a cell that is projected: "" if its outputs are on a slide of their own."""
    return "" if cell["metadata"].get("transient", {}).get("remove_source") else kind.source(cell)


def shown(cell: Cell) -> list[Cell]:
    """The outputs that are projected; an exercise has none, because nobody has tried it yet."""
    return [] if "exercise" in kind.tags(cell) else list(cell.get("outputs", []))


def output_lines(output: Cell) -> int:
    """The number of lines that an output takes: what is printed, the rows of a table, or FIGURE for a figure."""
    data = output.get("data", {})
    html = text_of(data.get("text/html", ""))
    text = unstyled(html) if html else text_of(output.get("text") or data.get("text/plain", ""))
    return _lines(text) + FIGURE * ("<img " in html)


def _lines(text: str) -> int:
    return sum(math.ceil(len(line) / LETTERS) for line in text.splitlines())
