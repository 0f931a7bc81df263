"""Strict verification of the lessons: nbval runs their cells, and this module fails what nbval would accept.

A cell that was never run, or was run out of order, fails. Figures are compared. Only ``measured:<reason>`` cells are exempt,
if a verdict follows them and their outputs come from a run. ``gpu`` cells are compared where there is no GPU, and
``needs:`` cells are skipped, with the reason, where they cannot run.
"""

import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from nbval import kernel as nbval_kernel
from nbval.plugin import IPyNbCell, NbCellError

from cs336course import cells as kind
from cs336course import doubt, kernel
from cs336course.exempt import measured_problem
from cs336course.lessons import find, read
from cs336course.outputs import difference, redrawn
from cs336kit.files import write_whole

#: Where figures that differ are written, in the folder from which pytest's paths count.
FIGURES = Path("build/figures")
#: The tests of what a lesson says, beside those of what its cells print.
_TEXTS = "test_prose.py", "test_lessons.py"
_COLOR, _COUNT = re.compile(r"\x1b\[[\d;]*m"), re.compile(r"(?<=Cell) In\[\d+\]")


class _Manager(nbval_kernel.KernelManager):  # type: ignore[misc]
    """Starts kernels the way the course needs, for which nbval has no setting."""

    def __init__(self, **settings: Any):
        super().__init__(**kernel.address(), **settings)

    def start_kernel(self, **settings: Any) -> None:
        super().start_kernel(env=kernel.environment(), **settings)


nbval_kernel.KernelManager = _Manager


class LessonCell(IPyNbCell):  # type: ignore[misc]
    """A code cell of a lesson, compared by the rules of the course."""

    expected_count: int
    #: What the cell shows now, if that differs from what is stored.
    shown: Sequence[dict[str, Any]] = ()

    def runtest(self) -> None:
        """Run the cell and compare; skip it, or fail without running it, for the reasons above."""
        if reason := kind.unmet_need(self.cell):
            pytest.skip(f"{self.path.name}, {self.name} {reason}")
        if problem := self._standing():
            self.raise_cell_error(problem)
        # A GPU's outputs are only shown live: where there is CUDA, the cell has to run, and that is all.
        self.options["check"] = not (kind.measured(self.cell) or kind.live(self.cell))
        self.options["skip"] = self.options["check_exception"] = False
        self.config.option.nbval_cell_timeout = kind.HANGING
        super().runtest()

    def _standing(self) -> str | None:
        """What is wrong with the cell before it even runs."""
        if problem := kind.tag_problem(self.cell):
            return f"this cell {problem}"
        if self.cell.execution_count is None:
            return f"this cell was never run; {self._remedy}"
        if self.cell.execution_count != self.expected_count:
            return f"its execution count is {self.cell.execution_count}, not {self.expected_count}; {self._remedy}"
        return measured_problem(self.parent.nb.cells, self.cell)

    @property
    def _remedy(self) -> str:
        return f"if the new output is right, store it with: make refresh NB={self.path.name[:2]}"

    def compare_outputs(self, test: list[kind.Cell], ref: list[kind.Cell], skip_compare: Any = None) -> bool:
        """Whether the new outputs equal the stored ones; the difference is kept for the report."""
        found = difference(ref, test, kind.tolerance(self.cell))
        self.comparison_traceback = [found, *self._drawn(ref, test), self._remedy] if found else []
        self.shown = test
        return found is None

    def _drawn(self, stored: list[kind.Cell], new: list[kind.Cell]) -> Iterator[str]:
        """Write the figures that differ as files, to be looked at; yields a line for each that says where they are."""
        for place, (ending, old, now) in enumerate(redrawn(stored, new), start=1):
            name = f"{self.path.stem}-cell-{self.expected_count}-figure-{place}"
            texts = {f"{name}-stored.{ending}": old, f"{name}-new.{ending}": now}
            files = {FIGURES / file: text for file, text in texts.items() if text}
            try:
                (self.config.rootpath / FIGURES).mkdir(parents=True, exist_ok=True)
                for file, text in files.items():
                    write_whole(self.config.rootpath / file, text)
                yield f"look at {' and '.join(map(str, files))}"
            except OSError as error:
                yield f"the figures could not be written to {FIGURES} to be looked at: {error.strerror}"

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """The report of a failure: the cell, by the number that JupyterLab shows, its text, the difference, what to reread."""
        error = excinfo.value
        if not isinstance(error, NbCellError):
            return super(IPyNbCell, self).repr_failure(excinfo)
        text = textwrap.indent(error.source.rstrip(), "    ")
        # The kernel of a verification counts differently from JupyterLab, and a log needs no colors.
        why = _COUNT.sub("", _COLOR.sub("", error.inner_traceback or ""))
        said = doubt.sentences(self.parent.nb.cells, self.cell, self.shown)
        lines = [textwrap.fill(f"> {sentence}", 100, subsequent_indent="  ") for sentence in said]
        read = "\n".join(["Is what the lesson says about this still true?", *lines, ""] if said else [])
        return f"{self.path.name}, {self.name}: {error}\n\n{text}\n\n{why.strip()}\n{read}"

    def reportinfo(self) -> tuple[Any, int, str]:
        """Where the cell is, for the headings of a report."""
        return self.path, 0, self.nodeid


def adopt(cells: list[Any]) -> list[LessonCell]:
    """nbval's cells of one notebook as lesson cells, each named by its place in the order of execution, such as [3]."""
    adopted: list[LessonCell] = []
    place = 0
    for found in cells:
        place += kind.is_code(found.cell)
        own = {"cell_num": place, "cell": found.cell, "options": found.options}
        cell: LessonCell = LessonCell.from_parent(found.parent, name=f"cell [{place}]", **own)
        cell.expected_count = place
        adopted.append(cell)
    return adopted


def verify(names: list[str]) -> int:
    """Run the lessons with these numbers (all for none), compare their outputs, and check the numbers in their prose and
    their anatomy; returns pytest's exit code.

    Raises ValueError for an unknown lesson and for a damaged one, before any is run.
    """
    options, chosen = ["-q", "--nbval", "--nbval-current-env"], find(names)
    for path in chosen:
        read(path)
    if names:
        options += ["-k", " or ".join(f"{path.stem} or [{path.name[:2]}]" for path in chosen)]
    tests = [path for name in _TEXTS if (path := chosen[0].resolve().parents[1] / "tests/notebooks" / name).exists()]
    return subprocess.call([sys.executable, "-m", "pytest", *options, *map(str, [*chosen, *tests])])
