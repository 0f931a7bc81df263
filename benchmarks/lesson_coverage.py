"""What of the kit do the lessons use? ``python -m benchmarks.lesson_coverage``: the share of each module's statements.

All cells of all lessons (or of those whose numbers are given) run in kernels that count what they execute; what a cell
starts, such as ranks, is counted, too. Error branches are left aside, as no lesson has to be wrong:
every ``raise``, and the body of an ``if``, an ``else`` or an ``except`` that ends in one. Cells for a GPU count where there
is one. ``--keep`` prints the table of the last run anew.
"""

import ast
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import coverage
import nbformat
from nbclient import NotebookClient
from traitlets.config import Config

from cs336course import cells, kernel, lessons
from cs336kit import journal as _journal
from cs336kit.command.arguments import Parser

ROOT = Path(__file__).parents[1]
DATA = ROOT / "build" / "lesson-coverage" / "data"
#: What is content of lessons, or is no lesson's to run: listed, and left out of the kit's own share.
BESIDE = ("command/", "lessons/")


def error_branches(text: str) -> set[int]:
    """The lines of a module on which a statement stands that only an error reaches."""
    lines: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        blocks: list[list[ast.stmt]] = [[node]] if isinstance(node, ast.Raise) else []
        if isinstance(node, ast.If):
            blocks += [node.body, node.orelse]
        elif isinstance(node, ast.ExceptHandler) and isinstance(node.body[-1], ast.Raise):
            lines.add(node.lineno)
            blocks += [node.body]
        for block in blocks:
            if block and isinstance(block[-1], ast.Raise):
                lines.update(range(block[0].lineno, (block[-1].end_lineno or 0) + 1))
    return lines


def run(names: list[str]) -> None:
    """Run the cells of the lessons, each in a kernel that counts and, as kernels are killed, saves what it counted itself."""
    chosen = lessons.find(names, ROOT / lessons.NOTEBOOKS)
    shutil.rmtree(DATA.parent, ignore_errors=True)
    DATA.parent.mkdir(parents=True)
    alone = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", _journal.VARIABLE: _journal.OFF}
    counting = {"COVERAGE_PROCESS_START": str(ROOT / "pyproject.toml"), "COVERAGE_FILE": str(DATA)}
    environment = {**kernel.environment(), **alone, **counting}
    for path in chosen:
        notebook = nbformat.read(path, as_version=4)
        notebook.cells = [cell for cell in notebook.cells if cell.cell_type == "code" and not cells.unmet_need(cell)]
        notebook.cells.append(nbformat.v4.new_code_cell("import coverage; coverage.Coverage.current().save()"))
        settings = {"kernel_name": "python3", "timeout": None, "resources": {"metadata": {"path": str(path.parent)}}}
        settings |= {"config": Config(KernelManager=kernel.address()), "extra_arguments": ["--log-level=ERROR"]}
        NotebookClient(notebook, **settings).execute(env=environment)
        print(path.stem, flush=True)
    counted = coverage.Coverage(data_file=str(DATA), config_file=str(ROOT / "pyproject.toml"))
    counted.combine([str(DATA.parent)])
    counted.save()


def shares() -> Iterator[tuple[str, int, int]]:
    """Of each module that has statements: its path in the kit, how many there are, and how many the lessons executed."""
    counted = coverage.Coverage(data_file=str(DATA), config_file=str(ROOT / "pyproject.toml"))
    counted.load()
    for path in sorted((ROOT / "cs336kit").rglob("*.py")):
        _, statements, _, missing, _ = counted.analysis2(str(path))
        if lines := set(statements) - error_branches(path.read_text("utf-8")):
            yield path.relative_to(ROOT / "cs336kit").as_posix(), len(lines), len(lines - set(missing))


def table(found: list[tuple[str, int, int]]) -> str:
    """The modules by their share, least first, and the totals of the kit and of what is beside it."""

    def row(name: str, statements: int, executed: int) -> str:
        return f"{executed / max(1, statements):6.1%} {executed:6,} of {statements:6,}  {name}"

    lines = [row(*each) for each in sorted(found, key=lambda each: (each[2] / each[1], -each[1]))]
    beside = [each for each in found if each[0].startswith(BESIDE)]
    own = [each for each in found if each not in beside]
    for name, part in (("beside the kit", beside), ("the kit", own), ("all", found)):
        lines.append(row(f"{name}: {len(part)} modules", sum(each[1] for each in part), sum(each[2] for each in part)))
    return "\n".join(lines)


def main(words: list[str]) -> int:
    """Run the lessons of these numbers (all for none), and print the table; 2 for an unknown lesson."""
    parser = Parser(prog="python -m benchmarks.lesson_coverage", description=__doc__)
    parser.add_argument("lessons", metavar="NUMBER", nargs="*", help="numbers of lessons, all for none")
    parser.add_argument("--keep", action="store_true", help="run nothing: the table of the last run")
    given = parser.parse_args(words)
    if not given.keep:
        try:
            run(given.lessons)
        except ValueError as error:
            print(error, file=sys.stderr)
            return 2
    print(table(list(shares())))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
