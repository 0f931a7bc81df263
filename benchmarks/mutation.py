"""Do the tests see a change in the kit? ``python -m benchmarks.mutation predict lm --count 40``: mutants, and which survive.

A mutant (`benchmarks/mutants.py`) runs the tests that execute its line, fastest first: it is killed when one fails or takes
ten times as long. Which tests execute which line is recorded once per test file and kept in build/mutation.
A change inside a function is put into a process that has all tests collected; what runs at import needs a new one.
A survivor needs a test, or a reason in tests/mutants.toml why nothing can tell it from the kit.
"""

import argparse
import ast
import functools
import gc
import hashlib
import importlib
import itertools
import json
import multiprocessing
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import tomllib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from types import CodeType, FunctionType

import coverage
import pytest
from _pytest.runner import runtestprotocol

from benchmarks.mutants import Mutant, mutants

ROOT = Path(__file__).parents[1]
EQUIVALENT = ROOT / "tests" / "mutants.toml"
#: Where the tests of each room stand, beside those of all public names.
TESTS = {
    room: (*folders, "tests/test_public_names")
    for room, folders in {
        "predict": ("tests/fast", "tests/torch/predict", "tests/claims"),
        "lm": ("tests/torch/lm", "tests/claims"),
        "measure": ("tests/torch/measure", "tests/claims"),
        "teach": ("tests/torch/teach",),
        "course": ("tests/notebooks", "tests/claims/test_claims_page", "tests/torch/teach/test_exercise_commands"),
    }.items()
}
#: Slow by nature: they start kernels, and most mutants die elsewhere.
_LEFT_OUT = ("test_tamper", "test_refresh")
#: Most mutants fall to so many tests; collecting all test files takes longer than running these.
FIRST = 30
#: What a mutant may take beside ten times what its tests took (seconds of the processor).
SPARE = 60
DAY = 24 * 3600
_QUIET = ("-q", "-p", "no:nbval", "-p", "no:cacheprovider", "-p", "no:cov", "-p", "no:xdist")


def warm(rooms: list[str]) -> None:
    """Import all that the kit and its tests import from elsewhere: most of the time that a test file needs to start."""
    folders = [ROOT / folder for folder in ("cs336kit", *(folder for room in rooms for folder in TESTS[room]))]
    trees = [ast.parse(path.read_text(encoding="utf-8")) for folder in folders for path in sorted(folder.rglob("*.py"))]
    for node in (node for tree in trees for node in ast.walk(tree)):
        absolute = isinstance(node, ast.ImportFrom) and not node.level and node.module
        for name in [alias.name for alias in node.names] if isinstance(node, ast.Import) else [absolute or ""]:
            own = [root / f"{name.split('.')[0]}{end}" for root in (ROOT, ROOT / "tests") for end in ("", ".py")]
            with suppress(ImportError, AttributeError, ValueError):
                if not any(path.exists() for path in own):
                    module = importlib.import_module(name)
                    # Some packages load what they hold when it is asked for.
                    for part in node.names if absolute else ():
                        getattr(module, part.name)


_own = threading.local()


def copied(folder: str, files: list[str]) -> None:
    """Give this thread a copy of the repository, in which it may change a file."""
    _own.root = Path(tempfile.mkdtemp(dir=folder))
    for name in files:
        (_own.root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, _own.root / name)


def forked(seconds: float, work: Callable[..., int], *arguments: object) -> int | None:
    """The status of a function in a child of this warm process, in this thread's copy; a signal where it takes too long."""
    root = _own.root

    def child() -> None:
        _own.root = root
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
        if pool.submit(forked, 600, _run, control, {*self.seconds}).result() != 0:
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
    kept = folder / (hashlib.sha256(shared + (ROOT / test).read_bytes()).hexdigest()[:16] + ".json")
    if not kept.exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        status = forked(3600, _record, room, test, _own.root, kept.with_suffix(".part"))
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

    status = pytest.main([*_QUIET, test], plugins=[Recorder()])
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


