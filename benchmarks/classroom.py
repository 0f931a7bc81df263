"""What a machine with n students needs: seconds and memory of n kernels and of JupyterLab, measured here.

`python -m benchmarks.classroom` starts 1, 2 and 4 kernels, which run the imports of a lesson and then all of it. Two kinds of
memory are told apart: pages that a process has alone (USS), and those that it shares, which n kernels have once, above all
torch's libraries. (PSS, which divides shared pages among all who map them, says n × own + shared where nobody else does.)
Linux only.
"""

import itertools
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import start_new_kernel

from cs336course import cells as kind
from cs336course.lessons import NOTEBOOKS, find, read
from cs336kit import journal as _journal
from cs336kit.command.arguments import Parser

KERNELS = (1, 2, 4)
#: The one that takes most memory, and the one that starts processes.
LESSONS = ("07", "18")
#: Seconds that a server gets to load its extensions before it is looked at.
SETTLE = 10
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", _journal.VARIABLE: _journal.OFF}
MB = 1e6


def own(pids: list[int]) -> float:
    """MB that these processes, and all that they have started, have alone."""
    total = 0
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            for process in (root := psutil.Process(pid), *root.children(recursive=True)):
                with suppress(psutil.NoSuchProcess):
                    total += process.memory_full_info().uss
    return total / MB


def shared(pid: int) -> float:
    """MB that a process shares with others, or would share with another one like it."""
    found = psutil.Process(pid).memory_full_info()
    return float(found.rss - found.uss) / MB


def cpu_seconds(pid: int) -> float:
    """What a process, and those that it has started and seen end, have computed; other users of the machine hardly change it."""
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system + times.children_user + times.children_system)


@dataclass
class Kernel:
    """One kernel, as a student has it."""

    manager: Any
    client: BlockingKernelClient

    @classmethod
    def start(cls) -> "Kernel":
        """Start a kernel in the folder of the lessons, and wait until it answers."""
        manager, client = start_new_kernel(kernel_name="python3", cwd=str(NOTEBOOKS), env=ENVIRONMENT)
        return cls(manager, client)

    def run(self, sources: list[str]) -> None:
        """Run these cells; raises RuntimeError for one that fails."""
        for source in sources:
            reply = self.client.execute_interactive(source, timeout=600, output_hook=lambda message: None)
            if reply["content"]["status"] != "ok":
                raise RuntimeError(f"a cell failed: {reply['content'].get('evalue')}")

    @property
    def pid(self) -> int:
        """The process of the kernel."""
        return int(self.manager.provisioner.pid)

    def stop(self) -> None:
        """End it."""
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


@contextmanager
def highest(pids: list[int]) -> Iterator[list[float]]:
    """The most that these processes have alone, in MB together, looked at four times a second."""
    seen, over = [0.0], threading.Event()

    def look() -> None:
        while not over.wait(0.25):
            seen[0] = max(seen[0], own(pids))

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        yield seen
    finally:
        over.set()
        watcher.join()


def together(kernels: list[Kernel], sources: list[str]) -> float:
    """Run the same cells in all kernels at once; returns the seconds until the last one is done."""
    began = time.perf_counter()
    with ThreadPoolExecutor(len(kernels)) as pool:
        list(pool.map(lambda kernel: kernel.run(sources), kernels))
    return time.perf_counter() - began


def sources(number: str) -> list[str]:
    """The code of a lesson, as a reader who opens every solution runs it."""
    return [kind.source(cell) for cell in read(find([number])[0]) if kind.is_code(cell)]


#: The columns of the table; memory is that of each kernel.
HEADERS = ["kernels", "lesson", "s: start", "imports", "lesson", "CPU s: ready", "in all"]
HEADERS += ["MB: idle", "ready", "at the peak"]


def measured(count: int, lesson: str) -> tuple[list[float], list[float], float]:
    """Start so many kernels, one after the other, and run a lesson in all of them: seconds and MB of the table, MB shared."""
    began, kernels = time.perf_counter(), []
    try:
        for _ in range(count):
            kernels.append(Kernel.start())
        start = (time.perf_counter() - began) / count
        pids, cells = [kernel.pid for kernel in kernels], sources(lesson)
        idle = own(pids) / count
        imports = together(kernels, cells[:1])
        ready, together_once = own(pids) / count, shared(pids[0])
        first_cpu = statistics.mean(map(cpu_seconds, pids))
        with highest(pids) as peak:
            whole = together(kernels, cells[1:])
        cpu = statistics.mean(map(cpu_seconds, pids))
    finally:
        for kernel in kernels:
            kernel.stop()
    return [start, imports, whole, first_cpu, cpu], [idle, ready, peak[0] / count], together_once


def server() -> tuple[float, float]:
    """Seconds until JupyterLab answers, and the MB that it has alone a little later, with no kernel."""
    with tempfile.TemporaryDirectory() as folder:
        options = ["--no-browser", "--ip=127.0.0.1", "--port=0", "--allow-root", f"--ServerApp.root_dir={folder}"]
        began = time.perf_counter()
        runtime = {**ENVIRONMENT, "JUPYTER_RUNTIME_DIR": folder}
        lab = subprocess.Popen([sys.executable, "-m", "jupyterlab", *options], env=runtime, stderr=subprocess.DEVNULL)
        try:
            while not list(Path(folder).glob("jpserver-*.json")):
                if lab.poll() is not None:
                    raise RuntimeError("JupyterLab does not start: look at what `python -m jupyterlab` says.")
                time.sleep(0.05)
            took = time.perf_counter() - began
            time.sleep(SETTLE)
            return took, own([lab.pid])
        finally:
            lab.terminate()
            lab.wait(30)


def main() -> None:
    """Measure and print the tables, and what follows for n students."""
    print(f"{os.cpu_count()} cores, Python {platform.python_version()}, torch {torch.__version__}, one thread a kernel")
    runs = [server() for _ in range(3)]
    seconds, lab = min(each for each, _ in runs), max(size for _, size in runs)
    print(f"JupyterLab answers after {seconds:.1f} s and has {lab:.0f} MB\n")
    print("  ".join(HEADERS))
    once = peak = 0.0
    for lesson, count in itertools.product(LESSONS, KERNELS):
        took, memory, together_once = measured(count, lesson)
        row = [str(count), lesson, *(f"{each:.1f}" for each in took), *(f"{each:.0f}" for each in memory)]
        # As they come: a whole run takes minutes.
        print("  ".join(f"{cell:>{len(head)}}" for cell, head in zip(row, HEADERS, strict=True)), flush=True)
        once, peak = max(once, together_once), max(peak, memory[-1])
    print(f"\nThe kernels share {once:.0f} MB. So n students, each with a server and an open lesson, need")
    print(f"n × ({lab:.0f} + {peak:.0f}) MB + {once:.0f} MB at the worst moment, and what the system needs.")


if __name__ == "__main__":
    Parser(description=__doc__).parse_args()
    main()
