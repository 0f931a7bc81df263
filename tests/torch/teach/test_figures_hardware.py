import re

import pytest

from cs336kit.measure.recorded import NoRecord, Row, Stage
from cs336kit.predict import pipeline_timeline
from cs336kit.teach.figures import hardware

ALT = "A sentence that says what the figure shows, long enough for a reader."


def drawings():
    slow = pipeline_timeline(3, copy_seconds=0.01, compute_seconds=0.02, overlap=False)
    fast = pipeline_timeline(3, copy_seconds=0.01, compute_seconds=0.02, overlap=True)
    return {
        "peaks": lambda: hardware.peaks([("A", {"bf16": 1e14}), ("B", {"bf16": 2e14, "fp8": 4e14})], ("bf16", "fp8"), alt=ALT),
        "roofline": lambda: hardware.roofline([("add", 0.1, 1e11), ("product", 900.0, 5e14)], peak_flops_per_second=1e15,
                                              bandwidth_bytes_per_second=3e12, ceilings=[("fp32", 6e13)], alt=ALT),
        "timelines": lambda: hardware.timelines([("one by one", slow), ("overlapped", fast)], alt=ALT),
        "live_memory": lambda: hardware.live_memory([("a", 0), ("b", 2**20), ("c", 0)], marks=[(1, "peak")], alt=ALT),
    }  # fmt: skip


@pytest.mark.parametrize("name", ["peaks", "roofline", "timelines", "live_memory"])
def test_figures_are_deterministic_and_speak(name):
    draw = drawings()[name]
    first, second = draw(), draw()
    assert first.svg == second.svg and len(first.svg) < 150_000
    assert re.search(r"<title>([^<]*)</title>", first.svg)[1] == ALT


def test_alt_text_is_required():
    with pytest.raises(ValueError, match="too short"):
        hardware.timelines([("x", [("copy", 0, 0.0, 1.0)])], alt="a figure")


def test_recorded_timelines_draw_a_record_or_say_that_there_is_none():
    rows = tuple(
        Row(lane, {"pinned": pinned, "batch": batch, "start": 0.01 * batch}, None, 0.008, "s", (0.008,))
        for pinned in (True, False)
        for batch in range(3)
        for lane in ("copy", "compute")
    )
    drawn = hardware.recorded_timelines(Stage("overlap", "NVIDIA Example", "2.13.0", "2026-01-02", (), rows), alt=ALT)
    assert drawn.alt == f"Recorded on NVIDIA Example. {ALT}"
    assert repr(hardware.recorded_timelines(NoRecord("overlap"), alt=ALT)).startswith("There is no record of 'overlap'")
