import pytest

from cs336kit import teach

ALT = "The same strip is read row by row and, transposed, column by column."


def draw():
    views = [("x", (3, 4), (4, 1), 0), ("x.T", (4, 3), (1, 4), 0), ("x[:, 1]", (3,), (4,), 1)]
    return teach.figures.strided(range(12), views, alt=ALT)


def test_strided_is_deterministic_and_small():
    first, second = draw(), draw()
    assert first.svg == second.svg
    assert first.alt == ALT and len(first.svg) < 150_000


def test_strided_draws_views_that_read_an_element_more_than_once():
    windows = teach.figures.strided(
        range(5), [("windows", (3, 3), (1, 1), 0), ("expanded", (2, 3), (0, 0), 4)], alt=ALT
    )
    assert windows.svg.startswith("<svg")


def test_strided_refuses_to_read_past_the_storage():
    with pytest.raises(IndexError):
        teach.figures.strided(range(5), [("x", (3, 4), (4, 1), 0)], alt=ALT)


def test_masks():
    figure = teach.figures.masks([("right", [[True, False], [True, True]])], alt=ALT)
    assert figure.svg.startswith("<svg") and figure.alt == ALT
