"""Do the tests see a change in the kit? ``python -m benchmarks.mutation predict lm --count 40``: mutants, and which survive.

A mutant (`benchmarks/mutants.py`) stands in a copy of the repository, where the tests run that execute its line, fastest
first: it is killed when one fails or takes ten times as long. Which tests execute which line is what pytest-cov records in
one run of all tests of a room; it is kept in build/mutation until a file changes.
A survivor needs a test, or a reason in tests/mutants.toml why nothing can tell it from the kit.
"""

import argparse
import functools
import hashlib
import itertools
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import tomllib
from collections import defaultdict
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import coverage

from benchmarks.mutants import Mutant, mutants

ROOT = Path(__file__).parents[1]
EQUIVALENT = ROOT / "tests" / "mutants.toml"
KEPT = ROOT / "build" / "mutation"
#: The folder of each room's code.
CODE = {room: f"cs336kit/{room}" for room in ("predict", "lm", "measure", "teach")} | {
    "plan": "cs336plan",
    "course": "cs336course",
}
#: Where the tests of each room stand, beside those of all public names.
TESTS = {
    room: (*folders, "tests/test_public_names")
    for room, folders in {
        "predict": ("tests/kit/predict", "tests/plan", "tests/claims"),
        "lm": ("tests/kit/lm", "tests/claims"),
        "measure": ("tests/kit/measure", "tests/claims"),
        "teach": ("tests/kit/teach",),
        "plan": ("tests/plan",),
        "course": (
            "tests/course",
            "tests/notebooks",
            "tests/kit/test_journal",
            "tests/claims/test_claims_page",
            "tests/kit/teach/test_exercise_commands",
        ),
    }.items()
}
#: Slow by nature: they start kernels, and most mutants die elsewhere.
_LEFT_OUT = ("test_tamper", "test_refresh")
#: Most mutants fall to so many tests; collecting all test files takes longer than running these.
FIRST = 30
#: What a mutant may take beside ten times what its tests took (seconds): a busy machine is slow to start a process.
SPARE = 120
#: In a copy of the repository: the tests that are wanted, and all that are known; and what pytest says.
CHOSEN, SAID = "chosen-tests.json", "pytest.log"
#: This thread's copy of the repository, as `root`.
own = threading.local()


class Record:
    """Which tests execute which lines of a room, and how long each takes."""

    def __init__(self, room: str, files: list[str], jobs: int) -> None:
        files = [
            name for name in files if re.match(r"(cs336(kit|plan|course)/|tests/|conftest).*\.(py|json|yml)$", name)
        ]
        data, report = _recorded(room, files, jobs)
        # No test of the kit is in a class.
        cases = {f"{case.get('file')}::{case.get('name')}": case for case in ElementTree.parse(report).iter("testcase")}
        failed = {name for name, case in cases.items() if {part.tag for part in case} & {"failure", "error"}}
        #: Tests that fail without any change are known, and left out.
        self.known = [*cases]
        self.seconds = {name: float(case.get("time", 0)) for name, case in cases.items() if name not in failed}
        self._lines: dict[str, dict[int, set[str]]] = defaultdict(dict)
        executed = coverage.CoverageData(str(data))
        executed.read()
        for file in executed.measured_files():
            for line, contexts in executed.contexts_by_lineno(file).items():
                tests = {context.rpartition("|")[0] for context in contexts}
                self._lines[str(Path(file).relative_to(ROOT))][line] = tests & self.seconds.keys()

    def tests(self, mutant: Mutant) -> list[str]:
        """The tests that can see a mutant, fastest first; what runs at import is seen where the kit or a test has its name."""
        found = self._running(mutant.module, mutant.lines)
        # At import no test runs yet; and what runs in another process is not seen.
        if mutant.defines or not found:
            named = re.compile(rf"\b({'|'.join(mutant.named())})\b")
            for module in self._lines:
                rows = enumerate((ROOT / module).read_text(encoding="utf-8").splitlines(), 1)
                found |= self._running(module, (number for number, row in rows if named.search(row)))
            files = {test.split("::")[0] for test in self.seconds}
            naming = {file for file in files if named.search((ROOT / file).read_text(encoding="utf-8"))}
            found |= {test for test in self.seconds if test.split("::")[0] in naming}
            if mutant.defines:
                found = found | self._looking or {*self.seconds}
        # The claims last, whose ledger takes long to read.
        return sorted(found, key=lambda test: (test.startswith("tests/claims"), self.seconds[test], test))

    @functools.cached_property
    def _looking(self) -> set[str]:
        """Tests that look at what is defined in the room: the public names, and tests that execute nothing of it."""
        executing = set[str]().union(*(tests for lines in self._lines.values() for tests in lines.values()))
        names = {test for test in self.seconds if test.startswith("tests/test_public_names")}
        return names | {test for test in self.seconds.keys() - executing if not test.startswith("tests/claims")}

    def _running(self, module: str, lines: Iterable[int]) -> set[str]:
        return {test for line in lines for test in self._lines.get(module, {}).get(line, ())}


