"""Do the tests see a change in the kit? ``python -m benchmarks.mutation predict 40``: mutants of a room, and which survive.

A mutant differs from the kit in one place: an operator, a comparison, a number, a truth value. It is killed when a test
fails (or hangs) that names something of the changed module. Survivors are printed; each needs a test, or a reason.
"""

import ast
import copy
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
ROOMS = ("predict", "lm", "measure", "course")
#: Where the tests of each room stand, fast ones first.
TESTS = {room: ("tests/fast", f"tests/torch/{room}", "tests/notebooks") for room in ROOMS}
#: Slow by nature: they start kernels, and most mutants die elsewhere.
_LEFT_OUT = ("test_tamper", "test_refresh")
SECONDS = 240
_SWAPS: dict[type, type] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult, ast.Pow: ast.Mult,
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.And: ast.Or, ast.Or: ast.And, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip


def places(module: Path) -> Iterator[int]:
    """Where in a module a mutant differs, as a number in the order of `ast.walk`."""
    tree = ast.parse(module.read_text(encoding="utf-8"))
    return (place for place, node in enumerate(ast.walk(tree)) if _changed(node) is not None)


def mutant(source: str, place: int) -> tuple[str, str]:
    """The text of a module with one place changed, and what changed there: line, old and new expression."""
    tree = ast.parse(source)
    node = [*ast.walk(tree)][place]
    new = _changed(node)
    assert isinstance(node, ast.expr) and new is not None
    what = f"{node.lineno}  {ast.unparse(node)}  →  {ast.unparse(new)}"
    node.__dict__.update(new.__dict__)
    return ast.unparse(tree), what


def _changed(node: ast.AST) -> ast.expr | None:
    new = copy.copy(node)
    if isinstance(node, ast.BinOp | ast.BoolOp) and type(node.op) in _SWAPS:
        new.op = _SWAPS[type(node.op)]()
    elif isinstance(node, ast.Compare) and type(node.ops[0]) in _SWAPS:
        new.ops = [_SWAPS[type(node.ops[0])](), *node.ops[1:]]
    elif isinstance(node, ast.Constant) and type(node.value) in (int, float, bool):
        new.value = not node.value if type(node.value) is bool else node.value + 1
    elif isinstance(node, ast.Name) and node.id in ("all", "any", "min", "max"):
        new.id = {"all": "any", "any": "all", "min": "max", "max": "min"}[node.id]
    else:
        return None
    return new


def tests_of(room: str, module: Path, root: Path) -> list[str]:
    """The test files of a room that name the module or something public in it; all of the room where none does."""
    tree = ast.parse(module.read_text(encoding="utf-8"))
    names = [node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    pattern = re.compile(rf"\b({'|'.join([module.stem.strip('_'), *(n for n in names if n[0] != '_')])})\b")
    files = [file for folder in TESTS[room] for file in sorted((root / folder).rglob("test_*.py"))]
    files = [file for file in files if file.stem not in _LEFT_OUT]
    return [str(f) for f in files if pattern.search(f.read_text(encoding="utf-8"))] or [*map(str, files)]


def survives(root: Path, tests: list[str]) -> bool:
    """Whether the tests pass in this copy of the repository."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:nbval", "-p", "no:cacheprovider", *tests]
    try:
        environment = {**os.environ, "PYTHONPATH": str(root)}
        done = subprocess.run(command, cwd=root, capture_output=True, timeout=SECONDS, env=environment, check=False)
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def main(room: str, count: int, seed: int = 0) -> None:
    """Try so many mutants of a room, drawn at random, in a copy; print what becomes of each and the share that is killed."""
    modules = sorted((ROOT / "cs336kit" / room).rglob("*.py"))
    every = [(module, place) for module in modules for place in places(module)]
    killed, drawn = 0, random.Random(seed).sample(every, min(count, len(every)))
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "copy"
        tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
        for name in tracked.splitlines():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, root / name)
        for module, place in drawn:
            inside = root / module.relative_to(ROOT)
            kept = inside.read_text(encoding="utf-8")
            tests = tests_of(room, inside, root)
            changed, what = mutant(kept, place)
            inside.write_text(changed, encoding="utf-8")
            alive = survives(root, tests)
            inside.write_text(kept, encoding="utf-8")
            killed += not alive
            print(f"{'SURVIVES' if alive else 'killed'}: {module.relative_to(ROOT)}:{what}", flush=True)
    print(f"{room}: {killed} of {len(drawn)} mutants killed, of {len(every)} possible ones")


if __name__ == "__main__":
    for name in sys.argv[1:2] or ROOMS:
        main(name, int(sys.argv[2]) if len(sys.argv) > 2 else 20)
