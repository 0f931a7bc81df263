"""The rules that every lesson follows, checked: what a reader can rely on in every notebook."""

import ast
import json
import re
import symtable
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any

from cs336course import arithmetic, directions, exempt, flow, pace, pages, slide_cells, spoilers
from cs336course import cells as kind
from cs336course.cells import Cell
from cs336course.lessons import METADATA, every
from cs336course.outputs import text_of
from cs336course.roles import PAUSE, SLIDE_LINES, roles
from cs336course.student import leaks, without_answers

#: The most that a lesson has. None of these is a goal: a shorter lesson is a better one.
MINUTES, CODE_CELLS, CODE_LINES, COLUMNS, PROSE_WORDS = 60, 26, 20, 88, 150
TRAPS, FIGURES = 4, 5
PREDICTIONS, EXERCISES = range(4, 8), range(4, 7)
#: The Pause stands between these shares of a lesson's minutes.
MIDDLE = 0.35, 0.65
#: A quantity in a table of `teach.compare` is measured at most this many times as large as predicted, or as small.
APART = 1.25
#: At most this share of a lesson's outputs depends on the machine; the rest is compared.
EXEMPT_SHARE = 0.10

#: What a lesson does not say, and why.
_WORDS = {
    r"\b(?:the|these|our|lecture) notes\b": "a reader has seen no notes",
    r"\berrat(?:a|um)\b": "somebody else's slip is a claim, not a lesson",
    r"\b(?:obviously|trivially|needless to say)\b": "what is obvious need not be said",
    r"\w!(?=\s|$)": "no exclamation marks",
}
_SYMBOL_RULES = {
    r"\bFLOPS\b|\b[kMGTPE]FLOPS\b": "write FLOPs for a count and FLOP/s for a rate",
    r"\bFLOPs/s\b|\bflops/s\b|\bFLOP/sec\b": "a rate is FLOP/s",
    r"\bKB\b": "write kB (1,000 bytes) or KiB (1,024 bytes)",
    r"\b[KMGT]ib\b|\bgb\b|\bGbs\b": "write GB (10**9 bytes) or GiB (2**30 bytes)",
}
#: From how many characters on a paragraph that stands twice is a mistake: a shorter one may introduce two things alike.
TWICE = 60
#: What a lesson may call from teach.exercises.
_FOR_READERS = ("check", "check_solution", "hint")
_ANSWERS = re.compile(rf"[\w.]*\bexercises\b(?!\.(?:{'|'.join(_FOR_READERS)})\b)[\w.]*")
_UNFINISHED = re.compile(r"### BEGIN SOLUTION\n *(?:return|solution =) \.\.\.\n")
#: A notebook as JSON or as nbformat's node, which is a dict too.
Notebook = dict[str, Any]
_MACHINE_PATH = re.compile(r"/(?:root|home|Users|work|tmp|var/folders)/[\w.-]+|[A-Z]:\\\\Users")


def problems(notebook: Notebook, path: Path) -> list[str]:
    """Everything in the notebook at `path` that breaks the rules of the course, one sentence each; empty if nothing does."""
    whole = (_execution, _page, _counts, _slides, _predictions, _twice, _sections, _pointers)
    found = [problem for rule in whole for problem in rule(notebook)]
    rules = (_magic, _tags, _task, _notation, _path, _figure, _compared, _width, _words, _size, _sums)
    for cell in notebook["cells"]:
        found += [f"{kind.where(cell)} {problem}" for rule in rules for problem in rule(cell)]
    found += exempt.problems(notebook["cells"], path.parent.parent)
    found += spoilers.problems(notebook["cells"])
    return [*found, *_exercises(notebook, path.name[:2]), *_handed_out(notebook), *_generated(notebook, path)]


def _code(notebook: Notebook) -> list[Cell]:
    """The code cells of the lesson itself."""
    return [cell for cell in notebook["cells"] if kind.is_code(cell) and "page" not in kind.tags(cell)]


def _prose(notebook: Notebook) -> list[str]:
    return [cell["source"] for cell in notebook["cells"] if cell["cell_type"] == "markdown"]