def _recorded(room: str, files: list[str], jobs: int) -> tuple[Path, Path]:
    """The data of coverage, by test, and pytest's report of the tests of a room: those that are kept, or new ones."""
    digest = hashlib.sha256(b"".join((ROOT / name).read_bytes() for name in files)).hexdigest()[:16]
    folder = KEPT / room / digest
    data, report = folder / "data", folder / "report.xml"
    if not report.exists():
        shutil.rmtree(folder.parent, ignore_errors=True)
        folder.mkdir(parents=True)
        tests = [name for name in files if name.startswith(TESTS[room]) and re.search(r"/test_\w+\.py$", name)]
        tests = [name for name in tests if Path(name).stem not in _LEFT_OUT]
        waiting = report.with_suffix(".part")
        options = ["-q", "-p", "no:nbval", "-n", str(jobs), "--dist", "loadfile", "-o", "junit_family=xunit1"]
        options += [f"--junitxml={waiting}", f"--cov={CODE[room]}", "--cov-context=test", "--cov-report="]
        print(f"recording which tests of {room} execute which lines", flush=True)
        settings = {**os.environ, "COVERAGE_FILE": str(data)}
        done = subprocess.run([sys.executable, "-m", "pytest", *options, *tests], cwd=ROOT, env=settings, check=False)
        if done.returncode not in (0, 1):
            raise SystemExit(f"the tests of {room} could not be recorded: pytest ended with {done.returncode}")
        waiting.rename(report)
    return data, report


def _copied(folder: str, files: list[str]) -> None:
    """Give this thread a copy of the repository, in which it may change a file."""
    own.root = Path(tempfile.mkdtemp(dir=folder))
    for name in files:
        (own.root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, own.root / name)


def pytest_collection_modifyitems(items: list[Any]) -> None:
    """As a plugin of pytest in a copy: the tests that are wanted, in their order, and those that only the mutant has."""
    wanted, known = json.loads(Path(CHOSEN).read_text(encoding="utf-8"))
    order = {name: i for i, name in enumerate(wanted)}
    items[:] = [item for item in items if item.nodeid in order or item.nodeid not in known]
    items.sort(key=lambda item: order.get(item.nodeid, 0))


def _failing(tests: list[str], record: Record) -> str:
    """The first of these tests that fails in this thread's copy, or "time"; empty where all pass."""
    (own.root / CHOSEN).write_text(json.dumps([tests, record.known]), encoding="utf-8")
    options = ["-x", "-q", "-rfE", "--tb=no", "-p", "benchmarks.mutation"]
    options += ["-p", "no:nbval", "-p", "no:cacheprovider", "-p", "no:cov", "-p", "no:xdist"]
    command = [sys.executable, "-m", "pytest", *options, *dict.fromkeys(test.split("::")[0] for test in tests)]
    log, settings = own.root / SAID, {**os.environ, "PYTHONPATH": str(own.root)}
    with (
        log.open("w") as said,
        subprocess.Popen(
            command,
            cwd=own.root,
            env=settings,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            start_new_session=True,
        ) as process,
    ):
        try:
            status = process.wait(SPARE + 10 * sum(map(record.seconds.__getitem__, tests)))
        except subprocess.TimeoutExpired:
            return "time"
        finally:
            # With all that it has started.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    # 5: none of them is there any more
    if status in (0, 5):
        return ""
    found = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", log.read_text(encoding="utf-8"), flags=re.M)
    return found[1] if found else f"pytest ends with {status}"


