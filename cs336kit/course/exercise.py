"""``cs336kit exercise new 07.3`` writes a new exercise, ``cs336kit exercise try 07.3`` says what its cases tell apart."""

import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import combinations, product
from pathlib import Path
from typing import Any, cast

from cs336kit._cli.arguments import Parser
from cs336kit.course.cells import identify
from cs336kit.course.lessons import NOTEBOOKS, find, write_whole
from cs336kit.predict._common.grid import as_text
from cs336kit.teach.exercises import Exercise, checking, core, known_ids, load, running
from cs336kit.teach.exercises.judging import difference

_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_FOLDER = Path(core.__file__).parent

_SWAPS: dict[type[ast.AST], Any] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Div,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.And: ast.Or,
    ast.Or: ast.And,
}


def matrix(exercise: Exercise) -> tuple[list[str], list[list[int]]]:
    """The labels of the cases, and for each mistake and case a number: 0 where it is right, alike where mistakes agree."""
    calls = exercise.calls(exercise.reference.__name__)
    rows: list[list[int]] = [[] for _ in exercise.mistakes]
    for _, args in calls:
        seen = [exercise.right(args)]
        for row, value in zip(rows, exercise.wrong(args), strict=True):
            same = [i for i, other in enumerate(seen) if difference(value, other, exercise.tolerance) is None]
            row.append(same[0] if same else len(seen))
            seen += [] if same else [value]
    return [label for label, _ in calls], rows


def confused(exercise: Exercise) -> list[str]:
    """Mistakes that no case separates from the right answer or from each other, one sentence each; and what a stub lacks."""
    if not exercise.calls(exercise.reference.__name__) or not exercise.mistakes:
        return ["It has no cases or no mistakes yet: nothing is told apart."]
    named = list(zip(_LETTERS, matrix(exercise)[1], strict=False))
    passing = [f"{a} passes: no case tells it from the right answer" for a, row in named if not any(row)]
    pairs = [(a, b) for (a, one), (b, two) in combinations(named, 2) if one == two]
    return passing + [f"{a} and {b} return the same in every case" for a, b in pairs]


def changed(function: Any) -> Iterator[tuple[str, Callable[..., Any]]]:
    """The function with one small change each: another operator or comparison, or a number that is one more or less."""
    tree = _tree(textwrap.dedent(inspect.getsource(function)))
    for node, step in product([*ast.walk(tree)], (1, -1)):
        place: str
        new: Any
        if isinstance(node, ast.Constant) and type(node.value) in (int, float):
            place, new = "value", node.value + step  # type: ignore[operator] # an int or a float
        elif step == 1 and isinstance(node, (ast.BinOp, ast.BoolOp)) and type(node.op) in _SWAPS:
            place, new = "op", _SWAPS[type(node.op)]()
        elif step == 1 and isinstance(node, ast.Compare) and type(node.ops[0]) in _SWAPS:
            place, new = "ops", [_SWAPS[type(node.ops[0])](), *node.ops[1:]]
        else:
            continue
        before, old, scope = ast.unparse(node), getattr(node, place), dict(function.__globals__)
        setattr(node, place, new)
        name = f"{before} → {ast.unparse(node)}"
        exec(compile(tree, function.__code__.co_filename, "exec"), scope)
        setattr(node, place, old)
        yield name, scope[function.__name__]


def _tree(source: str) -> ast.Module:
    tree = ast.parse(source)
    cast(ast.FunctionDef, tree.body[0]).decorator_list.clear()
    return tree


def unnoticed(exercise: Exercise, answers: Iterable[tuple[str, Callable[..., Any]]]) -> list[str]:
    """The names of those answers that pass; each is given a second of the processor, and all run in one process of their own.

    Errors: RuntimeError with the verdict where the reference does not pass there, so that no answer would.
    """
    trials = checking.trials(exercise, "")

    def work(say: running.Say) -> None:
        passed = []
        # What is imported and compiled at a first call is not an answer's own time.
        right: list[tuple[str, str]] = []
        checking.judge(exercise, trials, exercise.reference, lambda *said: right.append(said))
        if right[-1][0] != "passed":
            return say("not yet", f"the reference does not pass where answers are tried: {right[-1][1]}")
        for name, answer in answers:
            said: list[str] = []
            with suppress(running.TooLong), running.alarm(1, processor=True):
                checking.judge(exercise, trials, answer, lambda state, *_, said=said: said.append(state))
            passed += [name] if said[-1:] == ["passed"] else []
        say("done", "\n".join(passed))

    state, message = running.run(work, seconds=600)
    if state != "done":
        raise RuntimeError(f"{exercise.id}: {message}")
    return message.splitlines()


