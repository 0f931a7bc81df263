import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cs336kit.predict.transfers import pcie_bandwidth, pipeline_seconds, pipeline_timeline, transfer_seconds

times = st.floats(0.001, 10, allow_nan=False)


@pytest.mark.parametrize(
    ("generation", "gigabits", "carried"),
    [(1, 2.5, 8 / 10), (2, 5, 8 / 10), (3, 8, 128 / 130), (4, 16, 128 / 130), (5, 32, 128 / 130), (6, 64, 242 / 256)],
)
def test_pcie_x16_equals_the_usual_tables(generation, gigabits, carried):
    assert pcie_bandwidth(generation) == pytest.approx(16 * gigabits * 1e9 * carried / 8, rel=1e-15)
    assert pcie_bandwidth(generation, lanes=4) == pcie_bandwidth(generation) / 4


def test_transfer():
    assert transfer_seconds(64 * 10**9, bandwidth_bytes_per_second=32e9) == 2.0
    assert transfer_seconds(0, bandwidth_bytes_per_second=1.0, latency_seconds=1e-5) == 1e-5


@given(st.integers(1, 12), times, times)
def test_the_timeline_ends_when_the_formula_says(batches, copy, compute):
    for overlap in (False, True):
        arguments = dict(copy_seconds=copy, compute_seconds=compute, overlap=overlap)
        spans = pipeline_timeline(batches, **arguments)
        assert math.isclose(max(end for *_, end in spans), pipeline_seconds(batches, **arguments))
        for lane in ("copy", "compute"):
            mine = [span for span in spans if span[0] == lane]
            assert all(a[3] <= b[2] + 1e-9 for a, b in itertools.pairwise(mine))  # a lane does one thing at a time
        ends = {(lane, batch): end for lane, batch, _, end in spans}
        starts = {(lane, batch): start for lane, batch, start, _ in spans}
        assert all(starts["compute", i] >= ends["copy", i] - 1e-9 for i in range(batches))


def test_bad_input_is_a_sentence():
    with pytest.raises(ValueError, match="unknown PCI Express generation '7'"):
        pcie_bandwidth(7)
    with pytest.raises(ValueError, match="bandwidth_bytes_per_second must be"):
        transfer_seconds(1, bandwidth_bytes_per_second=0)
    with pytest.raises(ValueError, match="copy_seconds must be"):
        pipeline_timeline(2, copy_seconds=-1, compute_seconds=1, overlap=True)
    with pytest.raises(ValueError, match="overlap must be True or False, got 'no'"):
        pipeline_timeline(2, copy_seconds=1, compute_seconds=1, overlap="no")
    with pytest.raises(ValueError, match="batches must be"):
        pipeline_seconds(0, copy_seconds=1, compute_seconds=1, overlap=True)