def _parts(record: Record, limit: float, mutant: Mutant) -> list[list[str]]:
    """The tests of a mutant, those that most often kill first; all take so many seconds together without it."""
    tests = record.tests(mutant)
    until = [*itertools.accumulate(map(record.seconds.__getitem__, tests))]
    capped = tests[: sum(time <= limit for time in until) or 1]
    return [_by_file(part) for part in (capped[:FIRST], capped[FIRST:]) if part]


def _by_file(tests: list[str]) -> list[str]:
    """The same order, but the tests of a file together: what they share is set up once, and may not bear a second time."""
    files = [test.split("::")[0] for test in tests]
    return sorted(tests, key=lambda test: files.index(test.split("::")[0]))


def killer(record: Record, limit: float, mutant: Mutant) -> str:
    """The test that kills a mutant in this thread's copy of the repository, or "time"; empty where it survives."""
    inside = own.root / mutant.module
    inside.write_text(mutant.mutated(), encoding="utf-8")
    try:
        # Python compiles a file anew when its time has changed, by whole seconds.
        time = random.getrandbits(30)
        os.utime(inside, (time, time))
        return next(filter(None, (_failing(part, record) for part in _parts(record, limit, mutant))), "")
    finally:
        inside.write_text(mutant.text, encoding="utf-8")


def main(rooms: list[str], count: int, seed: int, jobs: int, only: str, limit: float) -> None:
    """Try so many mutants of each room, drawn at random; print what becomes of each, and the share that is killed."""
    entries = tomllib.loads(EQUIVALENT.read_text(encoding="utf-8")).get("equivalent", [])
    listed = {(entry["file"], entry["line"], entry["change"]) for entry in entries}
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    files = [name for name in sorted({*names}) if (ROOT / name).is_file()]
    print(
        f"seed {seed}; a mutant runs the fastest {FIRST} tests that execute its line, then all that take {limit:.0f} s together"
    )
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(jobs, "", _copied, (folder, files)) as pool:
        for room in rooms:
            modules = [name for name in files if re.fullmatch(rf"{CODE[room]}/.*(?:{only}).*\.py", name)]
            every = [mutant for name in modules for mutant in mutants(name, (ROOT / name).read_text(encoding="utf-8"))]
            drawn = random.Random(seed).sample(every, min(count, len(every)))
            record, words = Record(room, files, jobs), []
            # Without a change they pass: what fails below sees a mutant.
            control = sorted(record.seconds, key=record.seconds.__getitem__)[:FIRST]
            if failing := pool.submit(_failing, control, record).result():
                raise SystemExit(f"a test fails without any change: {failing}")
            for mutant, killed_by in zip(drawn, pool.map(functools.partial(killer, record, limit), drawn), strict=True):
                known = (mutant.module, mutant.line, mutant.change) in listed
                words.append("killed" if killed_by else "SURVIVES")
                if known:
                    words[-1] = "killed, though listed" if killed_by else "equivalent"
                tests = [test for part in _parts(record, limit, mutant) for test in part]
                why = killed_by or f"{len(tests)} of {len(record.tests(mutant))} tests that execute or name it pass"
                if not tests:
                    why = "not covered: no test executes or names it"
                print(f"{words[-1]}: {mutant}    ({why})", flush=True)
            counted = [word for word in words if word != "equivalent"]
            equivalent, killed = len(words) - len(counted), len(counted) - words.count("SURVIVES")
            print(
                f"{room}: {killed} of {len(counted)} mutants killed, {equivalent} equivalent, of {len(every)} possible ones"
            )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mutation", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("rooms", nargs="*", choices=[*TESTS], default=[*TESTS])
    parser.add_argument("--count", type=int, default=20, help="mutants of each room (20)")
    parser.add_argument("--seed", type=int, default=0, help="of the draw (0)")
    parser.add_argument("--jobs", type=int, default=1, help="mutants at a time (1)")
    parser.add_argument("--only", default="", metavar="PATTERN", help="modules whose path in the room matches")
    parser.add_argument(
        "--limit", type=float, default=20, metavar="SECONDS", help="of the tests that one mutant runs (20)"
    )
    main(**vars(parser.parse_args()))
