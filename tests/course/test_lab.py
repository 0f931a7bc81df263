"""What `cs336kit lessons lab` starts, and what it says where it cannot."""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import nbformat
import pytest

from cs336course import kernel, lab
from cs336kit.command import main


@pytest.fixture
def clone(tmp_path, monkeypatch):
    """A clone with two lessons, in which this test works."""
    monkeypatch.chdir(tmp_path)
    Path("notebooks").mkdir()
    for name in ("01_second", "00_first"):
        cells = [nbformat.v4.new_markdown_cell("# A toy")]
        nbformat.write(nbformat.v4.new_notebook(cells=cells), Path("notebooks") / f"{name}.ipynb")
    return tmp_path


@pytest.fixture
def started(monkeypatch):
    """The commands of the servers that were started, each with its environment; the first wait is interrupted."""
    found = []

    class Server:
        def __init__(self, command, env):
            found.append((command, env))
            self.waits = iter([KeyboardInterrupt, 3])

        def wait(self):
            if (end := next(self.waits)) is KeyboardInterrupt:
                raise end
            return end

        __enter__ = lambda self: self  # noqa: E731
        __exit__ = lambda self, *error: None  # noqa: E731

    monkeypatch.setattr(subprocess, "Popen", Server)
    return found


def test_the_first_of_the_reader_s_copies_is_opened_on_this_machine_alone(clone, started, monkeypatch, capsys):
    monkeypatch.setenv("JUPYTER_CONFIG_PATH", "mine")
    # Ctrl-C is JupyterLab's: it asks whether it is meant.
    assert main(["lessons", "lab"]) == 3 and main(["lessons", "lab", "1", "--", "--no-browser"]) == 3
    assert sorted(path.name for path in Path("my").glob("*.ipynb")) == ["00_first.ipynb", "01_second.ipynb"]
    assert "These copies are yours" in capsys.readouterr().out
    (command, env), (another, _) = started
    assert command[:5] == [sys.executable, "-m", "jupyterlab", "--ip=127.0.0.1", "--ServerApp.root_dir=."]
    assert command[-1] == "--LabApp.default_url=/lab/tree/my/00_first.ipynb"
    assert another[-2:] == ["--LabApp.default_url=/lab/tree/my/01_second.ipynb", "--no-browser"]
    assert env["OMP_NUM_THREADS"] == env["PYTHONUTF8"] == "1" and env["CS336KIT_GUESSES"] == str(
        clone / "my" / "guesses.json"
    )
    assert env["JUPYTER_CONFIG_PATH"] == os.pathsep.join([str(clone / ".jupyter"), "mine"])
    assert env["PATH"].startswith(sysconfig.get_path("scripts") + os.pathsep)


@pytest.mark.parametrize("user", [0, 1000, None])
def test_root_is_allowed_where_there_is_one(clone, started, monkeypatch, user):
    if user is None:
        monkeypatch.delattr(os, "geteuid")
    else:
        monkeypatch.setattr(os, "geteuid", lambda: user)
    lab.lab([], [])
    assert ("--allow-root" in started[0][0]) == (user == 0)


def test_without_jupyterlab_or_lessons_it_is_a_sentence_and_nothing_is_copied(
    clone, started, monkeypatch, capsys, tmp_path_factory
):
    monkeypatch.setattr(lab, "find_spec", lambda name: None)
    assert main(["lessons", "lab"]) == 2 and "JupyterLab is not installed: pip install" in capsys.readouterr().err
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    assert main(["lessons", "lab"]) == 2 and "clone of the course" in capsys.readouterr().err
    assert not started and not (clone / "my").exists()


@pytest.mark.parametrize("environment", [kernel.environment, lambda: {**os.environ, **lab.settings(Path())}])
def test_a_kernel_checks_what_beartype_would_leave_out_where_python_optimizes(environment, monkeypatch):
    monkeypatch.setenv("PYTHONOPTIMIZE", "1")
    asked = [sys.executable, "-c", "print(__debug__)"]
    done = subprocess.run(asked, env=environment(), capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"


def test_what_is_for_jupyterlab_is_for_nothing_else(clone, capsys):
    with pytest.raises(SystemExit):
        main(["lessons", "list", "--", "--no-browser"])
    assert "what follows -- is for lab, and not for list: leave it out" in capsys.readouterr().err
