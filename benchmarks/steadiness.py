"""Do the lessons say the same wherever they run? ``python -m benchmarks.steadiness``: all of them, under eleven conditions.

Each condition verifies a new clone of this repository (what is committed), as `make test` does, and differs in one respect
that a reader's machine may differ in. Numbers choose some: ``python -m benchmarks.steadiness 3 9``. The reports are kept
in build/steady/. A condition that this machine cannot make is named with the reason.
"""

import contextlib
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

from cs336kit.command.arguments import Parser
from cs336kit.predict.checks import known

ROOT = Path(__file__).parents[1]
REPORTS = ROOT / "build" / "steady"
#: What the settings of the tests (conftest.py) would overwrite is handed over under this prefix, and set after them.
LATER = "STEADY_"
#: What lets root write where nobody may: taken away, a read-only folder is one for root, too.
ROOTS_POWERS = "-dac_override,-dac_read_search,-fowner"
ASCII = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii", "TERM": "dumb"}


@dataclass(frozen=True)
class Condition:
    """One respect in which a machine differs: how many workers, in which order, where, in which environment."""

    name: str
    workers: int = 1
    #: Shuffles the lessons; None leaves them in order.
    seed: int | None = None
    folder: str = "cs336kit"
    read_only: bool = False
    busy: bool = False
    #: A locale that is compiled for the run, if this machine has its definition.
    locale: str = ""
    environment: dict[str, str] = field(default_factory=dict)


OTHER_KERNELS = {
    "ATEN_CPU_CAPABILITY": "default",
    "NPY_DISABLE_CPU_FEATURES": "X86_V3 X86_V4",
    "OPENBLAS_CORETYPE": "Prescott",
}

CONDITIONS = (
    Condition("as make test: two workers", workers=2),
    Condition("one worker, lessons in random order", seed=1),
    Condition("hashes and order random", seed=2, environment={LATER + "PYTHONHASHSEED": "random"}),
    Condition("two threads", environment={LATER + "OMP_NUM_THREADS": "2", LATER + "MKL_NUM_THREADS": "2"}),
    # Training and fitting enlarge last digits: kernels of torch, numpy and its BLAS for another processor round otherwise.
    Condition("another processor's sums", environment=OTHER_KERNELS),
    Condition("a busy machine", busy=True),
    Condition("LC_ALL=C, a terminal of ASCII", environment=ASCII),
    Condition("German, with its decimal comma", locale="de_DE"),
    Condition("Turkish, in Kathmandu", locale="tr_TR", environment={"TZ": "Asia/Kathmandu"}),
    Condition("a path with spaces and umlauts", folder="Käse und Öl/cs336kit"),
    Condition("a read-only clone, a new home", read_only=True),
)


def pytest_configure() -> None:
    """As a plugin of pytest: set what conftest.py has just overwritten, for the kernels that inherit it."""
    later = {name.removeprefix(LATER): value for name, value in os.environ.items() if name.startswith(LATER)}
    os.environ.update(later)


@contextlib.contextmanager
def spinning(cores: int) -> Iterator[None]:
    """Keep so many cores busy meanwhile."""
    spinners = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(cores)]
    try:
        yield
    finally:
        for spinner in spinners:
            spinner.kill()
            spinner.wait()


def clone(condition: Condition, folder: Path) -> Path:
    """A clone of what is committed, where and as the condition wants it."""
    there = folder / condition.folder
    subprocess.run(["git", "clone", "--quiet", "--no-hardlinks", ROOT, there], check=True)
    if condition.read_only:
        subprocess.run(["chmod", "-R", "a-w", there], check=True)
    return there


