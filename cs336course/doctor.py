"""``cs336kit lessons doctor``: check that what the lessons need is installed completely, in the pinned versions.

Set-up runs this, so that a wrong environment is reported there and not by a cell that fails.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

PINS = Path("constraints.txt")
_REMEDY = 'To repair it: make clean, then make again (without make: pip install -c constraints.txt -e ".[lab]").'
_REMEDY_OUTSIDE = 'To repair it, install the kit again with all that the lessons need: its extra is "lab".'
#: Both run in processes of their own, because what does not fit the machine may crash.
_GRAPHVIZ = "from cs336kit.teach.figures.graph import graphviz; graphviz()"
_TORCH = "import torch; torch.ones(2, 2) @ torch.ones(2, 2); print(torch.version.cuda or '')"


def report() -> int:
    """Print what is wrong with the environment, a sentence each; returns 1 then, else 0."""
    # An installed kit says which versions it needs, and only a clone, with which ones the stored outputs were made.
    pinned = pins() if PINS.exists() else {}
    found = problems(pinned)
    for sentence in found:
        print(sentence)
    if found:
        print(_REMEDY if pinned else _REMEDY_OUTSIDE)
    elif pinned:
        print(f"Everything that the lessons need is installed, in the versions of {PINS}.")
    else:
        print(f"Everything that the lessons need is installed. (Versions are compared in a clone, with its {PINS}.)")
    return int(bool(found))


def pins(path: Path = PINS) -> dict[str, str]:
    """Version of every package that constraints.txt pins, by its canonical name."""
    from packaging.utils import canonicalize_name

    lines = path.read_text(encoding="utf-8").split()
    return {canonicalize_name(name): version for name, _, version in (line.partition("==") for line in lines)}


def problems(pinned: dict[str, str]) -> list[str]:
    """What the lessons lack here, a sentence each: packages, versions, files of packages, a torch that runs."""
    missing, installed, refused = _walk()
    found = [f"{name} is not installed, but {needed_by} needs it." for name, needed_by in missing.items()] + refused
    for name, here in installed.items():
        public = here.version.split("+")[0]
        if public != pinned.get(name, public):
            found.append(f"{name} {here.version} is installed, but {PINS} says {pinned[name]}: outputs may differ.")
        if lost := _lost(here):
            found.append(f"{name} {here.version} is not installed completely: {lost} is missing.")
    found += [] if "torch" in missing else _torch()
    return found + ([*_graphviz()] if "pygraphviz" in installed and not missing else [])


def _walk() -> tuple[dict[str, str], dict[str, metadata.Distribution], list[str]]:
    """What the kit with its lessons needs, directly and indirectly.

    Returns (missing package → who needs it, what is installed, a sentence for each version that some package rules out).
    """
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    missing: dict[str, str] = {}
    installed: dict[str, metadata.Distribution] = {}
    refused: list[str] = []
    todo, seen = [(Requirement("cs336kit[lab]"), "the course")], set()
    while todo:
        need, needed_by = todo.pop()
        name = canonicalize_name(need.name)
        try:
            here = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            missing.setdefault(name, needed_by)
            continue
        if here.version is None:
            refused.append(f"{name} is not installed completely: its version is missing.")
            continue
        if not need.specifier.contains(here.version, prereleases=True):
            refused.append(f"{name} {here.version} is installed, but {needed_by} needs {name}{need.specifier}.")
        installed[name] = here
        if (name, *sorted(need.extras)) in seen:
            continue
        seen.add((name, *sorted(need.extras)))
        for further in map(Requirement, here.requires or []):
            if further.marker is None or any(further.marker.evaluate({"extra": e}) for e in ("", *need.extras)):
                todo.append((further, name))
    return missing, dict(sorted(installed.items())), sorted({*refused})


def _lost(here: metadata.Distribution) -> str | None:
    """A file that the package should have but lacks, a sign of an interrupted installation."""
    if here.files is None:
        return "the list of its files"
    # Compiled files are made and deleted at any time.
    return next((str(f) for f in here.files if f.suffix != ".pyc" and not os.path.exists(str(f.locate()))), None)


def _run(code: str) -> tuple[str, str]:
    """What a process of its own prints, and the last line of its error, if it fails."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    last = (done.stderr.strip().splitlines() or [f"it ended with code {done.returncode}"])[-1]
    return done.stdout.strip(), last if done.returncode else ""


def _graphviz() -> Iterator[str]:
    if error := _run(_GRAPHVIZ)[1]:
        yield f"pygraphviz is installed but does not run: {error}"


def _torch() -> Iterator[str]:
    cuda, error = _run(_TORCH)
    if error:
        yield f"torch is installed but does not run: {error}"
    elif cuda and sys.platform == "linux" and find_spec("triton") is None:
        yield f"torch is a build for CUDA {cuda}, which needs triton, but triton is not installed."
