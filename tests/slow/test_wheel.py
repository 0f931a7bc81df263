"""The kit as it is installed: a wheel of the tracked files, in an environment that has nothing else."""

import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = ("predict", "lm", "measure", "teach", "course")


def run(*command, cwd=None):
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def tracked():
    listed = run("git", "ls-files", "--cached", "--others", "--exclude-standard", cwd=ROOT)
    return [path for path in listed.stdout.splitlines() if (ROOT / path).is_file()]


@pytest.fixture(scope="module")
def wheel(tracked, tmp_path_factory):
    """Built from a copy, so that a build folder of earlier builds cannot add to it."""
    folder = tmp_path_factory.mktemp("wheel")
    for path in tracked:
        (folder / "source" / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, folder / "source" / path)
    options = ("--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--wheel-dir", str(folder))
    done = run(sys.executable, "-m", "pip", "wheel", *options, str(folder / "source"))
    assert done.returncode == 0, done.stderr
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def bin_folder(wheel, tmp_path_factory):
    """The commands of an environment with the wheel alone: no index to ask, and whatever it requires would be missed."""
    folder = tmp_path_factory.mktemp("empty")
    venv.create(folder, with_pip=False)
    options = ("--quiet", "--no-compile", "--no-index")
    done = run(sys.executable, "-m", "pip", "--python", str(folder), "install", *options, str(wheel))
    assert done.returncode == 0, done.stderr
    return folder / "bin"


def test_every_file_of_every_room_is_inside_and_nothing_else(wheel, tracked):
    inside = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert inside == {path for path in tracked if path.startswith("cs336kit/")}
    assert "cs336kit/py.typed" in inside
    for room in ROOMS:
        assert any(name.startswith(f"cs336kit/{room}/") for name in inside)


def test_the_command_plans_where_nothing_else_is_installed(bin_folder, tmp_path):
    done = run(bin_folder / "cs336kit", "plan", "llama-3-8b", "--tokens", "15T", "--count", "1024", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("llama-3-8b: 8,030,261,248 parameters")
    version = run(bin_folder / "cs336kit", "--version", cwd=tmp_path).stdout.split()[1]
    assert list(bin_folder.parent.rglob(f"cs336kit-{version}.dist-info"))


def test_predict_answers_there_with_every_name(bin_folder, tmp_path):
    code = "from cs336kit import predict; [getattr(predict, name) for name in dir(predict)]; print(len(predict.MODELS))"
    done = run(bin_folder / "python", "-c", code, cwd=tmp_path)
    assert done.stderr == "" and int(done.stdout) > 5


@pytest.mark.parametrize("room", ["lm", "measure", "teach"])
def test_a_room_without_torch_names_the_extra_in_a_sentence(bin_folder, tmp_path, room):
    done = run(bin_folder / "python", "-c", f"import cs336kit.{room}", cwd=tmp_path)
    sentence = (
        'This part of the kit needs torch: pip install "cs336kit[torch]", or "cs336kit[lab]" for the whole course.'
    )
    assert done.stderr.splitlines()[-1] == f"ModuleNotFoundError: {sentence}"
    assert "During handling" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["lessons"], "there are no lessons in notebooks/: run this in a clone of the course."),
        (["lessons", "verify"], 'This command needs pytest: pip install "cs336kit[lab,test]"'),
        (["lessons", "refresh"], 'This command needs nbformat: pip install "cs336kit[lab,test]"'),
    ],
)
def test_commands_for_maintainers_say_what_they_lack(bin_folder, tmp_path, arguments, sentence):
    done = run(bin_folder / "cs336kit", *arguments, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr.strip()) == (2, "", sentence)
