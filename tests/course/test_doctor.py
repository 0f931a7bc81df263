"""What set-up says about an environment that is not the course's."""

import sys
from importlib import metadata
from pathlib import PurePosixPath
from types import SimpleNamespace

import pytest

from cs336course import doctor
from cs336kit.command import main


class File(PurePosixPath):
    def locate(self):
        return self


def package(version, *requires, files=()):
    return SimpleNamespace(version=version, requires=list(requires), files=[File(name) for name in files])


@pytest.fixture
def environment(monkeypatch):
    """The packages that seem to be installed, by name: the smallest set that the doctor finds nothing wrong with."""
    packages = {
        "cs336kit": package("0", 'numpy; extra == "lab"', 'gfloat; extra == "test"', 'torch>=2; extra == "lab"'),
        "numpy": package("2.4.6", files=[__file__]),
        "torch": package("2.13.0+cpu", 'triton; platform_system == "none of these"'),
    }

    def distribution(name):
        try:
            return packages[name]
        except KeyError:
            raise metadata.PackageNotFoundError(name) from None

    monkeypatch.setattr(doctor.metadata, "distribution", distribution)
    monkeypatch.setattr(doctor, "_TORCH", "print()")
    return packages


def problems():
    return doctor.problems({"numpy": "2.4.6", "torch": "2.13.0"})


def test_nothing_is_wrong_with_what_is_pinned_and_whole(environment):
    assert problems() == []


def test_a_missing_package_is_named_with_who_needs_it(environment):
    del environment["numpy"]
    assert problems() == ["numpy is not installed, but cs336kit needs it."]


def test_another_version_than_the_pinned_one_is_named(environment):
    environment["numpy"] = package("2.3.0")
    assert problems() == ["numpy 2.3.0 is installed, but constraints.txt says 2.4.6: outputs may differ."]


def test_a_version_that_another_package_refuses_is_named(environment):
    environment["torch"] = package("1.9.0")
    assert "torch 1.9.0 is installed, but cs336kit needs torch>=2." in problems()
    # What is not released yet is as good as its release.
    environment["torch"] = package("2.13.0rc1")
    assert problems() == ["torch 2.13.0rc1 is installed, but constraints.txt says 2.13.0: outputs may differ."]


@pytest.mark.parametrize("files", [None, ["numpy/gone.py"]])
def test_a_package_of_which_a_part_is_missing_is_named(environment, files):
    environment["numpy"] = package("2.4.6", files=files or [])
    if files is None:
        environment["numpy"].files = None
    (said,) = problems()
    assert said.startswith("numpy 2.4.6 is not installed completely: ") and said.endswith("is missing.")


def test_a_package_whose_installation_was_stopped_is_named_once(environment):
    environment["numpy"] = package(None, files=[__file__])
    environment["torch"].requires.append("numpy>=2")
    assert problems() == ["numpy is not installed completely: its version is missing."]


def test_compiled_files_may_be_gone(environment):
    environment["numpy"] = package("2.4.6", files=["numpy/__pycache__/gone.pyc"])
    assert problems() == []


def test_a_cuda_build_without_triton_is_named(environment, monkeypatch):
    monkeypatch.setattr(doctor, "_TORCH", "print('12.6')")
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(doctor, "find_spec", lambda name: None)
    assert problems() == ["torch is a build for CUDA 12.6, which needs triton, but triton is not installed."]
    monkeypatch.setattr(sys, "platform", "darwin")
    assert problems() == [], "there it has another name"
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(doctor, "find_spec", lambda name: object())
    assert problems() == []


@pytest.mark.parametrize(
    ("code", "end"),
    [
        ("raise ImportError('libcudart.so.12: cannot open')", "ImportError: libcudart.so.12: cannot open"),
        ("import os; os._exit(132)", "it ended with code 132"),
    ],
)
def test_a_torch_that_does_not_run_is_named_with_its_own_words(environment, monkeypatch, code, end):
    monkeypatch.setattr(doctor, "_TORCH", code)
    assert problems() == [f"torch is installed but does not run: {end}"]


@pytest.mark.proof
def test_a_graphviz_without_the_system_s_libraries_is_named_with_the_remedy(environment, monkeypatch):
    environment["cs336kit"].requires.append('pygraphviz; extra == "lab"')
    environment["pygraphviz"] = package("2.0.4", files=[__file__])
    assert problems() == []
    broken = (
        "from cs336kit.teach.figures import graph; import importlib\n"
        "def fails(name): raise ImportError('libX.so: cannot open')\n"
        "importlib.import_module = fails\n"
    )
    monkeypatch.setattr(doctor, "_GRAPHVIZ", broken + doctor._GRAPHVIZ)
    (said,) = problems()
    assert "Graphviz, which lays out the graphs, cannot be loaded: libX.so: cannot open. On Debian" in said


def test_a_graphviz_that_does_not_run_is_named_and_one_that_is_not_installed_is_not(environment, monkeypatch):
    environment["cs336kit"].requires.append('pygraphviz; extra == "lab"')
    assert [sentence for sentence in problems() if "does not run" in sentence] == [], "it is not installed at all"
    environment["pygraphviz"] = package("2.0.4", files=[__file__])
    monkeypatch.setattr(doctor, "_GRAPHVIZ", "import os; os._exit(132)")
    assert problems() == ["pygraphviz is installed but does not run: it ended with code 132"]


def test_what_is_needed_twice_is_looked_at_once(environment):
    environment["numpy"] = package("2.4.6", "torch", files=["numpy/gone.py"])
    assert problems() == ["numpy 2.4.6 is not installed completely: numpy/gone.py is missing."]


def test_the_command_ends_with_1_and_the_remedy(environment, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["lessons", "doctor"]) == 0
    assert "Everything that the lessons need is installed. (Versions are compared in a clone" in capsys.readouterr().out
    torch = environment.pop("torch")
    assert main(["lessons", "doctor"]) == 1
    assert "torch is not installed" in (said := capsys.readouterr().out) and 'its extra is "lab"' in said
    environment["torch"] = torch
    (tmp_path / "constraints.txt").write_text("numpy==2.4.6\ntorch==2.13.0\n")
    assert (
        main(["lessons", "doctor"]) == 0 and "Everything that the lessons need is installed" in capsys.readouterr().out
    )
    del environment["torch"]
    assert main(["lessons", "doctor"]) == 1
    said = capsys.readouterr().out
    assert "torch is not installed" in said and "make clean" in said
    with pytest.raises(SystemExit, match="2"):
        main(["lessons", "doctor", "2"])
    assert "leave the numbers out" in capsys.readouterr().err
