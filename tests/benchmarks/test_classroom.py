"""What measures a classroom: a kernel runs cells, a cell that fails is no measurement, and memory is counted once."""

import shutil
import subprocess
import sys

import pytest

from benchmarks import classroom

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells which pages a process has alone")


def test_a_kernel_is_measured_and_a_cell_that_fails_is_named():
    kernel = classroom.Kernel.start()
    try:
        idle = classroom.own([kernel.pid])
        took = classroom.together([kernel], ["block = b'x' * 200_000_000"])
        assert took > 0 and 150 < classroom.own([kernel.pid]) - idle < 250
        assert classroom.shared(kernel.pid) > 0 and classroom.cpu_seconds(kernel.pid) > 0
        with pytest.raises(RuntimeError, match="a cell failed: division by zero"):
            classroom.together([kernel], ["1 / 0"])
    finally:
        kernel.stop()
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    assert classroom.own([gone.pid]) == 0


def test_a_lesson_is_all_of_its_code():
    assert "import math" in classroom.sources("00")[0] and len(classroom.sources("00")) > 20


def test_a_server_that_does_not_start_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(sys, "executable", shutil.which("false"))
    with pytest.raises(RuntimeError, match="JupyterLab does not start"):
        classroom.server()
