import pytest
from hypothesis import given
from hypothesis import strategies as st

from cs336kit.predict.transfers import pcie_bandwidth, pipeline_seconds

times = st.floats(0.001, 10, allow_nan=False)


@pytest.mark.parametrize(
    ("generation", "gigabits", "carried"),
    [(1, 2.5, 8 / 10), (2, 5, 8 / 10), (3, 8, 128 / 130), (4, 16, 128 / 130), (5, 32, 128 / 130), (6, 64, 242 / 256)],
)
def test_pcie_x16_equals_the_usual_tables(generation, gigabits, carried):
    assert pcie_bandwidth(generation) == pytest.approx(16 * gigabits * 1e9 * carried / 8, rel=1e-15)
    assert pcie_bandwidth(generation, lanes=4) == pcie_bandwidth(generation) / 4


@given(st.integers(1, 12), times, times)
def test_the_last_batch_is_done_when_the_formula_says(batches, copy, compute):
    for overlap in (False, True):
        copied = computed = 0.0
        for _ in range(batches):
            copied = (copied if overlap else computed) + copy
            computed = max(copied, computed) + compute
        seconds = pipeline_seconds(batches, copy_seconds=copy, compute_seconds=compute, overlap=overlap)
        assert seconds == pytest.approx(computed)


def test_bad_input_is_a_sentence():
    with pytest.raises(ValueError, match="unknown PCI Express generation '7'"):
        pcie_bandwidth(7)
    with pytest.raises(ValueError, match="copy_seconds must be"):
        pipeline_seconds(2, copy_seconds=-1, compute_seconds=1, overlap=True)
    with pytest.raises(ValueError, match="overlap must be True or False, got 'no'"):
        pipeline_seconds(2, copy_seconds=1, compute_seconds=1, overlap="no")
    with pytest.raises(ValueError, match="batches must be"):
        pipeline_seconds(0, copy_seconds=1, compute_seconds=1, overlap=True)
