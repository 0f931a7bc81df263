"""Which tests execute which line of a room: recorded once per test file, and kept in build/mutation."""

import functools
import hashlib
import importlib
import json
import os
import re
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Iterable
from concurrent.futures import Executor
from contextlib import suppress
from pathlib import Path

import coverage
import pytest

from benchmarks.forks import QUIET, ROOT, forked, own
from benchmarks.mutants import Mutant

#: Where the tests of each room stand, beside those of all public names.
TESTS = {
    room: (*folders, "tests/test_public_names")
    for room, folders in {
        "predict": ("tests/fast", "tests/plans", "tests/torch/predict", "tests/claims"),
        "lm": ("tests/torch/lm", "tests/claims"),
        "measure": ("tests/torch/measure", "tests/claims"),
        "teach": ("tests/torch/teach",),
        "course": (
            "tests/notebooks",
            "tests/fast/test_journal",
            "tests/claims/test_claims_page",
            "tests/torch/teach/test_exercise_commands",
        ),
    }.items()
}
#: Slow by nature: they start kernels, and most mutants die elsewhere.
_LEFT_OUT = ("test_tamper", "test_refresh")
#: Most mutants fall to so many tests; collecting all test files takes longer than running these.
FIRST = 30


class Record:
    """Which tests execute which lines of a room, and how long each takes (seconds of the processor)."""

    def __init__(self, room: str, files: list[str], pool: Executor) -> None:
        self.seconds: dict[str, float] = {}
        self._lines: dict[str, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
        #: What runs while modules are imported and tests collected.
        self._at_import: dict[str, set[int]] = defaultdict(set)
        files = [name for name in files if re.match(r"(cs336kit/|tests/|conftest).*\.(py|json|yml)$", name)]
        tests = [name for name in files if re.search(r"/test_\w+\.py$", name)]
        shared = hashlib.sha256(b"".join((ROOT / name).read_bytes() for name in files if name not in tests)).digest()
        wanted = [name for name in tests if name.startswith(TESTS[room]) and Path(name).stem not in _LEFT_OUT]
        for part in pool.map(functools.partial(_recorded, room, shared), wanted):
            names = [name for name, _ in part["tests"]]
            self.seconds |= {name: seconds for name, seconds in part["tests"] if seconds is not None}
            for module, lines in part["lines"].items():
                for line, executed in lines.items():
                    self._lines[module][int(line)] |= {names[i] for i in executed if i >= 0} & self.seconds.keys()
                    if -1 in executed:
                        self._at_import[module].add(int(line))
        executing = set[str]().union(*(found for lines in self._lines.values() for found in lines.values()))
        #: They look at what is defined in the room: the public names, and tests that execute nothing of it.
        self._looking = {
            test
            for test in self.seconds
            if test.startswith("tests/test_public_names")
            or (test not in executing and not test.startswith("tests/claims"))
        }
        # Without a change they pass: what fails below sees a mutant.
        control = sorted(self.seconds, key=self.seconds.__getitem__)[:FIRST]
        if pool.submit(forked, 600, run, control, {*self.seconds}).result() != 0:
            raise SystemExit(f"tests fail without any change, one after the other: {' '.join(control)}")

    def tests(self, mutant: Mutant) -> list[str]:
        """The tests that can see a mutant, fastest first; what runs at import is seen where the kit or a test has its name."""
        found = self._running(mutant.module, mutant.lines)
        # At import no test runs yet; and what runs in another process is not seen.
        if mutant.defines or not found:
            named = re.compile(rf"\b({'|'.join(mutant.named())})\b")
            for module in [*self._lines]:
                rows = enumerate((ROOT / module).read_text(encoding="utf-8").splitlines(), 1)
                found |= self._running(module, (number for number, row in rows if named.search(row)))
            files = {test.split("::")[0] for test in self.seconds}
            naming = {file for file in files if named.search((ROOT / file).read_text(encoding="utf-8"))}
            found |= {test for test in self.seconds if test.split("::")[0] in naming}
            if mutant.defines:
                found = found | self._looking or {*self.seconds}
        # The claims last, whose ledger takes long to read.
        return sorted(found, key=lambda test: (test.startswith("tests/claims"), self.seconds[test], test))

    def at_import(self, mutant: Mutant) -> bool:
        """Whether a mutant changes what runs before any test does."""
        return bool(mutant.defines) or not self._at_import[mutant.module].isdisjoint(mutant.lines)

    def _running(self, module: str, lines: Iterable[int]) -> set[str]:
        return {test for line in lines for test in self._lines[module].get(line, ())}


def _recorded(room: str, shared: bytes, test: str) -> dict:
    """What a test file executes, as kept in build/mutation, or recorded now."""
    folder = ROOT / "build" / "mutation" / room / test
    kept = folder / (hashlib.sha256(shared + (own.root / test).read_bytes()).hexdigest()[:16] + ".json")
    if not kept.exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        status = forked(3600, _record, room, test, own.root, kept.with_suffix(".part"))
        if status not in (0, 1, 5):
            raise SystemExit(f"{test} could not be recorded: pytest ended with {status}. Run it by itself first.")
        kept.with_suffix(".part").rename(kept)
        print(f"recorded {test}{' (tests that fail are left out)' if status == 1 else ''}", flush=True)
    return json.loads(kept.read_text(encoding="utf-8"))


def _record(room: str, test: str, root: Path, out: Path) -> int:
    """In a child: run one test file, and write which lines of the room each of its passed tests executes."""
    # What the tests start is measured, too: ranks, the command, kernels.
    folder = Path(tempfile.mkdtemp(dir=out.parent))
    source = f"source = {root / 'cs336kit' / room}\ndata_file = {folder / 'data'}\n"
    (folder / "settings").write_text(
        f"[run]\nparallel = true\npatch = subprocess\nconcurrency = thread, multiprocessing\n{source}"
    )
    measured = coverage.Coverage(config_file=str(folder / "settings"))
    measured.start()
    # Now, so that no test seems to execute what runs at import; and no test finds what another one left in a cache.
    modules = [path.relative_to(root).with_suffix("").parts for path in (root / "cs336kit" / room).rglob("*.py")]
    loaded = [vars(importlib.import_module(".".join(parts).removesuffix(".__init__"))) for parts in modules]
    caches = [value for names in loaded for value in names.values() if hasattr(value, "cache_clear")]
    seconds: dict[str, float | None] = {}
    elsewhere: dict[str, set[tuple[int, str]]] = defaultdict(set)

    class Recorder:
        @pytest.hookimpl(wrapper=True)
        def pytest_runtest_protocol(self, item):
            for cache in caches:
                cache.cache_clear()
            measured.switch_context(item.nodeid)
            began = sum(os.times()[:4])
            result = yield
            measured.switch_context("")
            seconds.setdefault(item.nodeid, round(sum(os.times()[:4]) - began, 3))
            for file in [file for file in folder.glob("data.*") if f".pid{os.getpid()}." not in file.name]:
                started = coverage.CoverageData(str(file))
                with suppress(coverage.CoverageException):
                    started.read()
                    for module in started.measured_files():
                        elsewhere[module].update((line, item.nodeid) for line in started.lines(module) or ())
                file.unlink()
            return result

        def pytest_runtest_logreport(self, report):
            if not report.passed:
                seconds[report.nodeid] = None

    status = pytest.main([*QUIET, test], plugins=[Recorder()])
    measured.stop()
    data, index = measured.get_data(), {name: i for i, name in enumerate(seconds)}
    lines = {}
    for file in data.measured_files():
        executed = data.contexts_by_lineno(file).items()
        # -1: no test, but the import of the module, or the collection of the tests.
        lines[str(Path(file).relative_to(root))] = {n: [index.get(t, -1) for t in tests] for n, tests in executed}
    for file, pairs in elsewhere.items():
        here = lines.setdefault(str(Path(file).relative_to(root)), {})
        for line, test in pairs:
            here[line] = [*here.get(line, ()), index[test]]
    shutil.rmtree(folder)
    out.write_text(json.dumps({"tests": [*seconds.items()], "lines": lines}), encoding="utf-8")
    return int(status)


def run(tests: list[str], known: set[str]) -> int:
    """In a child: run these tests, and what has a new name since the change, until one fails."""
    order = {name: i for i, name in enumerate(tests)}

    class Chosen:
        def pytest_collection_modifyitems(self, items):
            items[:] = [item for item in items if item.nodeid in order or item.nodeid not in known]
            items.sort(key=lambda item: order.get(item.nodeid, 0))

    return int(pytest.main(["-x", *QUIET, *dict.fromkeys(test.split("::")[0] for test in tests)], plugins=[Chosen()]))
