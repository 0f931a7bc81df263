"""The anatomy of a lesson, checked: what a reader may rely on in every notebook."""

import ast
import json
import re
import statistics
from collections.abc import Iterator
from typing import Any

from cs336kit.course import cells as kind
from cs336kit.course.cells import Cell
from cs336kit.teach.claims import claims

#: Words in a cell of prose; a trap, an exercise or the formula card may say more.
PROSE_WORDS, LONG_WORDS = 90, 130
CODE_LINES, CODE_CELLS, MEDIAN_LINES = 25, range(16, 46), 11
EXEMPT_SHARE = 0.10

_SYMBOL_RULES = {
    r"\bFLOPS\b|\b[kMGTPE]FLOPS\b": "write FLOPs for a count and FLOP/s for a rate",
    r"\bFLOPs/s\b|\bflops/s\b|\bFLOP/sec\b": "a rate is FLOP/s",
    r"\bKB\b": "write kB (1,000 bytes) or KiB (1,024 bytes)",
    r"\b[KMGT]ib\b|\bgb\b|\bGbs\b": "write GB (10**9 bytes) or GiB (2**30 bytes)",
}
#: A notebook as JSON or as nbformat's node, which is a dict too.
Notebook = dict[str, Any]
_MACHINE_PATH = re.compile(r"/(?:root|home|Users|work|tmp|var/folders)/[\w.-]+|[A-Z]:\\\\Users")


def problems(notebook: Notebook, name: str) -> list[str]:
    """Everything in a notebook that breaks the course's rules, one sentence each; empty when all is well."""
    found = [problem for rule in (_opening, _closing, _lengths, _execution) for problem in rule(notebook)]
    for cell in notebook["cells"]:
        rules = (_length, _magic, _tags, _notation, _path, _figure)
        found += [f"{_where(cell)} {problem}" for rule in rules for problem in rule(cell)]
    return [*found, *_exercises(notebook, name[:2])]


def _code(notebook: Notebook) -> list[Cell]:
    return [cell for cell in notebook["cells"] if kind.is_code(cell)]


def _prose(notebook: Notebook) -> list[str]:
    return [cell["source"] for cell in notebook["cells"] if cell["cell_type"] == "markdown"]


def _opening(notebook: Notebook) -> Iterator[str]:
    first = notebook["cells"][0]["source"] if notebook["cells"] else ""
    if not re.match(r"# \d\d · \S", first):
        yield "the first cell begins with '# NN · Title'"
    for part in ("**Time**", "**Needs**", "**After this you can**"):
        if part not in first:
            yield f"the first cell lacks {part}"
    bullets = re.findall(r"^[-*] ", first, flags=re.M)
    if not 3 <= len(bullets) <= 5:
        yield f"the first cell has {len(bullets)} objectives, and 3 to 5 are wanted"
    code = _code(notebook)
    if code and not all(isinstance(node, (ast.Import, ast.ImportFrom)) for node in ast.parse(code[0]["source"]).body):
        yield "the first code cell does more than import"


def _closing(notebook: Notebook) -> Iterator[str]:
    headings = [line for text in _prose(notebook) for line in text.splitlines() if line.startswith("## ")]
    wanted = ("ledger", "formula card", "further reading")
    places = [next((i for i, h in enumerate(headings) if word in h.lower()), -1) for word in wanted]
    if -1 in places or places != sorted(places):
        yield "a lesson ends with the sections 'The ledger', 'Formula card' and 'Further reading', in this order"
    if not any("teach.ledger()" in cell["source"] for cell in _code(notebook)):
        yield "no cell shows teach.ledger()"
    if sum(text.startswith("> **Trap") for text in _prose(notebook)) < 1:
        yield "a lesson shows at least one trap, a cell that begins with '> **Trap.**'"
    if sum("image/svg+xml" in output.get("data", {}) for cell in _code(notebook) for output in cell["outputs"]) < 1:
        yield "a lesson has at least one figure"


def _lengths(notebook: Notebook) -> Iterator[str]:
    lines = [len(cell["source"].splitlines()) for cell in _code(notebook)]
    if lines and statistics.median(lines) > MEDIAN_LINES:
        yield f"the median code cell has {statistics.median(lines):g} lines; {MEDIAN_LINES} is the most"
    if len(lines) not in CODE_CELLS:
        yield f"there are {len(lines)} code cells; {CODE_CELLS.start} to {CODE_CELLS.stop - 1} are wanted"


def _length(cell: Cell) -> Iterator[str]:
    if kind.is_code(cell):
        size, most, unit = len(cell["source"].splitlines()), CODE_LINES, "lines"
    else:
        size = len(re.sub(r"\$\$.*?\$\$|\]\([^)]*\)|[|`#>*-]", " ", cell["source"], flags=re.S).split())
        long = cell["source"].startswith(("> **Trap", "### Exercise", "# ", "## Formula card", "## Further"))
        most, unit = LONG_WORDS if long else PROSE_WORDS, "words"
    if size > most:
        yield f"has {size} {unit}; {most} is the most"


