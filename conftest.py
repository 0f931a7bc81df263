"""Settings of every test; the lessons get their rules from the course, which is imported for them alone."""

import gc
import io
import os
import re
import sys
import tomllib
from collections import defaultdict
from importlib.util import find_spec
from pathlib import Path

import pytest

from cs336kit import journal as _journal

# One thread each, here and in the kernels that inherit this: sums depend on how many threads share them.
os.environ.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", PYTHONHASHSEED="0")
# What is stored is what a reader sees who has made no guess.
os.environ[_journal.VARIABLE] = _journal.OFF
# What was traced in one run is counted anew in the next.
os.environ["CS336KIT_TRACED"] = ""
# What a cell starts in a shell prints what was stored, on a terminal that knows only ASCII, too.
os.environ["PYTHONIOENCODING"] = "utf-8"
# There a report keeps its lines, too: else pytest writes it as a single one.
if isinstance(sys.__stdout__, io.TextIOWrapper):
    sys.__stdout__.reconfigure(errors="backslashreplace")
# Nobody looks on, even where this runs in a terminal or a cell of JupyterLab: no progress among the outputs.
os.environ.pop("JPY_SESSION_NAME", None)

if find_spec("hypothesis"):
    from hypothesis import HealthCheck, settings

    # The same examples in every run, and no deadline: a slow machine is not a wrong answer.
    settings.register_profile("course", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
    # `make fuzz`: others in every run, and many.
    settings.register_profile("fuzz", deadline=None, max_examples=int(os.environ.get("EXAMPLES", 2000)))
    settings.load_profile("course")


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """What is imported and collected stays to the end: the search for garbage passes it over, now and in every test.

    There it is seldom: of the tests without torch, which keep many programs, it took a quarter of the time.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(50_000, 20, 20)
        gc.enable()


def pytest_ignore_collect(collection_path):
    """Where torch is hidden (make fast), a file that is marked to need it is not even imported, nor the settings of a folder."""
    file = collection_path / "conftest.py" if collection_path.is_dir() else collection_path
    if file.suffix == ".py" and file.is_file() and "torch" not in sys.modules and find_spec("torch") is None:
        needs = r"^import torch$" if file.name == "conftest.py" else r"^pytestmark = .*mark\.torch\b"
        return True if re.search(needs, file.read_text(encoding="utf-8"), re.MULTILINE) else None
    return None


def pytest_itemcollected(item):
    """What make fast and make plans have run, make test need not run again."""
    apart = any(f"/tests/{folder}/" in item.path.as_posix() for folder in ("kit", "plan"))
    if apart and item.get_closest_marker("torch") is None:
        item.add_marker("standard")


#: Seconds of each file of tests that takes one or more, as `--record-seconds` has measured them.
SECONDS = Path(__file__).with_name("tests") / "seconds.toml"
_seconds: defaultdict[str, float] = defaultdict(float)


def pytest_addoption(parser):
    parser.addoption(
        "--record-seconds", action="store_true", help="write the seconds of these files into tests/seconds.toml"
    )


def _file(nodeid):
    return nodeid.partition("::")[0]


def pytest_collection_modifyitems(items):
    """The longest files first, each in its own order: else a worker would begin one when the others have ended.

    For workers of xdist this holds with `--dist loadfile --no-loadscope-reorder`.
    """
    known = tomllib.loads(SECONDS.read_text()) if SECONDS.exists() else {}
    items.sort(key=lambda item: -known.get(_file(item.nodeid), 0))


def pytest_runtest_logreport(report):
    _seconds[_file(report.nodeid)] += report.duration


def pytest_sessionfinish(session):
    """Write the seconds of the files that ran beside those of the others that are there.

    A worker of xdist leaves that to the process that started it.
    """
    if session.config.getoption("record_seconds") and not hasattr(session.config, "workerinput"):
        before = tomllib.loads(SECONDS.read_text()) if SECONDS.exists() else {}
        all_files, there = before | _seconds, SECONDS.parents[1].joinpath
        now = {file: round(seconds) for file, seconds in all_files.items() if seconds >= 1 and there(file).exists()}
        lines = [f'"{file}" = {seconds}\n' for file, seconds in sorted(now.items())]
        SECONDS.write_text("# Written by pytest --record-seconds; the longest files are run first.\n" + "".join(lines))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    """Hand the cells of notebooks to `course.verify`: the unit tests do without it, and without torch."""
    report = yield
    if type(collector).__name__ == "IPyNbFile" and report.passed:
        from cs336course.verify import adopt

        report.result = adopt(report.result)
    return report