def _page(notebook: Notebook) -> Iterator[str]:
    first, texts = notebook["cells"][0]["source"], _prose(notebook)
    if not re.match(r"# \d\d · \S", first) or not pages.question(notebook["cells"]):
        yield "the first cell begins with '# NN · Title', and below it has the lesson's question in bold"
    code = _code(notebook)
    if code and not all(isinstance(node, (ast.Import, ast.ImportFrom)) for node in flow.parse(code[0]["source"]).body):
        yield "the first code cell does more than import"
    last = next((text for text in texts if text.startswith("## What you can say now")), "")
    for part in ("**The card**", "**Discuss**", "**Read on**"):
        if not any(part in text for text in texts) or not last:
            yield f"a lesson ends with '## What you can say now', and {part} is there or below"
    if (reading := pace.minutes(notebook["cells"]).reading) > MINUTES:
        yield f"reading takes {reading} minutes; {MINUTES} is the most"
    yield from _pause(notebook["cells"])


def _pause(cells: list[Cell]) -> Iterator[str]:
    """A sitting ends where a section does, and near the middle."""
    pauses = [place for place, cell in enumerate(cells) if kind.source(cell).startswith(PAUSE)]
    if len(pauses) != 1:
        yield f"there are {len(pauses)} cells that begin with {PAUSE}; a lesson has one"
        return
    following = next(iter(cells[pauses[0] + 1 :]), None)
    if following is None or not kind.source(following).startswith("## "):
        yield f"{kind.where(cells[pauses[0]])} is a pause in the middle of a section: it stands before a heading '## '"
    before, whole = pace.halves(cells)[0].reading, pace.minutes(cells).reading
    if not MIDDLE[0] * whole <= before <= MIDDLE[1] * whole:
        yield f"the pause comes after {before} of {whole} minutes; {MIDDLE[0]:.0%} to {MIDDLE[1]:.0%} of them are allowed"


def _counts(notebook: Notebook) -> Iterator[str]:
    core = list(pace.core(notebook["cells"]))
    code = [cell for cell in core if kind.is_code(cell) and "page" not in kind.tags(cell)]
    of = {
        tag: sum(tag in kind.tags(cell) for cell in code)
        for tag in ("prediction", "exercise", "drill", "solution", "aside")
    }
    found = {
        "code cells apart from exercises, drills, guesses and asides": (
            len(code) - sum(of.values()),
            range(CODE_CELLS + 1),
        ),
        "predictions": (of["prediction"], PREDICTIONS),
        "exercises": (of["exercise"], EXERCISES),
        "traps": (sum(text.startswith("> **Trap") for text in _prose(notebook)), range(TRAPS + 1)),
        "figures": (sum("image/svg+xml" in o.get("data", {}) for c in code for o in c["outputs"]), range(FIGURES + 1)),
    }
    for name, (number, allowed) in found.items():
        if number not in allowed:
            yield f"there are {number} {name}; {allowed.start} to {allowed.stop - 1} are allowed"
    titles = [found[4] for found in pace.exercises(notebook["cells"])]
    for word in ("build it", "decide"):
        if not any(title.startswith(word) for title in titles):
            yield f"no exercise's heading says '· {word}': in every lesson the reader builds something and makes a decision"
    homes, section = set(), ""
    for text in _prose(notebook):
        section = text if text.startswith("## ") else section
        homes |= {section} if text.startswith("### Exercise") else set()
    if len(homes) == 1:
        yield "all exercises are in one section; each belongs where its idea is fresh"


def _slides(notebook: Notebook) -> Iterator[str]:
    yield from slide_cells.untitled(notebook["cells"])
    # Cells that are too much together are on several slides (`roles`).
    for cell, role in zip(notebook["cells"], roles(notebook["cells"]), strict=True):
        lines = len(cell["source"].splitlines())
        if lines > SLIDE_LINES and role != "skip" and kind.is_code(cell) and "exercise" not in kind.tags(cell):
            yield f"{kind.where(cell)} puts {lines} lines of code on a slide; {SLIDE_LINES} is the most"


