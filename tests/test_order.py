"""The longest files of tests come first, and what they take is written down."""

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
#: File → how long each of its two tests takes.
FILES = {"test_a.py": 0.0, "test_b.py": 0.6, "test_c.py": 0.0, "test_d.py": 0.0}


def ran(folder, *options):
    """The names of the tests in the order in which each worker ran them."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "RAN": str(folder / "ran")}
    for of_this_run in ("PYTEST_XDIST_WORKER", "PYTEST_ADDOPTS"):
        environment.pop(of_this_run, None)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:nbval", "-p", "no:cacheprovider", *options, "tests"]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line.split() for line in (folder / "ran").read_text().splitlines()]
    (folder / "ran").unlink()
    return {worker: [name for by, name in lines if by == worker] for worker, _ in lines}


@pytest.mark.proof
def test_the_longest_file_comes_first_also_beside_others(tmp_path):
    (tmp_path / "tests").mkdir()
    shutil.copy(ROOT / "conftest.py", tmp_path)
    for name, seconds in FILES.items():
        note = 'print(os.environ.get("PYTEST_XDIST_WORKER", "alone"), name, file=open(os.environ["RAN"], "a"))'
        tests = [f"def test_{n}():\n    note({name + str(n)!r})\n    time.sleep({seconds})\n" for n in (2, 1)]
        text = "\n".join(["import os\nimport time\n", f"def note(name):\n    {note}\n", *tests])
        (tmp_path / "tests" / name).write_text(text)
    in_order = [f"{name}{n}" for name in FILES for n in (2, 1)]
    assert ran(tmp_path, "--record-seconds") == {"alone": in_order}
    seconds = tmp_path / "tests" / "seconds.toml"
    # On a busy machine others may take as long.
    assert tomllib.loads(seconds.read_text())["tests/test_b.py"] >= 1
    seconds.write_text('"tests/test_b.py" = 1\n"tests/test_d.py" = 9\n"tests/test_gone.py" = 4\n')
    first = [f"test_{file}.py{n}" for file in "dbac" for n in (2, 1)]
    assert ran(tmp_path) == {"alone": first}
    several = ran(tmp_path, "-n", "2", "--dist", "loadfile", "--no-loadscope-reorder")
    assert sorted(names[0] for names in several.values()) == ["test_b.py2", "test_d.py2"]
    # What did not run this time stays, and what is not there any more does not.
    ran(tmp_path, "--record-seconds", "--ignore=tests/test_d.py")
    assert tomllib.loads(seconds.read_text()) == {"tests/test_b.py": 1, "tests/test_d.py": 9}
