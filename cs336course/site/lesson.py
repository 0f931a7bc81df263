"""Prepare a lesson for the site: answers and solutions folded, and explorers in elements that a page can find."""

import json
import re
from pathlib import Path

from cs336course import cells as kind
from cs336course.links import UNSPOILED, without
from cs336course.site.in_page import EXPLORERS

#: The visible label of a folded cell.
FOLDS = {"solution": "The solution", "answer": "The code", "aside": "The code"}
_EXPLORER = re.compile(r"explorers\.(\w+)\(")
_STILL = '<div class="cs336kit-still">'
_MOVING = '<p><a href="../explorers.html#{}">Choose other values on the page of explorers</a></p>'
#: What tools need in a solution's cell, and a reader who has opened it does not.
_MARKS = re.compile(r"^(# Solution of .*| *### (BEGIN|END) SOLUTION)$\n?", flags=re.M)
#: The cells of a table, other than its head's, that stay on one line: names, numbers, short ranges.
_SHORT = re.compile(r'(?<=style=")(?<!scope="col" style=")(?=[^"]*">[^<]{1,12}</t[hd]>)')


def prepared(path: Path) -> str:
    """A notebook as JSON for myst-nb, which folds by tags of its own where JupyterLab folds by metadata."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    # The lexer that colors the code: IPython's knows lines that begin with an exclamation mark.
    notebook["metadata"]["language_info"] = {"name": "python", "pygments_lexer": "ipython3"}
    # The site needs no kit, and is what the link leads to.
    notebook["cells"] = [cell for cell in notebook["cells"] if not (kind.is_code(cell) and "page" in kind.tags(cell))]
    notebook["cells"][0]["source"] = without(kind.source(notebook["cells"][0]), UNSPOILED)
    for cell in notebook["cells"]:
        if tag := fold(cell):
            name = next(FOLDS[known] for known in FOLDS if known in kind.tags(cell))
            cell["metadata"] |= {"tags": [*kind.tags(cell), tag], "mystnb": {"code_prompt_show": name}}
        if "solution" in kind.tags(cell):
            cell["source"] = _MARKS.sub("", kind.source(cell)).strip()
        for output in cell.get("outputs", []):
            if html := kind.joined(output.get("data", {}).get("text/html", "")):
                output["data"]["text/html"] = _SHORT.sub("white-space:nowrap;", html)
        if found := _EXPLORER.search(kind.source(cell)):
            _name_explorer(cell, found[1])
    return json.dumps(notebook)


def fold(cell: kind.Cell) -> str | None:
    """The myst-nb tag that folds what JupyterLab folds in this cell, or None."""
    hidden = cell["metadata"].get("jupyter", {})
    if hidden.get("outputs_hidden"):
        return "hide-cell"
    return "hide-input" if hidden.get("source_hidden") else None


def _name_explorer(cell: kind.Cell, name: str) -> None:
    """Put the still pictures of an explorer into an element with its name, above a link to the live one."""
    moving = _MOVING.format(name) if name in EXPLORERS else ""
    for output in cell.get("outputs", []):
        html = kind.joined(output.get("data", {}).get("text/html", ""))
        if _STILL in html:
            frame = f'<div class="cs336kit-explorer" data-explorer="{name}">{html}{moving}</div>'
            output["data"]["text/html"] = frame
