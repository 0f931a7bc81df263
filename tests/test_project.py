"""The project's own files agree with each other: versions, environment, rooms, commands, README."""

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from cs336kit.course.readme import lesson_table, with_table

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PINS = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().split())


def requirements():
    project = PYPROJECT["project"]
    extras = project["optional-dependencies"]
    return [*project["dependencies"], *extras["lab"], *extras["test"]]


def canonical(name):
    return re.sub(r"[-_.]+", "-", re.match(r"[A-Za-z0-9_.-]+", name)[0]).lower()


def test_every_requirement_is_pinned_exactly():
    pinned = {canonical(name) for name in PINS}
    assert {canonical(name) for name in requirements()} <= pinned
    assert PINS["torch"] == "2.13.0"
    assert all(re.fullmatch(r"\d+(\.\w+)*", version) for version in PINS.values())


def test_conda_and_binder_install_the_same_pinned_set():
    dependencies = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    python = next(d for d in dependencies if isinstance(d, str) and d.startswith("python"))
    assert python == "python=" + PYPROJECT["project"]["requires-python"].removeprefix(">=")
    pip = next(d for d in dependencies if isinstance(d, dict))["pip"]
    assert pip == ["-c constraints.txt", "-e .[lab,test]"]
    assert '-c constraints.txt -e ".[lab,test]"' in (ROOT / "Makefile").read_text()


def modules(room):
    return sorted((ROOT / "cs336kit" / room).rglob("*.py"))


@pytest.mark.parametrize("path", modules("predict"), ids=lambda path: path.stem)
def test_predict_needs_the_standard_library_alone(path):
    for node in ast.walk(ast.parse(path.read_text())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            names = [node.module]
        for name in names:
            assert name.split(".")[0] in sys.stdlib_module_names or name.startswith("cs336kit.predict"), name


def test_importing_predict_imports_no_torch():
    code = (
        "import sys, cs336kit.predict; print([m for m in ('torch', 'numpy', 'matplotlib', 'yaml') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_course_has_its_rooms_and_no_other_folder():
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert {path.split("/")[0] for path in tracked if "/" in path} <= {
        "cs336kit",
        "notebooks",
        "benchmarks",
        "tests",
        ".ci",
    }
    rooms = {path.split("/")[1] for path in tracked if path.startswith("cs336kit/") and path.count("/") > 1}
    assert rooms == {"predict", "lm", "measure", "teach", "course"}


def test_no_folder_of_tests_is_left_out(pytestconfig):
    folders = {path.parent.name for path in (ROOT / "tests").rglob("test_*.py")}
    assert {"fast", "predict", "lm", "measure", "teach", "notebooks", "claims", "browser"} <= folders
    assert not folders & set(pytestconfig.getini("norecursedirs"))


def test_ci_runs_the_readme_s_command_and_nothing_else():
    lines = [line for line in (ROOT / ".ci/run").read_text().splitlines() if line and not line.startswith("#")]
    assert lines[-1] == "make test" and len(lines) == 3
    assert "make test" in (ROOT / "README.md").read_text()


def test_help_lists_every_target():
    makefile = (ROOT / "Makefile").read_text()
    phony = re.search(r"\.PHONY: (.*)", makefile)[1].split()
    shown = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert re.findall(r"make ([a-z-]+)", shown) and set(re.findall(r"^  make ([a-z-]+)", shown, flags=re.M)) == set(
        phony
    )


def test_without_python_make_says_what_is_missing(tmp_path):
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("bash", "git", "sh", "make"):
        (tools / name).symlink_to(shutil.which(name))
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    done = subprocess.run(
        ["make", "setup"], cwd=tmp_path, capture_output=True, text=True, env={**os.environ, "PATH": str(tools)}
    )
    assert done.returncode != 0
    assert "Python 3.11 or newer is needed" in done.stdout


def test_the_readme_s_table_is_that_of_the_notebooks():
    readme = (ROOT / "README.md").read_text()
    assert with_table(readme, lesson_table(ROOT / "notebooks")) == readme, "run: make readme"


def test_links_of_the_readme_lead_somewhere():
    readme = (ROOT / "README.md").read_text()
    for target in re.findall(r"\]\(([^)#]+)\)", readme):
        assert target.startswith("https://") or (ROOT / target).exists(), target


def test_a_readme_without_its_marks_is_refused():
    with pytest.raises(ValueError, match=r"README\.md lacks the lines"):
        with_table("nothing", "")


def test_every_name_of_predict_is_there_on_first_use():
    from cs336kit import predict

    assert {"einsum_flops", "gradient_flops", "transfer_seconds"} <= set(dir(predict))
    assert all(callable(getattr(predict, name)) for name in predict._ON_FIRST_USE)
    with pytest.raises(AttributeError, match="has no 'telepathy'"):
        _ = predict.telepathy
