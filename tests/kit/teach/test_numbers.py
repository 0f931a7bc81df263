import math

import pytest

from cs336kit.teach.numbers import check_unit, gib, si, text

pytestmark = pytest.mark.torch


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (124_439_808, "124,439,808"),
        (448.0, "448"),
        (2.0**-24, "5.96046e-08"),
        (True, "True"),
        ((2, 3), "(2, 3)"),
        ((2,), "(2,)"),
        (6.3e24, "6.3e+24"),
        (10**24, "1e+24"),
        (10**18 - 1, "999,999,999,999,999,999"),
        (10**18, "1e+18"),
        (-(10**18), "-1e+18"),
        (1e15 - 1, "999,999,999,999,999"),
        (1e15, "1e+15"),
        (-1e15, "-1e+15"),
        (-123456789 * 10**12, "-1.23457e+20"),
        (10**400, "1e+400"),
        ("bf16", "bf16"),
        (float("inf"), "inf"),
    ],
)
def test_text(value, written):
    assert text(value) == written


def test_gib_are_powers_of_two():
    assert gib(80e9) == "74.51 GiB"


@pytest.mark.parametrize(
    ("value", "unit", "written"),
    [
        (312e12, "FLOP/s", "312 TFLOP/s"),
        (989.4e12, "FLOP/s", "989.4 TFLOP/s"),
        (6.3e24, "FLOPs", "6.3e+24 FLOPs"),
        (0, "FLOPs", "0 FLOPs"),
        (-312e12, "FLOP/s", "-312 TFLOP/s"),
        (999_949, "B", "999.9 kB"),
        (999_999, "B", "1 MB"),
        (999_999e15, "B", "1e+21 B"),
    ],
)
def test_si(value, unit, written):
    assert si(value, unit) == written


@pytest.mark.parametrize("bad", [math.nan, math.inf, True, "3", None])
def test_sizes_refuse_what_is_no_finite_number(bad):
    for write in (gib, lambda value: si(value, "s")):
        with pytest.raises(ValueError, match="finite number"):
            write(bad)


def test_an_unknown_unit_lists_the_known_ones():
    with pytest.raises(ValueError, match=r"unknown unit 'Gb'.*GiB.*FLOP/s"):
        check_unit("Gb")
