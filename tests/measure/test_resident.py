import sys
from pathlib import Path

import numpy as np
import psutil
import pytest

from cs336kit.measure import resident_bytes


def test_it_agrees_with_psutil_and_sees_what_is_touched():
    before = resident_bytes()
    assert before == pytest.approx(psutil.Process().memory_info().rss, rel=0.05)
    block = np.ones(8 * 2**20)  # 64 MiB, written to and therefore in memory
    assert 0.9 * block.nbytes < resident_bytes() - before < 1.3 * block.nbytes


def test_other_systems(monkeypatch):
    monkeypatch.setattr(Path, "exists", lambda path: False)
    assert resident_bytes() == pytest.approx(psutil.Process().memory_info().rss, rel=0.05)
    monkeypatch.setitem(sys.modules, "psutil", None)
    with pytest.raises(RuntimeError, match="pip install psutil"):
        resident_bytes()