def _run(tests: list[str], known: set[str]) -> int:
    """In a child: run these tests, and what has a new name since the change, until one fails."""
    order = {name: i for i, name in enumerate(tests)}

    class Chosen:
        def pytest_collection_modifyitems(self, items):
            items[:] = [item for item in items if item.nodeid in order or item.nodeid not in known]
            items.sort(key=lambda item: order.get(item.nodeid, 0))

    return int(pytest.main(["-x", *_QUIET, *dict.fromkeys(test.split("::")[0] for test in tests)], plugins=[Chosen()]))


class Warm:
    """A plugin: when all tests are collected, mutants inside functions are tried, each in a fork of this process."""

    def __init__(
        self, record: "Record", limit: float, drawn: Sequence[Mutant], taken: Iterator[int], say: Callable
    ) -> None:
        self.record, self.limit, self.drawn, self.taken, self.say = record, limit, drawn, taken, say
        self.items: dict[str, pytest.Item] = {}
        self.functions: dict[CodeType, list[FunctionType]] = defaultdict(list)
        self.caches: list = []
        #: the test that failed in a child
        self.failed = multiprocessing.get_context("fork").Value("i", -1)
        #: tests that pass in a child, or fail, where nothing is changed
        self.sound: dict[str, bool] = {}

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self.items = {item.nodeid: item for item in session.items}
        modules = [module for name, module in sys.modules.items() if name.startswith("cs336kit")]
        self.caches = [
            value for module in modules for value in [*vars(module).values()] if hasattr(value, "cache_clear")
        ]
        kit = str(_own.root / "cs336kit")
        for function in gc.get_objects():
            if isinstance(function, FunctionType) and function.__code__.co_filename.startswith(kit):
                self.functions[function.__code__].append(function)
        gc.freeze()
        for number in self.taken:
            mutant = self.drawn[number]
            changed = [*self.changed(mutant)]
            with _written(mutant):
                self.say((number, self.killer(mutant, changed) if changed else None))
        return True

    def changed(self, mutant: Mutant) -> Iterator[tuple[FunctionType, CodeType]]:
        """The functions whose code is another one in the mutant."""
        path = str(_own.root / mutant.module)
        old, new = (_codes(compile(text, path, "exec")) for text in (mutant.text, mutant.mutated()))
        for before, after in zip(old, new, strict=True):
            if before != after and before.co_freevars == after.co_freevars:
                yield from ((function, after) for function in self.functions.get(before, ()))

    def killer(self, mutant: Mutant, changed: list[tuple[FunctionType, CodeType]]) -> str:
        """What killed a mutant: a test that passes without it, or "time"; empty where it survives."""
        for part in _parts(self.record, self.limit, mutant):
            while part := [test for test in part if self.sound.get(test, True) and test in self.items]:
                self.failed.value = -1
                if forked(_patience(self.record, part), self.run, part, changed) == 0:
                    break
                if self.failed.value < 0:
                    return "time"
                test = part[self.failed.value]
                if test not in self.sound:
                    self.sound[test] = forked(_patience(self.record, [test]), self.run, [test], []) == 0
                if self.sound[test]:
                    return test
        return ""

    def run(self, tests: list[str], changed: list[tuple[FunctionType, CodeType]]) -> int:
        """In a child: whether one of these tests fails with these codes."""
        for function, code in changed:
            function.__code__ = code
        for cache in self.caches:
            cache.cache_clear()
        items = [self.items[test] for test in tests]
        for number, (item, following) in enumerate(zip(items, [*items[1:], None], strict=True)):
            if any(report.failed for report in runtestprotocol(item, log=False, nextitem=following)):
                self.failed.value = number
                return 1
        return 0


def _tried_warm(warm: Warm) -> int:
    """In a child: all tests of a room are collected, and what the plugin says."""
    tests = sorted({test.split("::")[0] for test in warm.record.seconds})
    return int(pytest.main(["-s", *_QUIET, *tests], plugins=[warm]))


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


@contextmanager
def _written(mutant: Mutant) -> Iterator[None]:
    """The mutant stands in this copy of the repository, where what the tests start finds it."""
    inside = _own.root / mutant.module
    inside.write_text(mutant.mutated(), encoding="utf-8")
    # Python compiles a file anew when its time has changed, by whole seconds.
    time = random.getrandbits(30)
    os.utime(inside, (time, time))
    try:
        yield
    finally:
        inside.write_text(mutant.text, encoding="utf-8")


