"""Assign cells to slides: how tall a cell is when it is projected, and which slide it goes on.

All lengths are CSS pixels of a slide of WIDTH × HEIGHT. The slides' style sheet gets them from here, and a browser test
checks that nothing overflows.
"""

import math
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from urllib.parse import unquote

from cs336kit.course import cells as kind
from cs336kit.course.cells import Cell
from cs336kit.course.outputs import text_of, unstyled

FURTHER = "## Further"
#: The most lines of code that an audience can read at once.
SLIDE_LINES = 15
WIDTH, HEIGHT = 1280, 720
#: Margins of a slide; the bottom one has the line with the name of the section.
SIDE, TOP, BOTTOM = 56, 28, 44
ROOM, ACROSS = HEIGHT - TOP - BOTTOM, WIDTH - 2 * SIDE
#: Font sizes: prose, code, what code prints, tables, tables of many rows, headings by their number of #.
TEXT, CODE, PRINTED, TABLE, DENSE, HEADINGS = 26, 21, 20, 22, 18, (52, 38, 32)
#: Height of a line as a multiple of its font size, and the space around every block.
LINE, GAP = 1.35, 10
#: Average width of a letter, as a share of the font size: in prose, and in a fixed-width font.
LETTER, FIXED = 0.58, 0.605
#: Padding of a table row, above and below together, and of code, above and at the side.
ROW, BOX, INSET = 7, 10, 14
#: How much larger than in a notebook a figure is drawn, and the text of a slide with little on it, where that fits.
ENLARGED, LARGER = 1.25, (1.3, 1.15)
#: Points in a pixel.
POINTS = 0.75

#: Text that begins a slide of its own below a heading.
_OWN_SLIDE = ("### ", "**Your prediction.**", "**The card**", "**Discuss**", "**Read on**")
#: What a reader works on appears with its question; a fragment waits for the next key.
_WITH_IT = {"prediction", "exercise"}
#: Cells that draw the reader's own guesses, of which slides have none.
_READERS_OWN = ("teach.calibration()",)


def roles(cells: Sequence[Cell]) -> list[str]:
    """The slide role of every cell: a question is on one slide and its answer on the next, and nothing overflows.

    Bold sentences, lists and formulas are on the slide, other prose is for the speaker.
    """
    found: list[str] = []
    lines, height, further, imports, shown, titled = 0, 0.0, False, True, False, False
    for place, cell in enumerate(cells):
        text, tags = kind.source(cell), {*kind.tags(cell)}
        further = further or text.startswith(FURTHER)
        code = kind.is_code(cell)
        length, takes = _size([cell])
        # Text that ends with a colon stays with the code that it introduces, if both fit on one slide.
        both = _size(cells[place : place + 2])
        more, below = both if not code and text.endswith(":") and _fits(*both) else (length, takes)
        over = not _fits(lines + more, height + below)
        if further or tags & {"solution", "page", "verdict"} or (code and imports) or text in _READERS_OWN:
            role, imports = "skip", imports and not code
        elif not code and text.startswith(("# ", "## ")):
            role, titled = "slide", text.startswith("# ")
        elif not (code or on_slide(text)):
            role = "notes"
        else:
            # The title and the question of the lesson are alone on a slide.
            alone = "answer" in tags or text.startswith(_OWN_SLIDE) or (code and titled)
            plain = tags & _WITH_IT or not shown
            role = "subslide" if (alone or over) and height else "-" if plain else "fragment"
        if role in ("slide", "subslide"):
            titled = titled and role == "slide"
            lines, height, shown = 0, 0.0, False
        if role not in ("skip", "notes"):
            lines, height, shown = lines + length, height + takes, shown or role != "slide"
        found.append(role)
    return found


def _size(cells: Sequence[Cell]) -> tuple[int, float]:
    """Lines of code and pixels of these cells together."""
    return sum(len(code_of(cell).splitlines()) for cell in cells if kind.is_code(cell)), sum(map(tall, cells))


def _fits(lines: int, height: float) -> bool:
    return lines <= SLIDE_LINES and height <= ROOM


def on_slide(text: str) -> bool:
    """Whether a paragraph of prose is projected, instead of being only for the speaker."""
    return text.startswith(("> ", "**", "- ", "$$", "#", "|", "1. "))


def tall(cell: Cell) -> float:
    """The approximate height in pixels of a cell on a slide, with its outputs."""
    if not kind.is_code(cell):
        return sum(map(_paragraph, re.split(r"\n\s*\n|\n(?=- |\d\. |#)", kind.source(cell).strip())))
    by = ACROSS if alone(cell) else ENLARGED
    return code_height(cell) + sum(output_height(output, by) for output in shown(cell))


