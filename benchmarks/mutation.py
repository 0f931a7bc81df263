"""Do the tests see a change in the kit? ``python -m benchmarks.mutation predict lm --count 40``: mutants, and which survive.

A mutant (`benchmarks/mutants.py`) runs the tests that execute its line, fastest first: it is killed when one fails or takes
ten times as long. Which tests execute which line is recorded once per test file and kept in build/mutation.
A change inside a function is put into a process that has all tests collected; what runs at import needs a new one.
A survivor needs a test, or a reason in tests/mutants.toml why nothing can tell it from the kit.
"""

import argparse
import functools
import gc
import itertools
import multiprocessing
import random
import re
import subprocess
import sys
import tempfile
import tomllib
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from types import CodeType, FunctionType

import pytest
from _pytest.runner import runtestprotocol

from benchmarks.forks import QUIET, ROOT, copied, forked, own, warm, written
from benchmarks.mutants import Mutant, mutants
from benchmarks.recorded_tests import FIRST, TESTS, Record, run

EQUIVALENT = ROOT / "tests" / "mutants.toml"
#: What a mutant may take beside ten times what its tests took (seconds of the processor).
SPARE = 60
DAY = 24 * 3600


class Warm:
    """A plugin: when all tests are collected, mutants inside functions are tried, each in a fork of this process."""

    def __init__(
        self, record: Record, limit: float, drawn: Sequence[Mutant], taken: Iterator[int], say: Callable
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
        kit = str(own.root / "cs336kit")
        gc.unfreeze()  # conftest.py has frozen what is collected, and it would not be listed
        for function in gc.get_objects():
            if isinstance(function, FunctionType) and function.__code__.co_filename.startswith(kit):
                self.functions[function.__code__].append(function)
        gc.freeze()
        for number in self.taken:
            mutant = self.drawn[number]
            changed = [*self.changed(mutant)]
            with written(mutant):
                self.say((number, self.killer(mutant, changed) if changed else None))
        return True

    def changed(self, mutant: Mutant) -> Iterator[tuple[FunctionType, CodeType]]:
        """The functions whose code is another one in the mutant."""
        path = str(own.root / mutant.module)
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
    return int(pytest.main(["-s", *QUIET, *tests], plugins=[warm]))


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


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


def _patience(record: Record, tests: list[str]) -> float:
    return SPARE + 10 * sum(map(record.seconds.__getitem__, tests))


def _cold_killer(record: Record, limit: float, mutant: Mutant) -> str:
    """Whether tests in processes that import the kit anew kill a mutant; empty where it survives."""
    with written(mutant):
        for part in _parts(record, limit, mutant):
            if forked(_patience(record, part), run, part, {*record.seconds}) not in (0, 5):
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
    warm([folder for room in rooms for folder in TESTS[room]])
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
                words.append("killed" if killer else "SURVIVES")
                if known:
                    words[-1] = "killed, though listed" if killer else "equivalent"
                tests = [test for part in _parts(record, limit, mutant) for test in part]
                why = killer or f"{len(tests)} of {len(record.tests(mutant))} tests that execute or name it pass"
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