def _predictions(notebook: Notebook) -> Iterator[str]:
    code = _code(notebook)
    for cell, following in zip_longest(code, code[1:]):
        if "prediction" in kind.tags(cell):
            if not re.match(r"guess = (\.\.\.|\.\.\.(, \.\.\.)+)( +#.*)?$", cell["source"]):
                yield f"{kind.where(cell)} should be one line: guess = ...  # the unit"
            if following is None or "answer" not in kind.tags(following):
                yield f"{kind.where(cell)} is a prediction, so the next code cell should be its answer"
        if "answer" in kind.tags(cell) and "teach.reveal(guess" not in cell["source"]:
            yield f"{kind.where(cell)} is an answer but does not call teach.reveal(guess, ...)"
        if "answer" in kind.tags(cell) and len(cell["outputs"]) > 1:
            yield f"{kind.where(cell)} shows more than its answer, and only the answer is folded"
        for html in (text_of(out.get("data", {}).get("text/html", "")) for out in cell["outputs"]):
            if "answer" in kind.tags(cell) and not html.startswith("<details><summary"):
                yield f"{kind.where(cell)} stores an answer that stands open: run `make refresh NB=… FRESH=1`"
    asked, answered = (sum(tag in kind.tags(cell) for cell in code) for tag in ("prediction", "answer"))
    if asked != answered:
        yield f"there are {asked} predictions and {answered} answers"


def _handed_out(notebook: Notebook) -> Iterator[str]:
    # An unfinished solution is told by its check, and its ... stands in every stub.
    lesson = [cell for cell in notebook["cells"] if not _UNFINISHED.search(cell["source"])]
    yield from (f"students would get an answer: {leak}" for leak in leaks(without_answers(lesson, []), lesson))


def _generated(notebook: Notebook, path: Path) -> Iterator[str]:
    lessons = every(path.parent) if path.exists() else []
    if path not in dict(lessons):
        return
    heading = f"# {pages.heading(path)}"
    if notebook["cells"][0]["source"].split("\n")[0] != heading:
        yield f"its heading is not {heading!r}, as its file is called and every link to it says"
    first, texts = pages.generated(lessons, path)
    shown = [cell["source"] for cell in notebook["cells"] if "page" in kind.tags(cell)]
    if notebook["cells"][0]["source"] != first or shown != texts:
        yield "its line of times, its links or its map are out of date: run `make refresh`"
    for cell, data in zip(notebook["cells"], pages.metadata(notebook["cells"]), strict=True):
        if cell["metadata"] != data:
            yield f"{kind.where(cell)} has the wrong slide role or fold: run `make refresh`"


def _words(cell: Cell) -> Iterator[str]:
    if cell["cell_type"] == "markdown":
        text = re.sub(r"`[^`]*`|\$[^$]*\$|\]\([^)]*\)", " ", cell["source"])
        for pattern, reason in _WORDS.items():
            if match := re.search(pattern, text, flags=re.I):
                yield f"says {match[0]!r}: {reason}"


def _sums(cell: Cell) -> Iterator[str]:
    """Equations and comparisons of two numbers that are false."""
    if cell["cell_type"] != "markdown" or "page" in kind.tags(cell):
        return
    text = re.sub(r"```.*?```|`[^`]*`|\]\([^)]*\)", "¤", cell["source"], flags=re.S)
    prose = arithmetic.LATEX.sub("¤", text)
    for part in [prose, *map(arithmetic.plain, arithmetic.LATEX.findall(text))]:
        for begin, end, true in arithmetic.equations(part):
            if not true:
                yield f"says {part[begin:end]}, which is false"
    for said in directions.wrong(prose):
        yield f"says {said!r}, which is the other way round"


def _twice(notebook: Notebook) -> Iterator[str]:
    """A paragraph or a cell of code that stands twice."""
    seen = set()
    for cell in notebook["cells"]:
        if "page" in kind.tags(cell) or "prediction" in kind.tags(cell):
            continue
        for part in cell["source"].split("\n\n") if cell["cell_type"] == "markdown" else [cell["source"]]:
            if len(part) > TWICE and part in seen:
                yield f"{kind.where(cell)} says what an earlier cell says, word by word: {part[:50]!r}"
            seen.add(part)


def _sections(notebook: Notebook) -> Iterator[str]:
    """Sections are numbered from 1, and a reference leads to one of them."""
    texts = [
        cell["source"]
        for cell in notebook["cells"]
        if cell["cell_type"] == "markdown" and "page" not in kind.tags(cell)
    ]
    numbers = [int(found) for text in texts for found in re.findall(r"^## (\d+) ·", text, flags=re.M)]
    if numbers != list(range(1, len(numbers) + 1)):
        yield f"its sections have the numbers {numbers}, and not 1 to {len(numbers)}"
    for text in texts:
        # A section of another text stands behind its name or its link, in "Read on" or with a point (section 3.3).
        for number in re.findall(
            r"(?<![\])] )(?<![\]),] )\bsections? (\d+)(?!\.?\d|,? of [a-z]* ?lesson)", text.split("**Read on**")[0]
        ):
            if int(number) not in numbers and not re.search(rf"et al.{{0,40}}section {number}", text):
                yield f"refers to section {number}, and there is none"


