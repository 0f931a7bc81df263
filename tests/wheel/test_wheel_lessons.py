"""Every lesson with the installed kit: alone in a folder, with no clone above or beside it (`make wheel-lessons`).

The cells run and are compared by the rules of the course, as in the clone; here the kit comes from a wheel.
"""

import re
import shutil

import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output, writes

from tests.wheel.conftest import ROOT, run

LESSONS = sorted((ROOT / "notebooks").glob("[0-9][0-9]_*.ipynb"))
OPTIONS = ("-q", "--nbval", "--nbval-current-env", "-p", "no:cacheprovider", "-p", "no:logging")


@pytest.fixture
def alone(full_environment, tmp_path):
    """A function: run a notebook, by itself in a folder, as `cs336kit lessons verify` does; returns what pytest says."""
    # The rules are in the hook of the clone's conftest.py, which imports the installed kit and must not lie beside it.
    shutil.copy(ROOT / "conftest.py", tmp_path)

    def verified(name, text):
        folder = tmp_path / "a folder"
        folder.mkdir(exist_ok=True)
        (folder / name).write_bytes(text)
        before = folder.stat().st_mtime_ns
        command = [full_environment / "python", "-P", "-m", "pytest", *OPTIONS, "--rootdir", tmp_path, folder / name]
        done = run(*command, cwd=folder, HOME=str(tmp_path))
        # Also what is deleted again counts: a reader's folder may be read-only.
        assert folder.stat().st_mtime_ns == before, "something was written beside the lesson"
        return done

    return verified


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("lesson", LESSONS, ids=lambda path: path.stem)
def test_a_lesson_runs_from_the_wheel_and_shows_what_is_stored(alone, lesson):
    done = alone(lesson.name, lesson.read_bytes())
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert re.search(r"^\d+ passed", done.stdout.splitlines()[-1])


def printing(code, text):
    """A notebook of one cell, with what it has printed."""
    shown = [new_output("stream", name="stdout", text=text)]
    return writes(new_notebook(cells=[new_code_cell(code, execution_count=1, outputs=shown)])).encode()


def test_the_kernel_has_the_kit_of_the_wheel_and_another_output_fails(alone, full_environment):
    kit = next(full_environment.parent.glob("lib/python*/site-packages/cs336kit/__init__.py"))
    code = f"import os, cs336kit; print(os.path.samefile(cs336kit.__file__, {str(kit)!r}))"
    assert alone("00_where.ipynb", printing(code, "True\n")).returncode == 0
    done = alone("00_where.ipynb", printing(code, "False\n"))
    assert done.returncode == 1 and "Cell outputs differ" in done.stdout


def test_a_second_copy_under_another_name_runs_too(alone):
    """JupyterLab's name for it; the lesson is one that writes files, and one of the shorter ones."""
    (lesson,) = (path for path in LESSONS if path.name.startswith("13_"))
    done = alone(f"{lesson.stem}-Copy1.ipynb", lesson.read_bytes())
    assert done.returncode == 0, done.stdout[-4000:]
