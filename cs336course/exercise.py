"""``cs336kit exercise new 07.3`` writes a new exercise; ``cs336kit exercise try 07.3`` shows what its cases tell apart."""

import ast
import copy
import inspect
import signal
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import combinations, product
from types import FrameType
from typing import Any, cast

from cs336course import flow
from cs336course.arithmetic import equations
from cs336course.cells import Cell, source, tags
from cs336course.new_exercise import FOLDER, must_be_here, new
from cs336course.prose import Pool, Prose, literals, stated, values_of
from cs336kit.command.arguments import Parser
from cs336kit.predict.grid import as_text
from cs336kit.teach.exercises import Exercise, checking, known_ids, load, sandbox
from cs336kit.teach.exercises.call import TooLong
from cs336kit.teach.exercises.confined import Say
from cs336kit.teach.exercises.judging import difference

_LETTERS = "abcdefghijklmnopqrstuvwxyz"

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
    """The labels of the cases, and for each mistake and case a number: 0 if it is right, and equal where mistakes agree."""
    calls = exercise.calls(exercise.reference.__name__)
    rows: list[list[int]] = [[] for _ in exercise.mistakes]
    for _, args in calls:
        seen = [exercise.right(args)]
        for row, value in zip(rows, exercise.wrong(args), strict=True):
            same = [i for i, other in enumerate(seen) if difference(value, other, exercise.tolerance) is None]
            row.append(same[0] if same else len(seen))
            seen += [] if same else [value]
    return [label for label, _ in calls], rows


def broken(exercise: Exercise) -> list[str]:
    """What prevents trying an exercise, one sentence each: what a stub lacks, and cases or answers that do not run."""
    cases = exercise.cases() if callable(exercise.cases) else exercise.cases
    given = cases if isinstance(cases, Mapping) else {i + 1: args for i, args in enumerate(cases)}
    if exercise.decision and not given:
        return ["A decision has no cases: leave cases out."]
    if not given or not exercise.mistakes:
        return [
            "It has no cases or no mistakes yet, so there is nothing to tell apart. How to write both is explained at the top "
            "of cs336kit/teach/exercises/core.py."
        ]
    if loose := [
        f"case {label}: write its arguments as a tuple" for label, args in given.items() if type(args) is not tuple
    ]:
        return loose
    found = []
    for label, args in given.items():
        try:
            exercise.right(args)
        except Exception as error:
            found.append(f"the right answer raises {_said(error)} in case {label}")
    try:
        answers = exercise.wrong_answers
    except SyntaxError as error:
        return [*found, f"a mistake is neither a function nor an expression of Python: {(error.text or '').strip()}"]
    for mistake, answer in [] if found else answers.items():
        raised = [one for args in given.values() if (one := _error(answer, args))]
        # Otherwise a misspelled name or a wrong number of arguments would pass for an answer that differs from all others.
        if len(raised) == len(given):
            name = mistake if isinstance(mistake, str) else f"{mistake.__name__}()"
            found.append(f"the mistake {name} raises in every case, so it recognizes no answer: {_said(raised[0])}")
    return found


def _error(answer: Callable[..., Any], args: tuple[Any, ...]) -> Exception | None:
    try:
        answer(*copy.deepcopy(args))
    except Exception as error:
        return error
    return None


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".rstrip(": ")


def confused(exercise: Exercise) -> list[str]:
    """Mistakes that no case separates from the right answer or from each other, or what is broken; one sentence each."""
    if found := broken(exercise):
        return found
    named = list(zip(_LETTERS, matrix(exercise)[1], strict=False))
    passing = [f"{a} passes: no case tells it from the right answer" for a, row in named if not any(row)]
    pairs = [(a, b) for (a, one), (b, two) in combinations(named, 2) if one == two]
    return passing + [f"{a} and {b} return the same in every case" for a, b in pairs]


def changed(function: Any) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Variants of the function with one small change: a different operator or comparison, or a number that is off by one."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    cast(ast.FunctionDef, tree.body[0]).decorator_list.clear()
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


def unnoticed(exercise: Exercise, answers: Iterable[tuple[str, Callable[..., Any]]]) -> list[str]:
    """The names of the answers that pass; each gets a second of processor time, and all run in one process of their own.

    Errors: RuntimeError, with the verdict, if the reference does not pass there, because then no answer would.
    """
    state, message = sandbox.run(partial(_passing, exercise), list(answers), seconds=600)
    if state != "done":
        raise RuntimeError(f"{exercise.id}: {message}")
    return message.splitlines()


def _passing(exercise: Exercise) -> sandbox.Work:
    """What reports the names of those answers that pass, a line each."""
    trials = checking.trials(exercise, "")

    def work(answers: list[tuple[str, Callable[..., Any]]], say: Say) -> None:
        passed = []
        # Imports and compilation at a first call do not count as an answer's time.
        right: list[tuple[str, str]] = []
        checking.judge(exercise, trials, exercise.reference, lambda *said: right.append(said))
        if right[-1][0] != "passed":
            return say("not yet", f"the reference does not pass where answers are tried: {right[-1][1]}")
        for name, answer in answers:
            said: list[str] = []
            with suppress(TooLong), _alarm(1):
                checking.judge(exercise, trials, answer, lambda state, *_, said=said: said.append(state))
            passed += [name] if said[-1:] == ["passed"] else []
        say("done", "\n".join(passed))

    return work


