import mmap
import sys
from pathlib import Path

import psutil
import pytest

from cs336kit.measure import resident_bytes


def test_it_agrees_with_psutil_and_sees_what_is_touched():
    assert resident_bytes() == pytest.approx(psutil.Process().memory_info().rss, rel=0.05)
    size = 2**26
    # Straight from the system: an allocator might hand out pages that this process holds already.
    with mmap.mmap(-1, size) as block:
        untouched = resident_bytes()
        for page in range(0, size, mmap.PAGESIZE):
            block[page] = 1
        assert 0.9 * size < resident_bytes() - untouched < 1.3 * size


def test_other_systems(monkeypatch):
    monkeypatch.setattr(Path, "exists", lambda path: False)
    assert resident_bytes() == pytest.approx(psutil.Process().memory_info().rss, rel=0.05)
    monkeypatch.setitem(sys.modules, "psutil", None)
    with pytest.raises(RuntimeError, match="pip install psutil"):
        resident_bytes()