def environment(condition: Condition, folder: Path, there: Path) -> dict[str, str]:
    """The environment of a run; LookupError where this machine lacks the locale."""
    changed = {**os.environ, **condition.environment, "PYTHONPATH": str(there)}
    if condition.locale:
        name = f"{condition.locale}.UTF-8"
        if (
            not shutil.which("localedef")
            or subprocess.run(
                ["localedef", "-i", condition.locale, "-f", "UTF-8", folder / name], capture_output=True, check=False
            ).returncode
        ):
            raise LookupError(f"left out: localedef cannot make {name} here")
        changed |= {"LOCPATH": str(folder), "LANG": name, "LC_ALL": name}
    if condition.read_only:
        home = folder / "home"
        home.mkdir()
        changed |= {"HOME": str(home)}
    return changed


def command(condition: Condition, there: Path, report: Path) -> list[str]:
    """What verifies the lessons of a clone, as the Makefile does."""
    lessons = sorted(str(path.relative_to(there)) for path in there.glob("notebooks/*.ipynb"))
    if condition.seed is not None:
        random.Random(condition.seed).shuffle(lessons)
    options = ["-q", "-p", "no:cacheprovider", "-p", "benchmarks.steadiness", f"--junitxml={report}"]
    options += ["--nbval", "--nbval-current-env"]
    if condition.workers > 1:
        options += ["-n", str(condition.workers), "--dist", "loadfile"]
    powerless = ["setpriv", "--bounding-set", ROOTS_POWERS, "--inh-caps", ROOTS_POWERS]
    root = condition.read_only and os.geteuid() == 0
    return [*(powerless if root else []), sys.executable, "-m", "pytest", *options, *lessons]


def run(condition: Condition, number: int) -> tuple[str, bool]:
    """Verify all lessons under a condition; returns its row of the table, and whether all held."""
    report, log = REPORTS / f"{number:02}.xml", REPORTS / f"{number:02}.log"
    report.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        there = clone(condition, folder)
        try:
            changed = environment(condition, folder, there)
        except LookupError as reason:
            return f"{number:>2}  {condition.name:<36}  {reason}", True
        start = time.perf_counter()
        with spinning((os.cpu_count() or 1) if condition.busy else 0), log.open("wb") as out:
            run = command(condition, there, report)
            code = subprocess.run(run, cwd=there, env=changed, stdout=out, stderr=out, check=False).returncode
        seconds = time.perf_counter() - start
        # Else the folder could not be removed.
        subprocess.run(["chmod", "-R", "u+w", there], check=True)
    if not report.exists():
        return f"{number:>2}  {condition.name:<36}  did not run: see {log.relative_to(ROOT)}", False
    cells = [*ElementTree.parse(report).iter("testcase")]
    failed = [cell for cell in cells if {part.tag for part in cell} & {"failure", "error"}]
    lessons = len({cell.get("classname") for cell in cells})
    row = f"{number:>2}  {condition.name:<36}{lessons:9}{len(cells):7}{len(failed):10}{seconds:9.0f}"
    named = [f"      {cell.get('classname')} {cell.get('name')}" for cell in failed]
    return "\n".join([row, *named]), code == 0


def main(words: list[str]) -> int:
    """Run the conditions of these numbers (all for none) and print the table; 1 when a cell failed, 2 for an unknown one."""
    numbered = {str(number): number for number in range(1, len(CONDITIONS) + 1)}
    parser = Parser(prog="python -m benchmarks.steadiness", description=__doc__)
    names = ", ".join(f"{number} {condition.name}" for number, condition in enumerate(CONDITIONS, 1))
    parser.add_argument(
        "words", metavar="NUMBER", nargs="*", help=f"conditions, all for none: {names}".replace("%", "%%")
    )
    words = parser.parse_args(words).words
    try:
        numbers = [known("condition", word, numbered) for word in words]
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    REPORTS.mkdir(parents=True, exist_ok=True)
    print(f"{'':4}{'condition':<36}{'lessons':>9}{'cells':>7}{'failures':>10}{'seconds':>9}", flush=True)
    held = True
    for number in numbers or numbered.values():
        row, well = run(CONDITIONS[number - 1], number)
        print(row, flush=True)
        held &= well
    return int(not held)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
