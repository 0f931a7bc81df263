import math

import pytest

from cs336kit.predict.hardware import accelerator
from cs336kit.predict.rooflines import Cost, elementwise_cost, matmul_cost, roofline, softmax_cost


class Counted(float):
    """A number that counts the operations done to it, to check the formulas against the loops themselves."""

    flops = 0

    def _count(self, value):
        Counted.flops += 1
        return Counted(value)

    def __add__(self, other):
        return self._count(float(self) + float(other))

    def __sub__(self, other):
        return self._count(float(self) - float(other))

    def __mul__(self, other):
        return self._count(float(self) * float(other))

    def __truediv__(self, other):
        return self._count(float(self) / float(other))

    def __gt__(self, other):
        Counted.flops += 1
        return float(self) > float(other)

    def exp(self):
        return self._count(math.exp(float(self)))


def softmax_by_loop(row):
    largest, total = Counted(-math.inf), Counted(0)
    for x in row:
        largest = x if x > largest else largest
    weights = [(x - largest).exp() for x in row]
    for w in weights:
        total = total + w
    return [w / total for w in weights]


def counted(function, *arguments):
    Counted.flops = 0
    function(*arguments)
    return Counted.flops


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (3, 7), (5, 64)])
def test_softmax_flops_equal_the_loop(rows, columns):
    loop = counted(lambda: [softmax_by_loop([Counted(i) for i in range(columns)]) for _ in range(rows)])
    assert softmax_cost(rows, columns).flops == loop == 5 * rows * columns


def test_matmul_flops_equal_the_loop():
    def product(m, k, n):
        for _ in range(m * n):
            total = Counted(0)
            for i in range(k):
                total = total + Counted(i) * Counted(2)

    assert matmul_cost(3, 5, 4).flops == counted(product, 3, 5, 4) == 120


def test_bytes():
    assert matmul_cost(3, 5, 4, batch=2, bytes_per_element=4).bytes == 2 * 4 * (15 + 20 + 12)
    assert elementwise_cost(10, reads=2).bytes == 60 and elementwise_cost(10, flops_per_element=0).flops == 0
    assert softmax_cost(4, 8).bytes == 2 * 64


def test_costs_add_and_multiply():
    assert Cost(1, 2) + Cost(3, 4) == Cost(4, 6) and 3 * Cost(1, 2) == Cost(3, 6)
    assert Cost(6, 4).intensity == 1.5
    with pytest.raises(TypeError):
        Cost(1, 2) + 3


def test_roofline_has_two_slopes():
    h100 = accelerator("h100-sxm")
    large, small = (roofline(matmul_cost(n, 8192, 8192), accelerator=h100, precision="bf16") for n in (8192, 8))
    assert large.bound == "compute" and large.flops_per_second == pytest.approx(989.4e12)
    assert large.seconds == pytest.approx(2 * 8192**3 / 989.4e12)
    assert small.bound == "memory" and small.seconds == pytest.approx(matmul_cost(8, 8192, 8192).bytes / 3.35e12)
    assert small.flops_per_second == pytest.approx(matmul_cost(8, 8192, 8192).flops / small.seconds)
    assert large.ridge == pytest.approx(989.4 / 3.35)


def test_at_the_ridge_both_times_are_equal():
    at = roofline(Cost(300, 100), peak_flops_per_second=3e12, bandwidth_bytes_per_second=1e12)
    assert at.compute_seconds == at.memory_seconds == at.seconds and at.intensity == at.ridge == 3
    assert at.bound == "compute"


def test_own_numbers_replace_the_accelerators():
    at = roofline(Cost(10, 1), accelerator=accelerator("h100-sxm"), peak_flops_per_second=10.0)
    assert at.compute_seconds == 1.0 and at.memory_seconds == pytest.approx(1 / 3.35e12)


def test_bad_input_is_a_sentence():
    with pytest.raises(ValueError, match=r"takes a Cost\(flops, bytes\)"):
        roofline(12, accelerator=accelerator("h100-sxm"))
    with pytest.raises(ValueError, match="needs an accelerator, or both"):
        roofline(Cost(1, 1), peak_flops_per_second=1e12)
    with pytest.raises(ValueError, match="unknown accelerator"):
        roofline(Cost(1, 1), accelerator="h1000-sxm")
    with pytest.raises(LookupError, match="no sourced bf16"):
        roofline(Cost(1, 1), accelerator=accelerator("v100-sxm2-32gb"))
    for bad in (0, -1, math.nan, math.inf, True, "fast"):
        with pytest.raises(ValueError, match="peak_flops_per_second must be"):
            roofline(Cost(1, 1), peak_flops_per_second=bad, bandwidth_bytes_per_second=1.0)
    for bad in (0, 1.5, True):
        with pytest.raises(ValueError, match="elements must be"):
            elementwise_cost(bad)
    with pytest.raises(ValueError, match="bytes must be"):
        Cost(1, 0)


def test_a_precision_that_does_not_exist_is_refused_also_beside_a_peak():
    with pytest.raises(ValueError, match="unknown precision 'nonsense'"):
        roofline(Cost(1, 1), accelerator="h100-sxm", precision="nonsense", peak_flops_per_second=1e12)
