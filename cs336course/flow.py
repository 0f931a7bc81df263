"""Read from code what it sets and uses: whether a verdict is about a measurement, and a time comes from a clock."""

import ast
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache

#: What reads a clock, by the last part of its name: Python's functions, and the kit's instruments.
CLOCKS = {"time", "perf_counter", "perf_counter_ns", "monotonic", "process_time", "timeit", "Timer"}
CLOCKS |= {"seconds", "transfer", "bandwidth", "elapsed_time", "overlap_timeline"}


@lru_cache(maxsize=256)  # each cell is read once more for every measured cell below it
def parse(source: str) -> ast.Module:
    """The code of a cell; commands that only notebooks have (``!ls``, ``%%time``) become the calls that they stand for."""
    try:
        return ast.parse(source)
    except SyntaxError:
        from IPython.core.inputtransformer2 import TransformerManager

        return ast.parse(TransformerManager().transform_cell(source))


@lru_cache(maxsize=4096)
def used(tree: ast.AST) -> frozenset[str]:
    """Every name and attribute that the code reads or calls, also inside functions."""
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    return frozenset(names | {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)})


@lru_cache(maxsize=4096)
def changed(tree: ast.AST) -> frozenset[str]:
    """Every name that the code binds, or whose value it changes through an item, an attribute or a method."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.alias):
            found.add((node.asname or node.name).split(".")[0])
        elif isinstance(node, ast.Subscript | ast.Attribute) and isinstance(node.ctx, ast.Store):
            found.add(_base(node))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            found.add(_base(node.func))
    return frozenset(found - {""})


def _base(node: ast.expr) -> str:
    """The name at the front of ``name.part[item]``; "" if there is none."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _statements(sources: Iterable[str]) -> Iterator[ast.stmt]:
    for source in sources:
        yield from parse(source).body


def depends(verdict: str, cell: str, before: Sequence[str]) -> bool:
    """Whether the verdict uses what the cell sets or changes, itself or through a function of the cells before."""
    about = {*changed(parse(cell))}
    for statement in _statements([*before, cell, verdict]):
        if isinstance(statement, ast.FunctionDef) and used(statement) & about:
            about.add(statement.name)
    return bool(used(parse(verdict)) & about)


def reads_a_clock(cell: str, before: Sequence[str]) -> bool:
    """Whether the cell reads a clock, or uses what earlier cells read from one."""
    timed = set(CLOCKS)
    for statement in _statements(before):
        if not isinstance(statement, ast.Import | ast.ImportFrom) and used(statement) & timed:
            timed |= changed(statement)
    return bool(used(parse(cell)) & timed)
