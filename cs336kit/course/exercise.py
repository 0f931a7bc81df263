"""Write a new exercise, and try one: which case tells which wrong answers apart, and what no case notices."""

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterable, Iterator
from itertools import combinations, product

from cs336kit.teach.exercises import Exercise, core, running
from cs336kit.teach.exercises.judging import difference

_SWAPS = {
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
    """Mistakes that no case separates from the right answer or from each other, one sentence each."""
    _, rows = matrix(exercise)
    letters = [chr(ord("a") + i) for i in range(len(rows))]
    found = [
        f"{a} passes: no case tells it from the right answer" for a, r in zip(letters, rows, strict=True) if not any(r)
    ]
    pairs = combinations(zip(letters, rows, strict=True), 2)
    return found + [f"{a} and {b} return the same in every case" for (a, one), (b, two) in pairs if one == two]


def changed(function: Callable) -> Iterator[tuple[str, Callable]]:
    """The function with one small change each: another operator or comparison, or a number that is one more or less."""
    source = textwrap.dedent(inspect.getsource(function))
    for place, step in product(range(sum(1 for _ in ast.walk(_tree(source)))), (1, -1)):
        tree = _tree(source)
        node = list(ast.walk(tree))[place]
        before = ast.unparse(node)
        if isinstance(node, ast.Constant) and type(node.value) in (int, float):
            node.value += step
        elif step == 1 and isinstance(node, (ast.BinOp, ast.BoolOp)) and type(node.op) in _SWAPS:
            node.op = _SWAPS[type(node.op)]()
        elif step == 1 and isinstance(node, ast.Compare) and type(node.ops[0]) in _SWAPS:
            node.ops[0] = _SWAPS[type(node.ops[0])]()
        else:
            continue
        scope = dict(function.__globals__)
        exec(compile(ast.fix_missing_locations(tree), function.__code__.co_filename, "exec"), scope)
        yield f"{before} → {ast.unparse(node)}", scope[function.__name__]


def _tree(source: str) -> ast.Module:
    tree = ast.parse(source)
    tree.body[0].decorator_list.clear()
    return tree


def unnoticed(exercise: Exercise, answers: Iterable[tuple[str, Callable]]) -> list[str]:
    """The names of those answers that pass; each is given a second, and all run in one process of their own."""
    trials = core.trials(exercise, "")

    def work(say):
        passed = []
        for name, answer in answers:
            said: list[str] = []
            with running.alarm(1):
                core.judge(exercise, trials, answer, lambda state, _, said=said: said.append(state))
            passed += [name] if said[-1] == "passed" else []
        say("done", "\n".join(passed))

    state, message = running.run(work, seconds=60)
    if state != "done":
        raise RuntimeError(f"{exercise.id}: {message}")
    return message.splitlines()
