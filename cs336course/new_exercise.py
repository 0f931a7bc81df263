"""The stub of a new exercise, and its three cells in the notebook: ``cs336kit exercise new 07.3``."""

import ast
import re
from contextlib import suppress
from pathlib import Path

from cs336course.cells import identify
from cs336course.lessons import NOTEBOOKS, find
from cs336kit import lessons
from cs336kit.files import write_whole

#: Where the exercises of the kit that runs stand.
FOLDER = Path(lessons.__file__).parent
_HEAD = '"""Exercises of lesson {}."""\n\nfrom cs336kit.teach.exercises.core import exercise\n'
_STUB = """

@exercise(
    "{id}",{cases}
    mistakes={{}},
    hints=("", ""),
    checked="",
)
def {signature}:
    raise NotImplementedError
"""


def new(id: str, signature: str, title: str, notebooks: Path = NOTEBOOKS, folder: Path = FOLDER) -> list[Path]:
    """Write the stub of an exercise and its three cells (task, stub, folded solution); returns the files written.

    A signature without arguments makes a decision, whose answer is a value. Raises ValueError when the id is not the next
    one of its lesson or the signature is not valid, OSError when a file cannot be written.
    """
    import nbformat
    from nbformat.v4 import new_code_cell, new_markdown_cell

    if not re.fullmatch(r"\d\d\.\d", id) or not _is_signature(signature):
        raise ValueError(
            f"{id!r} {signature!r}: give a lesson and a number, such as 07.3, and a signature, such as 'area(w, h)' or, for a "
            "decision, 'what_to_buy()'"
        )
    [path] = find([id[:2]], notebooks)
    module = folder / f"lesson_{id[:2]}" / "exercises.py"
    text = module.read_text(encoding="utf-8") if module.exists() else _HEAD.format(id[:2])
    following = f"{id[:2]}.{text.count('@exercise(') + 1}"
    if id != following:
        raise ValueError(f"the next exercise of lesson {id[:2]} is {following}, not {id}")
    notebook = nbformat.read(path, as_version=4)
    name, arguments = signature.split("(")
    decision = arguments == ")"
    head, begin, end = (
        f"# Solution of {id}: unfold it when you have tried\n",
        "### BEGIN SOLUTION\n",
        "### END SOLUTION\n",
    )
    if decision:
        asked = "…"
        stub = f'answer = ...   # what it is, and its unit\nteach.exercises.check("{id}", answer)'
        solution = f'{head}{begin}solution = ...\n{end}teach.exercises.check_solution("{id}", solution)'
    else:
        asked = f"Write `{signature}`: …"
        stub = f'def {signature}:\n    return ...\n\n\nteach.exercises.check("{id}", {name})'
        # The solution has a name of its own, so that running it does not overwrite the reader's function.
        solution = (
            f"{head}def solution({arguments}:\n    {begin}    return ...\n    {end}\n\n"
            f'teach.exercises.check_solution("{id}", solution)'
        )
    cells = [
        new_markdown_cell(f"### Exercise {id} ★ 10 min · {title}\n\n{asked}"),
        new_code_cell(stub, metadata={"tags": ["exercise"]}),
        new_code_cell(solution, metadata={"tags": ["solution"]}),
    ]
    solved = [i for i, cell in enumerate(notebook.cells) if "solution" in cell.metadata.get("tags", [])]
    last = [i for i, cell in enumerate(notebook.cells) if cell.source.startswith("## What you can say now")]
    place = solved[-1] + 1 if solved else last[0] if last else len(notebook.cells)
    notebook.cells[place:place] = cells
    # Outputs and their signatures stay, so that refresh notices which cells are new.
    identify(notebook.cells)
    # If the package is not writable, this fails before the notebook is changed.
    if folder.is_dir():
        module.parent.mkdir(exist_ok=True)
    write_whole(module, text + _STUB.format(id=id, signature=signature, cases="" if decision else "\n    cases=[],"))
    write_whole(path, nbformat.writes(notebook).rstrip("\n") + "\n")
    return [module, path]


def _is_signature(text: str) -> bool:
    """Whether this is valid Python after ``def``, without parentheses in its parentheses."""
    with suppress(SyntaxError):
        return bool(re.fullmatch(r"[a-z]\w*\([^()]*\)", text) and ast.parse(f"def {text}: ..."))
    return False


def must_be_here(folder: Path) -> None:
    """ValueError unless this kit is that of the current folder: what is written into another one would be lost."""
    if not folder.resolve().is_relative_to(Path.cwd().resolve()):
        raise ValueError(
            f"an exercise is written into the kit of the clone, and this command runs the one in {folder.parents[1]}: "
            'install that of the clone (pip install -e ".[lab,test]" in it), or start python -m cs336kit at its top.'
        )