def _pointers(notebook: Notebook) -> Iterator[str]:
    """A table or a figure that a text says to be above or below is there, in the next cell of code on that side."""
    cells = [cell for cell in notebook["cells"] if "page" not in kind.tags(cell)]
    for place, cell in enumerate(cells):
        if cell["cell_type"] != "markdown":
            continue
        for what, side in re.findall(r"\bthe (?:\w+ )?(table|figure|picture) (above|below)\b", cell["source"]):
            rest = cells[place + 1 :] if side == "below" else cells[:place][::-1]
            shown = next((c for c in rest if kind.is_code(c) and c["outputs"] and "exercise" not in kind.tags(c)), None)
            if shown is None or not any(_shows(what, output) for output in shown["outputs"]):
                yield f"{kind.where(cell)} speaks of the {what} {side}, and there the next output is none"


def _shows(what: str, output: dict[str, Any]) -> bool:
    html, data = text_of(output.get("data", {}).get("text/html", "")), output.get("data", {})
    return "<table" in html if what == "table" else "image/svg+xml" in data or "<svg" in html


def _size(cell: Cell) -> Iterator[str]:
    if cell["cell_type"] == "markdown":
        if "page" not in kind.tags(cell) and (size := pace.words(cell["source"])) > PROSE_WORDS:
            yield f"has {size} words; {PROSE_WORDS} is the most: begin a new cell"
        return
    lines = cell["source"].splitlines()
    if len(lines) > CODE_LINES and "solution" not in kind.tags(cell):
        yield f"has {len(lines)} lines; {CODE_LINES} is the most"


def _width(cell: Cell) -> Iterator[str]:
    written = kind.is_code(cell) and "page" not in kind.tags(cell)
    wide = [line for line in cell["source"].splitlines() if written and len(line) > COLUMNS]
    if wide:
        yield f"has a line of {len(wide[0])} columns; {COLUMNS} is the most"


def _magic(cell: Cell) -> Iterator[str]:
    # Converters to scripts comment such lines out, and then the cell does nothing, without failing.
    if kind.is_code(cell) and (match := re.search(r"^# ?[!%][\w{\"'].*$", cell["source"], flags=re.M)):
        yield f"has a command that was commented out: {match[0]}"


def _execution(notebook: Notebook) -> Iterator[str]:
    if notebook["metadata"] != METADATA:
        yield "its metadata is not the course's own, which does not depend on who stores it: run `make refresh`"
    counts = [cell.get("execution_count") for cell in notebook["cells"] if kind.is_code(cell)]
    if counts != list(range(1, len(counts) + 1)):
        yield f"the execution counts are not 1 to {len(counts)} in order: run `make refresh`"
    if [cell.get("id") for cell in notebook["cells"]] != kind.source_ids(notebook["cells"]):
        yield "a cell was edited after its outputs were stored (its id no longer fits its text): run `make refresh`"
    code = [cell for cell in _code(notebook) if "gpu" not in kind.tags(cell)]
    shown = [cell for cell in code if cell["outputs"]]
    measured = [cell for cell in code if kind.measured(cell)]
    if shown and len(measured) > EXEMPT_SHARE * len(shown):
        yield f"{len(measured)} of {len(shown)} cells with output are exempt from comparison; at most {EXEMPT_SHARE:.0%} may be"
    for cell in code:
        for output in cell["outputs"]:
            if output["output_type"] == "error" or output.get("name") == "stderr":
                yield f"{kind.where(cell)} stores an error or something on stderr"


def _tags(cell: Cell) -> Iterator[str]:
    if problem := kind.tag_problem(cell):
        yield problem
    if "NBVAL" in cell["source"]:
        yield "contains one of nbval's own markers"


def _task(cell: Cell) -> Iterator[str]:
    text = cell["source"].rstrip()
    if (task := pace.EXERCISE.match(text)) and (task[4] == "Title" or text.endswith(("…", "..."))):
        yield f"is the task of {task[1]} as `exercise new` wrote it, with Title or …: say what is asked"


