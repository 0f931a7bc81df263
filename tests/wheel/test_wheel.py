"""The kit as it is installed: a wheel of the tracked files, in an environment that has nothing else."""

import json
import re
import zipfile

import pytest

from tests.wheel.conftest import ROOT, run

pytestmark = pytest.mark.proof

ROOMS = (
    "cs336kit/predict",
    "cs336kit/lm",
    "cs336kit/measure",
    "cs336kit/teach",
    "cs336kit/lessons",
    "cs336plan",
    "cs336course",
)
ABOVE = "there are no lessons here, nor in a folder above: they are in a clone of the course, and not in the package. "


def test_every_file_of_every_room_is_inside_and_nothing_else(wheel, tracked):
    inside = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert inside == {path for path in tracked if re.match("cs336(kit|plan|course)/", path)}
    assert {"cs336kit/py.typed", "cs336kit/records/nvidia-h200.json"} <= inside
    for room in ROOMS:
        assert any(name.startswith(f"{room}/") for name in inside)


def test_the_command_plans_where_nothing_else_is_installed(empty_environment, tmp_path):
    done = run(empty_environment / "cs336kit", "plan", "llama-3-8b", "--tokens", "15T", "--count", "1024", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("llama-3-8b: 8,030,261,248 parameters")
    version = run(empty_environment / "cs336kit", "--version", cwd=tmp_path).stdout.split()[1]
    assert list(empty_environment.parent.rglob(f"cs336kit-{version}.dist-info"))


def test_predict_answers_there_with_every_name(empty_environment, tmp_path):
    code = "from cs336kit import predict; [getattr(predict, name) for name in dir(predict)]; print(len(predict.MODELS))"
    done = run(empty_environment / "python", "-c", code, cwd=tmp_path)
    assert done.stderr == "" and int(done.stdout) > 5


@pytest.mark.parametrize("room", ["lm", "measure", "teach"])
def test_a_room_without_torch_names_the_extra_in_a_sentence(empty_environment, tmp_path, room):
    done = run(empty_environment / "python", "-c", f"import cs336kit.{room}", cwd=tmp_path)
    sentence = (
        'This part of the kit needs torch: pip install "cs336kit[torch]", or "cs336kit[lab]" for the whole course.'
    )
    assert done.stderr.splitlines()[-1] == f"ModuleNotFoundError: {sentence}"
    assert "During handling" not in done.stderr


@pytest.mark.parametrize("action", [[], ["copy"], ["verify", "2"], ["refresh"], ["instructor"], ["site"], ["readme"]])
def test_what_needs_the_lessons_says_where_they_are(empty_environment, tmp_path, action):
    done = run(empty_environment / "cs336kit", "lessons", *action, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"{ABOVE}Get one (git clone), change into it (cd), and run this again.\n"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "needed"),
    [
        (["lessons", "verify"], "pytest"),
        (["lessons", "refresh"], "nbformat"),
        (["lessons", "doctor"], "packaging"),
        (["exercise", "try", "07.3"], "torch"),
    ],
)
def test_in_a_clone_a_command_names_the_package_that_it_lacks(empty_environment, arguments, needed):
    done = run(empty_environment / "cs336kit", *arguments, cwd=ROOT)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.strip() == f'This command needs {needed}: pip install "cs336kit[lab,test]"'


def test_guesses_are_forgotten_without_a_clone(empty_environment, tmp_path):
    file = tmp_path / "guesses.json"
    file.write_text(json.dumps({"guesses": {"00 q": {"guess": 1, "answer": 2}}, "solved": []}))
    done = run(empty_environment / "cs336kit", "lessons", "reset", "--yes", cwd=tmp_path, CS336KIT_GUESSES=str(file))
    assert (done.returncode, done.stdout, done.stderr) == (0, "Forgotten: 1 guess and 0 solved exercises.\n", "")


def test_the_doctor_of_an_installed_kit_says_what_only_a_clone_tells(full_environment, tmp_path):
    done = run(full_environment / "cs336kit", "lessons", "doctor", cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    assert done.stdout.startswith("Everything that the lessons need is installed. (Versions are compared in a clone")


def test_from_a_folder_of_a_clone_the_installed_command_lists_its_lessons(full_environment):
    done = run(full_environment / "cs336kit", "lessons", "list", "2", cwd=ROOT / "tests")
    assert (done.returncode, done.stderr) == (0, f"In {ROOT}:\n") and done.stdout.startswith("02 Rounding\n")


def test_a_new_exercise_is_not_written_into_an_installed_kit(full_environment, tmp_path):
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "notebooks" / "07_time.ipynb").touch()
    done = run(full_environment / "cs336kit", "exercise", "new", "07.9", cwd=tmp_path)
    assert done.returncode == 2 and "install that of the clone" in done.stderr


def test_records_are_read_from_the_installed_kit(full_environment, tmp_path):
    code = "from cs336kit import measure; print(measure.recorded('power', gpu='NVIDIA H200').where)"
    done = run(full_environment / "python", "-c", code, cwd=tmp_path)
    assert done.stdout.startswith("recorded on NVIDIA H200 with torch"), done.stderr
