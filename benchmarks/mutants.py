"""The mutants of a module: its text with one operator, comparison, number or truth value changed."""

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass

#: Keywords that change no result: how a class or a cache is stored, whom a warning names, what is sure to be as long.
_LEFT_ALONE = ("slots", "maxsize", "stacklevel", "strict")
_SWAPS: dict[type, type] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult, ast.Pow: ast.Mult,
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.And: ast.Or, ast.Or: ast.And, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
_OTHERS = {"all": "any", "any": "all", "min": "max", "max": "min"}


@dataclass(frozen=True)
class Mutant:
    """One place of a module and its change; `lines` are those of its statement, `defines` what that defines at import."""

    module: str
    text: str
    old: ast.expr
    new: ast.expr
    lines: range
    defines: tuple[str, ...]

    @property
    def change(self) -> str:
        return f"{ast.unparse(self.old)} → {ast.unparse(self.new)}"

    @property
    def line(self) -> str:
        return self.text.splitlines()[self.old.lineno - 1].strip()

    def __str__(self) -> str:
        return f"{self.module}:{self.old.lineno}  {self.change}    in: {self.line}"

    def named(self) -> set[str]:
        """The names that have something else in them: what it defines or is inside, and what the module makes of it at import."""
        body = ast.parse(self.text).body
        around = [s for s in body if s.lineno <= self.old.lineno <= _end(s)]
        names = {*(self.defines or (name for statement in around for name in _defined(statement)))}
        for statement in body:
            if not isinstance(statement, ast.FunctionDef | ast.ClassDef):
                used = {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)}
                names |= {*_defined(statement)} if used & names else set()
        return names - {""} or {"nothing of this name"}

    def mutated(self) -> str:
        """The text of the module with the change in place, and everything else as it was."""
        before, _, after = _split(self.text, self.old)
        return f"{before}({ast.unparse(self.new)}){after}"


def mutants(module: str, text: str) -> Iterator[Mutant]:
    """Every mutant of a module, but for what no call can tell apart: annotations, and a few keywords."""

    def visit(node: ast.AST, statement: ast.stmt, defines: tuple[str, ...]) -> Iterator[Mutant]:
        new = _changed(node)
        if isinstance(node, ast.expr) and new is not None and _has_its_place(text, node):
            inner = [s.lineno for s in ast.walk(statement) if isinstance(s, ast.stmt) and s is not statement]
            last = max(min([*inner, _end(statement) + 1]), _end(node) + 1)
            yield Mutant(module, text, node, new, range(min(statement.lineno, node.lineno), last), defines)
        for field, value in ast.iter_fields(node):
            runs_later = field == "body" and isinstance(node, ast.FunctionDef)
            for child in value if isinstance(value, list) else [value]:
                if field in ("annotation", "returns") or (isinstance(child, ast.keyword) and child.arg in _LEFT_ALONE):
                    continue
                if isinstance(child, ast.stmt):
                    yield from visit(child, child, _defined(child) if defines and not runs_later else ())
                elif isinstance(child, ast.AST):
                    yield from visit(child, statement, defines)

    for statement in ast.parse(text).body:
        yield from visit(statement, statement, _defined(statement))


def _changed(node: ast.AST) -> ast.expr | None:
    new = copy.copy(node)
    if isinstance(new, ast.BinOp | ast.BoolOp) and type(new.op) in _SWAPS:
        new.op = _SWAPS[type(new.op)]()
    elif isinstance(new, ast.Compare) and type(new.ops[0]) in _SWAPS:
        new.ops = [_SWAPS[type(new.ops[0])](), *new.ops[1:]]
    elif isinstance(new, ast.Constant) and type(new.value) in (int, float, bool):
        new.value = not new.value if type(new.value) is bool else new.value + 1
    elif isinstance(new, ast.Name) and new.id in _OTHERS:
        new.id = _OTHERS[new.id]
    else:
        return None
    return new


def _defined(statement: ast.stmt) -> tuple[str, ...]:
    """The names that a statement gives something to, and one that is never found where it gives none."""
    targets = getattr(statement, "targets", [getattr(statement, "target", statement)])
    parts = [part for target in targets for part in getattr(target, "elts", [target])]
    names = (getattr(part, "name", getattr(part, "id", None)) for part in parts)
    return tuple(name for name in names if name) or ("",)


def _end(node: ast.stmt | ast.expr) -> int:
    return node.end_lineno or node.lineno


def _split(text: str, node: ast.expr) -> tuple[str, str, str]:
    """What stands before an expression, the expression, and what stands after it; Python counts its columns in bytes."""
    rows = text.encode().splitlines(keepends=True)
    begin = sum(map(len, rows[: node.lineno - 1])) + node.col_offset
    end = sum(map(len, rows[: _end(node) - 1])) + (node.end_col_offset or 0)
    whole = b"".join(rows)
    return whole[:begin].decode(), whole[begin:end].decode(errors="replace"), whole[end:].decode(errors="replace")


def _has_its_place(text: str, node: ast.expr) -> bool:
    """Whether Python says truly where an expression stands: not always inside an f-string, before Python 3.12."""
    try:
        return ast.dump(ast.parse(f"({_split(text, node)[1]})", mode="eval").body) == ast.dump(node)
    except (SyntaxError, UnicodeDecodeError):
        return False
