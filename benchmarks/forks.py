"""A warm process, its copies of the repository, and its forks: what a test of a mutant runs in."""

import ast
import importlib
import multiprocessing
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from benchmarks.mutants import Mutant

ROOT = Path(__file__).parents[1]
#: Options of pytest in a fork: no plugin of which a mutant has nothing.
QUIET = ("-q", "-p", "no:nbval", "-p", "no:cacheprovider", "-p", "no:cov", "-p", "no:xdist")
#: This thread's copy of the repository, as `root`.
own = threading.local()


def warm(folders: list[str]) -> None:
    """Import all that the kit and its tests import from elsewhere: most of the time that a test file needs to start."""
    paths = [path for folder in ("cs336kit", *folders) for path in sorted((ROOT / folder).rglob("*.py"))]
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in paths]
    for node in (node for tree in trees for node in ast.walk(tree)):
        absolute = isinstance(node, ast.ImportFrom) and not node.level and node.module
        for name in [alias.name for alias in node.names] if isinstance(node, ast.Import) else [absolute or ""]:
            mine = [root / f"{name.split('.')[0]}{end}" for root in (ROOT, ROOT / "tests") for end in ("", ".py")]
            with suppress(ImportError, AttributeError, ValueError):
                if not any(path.exists() for path in mine):
                    module = importlib.import_module(name)
                    # Some packages load what they hold when it is asked for.
                    for part in node.names if absolute else ():
                        getattr(module, part.name)


def copied(folder: str, files: list[str]) -> None:
    """Give this thread a copy of the repository, in which it may change a file."""
    own.root = Path(tempfile.mkdtemp(dir=folder))
    for name in files:
        (own.root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, own.root / name)


def forked(seconds: float, work: Callable[..., int], *arguments: object) -> int | None:
    """The status of a function in a child of this warm process, in this thread's copy; a signal where it takes too long."""
    root = own.root

    def child() -> None:
        own.root = root
        os.setsid()
        resource.setrlimit(resource.RLIMIT_CPU, (int(seconds),) * 2)
        for stream in (0, 1, 2):
            os.dup2(os.open(os.devnull, os.O_RDWR), stream)
        os.chdir(root)
        os.environ["PYTHONPATH"] = str(root)
        sys.path[:] = [str(root), *(path for path in sys.path if path not in ("", str(ROOT)))]
        os._exit(work(*arguments))

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    # Time of the processor, so that a busy machine kills nothing; but what waits forever takes none.
    process.join(600 + 10 * seconds)
    with suppress(ProcessLookupError):
        os.killpg(process.pid or 0, signal.SIGKILL)
    process.join()
    return process.exitcode


@contextmanager
def written(mutant: Mutant) -> Iterator[None]:
    """The mutant stands in this copy of the repository, where what the tests start finds it."""
    inside = own.root / mutant.module
    inside.write_text(mutant.mutated(), encoding="utf-8")
    # Python compiles a file anew when its time has changed, by whole seconds.
    time = random.getrandbits(30)
    os.utime(inside, (time, time))
    try:
        yield
    finally:
        inside.write_text(mutant.text, encoding="utf-8")
