"""What exempts a cell from comparison (``measured:``, ``gpu``, ``needs:``), and what it must do in return."""

import ast
from collections.abc import Iterator
from pathlib import Path

from cs336course import cells as kind
from cs336course import flow
from cs336course.cells import Cell
from cs336course.doctor import PINS, pins


def problems(cells: list[Cell], folder: Path) -> Iterator[str]:
    """What is wrong with the cells that are not compared everywhere, a sentence each; `folder`: that of the clone."""
    versions = pins(folder / PINS) if (folder / PINS).exists() else None
    for cell in filter(kind.is_code, cells):
        if "gpu" in kind.tags(cell):
            if not _on_gpu_alone(kind.source(cell)):
                yield (
                    f"{kind.where(cell)} is tagged gpu and must be one block 'if teach.on_gpu():' "
                    "that prints or displays something, and no more"
                )
        elif problem := measured_problem(cells, cell):
            yield problem
        if versions and (unmet := kind.unmet_need(cell, lambda name: versions.get(name, "0"))):
            yield f"{kind.where(cell)} {unmet} in {PINS}: it would be skipped everywhere"


def measured_problem(cells: list[Cell], cell: Cell) -> str | None:
    """What is wrong with a measured cell, which nothing compares, or None.

    The next code cell must be its verdict: tagged as such, compared, about a value of the measured cell, and with output.
    The measured cell's outputs must come from a run, and what it calls a time must come from a clock.
    """
    if not kind.measured(cell):
        return None
    if not kind.valued(cell, "measured"):
        return f"{kind.where(cell)} is tagged measured without a reason (measured:time, measured:memory, …)"
    exempt = f"{kind.where(cell)} is exempt from comparison"
    later = [c for c in cells[cells.index(cell) + 1 :] if kind.is_code(c)]
    if not later or "verdict" not in kind.tags(later[0]) or kind.measured(later[0]) or not later[0]["outputs"]:
        return f"{exempt}, so the next code cell must be its verdict, compared, with output"
    before = [kind.source(c) for c in cells[: cells.index(cell)] if kind.is_code(c)]
    if not flow.depends(kind.source(later[0]), kind.source(cell), before):
        return f"{exempt}, but its verdict uses nothing that it sets"
    if kind.valued(cell, "measured") == ["time"] and not flow.reads_a_clock(kind.source(cell), before):
        return f"{exempt} as measured:time, but reads no clock: if it depends on none, drop the tag"
    if not kind.from_a_run(cell):
        return f"{exempt}, but what it shows was not left by a run: run `make refresh`, which measures it again"
    return None


def _on_gpu_alone(source: str) -> bool:
    """Whether a cell only says on a CPU that it is skipped, and shows something on a GPU."""
    block, *more = flow.parse(source).body
    if more or not isinstance(block, ast.If) or block.orelse or ast.unparse(block.test) != "teach.on_gpu()":
        return False
    calls = (node for node in ast.walk(block) if isinstance(node, ast.Call))
    return any(ast.unparse(call.func) in ("print", "display") for call in calls)
