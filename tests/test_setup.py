"""Set-up by make, with a Python that only writes down what it is asked: a stop leads to a sentence and leaves nothing broken."""

import os
import shutil
import signal
import subprocess
import sys
import time

import pytest
from test_project import ROOT, make, without_make

FAKE = """#!{bash}
echo "$*" >> "{folder}/asked"
case "$*" in
  "-m venv "*) mkdir -p "$3/bin"; cp "$0" "$3/bin/python"; {venv} ;;
  "-c import sys; sys.exit(sys.version_info"*) exit {old} ;;
  "-c import sys, torch"*) exit {cuda} ;;
  "-c import ipykernel"*) exit {jupyter} ;;
  "-m pip install"*) exit {pip} ;;
  "-m pip freeze"*) printf '{frozen}' ;;
  "-m cs336kit lessons doctor") exit {doctor} ;;
  "-m cs336kit lessons lab"*) echo "$HOME" > "{folder}/home" ;;
esac
"""


@pytest.fixture
def python(tmp_path):
    """Write the Python that PYTHON= names: how its commands end (0 is well), what its venv does besides, what is installed."""

    def write(venv="true", old=0, cuda=0, pip=0, doctor=0, jupyter=0, frozen=""):
        path = tmp_path / "fake-python"
        settings = {"venv": venv, "old": old, "cuda": cuda, "pip": pip, "doctor": doctor}
        settings |= {"jupyter": jupyter, "frozen": frozen}
        path.write_text(FAKE.format(bash=shutil.which("bash"), folder=tmp_path, **settings))
        path.chmod(0o755)
        return str(path)

    return write


def asked(folder):
    return (folder / "asked").read_text().splitlines()


def installs(folder):
    return [line.removeprefix("-m pip install ") for line in asked(folder) if line.startswith("-m pip install ")]


def ready(folder):
    return any((folder / ".venv").glob(".ready*"))


def test_set_up_says_what_it_costs_installs_what_is_pinned_and_asks_the_doctor(tmp_path, python):
    code, said = make(tmp_path, "setup", PYTHON=python())
    assert code == 0, said
    assert code == 0 and ready(tmp_path) and "GB" in said and "CPU=1" in said
    (line,) = installs(tmp_path)
    assert "-c constraints.txt" in line and "-e .[lab,test]" in line and "--quiet" not in line and "index" not in line
    assert asked(tmp_path).index("-m cs336kit lessons doctor") > asked(tmp_path).index(f"-m pip install {line}")
    before = len(asked(tmp_path))
    assert make(tmp_path, "setup", PYTHON=python())[0] == 0 and len(asked(tmp_path)) == before


def test_the_cpu_build_comes_from_pytorch_and_everything_else_from_where_pip_looks(tmp_path, python):
    assert make(tmp_path, "setup", "CPU=1", PYTHON=python())[0] == 0
    torch, rest = installs(tmp_path)
    assert "--no-deps --index-url https://download.pytorch.org/whl/cpu torch" in torch and "-c constraints.txt" in torch
    assert "index" not in rest
    assert make(tmp_path, "setup", PYTHON=python())[0] == 0, "what CPU=1 has set up serves without it, too"


def test_cpu_1_on_an_environment_with_the_cuda_build_says_what_to_do(tmp_path, python):
    code, said = make(tmp_path, "setup", "CPU=1", PYTHON=python(cuda=1))
    assert code != 0 and "PyTorch is the CUDA build here, and CPU=1 asks for the other one. Run make clean" in said
    assert not ready(tmp_path)


@pytest.mark.parametrize("broken", [{"pip": 1}, {"doctor": 1}])
def test_what_is_not_whole_is_not_ready_and_the_next_make_goes_on(tmp_path, python, broken):
    code, said = make(tmp_path, "setup", PYTHON=python(**broken))
    assert code != 0 and not ready(tmp_path)
    assert ("Run make again: it goes on from here." in said) == ("pip" in broken)
    shutil.copy(python(), tmp_path / ".venv/bin/python")
    assert make(tmp_path, "setup", PYTHON=python())[0] == 0 and ready(tmp_path)
    assert len([line for line in asked(tmp_path) if line == "-m venv .venv"]) == 1


def test_a_python_that_cannot_make_an_environment(tmp_path, python):
    code, said = make(tmp_path, "setup", PYTHON=python(venv="exit 1"))
    assert code != 0 and "apt install python3-venv" in said and not (tmp_path / ".venv").exists()