def magnified(cells: Sequence[Cell]) -> float:
    """How much larger the text of a slide can be: a slide with little on it is read from farther away.

    Lines of code and rows of tables stay whole, and figures stay as they are.
    """
    outputs = [output for cell in cells if kind.is_code(cell) for output in shown(cell)]
    code = [line for cell in cells if kind.is_code(cell) for line in code_of(cell).splitlines()]
    rows = [line for output in outputs for line in table_lines(output)]
    across = [len(line) * CODE * FIXED + 2 * INSET for line in code] + [len(line) * TABLE * LETTER for line in rows]
    # Larger letters also take more lines.
    limit = min(math.sqrt(ROOM / sum(map(tall, cells))), ACROSS / max(across, default=1))
    return 1 if any(map(figure_size, outputs)) else next((by for by in LARGER if by <= limit), 1)


def code_of(cell: Cell) -> str:
    """The code of a cell that is projected: "" if its outputs are on a slide of their own."""
    return "" if cell["metadata"].get("transient", {}).get("remove_source") else kind.source(cell)


def code_height(cell: Cell) -> float:
    """The pixels that the code of a cell takes."""
    lines = len(code_of(cell).splitlines())
    return lines * CODE * LINE + 2 * BOX + GAP if lines else 0.0


def shown(cell: Cell) -> list[Cell]:
    """The outputs that are projected; an exercise has none, because nobody has tried it yet."""
    return [] if "exercise" in kind.tags(cell) else list(cell.get("outputs", []))


def alone(cell: Cell) -> bool:
    """Whether this is a single output on a slide of its own."""
    return kind.is_code(cell) and not code_of(cell) and len(shown(cell)) == 1


def output_height(output: Cell, by: float = ENLARGED) -> float:
    """The height of an output in pixels: of a figure, drawn larger `by` this factor, tables and what is around them, or text."""
    size = figure_size(output)
    drawn = enlarged(size, by)[1] + GAP if size else 0.0
    return drawn + _table_height(output, table_size(output)) + _printed_height(output)


def table_size(output: Cell) -> int:
    """The font size of a table: smaller if it is long."""
    size = figure_size(output)
    beside = enlarged(size)[1] + GAP if size else 0
    return DENSE if _table_height(output, TABLE) > ROOM - beside else TABLE


def figure_size(output: Cell) -> tuple[float, float] | None:
    """Width and height of a figure in a notebook, in pixels; None if there is none."""
    data = output.get("data", {})
    return _drawn_size(text_of(data.get("image/svg+xml", "") or data.get("text/html", "")))


@lru_cache(maxsize=64)  # needed several times, for long texts
def _drawn_size(text: str) -> tuple[float, float] | None:
    found = re.search(r'<svg [^>]*?width="([\d.]+)(pt)?" height="([\d.]+)', unquote(text))
    unit = POINTS if found and found[2] else 1
    return (float(found[1]) / unit, float(found[3]) / unit) if found else None


def table_lines(output: Cell) -> list[str]:
    """The text of an HTML output, a line for each row of a table or block; empty for a figure."""
    data = output.get("data", {})
    return [] if "image/svg+xml" in data else unstyled(text_of(data.get("text/html", ""))).splitlines()


def _table_height(output: Cell, size: int) -> float:
    lines = table_lines(output)
    # In a table that has to wrap its lines, the columns are never filled evenly.
    wide = (len(line) * size * LETTER / ACROSS for line in lines)
    wrapped = sum(math.ceil(width / 0.6) if width > 0.9 else 1 for width in wide)
    return len(lines) * (ROW + 1) + wrapped * size * LINE + GAP if lines else 0.0


def _printed_height(output: Cell) -> float:
    data = output.get("data", {})
    text = "" if "text/html" in data else text_of(output.get("text") or data.get("text/plain", "")).rstrip("\n")
    return sum(_wrapped(line, PRINTED * FIXED) for line in text.splitlines()) * PRINTED * LINE + GAP if text else 0.0


def enlarged(size: tuple[float, float], by: float = ENLARGED, room: float = ROOM) -> tuple[float, float]:
    """Width and height of a figure on a slide: larger by this factor, or as large as fits."""
    width, height = size
    by = min(by, ACROSS / width, (room - GAP) / height)
    return width * by, height * by


def _wrapped(line: str, letter: float) -> int:
    return max(1, math.ceil(len(line) * letter / ACROSS))


def _paragraph(text: str) -> float:
    level = len(text) - len(text.lstrip("#"))
    size = HEADINGS[level - 1] if level else TEXT
    if text.startswith("$$"):
        return 2.5 * TEXT * LINE + 2 * GAP
    if text.startswith("|"):
        return (len(text.splitlines()) - 1) * (TABLE * LINE + ROW + 1) + GAP
    # The address of a link is not shown, and a formula is shorter than its source.
    text = re.sub(r"\]\([^)]*\)|[*`#$]|\\[a-z]+", "", text)
    return sum(_wrapped(line, size * LETTER) for line in _joined(text)) * size * LINE + GAP


def _joined(text: str) -> Iterator[str]:
    """Lines as a page shows them: only two trailing blanks end one."""
    return iter(re.sub(r"(?<!  )\n", " ", text).splitlines())