@contextmanager
def _alarm(seconds: float) -> Iterator[None]:
    """Raise TooLong in the block after these seconds of processor time, where the system has such an alarm."""
    if not hasattr(signal, "setitimer"):
        yield
        return

    def stop(signum: int, frame: FrameType | None) -> None:
        while frame is not None:
            if frame.f_code.co_filename.startswith("<frozen importlib"):
                # An interrupted import leaves half a module behind: let it finish.
                signal.setitimer(signal.ITIMER_PROF, 0.1)
                return
            frame = frame.f_back
        raise TooLong

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def untied(exercise: Exercise, lesson: Prose) -> list[str]:
    """The numbers in what `checked`, the mistakes' sentences and the hints say that follow from nothing, each with its sentence.

    They follow from the cases, the right answer and the mistakes (their code and what they return), from the task and the
    solution in the lesson, or from an equation; one of three digits and more also from what the lesson computes.
    """
    near = Pool([*_own_numbers(exercise), *_of_the_task(exercise.id, lesson.cells)])
    found = []
    for sentence in (exercise.checked, *exercise.mistakes.values(), *exercise.hints):
        equal = [(begin, end) for begin, end, true in equations(sentence) if true]
        for number in stated(sentence):
            bare = number._replace(word="")
            anywhere = not number.short and lesson.tied(len(lesson.cells) - 1, number)
            if not (anywhere or number in near or bare in near or any(a <= number.start < b for a, b in equal)):
                found.append(f"{number.digits} {number.word}".strip() + f" in {sentence!r}")
    return found


def _own_numbers(exercise: Exercise) -> Iterator[tuple[float, str]]:
    """The numbers of the reference, the cases and the mistakes, and of what they return, less those that are only said."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(exercise.reference)))
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        call.keywords = [keyword for keyword in call.keywords if keyword.arg not in ("checked", "hints")]
        for keyword in call.keywords:
            if keyword.arg == "mistakes" and isinstance(keyword.value, ast.Dict):
                keyword.value.values = []
    yield from literals(tree)
    for label, args in exercise.calls(exercise.reference.__name__):
        values = [*args, exercise.right(args), *exercise.wrong(args)]
        yield from values_of("\n".join([label, *(repr(value)[:2000] for value in values)]))


def _of_the_task(id: str, cells: Sequence[Cell]) -> Iterator[tuple[float, str]]:
    """The numbers of an exercise's task, stub and solution in its lesson."""
    begins = [i for i, cell in enumerate(cells) if source(cell).startswith(f"### Exercise {id} ")]
    for cell in cells[begins[0] : begins[0] + 4] if begins else []:
        yield from values_of(source(cell)) if cell["cell_type"] == "markdown" else literals(flow.parse(source(cell)))
        if "solution" in tags(cell):
            return


def show(exercise: Exercise) -> str:
    """A table of mistakes and of the cases that add something, and below it what no case tells apart; or what is broken."""
    if found := broken(exercise):
        return "\n".join(found)
    labels, rows = matrix(exercise)
    columns = {column: i for i, column in reversed(list(enumerate(zip(*rows, strict=True))))}
    told = sorted(columns.values())
    names = [m if isinstance(m, str) else f"{m.__name__}()" for m in exercise.mistakes]
    # The right answer is a dot; in a column, answers that agree share a digit.
    lines = [["", "mistake", *(str(i + 1) for i in told)]]
    for letter, name, row in zip(_LETTERS, names, rows, strict=False):
        lines.append([letter, textwrap.shorten(name, 60), *(str(row[i] or "·") for i in told)])
    cases = [f"case {i + 1}: {labels[i]}" for i in told]
    if rest := [label for i, label in enumerate(labels) if i not in told]:
        many = "1 more case tells" if len(rest) == 1 else f"{len(rest)} more cases tell"
        cases.append(textwrap.shorten(f"{many} nothing new: {', '.join(rest)}", 120, placeholder=" …"))
    below = confused(exercise) or ["Every mistake is told apart."]
    if not exercise.decision:  # the answer to a decision is a value, however the reference computes it
        passing = unnoticed(exercise, changed(exercise.reference))
        below += [f"a changed answer passes (is it right, too?): {it}" for it in passing]
    return "\n".join([as_text(lines, "<<" + ">" * len(told)), "", *cases, "", *below])


def main(arguments: list[str] | None = None) -> int:
    """Run ``exercise new`` or ``exercise try``; 1 when mistakes are not told apart, 2, with a sentence, for bad input."""
    parser = Parser(prog="cs336kit exercise", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    add = commands.add_parser("new", help="write a stub for an exercise, and its cells in the notebook")
    add.add_argument("id", help="the next number of its lesson, such as 07.3")
    such = "such as 'area(width, height)', or 'what_to_buy()' for a decision"
    add.add_argument("signature", nargs="?", default="answer(x)", help=such)
    add.add_argument("--title", default="Title", help="such as 'build it: a stopwatch'")
    commands.add_parser("try", help="show which case tells which mistakes apart").add_argument(
        "ids", nargs="*", help="such as 07.3; none means all"
    )
    options = parser.parse_args(arguments)
    try:
        if options.command == "new":
            must_be_here(FOLDER)
            for path in new(options.id, options.signature, options.title):
                print(path)
            print(
                f"Fill in both, then run: cs336kit exercise try {options.id}; make refresh readme NB={options.id[:2]}"
            )
            return 0
        found = [load(id) for id in options.ids or known_ids()]
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    for exercise in found:
        print(f"{exercise.id}\n{show(exercise)}\n")
    return int(any(map(confused, found)))