def _parts(record: Record, limit: float, mutant: Mutant) -> list[list[str]]:
    """The tests of a mutant, those that most often kill first; all take so many seconds together without it."""
    tests = record.tests(mutant)
    until = [*itertools.accumulate(map(record.seconds.__getitem__, tests))]
    capped = tests[: sum(time <= limit for time in until) or 1]
    return [part for part in (capped[:FIRST], capped[FIRST:]) if part]


def _patience(record: Record, tests: list[str]) -> float:
    return SPARE + 10 * sum(map(record.seconds.__getitem__, tests))


def _cold_killer(record: Record, limit: float, mutant: Mutant) -> str:
    """Whether tests in processes that import the kit anew kill a mutant; empty where it survives."""
    with _written(mutant):
        for part in _parts(record, limit, mutant):
            if forked(_patience(record, part), _run, part, {*record.seconds}) not in (0, 5):
                return "a new process"
    return ""


def tried(record: Record, drawn: list[Mutant], limit: float, jobs: int, pool: Executor) -> Iterator[tuple[Mutant, str]]:
    """Each mutant, as soon as it has been tried, with what kills it; empty where it survives."""
    context = multiprocessing.get_context("fork")
    warm = [number for number, mutant in enumerate(drawn) if not record.at_import(mutant)]
    following, results = context.Value("i", 0), context.SimpleQueue()

    def taken() -> Iterator[int]:
        while True:
            with following.get_lock():
                mine, following.value = following.value, following.value + 1
            if mine >= len(warm):
                return
            yield warm[mine]

    def work() -> None:
        try:
            status = forked(DAY, _tried_warm, Warm(record, limit, drawn, taken(), results.put))
        finally:
            results.put(None)
        if status:
            raise SystemExit(f"the process with all tests ended with {status}: do they all pass?")

    workers, killer, left = [pool.submit(work) for _ in range(jobs)], dict.fromkeys(warm), jobs
    while left:
        result = results.get()
        if result is None:
            left -= 1
        else:
            number, killer[number] = result
            if killer[number] is not None:
                yield drawn[number], killer[number]
    for worker in workers:
        worker.result()
    cold = [mutant for number, mutant in enumerate(drawn) if killer.get(number) is None]
    yield from zip(cold, pool.map(functools.partial(_cold_killer, record, limit), cold), strict=True)


def main(rooms: list[str], count: int, seed: int, jobs: int, only: str, limit: float) -> None:
    """Try so many mutants of each room, drawn at random; print what becomes of each, and the share that is killed."""
    warm(rooms)
    entries = tomllib.loads(EQUIVALENT.read_text(encoding="utf-8")).get("equivalent", [])
    listed = {(entry["file"], entry["line"], entry["change"]) for entry in entries}
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    files = [name for name in sorted({*names}) if (ROOT / name).is_file()]
    print(
        f"seed {seed}; a mutant runs the fastest {FIRST} tests that execute its line, then all that take {limit:.0f} s together"
    )
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(jobs, "", copied, (folder, files)) as pool:
        for room in rooms:
            modules = [name for name in files if re.fullmatch(rf"cs336kit/{room}/.*{only}.*\.py", name)]
            every = [mutant for name in modules for mutant in mutants(name, (ROOT / name).read_text(encoding="utf-8"))]
            drawn = random.Random(seed).sample(every, min(count, len(every)))
            record, words = Record(room, files, pool), []
            for mutant, killer in tried(record, drawn, limit, jobs, pool):
                known = (mutant.module, mutant.line, mutant.change) in listed
                words.append(
                    ("killed, though listed" if known else "killed")
                    if killer
                    else "equivalent"
                    if known
                    else "SURVIVES"
                )
                tests = [test for part in _parts(record, limit, mutant) for test in part]
                why = killer or (f"{len(tests)} of {len(record.tests(mutant))} tests that execute or name it pass")
                print(
                    f"{words[-1]}: {mutant}    ({why if tests else 'not covered: no test executes or names it'})",
                    flush=True,
                )
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
