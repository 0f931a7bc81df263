import re

import pytest

from cs336kit.teach.figures import memory

ALT = "A sentence that says what the figure shows, long enough for a reader."
DRAWINGS = {
    "saved_parts": lambda: memory.saved_parts(
        {"fp32": {"norms": 3, "mlp": 5}, "bf16": {"norms": 2, "mlp": 2}}, alt=ALT
    ),
    "saved_against_sequence": lambda: memory.saved_against_sequence(
        [256, 512, 1024],
        {"eager": [2**30, 2**32, 2**34], "sdpa": [2**30, 2**31, 2**32]},
        {"eager": [(512, 2**32)]},
        alt=ALT,
    ),
    "step_course": lambda: memory.step_course(
        [0, 2**20, 2**21, 2**20, 0], [("loss", 2**21, 2)], peak=("loss", 2**21), labels=("loss",), alt=ALT
    ),
}


@pytest.mark.parametrize("name", list(DRAWINGS))
def test_figures_are_deterministic_and_speak(name):
    first, second = DRAWINGS[name](), DRAWINGS[name]()
    assert first.svg == second.svg and len(first.svg) < 150_000
    assert re.search(r"<title>([^<]*)</title>", first.svg)[1] == ALT


def test_alt_text_is_required():
    with pytest.raises(ValueError, match="too short"):
        memory.saved_parts({"fp32": {"norms": 3}}, alt="a figure")
