"""Open the reader's copies of the lessons in JupyterLab: ``cs336kit lessons lab``, which `make lab` calls."""

import os
import subprocess
import sys
import sysconfig
from importlib.util import find_spec
from pathlib import Path

from cs336course import copies, lessons
from cs336kit import journal as _journal


def lab(names: list[str], options: list[str]) -> int:
    """Copy the lessons, as `copies.copy` does, and run JupyterLab on the first of them; returns its exit code.

    options: for JupyterLab, such as ``--no-browser``. It listens on this machine only, with a token. Raises ValueError
    where there are no lessons or there is no JupyterLab.
    """
    first = lessons.find(names)[0].name
    if find_spec("jupyterlab") is None:
        raise ValueError('JupyterLab is not installed: pip install -c constraints.txt -e ".[lab]"')
    for sentence in copies.copy(names):
        print(sentence, flush=True)
    command = [sys.executable, "-m", "jupyterlab", "--ip=127.0.0.1", "--ServerApp.root_dir=."]
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        command.append("--allow-root")
    if os.name == "posix":
        # A terminal there finds the command. A login shell, which JupyterLab starts where it is in no terminal itself, would
        # read the system's own PATH.
        command.append(f"--ServerApp.terminado_settings=shell_command=['{os.environ.get('SHELL') or 'sh'}']")
    command += [f"--LabApp.default_url=/lab/tree/{copies.COPIES}/{first}", *options]
    with subprocess.Popen(command, env={**os.environ, **settings(Path.cwd())}) as server:
        while True:
            try:
                return server.wait()
            except KeyboardInterrupt:  # JupyterLab has it, too, and asks whether it is meant
                continue


def settings(clone: Path) -> dict[str, str]:
    """Environment variables of JupyterLab and its kernels."""

    def before(variable: str, folder: str) -> str:
        return os.pathsep.join(filter(None, [folder, os.environ.get(variable)]))

    return {
        # The conditions of the stored outputs: one thread. On a busy machine that is faster, too.
        "OMP_NUM_THREADS": "1",
        # What a cell starts in a shell prints as it was stored, on Windows, too.
        "PYTHONUTF8": "1",
        # As in `kernel.environment`: beartype would check nothing.
        "PYTHONOPTIMIZE": "",
        # Where a lesson keeps what the reader has predicted.
        _journal.VARIABLE: str(clone / copies.COPIES / "guesses.json"),
        # nbgrader brings menus and servers of its own, which are a lecturer's: whoever starts JupyterLab otherwise has them.
        "JUPYTER_CONFIG_PATH": before("JUPYTER_CONFIG_PATH", str(clone / ".jupyter")),
        # Figures follow JupyterLab's dark theme, by an extension in that folder.
        "JUPYTER_PATH": before("JUPYTER_PATH", str(clone / ".jupyter")),
        # A terminal in JupyterLab finds the cs336kit command.
        "PATH": before("PATH", sysconfig.get_path("scripts")),
    }
