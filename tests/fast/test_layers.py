"""Which layers are alike: rows, patterns that repeat, and the sequence that they stand for."""

import itertools
import random

import pytest

from cs336kit.predict._layers import periods


@pytest.mark.parametrize(
    ("kinds", "found"),
    [
        ("", []),
        ("a", [(1, [(1, "a")])]),
        ("aaaaa", [(1, [(5, "a")])]),
        ("abc", [(1, [(1, "a")]), (1, [(1, "b")]), (1, [(1, "c")])]),
        ("aaab", [(1, [(3, "a")]), (1, [(1, "b")])]),
        ("abab", [(2, [(1, "a"), (1, "b")])]),
        ("abababc", [(3, [(1, "a"), (1, "b")]), (1, [(1, "c")])]),
        ("caabaab", [(1, [(1, "c")]), (2, [(2, "a"), (1, "b")])]),
        # Two a cover less than twice aab, and a pattern that repeats later is not begun too early.
        ("aabaabaa", [(2, [(2, "a"), (1, "b")]), (1, [(2, "a")])]),
        # The longest pattern that is looked for has twelve layers.
        ("abcdefghijkl" * 2, [(2, [(1, kind) for kind in "abcdefghijkl"])]),
        ("abcdefghijklm" * 2, [(1, [(1, kind)]) for kind in "abcdefghijklm" * 2]),
    ],
)
def test_rows_and_patterns(kinds, found):
    assert periods(kinds) == found


def test_they_stand_for_the_sequence():
    r = random.Random(0)
    for _ in range(300):
        kinds = "".join(r.choice("ab") for _ in range(r.randrange(12))) * r.randrange(3)
        rows = (rows * times for times, rows in periods(kinds))
        assert "".join(kind * many for many, kind in itertools.chain.from_iterable(rows)) == kinds