def _exercises(notebook: Notebook, number: str) -> Iterator[str]:
    stubs = [cell for cell in _code(notebook) if "exercise" in kind.tags(cell)]
    solutions = [cell for cell in _code(notebook) if "solution" in kind.tags(cell)]
    if len(stubs) != len(solutions):
        yield f"there are {len(stubs)} exercises and {len(solutions)} solutions"
    headings = re.findall(r"^### Exercise .*", "\n".join(_prose(notebook)), flags=re.M)
    for cell in _code(notebook):
        if foreign := _ANSWERS.search(cell["source"]):
            may = ", ".join(_FOR_READERS)
            yield f"{kind.where(cell)} reaches {foreign[0]}: a lesson may call {may}, but never a right answer"
    for i, (stub, solution) in enumerate(zip(stubs, solutions, strict=False), start=1):
        id = f"{number}.{i}"
        if i > len(headings) or not headings[i - 1].startswith(f"### Exercise {id} "):
            yield f"exercise {i} has no heading '### Exercise {id} …'"
        elif pages.question(notebook["cells"]) and not pace.EXERCISE.match(headings[i - 1]):
            yield f"the heading of {id} is not of the form '### Exercise {id} ★★ 10 min · build it: what'"
        if f'check("{id}"' not in stub["source"] or f"{id} waiting" not in _output_text(stub):
            yield f"{kind.where(stub)} should check exercise {id} and show that it is waiting"
        last = ast.unparse(flow.parse(solution["source"]).body[-1])
        if last != f"teach.exercises.check_solution({id!r}, solution)" or not re.search(
            f"{id}, the course's answer, passed", _output_text(solution)
        ):
            yield f"{kind.where(solution)} should end with teach.exercises.check_solution({id!r}, solution), and pass"
        if names := _bound(solution["source"]) - {"solution"}:
            yield f"{kind.where(solution)} overwrites names of the reader: {', '.join(sorted(names))}; it may only set `solution`"
        if not all(mark in solution["source"] for mark in ("### BEGIN SOLUTION", "### END SOLUTION")):
            yield f"{kind.where(solution)} lacks its ### BEGIN SOLUTION or ### END SOLUTION"


def _bound(source: str) -> set[str]:
    """The names that a cell sets at its top level."""
    symbols = symtable.symtable(ast.unparse(flow.parse(source)), "cell", "exec").get_symbols()
    return {symbol.get_name() for symbol in symbols if symbol.is_assigned() or symbol.is_imported()}


def _notation(cell: Cell) -> Iterator[str]:
    prose = cell["cell_type"] == "markdown"
    text = re.sub(r"`[^`]*`|\]\([^)]*\)", " ", cell["source"]) if prose else _output_text(cell)
    for pattern, rule in _SYMBOL_RULES.items():
        if match := re.search(pattern, text):
            yield f"says {match[0]!r}: {rule}"


def _path(cell: Cell) -> Iterator[str]:
    if match := _MACHINE_PATH.search(json.dumps([cell["source"], cell.get("outputs", [])])):
        yield f"contains a path of somebody's machine: {match[0]}"


def _figure(cell: Cell) -> Iterator[str]:
    if cell["cell_type"] == "markdown" and re.search(r"!\[\s*\]\(|<img(?![^>]*alt=\"[^\"]{20})", cell["source"]):
        yield "has an image without alt text"
    for output in cell.get("outputs", []):
        data = output.get("data", {})
        if "image/png" in data or "image/jpeg" in data:
            yield "stores a bitmap; show figures with teach.figures.show"
        svg = "".join(data.get("image/svg+xml", ""))
        if svg and len((re.search(r"<title>([^<]*)</title>", svg) or ["", ""])[1]) < 40:
            yield "has a figure without alt text of 40 characters"


def _compared(cell: Cell) -> Iterator[str]:
    table = _output_text(cell).partition(" ratio\n")[2] if "teach.compare(" in cell["source"] else ""
    for row, ratio in re.findall(r"^(.*\S) +(-?[\d.]+)$", table, flags=re.M):
        if not 1 / APART < float(ratio) < APART:
            yield f"compares what is {ratio} times what was predicted: {' '.join(row.split())}"


def _output_text(cell: Cell) -> str:
    parts = []
    for output in cell.get("outputs", []):
        parts.append("".join(output.get("text", "")))
        parts.append("".join(output.get("data", {}).get("text/plain", "")))
    return "\n".join(parts)