def _magic(cell: Cell) -> Iterator[str]:
    # Converters that write a script comment such lines out, and the cell then does nothing without failing.
    if kind.is_code(cell) and (match := re.search(r"^# ?[!%][\w{\"'].*$", cell["source"], flags=re.M)):
        yield f"has a command that was commented out: {match[0]}"


def _execution(notebook: Notebook) -> Iterator[str]:
    counts = [cell.get("execution_count") for cell in _code(notebook)]
    if counts != list(range(1, len(counts) + 1)):
        yield f"the execution counts are not 1 to {len(counts)} in order: run `make refresh`"
    if [cell.get("id") for cell in notebook["cells"]] != kind.source_ids(notebook["cells"]):
        yield "a cell was edited after its outputs were stored (its id no longer fits its text): run `make refresh`"
    code = [cell for cell in _code(notebook) if "gpu" not in kind.tags(cell)]
    yield from (problem for cell in code if (problem := verdict_problem(notebook["cells"], cell)))
    shown = [cell for cell in code if cell["outputs"]]
    exempt = [cell for cell in code if kind.measured(cell)]
    if shown and len(exempt) >= EXEMPT_SHARE * len(shown) and exempt:
        yield f"{len(exempt)} of {len(shown)} cells with output are exempt from comparison; it must stay under 10 %"
    for cell in code:
        for output in cell["outputs"]:
            if output["output_type"] == "error" or output.get("name") == "stderr":
                yield f"{_where(cell)} stores an error or something on stderr"


def verdict_problem(cells: list[Cell], cell: Cell) -> str | None:
    """What is wrong with a measured cell's verdict: the next code cell must be tagged so, be compared, and say something."""
    if not kind.measured(cell):
        return None
    if not kind.valued(cell, "measured"):
        return f"{_where(cell)} is tagged measured without a reason (measured:time, measured:memory, …)"
    later = [c for c in cells[cells.index(cell) + 1 :] if kind.is_code(c)]
    if not later or "verdict" not in kind.tags(later[0]) or kind.measured(later[0]) or not later[0]["outputs"]:
        return f"{_where(cell)} is exempt from comparison, so the next code cell must be its verdict, compared, with output"
    return None


def _tags(cell: Cell) -> Iterator[str]:
    for tag in kind.unknown_tags(cell):
        yield f"has the tag {tag!r}, which the course does not know"
    for id in sorted(set(kind.valued(cell, "claim")) - {claim.id for claim in claims()}):
        yield f"shows the claim {id!r}, which is not in the ledger"
    if "gpu" in kind.tags(cell) and not cell["source"].startswith("if teach.on_gpu():\n"):
        yield "is tagged gpu and must begin with 'if teach.on_gpu():', so that a CPU comes through"
    if "NBVAL" in cell["source"]:
        yield "contains one of nbval's own markers"
    if not cell.get("metadata", {}).get("slideshow", {}).get("slide_type"):
        yield "has no slide role: run `make refresh`"


def _exercises(notebook: Notebook, number: str) -> Iterator[str]:
    stubs = [cell for cell in _code(notebook) if "exercise" in kind.tags(cell)]
    solutions = [cell for cell in _code(notebook) if "solution" in kind.tags(cell)]
    if not 1 <= len(stubs) <= 6 or len(stubs) != len(solutions):
        yield f"there are {len(stubs)} exercises and {len(solutions)} solutions; 1 to 6 of each are wanted"
    for i, (stub, solution) in enumerate(zip(stubs, solutions, strict=False), start=1):
        id = f"{number}.{i}"
        if f"### Exercise {id}" not in "\n".join(_prose(notebook)):
            yield f"no heading '### Exercise {id}'"
        for cell, state in ((stub, "waiting"), (solution, "passed")):
            if f'check("{id}"' not in cell["source"] or f"{id} {state}" not in _output_text(cell):
                yield f"{_where(cell)} should check exercise {id} and show that it is {state}"
        if not all(mark in solution["source"] for mark in ("### BEGIN SOLUTION", "### END SOLUTION")):
            yield f"{_where(solution)} lacks its ### BEGIN SOLUTION or ### END SOLUTION"


def _notation(cell: Cell) -> Iterator[str]:
    prose = cell["cell_type"] == "markdown"
    text = re.sub(r"`[^`]*`|\]\([^)]*\)", " ", cell["source"]) if prose else _output_text(cell)
    for pattern, rule in _SYMBOL_RULES.items():
        if match := re.search(pattern, text):
            yield f"says {match[0]!r}: {rule}"


def _path(cell: Cell) -> Iterator[str]:
    if match := _MACHINE_PATH.search(json.dumps([cell["source"], cell.get("outputs", [])])):
        yield f"contains the path of a machine: {match[0]}"


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


def _output_text(cell: Cell) -> str:
    parts = []
    for output in cell.get("outputs", []):
        parts.append("".join(output.get("text", "")))
        parts.append("".join(output.get("data", {}).get("text/plain", "")))
    return "\n".join(parts)


def _where(cell: Cell) -> str:
    first = next(iter(cell["source"].strip().splitlines()), "")
    return f"cell {cell.get('execution_count') or 'of text'} ({first[:50]!r})"