def test_ctrl_c_while_the_environment_is_made_and_make_again(tmp_path, python):
    # An environment in which everything seems to be there, because it was stopped late.
    make(tmp_path, "help")
    # What waits ends at once by Ctrl-C: a bash whose child ends well meanwhile goes on, and so does a Python that closes a file.
    code = f'import signal, time; signal.signal(signal.SIGINT, signal.SIG_DFL); open("{tmp_path}/now", "w"); time.sleep(600)'
    wait = f"exec '{sys.executable}' -I -c '{code}'"
    stopped = subprocess.Popen(
        ["make", "setup"],
        cwd=tmp_path,
        env=without_make() | {"PYTHON": python(venv=wait)},
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        # What a shell starts in the background ignores Ctrl-C, and so would all that it starts.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    while not (tmp_path / "now").exists():
        assert stopped.poll() is None
        time.sleep(0.05)
    os.killpg(stopped.pid, signal.SIGINT)
    assert stopped.wait(60) != 0 and not ready(tmp_path)
    code, said = make(tmp_path, "setup", PYTHON=python())
    assert code == 0 and "Setting up .venv" in said and ready(tmp_path)


@pytest.mark.parametrize("target", ["setup", "constraints"])
def test_an_old_python_is_named(tmp_path, python, target):
    old = python(old=1)
    code, said = make(tmp_path, target, PYTHON=old)
    assert code != 0 and f"Python 3.11 or newer is needed and was not found as PYTHON={old}." in said
    assert (tmp_path / "constraints.txt").read_text() == (ROOT / "constraints.txt").read_text()


def test_constraints_stay_as_they_are_where_pip_fails(tmp_path, python):
    code, said = make(tmp_path, "constraints", PYTHON=python(pip=1))
    assert code != 0 and "The packages are not all installed" in said
    assert (tmp_path / "constraints.txt").read_text() == (ROOT / "constraints.txt").read_text()


@pytest.mark.parametrize("build", ["", "+cpu", "+cu132"])
def test_constraints_are_the_same_from_every_build_of_torch_and_from_every_pip(tmp_path, python, build):
    frozen = ["pytest==9.2.0", "attrs==26.1.0", f"torch==2.15.0{build}", "PyYAML==6.0.3", "pytest-cov==7.1.0"]
    if build.startswith("+cu"):
        frozen += ["cuda-toolkit==13.2.2", "nvidia-nccl-cu13==2.30.7", "triton==3.9.0"]
    code, said = make(tmp_path, "constraints", PYTHON=python(frozen="".join(line + "\\n" for line in frozen)))
    assert code == 0 and "constraints.txt is renewed; now: make test" in said
    pinned = ["attrs==26.1.0", "pytest-cov==7.1.0", "pytest==9.2.0", "PyYAML==6.0.3", "torch==2.15.0"]
    assert (tmp_path / "constraints.txt").read_text().splitlines() == pinned


def lab(folder, python, **environment):
    """The last command of `make lab`, and its home."""
    options = environment.pop("LAB", "")
    assert make(folder, "lab", f"PY={python()}", f"LAB={options}", **environment)[0] == 0
    return asked(folder)[-1].rstrip(), (folder / "home").read_text().strip()


def test_the_lab_is_what_the_command_opens(tmp_path, python):
    assert lab(tmp_path, python)[0] == "-m cs336kit lessons lab"
    assert (
        lab(tmp_path, python, LAB="--no-browser --port=9000")[0]
        == "-m cs336kit lessons lab -- --no-browser --port=9000"
    )


@pytest.mark.parametrize("home", ["/proc/nobody", ""])
def test_without_a_home_that_can_be_written_there_is_one_in_the_clone(tmp_path, python, home):
    _, used = lab(tmp_path, python, HOME=home)
    assert used == str(tmp_path / ".home")


def test_a_home_that_can_be_written_is_used(tmp_path, python):
    _, used = lab(tmp_path, python, HOME=str(tmp_path))
    assert used == str(tmp_path)


@pytest.mark.parametrize(("numbers", "verified"), [("2", " 2"), ("2 5", " 2 5"), ("", "")])
def test_numbers_of_lessons_reach_the_command(tmp_path, python, numbers, verified):
    assert make(tmp_path, "check-notebooks", f"NB={numbers}", f"PY={python()}")[0] == 0
    assert [line.rstrip() for line in asked(tmp_path)] == [f"-m cs336kit lessons verify{verified}"]


def test_a_number_of_no_lesson_fails(tmp_path):
    (tmp_path / "notebooks").mkdir()
    shutil.copy(ROOT / "notebooks/00_napkin_math.ipynb", tmp_path / "notebooks")
    code, said = make(tmp_path, "check-notebooks", "NB=0 77", f"PY={sys.executable}", PYTHONPATH=str(ROOT))
    assert code != 0 and "no lesson '77' in notebooks; there are 00_napkin_math" in said


@pytest.mark.parametrize("jupyter", [0, 1])
def test_without_jupyter_the_tests_that_need_cuda_run_still(tmp_path, python, jupyter):
    (tmp_path / "tests").mkdir()
    for name, mark in {"test_a.py": "@pytest.mark.gpu\n", "test_b.py": ""}.items():
        (tmp_path / "tests" / name).write_text(mark)
    code, said = make(tmp_path, "gpu-lessons", f"PY={python(jupyter=jupyter)}", NB="02")
    assert code == 0 and ("The lessons are left out" in said) == bool(jupyter)
    assert "-m pytest -q -m gpu tests/test_a.py" in asked(tmp_path)
    assert ("-m cs336kit lessons verify 02" in asked(tmp_path)) == (not jupyter)


def test_git_and_the_tests_leave_the_reader_s_copies_alone(pytestconfig):
    ignored = subprocess.run(["git", "check-ignore", "my/00_napkin_math.ipynb", ".home/x"], cwd=ROOT, check=False)
    assert ignored.returncode == 0 and "my" in pytestconfig.getini("norecursedirs")