def show(exercise: Exercise) -> str:
    """A table of mistakes and of the cases that tell something new, and below it what no case tells apart."""
    labels, rows = matrix(exercise)
    columns = {column: i for i, column in reversed(list(enumerate(zip(*rows, strict=True))))}
    told = sorted(columns.values())
    names = [m if isinstance(m, str) else f"{m.__name__}()" for m in exercise.mistakes]
    # The right answer is a dot; in a column, answers that agree share a digit.
    lines = [["", "mistake", *(str(i + 1) for i in told)]]
    for letter, name, row in zip(_LETTERS, names, rows, strict=False):
        lines.append([letter, textwrap.shorten(name, 60), *(str(row[i] or "·") for i in told)])
    cases = [f"case {i + 1}: {labels[i]}" for i in told]
    cases += [f"{len(labels) - len(told)} more cases tell nothing new"] * (len(told) < len(labels))
    below = confused(exercise) or ["Every mistake is told apart."]
    below += [
        f"a changed answer passes (is it right, too?): {it}" for it in unnoticed(exercise, changed(exercise.reference))
    ]
    return "\n".join([as_text(lines, "<<" + ">" * len(told)), "", *cases, "", *below])


_STUB = """

@exercise(
    "{id}",
    cases=[],
    mistakes={{}},
    hints=("", ""),
    checked="",
)
def {signature}:
    raise NotImplementedError
"""


def new(id: str, signature: str, title: str, notebooks: Path = NOTEBOOKS, folder: Path = _FOLDER) -> list[Path]:
    """Write the stub of an exercise and its three cells (task, stub, folded solution); returns the files written.

    Raises ValueError when the id is not the next one of its lesson or the signature is none, OSError where a file cannot be
    written.
    """
    import nbformat
    from nbformat.v4 import new_code_cell, new_markdown_cell

    if not re.fullmatch(r"\d\d\.\d", id) or not _is_signature(signature):
        raise ValueError(
            f"{id!r} {signature!r}: write a lesson and a number, as in 07.3, and a signature, as in 'area(w, h)'"
        )
    [path] = find([id[:2]], notebooks)
    module = folder / f"lesson_{id[:2]}.py"
    text = module.read_text(encoding="utf-8") if module.exists() else _HEAD.format(id[:2])
    following = f"{id[:2]}.{text.count('@exercise(') + 1}"
    if id != following:
        raise ValueError(f"the next exercise of lesson {id[:2]} is {following}, not {id}")
    notebook = nbformat.read(path, as_version=4)
    name, arguments = signature.split("(")
    stub = f'def {signature}:\n    return ...\n\n\nteach.exercises.check("{id}", {name})'
    # The solution's one name is its own, so that running it leaves the reader's function alone.
    solution = (
        f"# Solution of {id}: unfold it when you have tried\ndef solution({arguments}:\n    ### BEGIN SOLUTION\n"
        f'    return ...\n    ### END SOLUTION\n\n\nteach.exercises.check_solution("{id}", solution)'
    )
    cells = [
        new_markdown_cell(f"### Exercise {id} ★ 10 min · {title}\n\nWrite `{signature}`: …"),
        new_code_cell(stub, metadata={"tags": ["exercise"]}),
        new_code_cell(solution, metadata={"tags": ["solution"]}),
    ]
    solved = [i for i, cell in enumerate(notebook.cells) if "solution" in cell.metadata.get("tags", [])]
    end = [
        i for i, cell in enumerate(notebook.cells) if re.match(r"## (What you can say now|.*ledger)", cell.source, re.I)
    ]
    place = solved[-1] + 1 if solved else end[0] if end else len(notebook.cells)
    notebook.cells[place:place] = cells
    # Outputs and their signatures stay, so that refresh sees which cells are new.
    identify(notebook.cells)
    # The package may be where nobody may write: then the notebook stays as it was.
    write_whole(module, (text + _STUB.format(id=id, signature=signature)).encode())
    write_whole(path, (nbformat.writes(notebook).rstrip("\n") + "\n").encode())
    return [module, path]


def _is_signature(text: str) -> bool:
    """Whether Python reads this behind ``def``, and it has no brackets in its brackets."""
    with suppress(SyntaxError):
        return bool(re.fullmatch(r"[a-z]\w*\([^()]*\)", text) and ast.parse(f"def {text}: ..."))
    return False


_HEAD = '"""Exercises of lesson {}."""\n\nfrom cs336kit.teach.exercises.core import exercise\n'


def main(arguments: list[str] | None = None) -> int:
    """Run ``exercise new`` or ``exercise try``; 1 when mistakes are not told apart, 2 with a sentence for what cannot be."""
    parser = Parser(prog="cs336kit exercise", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    add = commands.add_parser("new", help="write the stub of an exercise, and its cells in the notebook")
    add.add_argument("id", help="the next of its lesson, such as 07.3")
    add.add_argument("signature", nargs="?", default="answer(x)", help="such as 'area(width, height)'")
    add.add_argument("--title", default="Title")
    commands.add_parser("try", help="which case tells which mistakes apart").add_argument(
        "ids", nargs="*", help="all for none"
    )
    options = parser.parse_args(arguments)
    try:
        if options.command == "new":
            for path in new(options.id, options.signature, options.title):
                print(path)
            print(f"Fill both in, then: cs336kit exercise try {options.id}; make refresh NB={options.id[:2]}")
            return 0
        found = [load(id) for id in options.ids or known_ids()]
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    for exercise in found:
        print(f"{exercise.id}\n{show(exercise)}\n")
    return int(any(map(confused, found)))
