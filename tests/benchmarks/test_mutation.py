import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks.mutants import mutants

pytest.importorskip("pytest_cov")
pytest.importorskip("xdist")
from benchmarks import mutation

ROOT = Path(__file__).parents[2]
PLANE = "cs336kit/predict/plane.py"
KIT = {
    "cs336kit/__init__.py": "",
    "cs336kit/predict/__init__.py": "",
    PLANE: """
SIZES = {"two": 2}
UNUSED = 7

def area(width: int, height: int) -> float:
    if width < 0:
        raise ValueError(f"{width} is negative")
    return width * height

def wait(steps: int) -> None:
    while steps:
        steps -= 1

def never(steps: int) -> int:
    return steps + steps
""",
    "tests/kit/predict/test_plane.py": """
from cs336kit.predict.plane import SIZES, area, wait

def test_area():
    assert area(SIZES["two"], 3) == 6.0

def test_wait():
    wait(3)
""",
    "tests/mutants.toml": f"""
[[equivalent]]
file = "{PLANE}"
line = "UNUSED = 7"
change = "7 → 8"
reason = "nothing reads it"
""",
}


def test_only_the_place_of_a_mutant_is_changed():
    text = 'x = "é"; y: Literal[1] = f(a  +  1, slots=True)  # kept\n'
    found = {mutant.change: mutant.mutated() for mutant in mutants("m", text)}
    assert found == {
        "a + 1 → a - 1": 'x = "é"; y: Literal[1] = f((a - 1), slots=True)  # kept\n',
        "1 → 2": 'x = "é"; y: Literal[1] = f(a  +  (2), slots=True)  # kept\n',
    }


def test_the_statement_of_a_mutant_ends_where_the_next_one_begins():
    text = "def f(\n    x=1,\n):\n    if (x\n        < 2):\n        return (x +\n            3)\n    return 4\n"
    found = {mutant.change: (mutant.lines, mutant.defines) for mutant in mutants("m", text)}
    assert found["1 → 2"] == (range(1, 4), ("f",)), "at import"
    assert found["x < 2 → x <= 2"] == found["2 → 3"] == (range(4, 6), ())
    assert found["3 → 4"] == (range(6, 8), ())


def test_what_several_names_are_given_at_import_is_named_by_all_of_them():
    assert [mutant.defines for mutant in mutants("m", "A, B = 1, (2,)\nC = D = 3\nE: int = 4\n")] == [
        ("A", "B"), ("A", "B"), ("C", "D"), ("E",),
    ]  # fmt: skip


def test_the_tests_of_a_file_run_together_the_fastest_file_first():
    seconds = {"b::1": 1, "a::1": 2, "b::2": 3, "c::1": 99}
    record = SimpleNamespace(seconds=seconds, tests=lambda mutant: [*seconds])
    assert mutation._parts(record, 10, None) == [["b::1", "b::2", "a::1"]]


@pytest.mark.proof
def test_what_becomes_of_every_mutant_of_a_module(tmp_path):
    kit = KIT | {
        f"benchmarks/{n}.py": (ROOT / f"benchmarks/{n}.py").read_text("utf-8") for n in ("mutants", "mutation")
    }
    for file, text in kit.items():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(text, encoding="utf-8")
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    code = "from benchmarks import mutation as m; m.SPARE = 10; m.main(['predict'], 99, 1, 1, '', 60)"
    here = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True, env=here
    )
    became = re.findall(rf"(.+): {PLANE}:\d+  (.+?)    in: .+?(?:    \((.+)\))?\n", done.stdout)
    assert {change: (word, why) for word, change, why in became} == {
        "2 → 3": ("killed", "tests/kit/predict/test_plane.py::test_area"),
        "7 → 8": ("equivalent", "2 of 2 tests that execute or name it pass"),
        "width < 0 → width <= 0": ("SURVIVES", "1 of 1 tests that execute or name it pass"),
        "0 → 1": ("SURVIVES", "1 of 1 tests that execute or name it pass"),
        "width * height → width / height": ("killed", "tests/kit/predict/test_plane.py::test_area"),
        "1 → 2": ("killed", "time"),
        "steps + steps → steps - steps": ("SURVIVES", "not covered: no test executes or names it"),
    }
    assert done.stdout.endswith("predict: 3 of 6 mutants killed, 1 equivalent, of 7 possible ones\n")


def test_every_listed_mutant_is_there_and_has_a_reason():
    entries = tomllib.loads((ROOT / "tests/mutants.toml").read_text(encoding="utf-8")).get("equivalent", [])
    found = {}
    for file in {entry["file"] for entry in entries}:
        text = (ROOT / file).read_text(encoding="utf-8")
        found[file] = {(mutant.line, mutant.change) for mutant in mutants(file, text)}
    for entry in entries:
        assert (entry["line"], entry["change"]) in found[entry["file"]]
        assert entry["reason"]
