"""Strict verification of the lessons: nbval runs their cells, and this closes what nbval lets pass.

A cell that was never run, or out of order, fails; figures are compared; only ``measured:<reason>`` cells are exempt, and only
with a verdict after them; ``gpu`` and ``needs:`` cells are skipped with the reason where they cannot run.
"""

import subprocess
import sys
from typing import Any

import pytest
from nbval.plugin import IPyNbCell

from cs336kit.course import cells as kind
from cs336kit.course.lessons import find
from cs336kit.course.outputs import difference
from cs336kit.course.structure import verdict_problem


class LessonCell(IPyNbCell):  # type: ignore[misc]
    """One code cell of a lesson, compared by the course's own rules."""

    expected_count: int

    def runtest(self) -> None:
        """Run the cell and compare; skip it, or fail without running it, for the reasons above."""
        if reason := kind.reason_to_skip(self.cell):
            pytest.skip(reason)
        if problem := self._standing():
            self.raise_cell_error(problem)
        # What a GPU shows is live only: where there is CUDA the cell has to run, and that is all.
        self.options["check"] = not kind.measured(self.cell) and "gpu" not in kind.tags(self.cell)
        self.options["skip"] = self.options["check_exception"] = False
        super().runtest()

    def _standing(self) -> str | None:
        """What is wrong with the cell before it even runs."""
        if unknown := kind.unknown_tags(self.cell):
            known = [*kind.PLAIN_TAGS, *(f"{name}:" for name in kind.VALUE_TAGS)]
            return f"the tags {unknown} are not the course's ({', '.join(known)})"
        if self.cell.execution_count is None:
            return f"this cell was never run; {self._remedy}"
        if self.cell.execution_count != self.expected_count:
            return f"its execution count is {self.cell.execution_count}, not {self.expected_count}; {self._remedy}"
        return verdict_problem(self.parent.nb.cells, self.cell)

    @property
    def _remedy(self) -> str:
        return f"if the new output is right, store it with: make refresh NB={self.path.name[:2]}"

    def compare_outputs(self, test: list[kind.Cell], ref: list[kind.Cell], skip_compare: Any = None) -> bool:
        """Whether the new outputs equal the stored ones; what differs is kept for the report."""
        found = difference(ref, test, kind.tolerance(self.cell))
        where = f"{self.path.name}, cell [{self.expected_count}]"
        self.comparison_traceback = [where, found, self._remedy] if found else []
        return found is None


def adopt(items: list[Any]) -> None:
    """Give every notebook cell the course's rules, and its place in the order of execution."""
    places: dict[str, int] = {}
    for item in items:
        # nbval's classes cannot be replaced at collection without recursing, so the instance changes its class.
        item.__class__ = LessonCell
        places[str(item.path)] = places.get(str(item.path), 0) + kind.is_code(item.cell)
        item.expected_count = places[str(item.path)]


def verify(names: list[str]) -> int:
    """Run the lessons of these numbers (all for none) and compare their outputs; returns pytest's exit code."""
    options = ["-q", "--nbval", "--nbval-current-env", "--nbval-cell-timeout=120"]
    return subprocess.run([sys.executable, "-m", "pytest", *options, *map(str, find(names))], check=False).returncode
