"""Strict verification of the lessons: nbval runs their cells, and this closes what nbval lets pass.

A cell that was never run, or out of order, fails; figures are compared; only ``measured:<reason>`` cells are exempt, and only
with a verdict after them; ``gpu`` and ``needs:`` cells are skipped with the reason where they cannot run.
"""

import os

import pytest

# One thread each, here and in the kernels that inherit this: sums depend on how many threads share them.
os.environ.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", PYTHONHASHSEED="0")

from importlib.util import find_spec

from nbval.plugin import IPyNbCell

from cs336kit.course import cells as kind
from cs336kit.course.outputs import difference
from cs336kit.course.structure import verdict_problem

if find_spec("hypothesis"):
    from hypothesis import settings

    # The same examples in every run, and no deadline: a slow machine is not a wrong answer.
    settings.register_profile("course", deadline=None, derandomize=True)
    settings.load_profile("course")


class LessonCell(IPyNbCell):
    """One code cell of a lesson, compared by the course's own rules."""

    def runtest(self):
        reason = kind.reason_to_skip(self.cell)
        if reason:
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
            return (
                f"the tags {unknown} are not the course's ({', '.join(kind.PLAIN_TAGS)}, {': '.join(kind.VALUE_TAGS)}:)"
            )
        if self.cell.execution_count is None:
            return f"this cell was never run; {self._remedy}"
        if self.cell.execution_count != self.expected_count:
            return f"its execution count is {self.cell.execution_count}, not {self.expected_count}; {self._remedy}"
        return verdict_problem(self.parent.nb.cells, self.cell)

    @property
    def _remedy(self) -> str:
        return f"if the new output is right, store it with: make refresh NB={self.path.name[:2]}"

    def compare_outputs(self, test, ref, skip_compare=None):
        tolerance = next(map(float, kind.valued(self.cell, "approx")), None)
        found = difference(ref, test, tolerance)
        self.comparison_traceback = (
            [] if found is None else [f"{self.path.name}, cell [{self.expected_count}]", found, self._remedy]
        )
        return found is None


def pytest_collection_modifyitems(items):
    """Give every notebook cell the course's rules, and its place in the order of execution."""
    places: dict[str, int] = {}
    for item in items:
        if isinstance(item, IPyNbCell):
            # nbval's classes cannot be subclassed at collection without recursing, so the instance changes its class.
            item.__class__ = LessonCell
            if kind.is_code(item.cell):
                places[str(item.path)] = places.get(str(item.path), 0) + 1
            item.expected_count = places.get(str(item.path), 0)
