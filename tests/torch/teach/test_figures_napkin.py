from cs336kit import teach

ALT = "Twice the accelerators halve the days; a lower MFU moves the whole line up."


def test_days_against_accelerators_is_deterministic_and_small():
    def draw():
        lines = {"0.5": [288.0, 144.0, 72.0], "0.3": [480.0, 240.0, 120.0]}
        return teach.figures.days_against_accelerators([512, 1024, 2048], lines, mark=(1024, 144.0), alt=ALT)

    assert draw().svg == draw().svg
    assert draw().alt == ALT and len(draw().svg) < 150_000


def test_largest_models():
    lines = {"sharded": [5e9, 40e9], "replicated": [5e9, 5e9]}
    figure = teach.figures.largest_models([1, 8], lines, lines={"GPT-3": 175e9}, alt=ALT)
    assert figure.svg.startswith("<svg") and figure.alt == ALT
