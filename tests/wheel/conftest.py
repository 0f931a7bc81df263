"""A wheel of the tracked files, built once for all workers of a run, and the folders it is installed into."""

import os
import shutil
import site
import subprocess
import sys
import sysconfig
import venv
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(*command, cwd=None, **environment):
    """Run a command where no variable leads to the clone."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | environment
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)


@pytest.fixture(scope="session")
def tracked():
    listed = run("git", "ls-files", "--cached", "--others", "--exclude-standard", cwd=ROOT)
    return [path for path in listed.stdout.splitlines() if (ROOT / path).is_file()]


@pytest.fixture(scope="session")
def shared(tmp_path_factory, request):
    """A folder that all workers of this run share, and no other run."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if hasattr(request.config, "workerinput") else own


@contextmanager
def once(folder):
    """Whether this is the first to make a folder; others wait until it has, and if it failed, the next one tries."""
    fcntl = pytest.importorskip("fcntl", reason="workers wait for each other with a lock that this system lacks")
    with open(f"{folder}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = Path(f"{folder}.done")
        yield not done.exists()
        done.touch()


@pytest.fixture(scope="session")
def wheel(tracked, shared):
    """Built from a copy, so that a build folder of earlier builds cannot add to it."""
    folder = shared / "wheel"
    with once(folder) as first:
        if first:
            for path in tracked:
                (folder / "source" / path).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / path, folder / "source" / path)
            options = ("--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--wheel-dir", str(folder))
            done = run(sys.executable, "-m", "pip", "wheel", *options, str(folder / "source"))
            assert done.returncode == 0, done.stderr
    return next(folder.glob("*.whl"))


def install(wheel, folder):
    """A new environment with the wheel alone; returns the folder of its commands."""
    venv.create(folder, with_pip=False)
    options = ("--quiet", "--no-compile", "--no-index", "--no-deps")
    done = run(sys.executable, "-m", "pip", "--python", str(folder), "install", *options, str(wheel))
    assert done.returncode == 0, done.stderr
    return folder / "bin"


@pytest.fixture(scope="session")
def empty_environment(wheel, shared):
    """The commands of an environment with the wheel alone: no index to ask, and whatever it requires would be missed."""
    folder = shared / "empty"
    with once(folder) as first:
        if first:
            install(wheel, folder)
    return folder / "bin"


@pytest.fixture(scope="session")
def full_environment(wheel, shared):
    """The commands of an environment with the wheel and, behind it, the packages of the Python that runs the tests.

    Their folders are only searched: an editable installation of the clone in them is a .pth file or a hook, and neither
    is read there.
    """
    folder = shared / "full"
    with once(folder) as first:
        if first:
            commands = install(wheel, folder)
            others = dict.fromkeys(
                [*map(sysconfig.get_path, ("purelib", "platlib")), *site.getsitepackages(), site.getusersitepackages()]
            )
            (own,) = folder.glob("lib/python*/site-packages")
            (own / "others.pth").write_text("".join(f"{path}\n" for path in others))
            code = "import cs336kit, torch, nbval; print(cs336kit.__file__)"
            done = run(commands / "python", "-c", code, cwd=shared)
            assert done.stdout.strip() == str(own / "cs336kit" / "__init__.py"), done.stdout + done.stderr
    return folder / "bin"
