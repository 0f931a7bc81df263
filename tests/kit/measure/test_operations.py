import math

import pytest
import torch

from cs336kit import measure
from cs336kit.predict import softmax_cost

pytestmark = pytest.mark.torch


def matmul(x, w):
    out = [[0.0] * len(w[0]) for _ in x]
    for i in range(len(x)):
        for k in range(len(w[0])):
            for j in range(len(w)):
                out[i][k] += x[i][j] * w[j][k]
    return out


def softmax(row):
    largest, total = -math.inf, 0.0
    for x in row:
        largest = x if x > largest else largest
    weights = [(x - largest).exp() for x in row]
    for w in weights:
        total = total + w
    return [w / total for w in weights]


def test_a_matrix_product():
    x, w = [[1.0] * 5 for _ in range(3)], [[2.0] * 4 for _ in range(5)]
    counted = measure.operations(matmul, x, w)
    assert dict(counted) == {"multiply": 60, "add": 60} and counted.total == 2 * 3 * 5 * 4


def test_a_softmax():
    counted = measure.operations(softmax, [1.0, 2.0, 3.0])
    assert dict(counted) == {"compare": 3, "subtract": 3, "exp": 3, "add": 3, "divide": 3}
    assert counted.total == softmax_cost(1, 3).flops


def test_values_are_right():
    seen = []
    measure.operations(lambda a, b: seen.append((a * 3 + b / 2 - 1).value), 2, 4)
    assert seen == [7.0]


@pytest.mark.parametrize(
    ("function", "result", "counted"),
    [
        (lambda a, b: 1 - a, -1.0, {"subtract": 1}),
        (lambda a, b: 1 / a, 0.5, {"divide": 1}),
        (lambda a, b: -a, -2.0, {"subtract": 1}),
        (lambda a, b: a == b, True, {"compare": 1}),
        (lambda a, b: a != b, False, {"compare": 1}),
        (lambda a, b: (a <= 2, a <= 1), (True, False), {"compare": 2}),
        (lambda a, b: (a >= 3, a >= 2), (False, True), {"compare": 2}),
        (lambda a, b: 1 if a - b else 0, 0, {"subtract": 1, "compare": 1}),
        (lambda a, b: a == "2", False, {}),
    ],
)
def test_a_function_does_the_same_with_numbers_that_count(function, result, counted):
    seen = []
    found = measure.operations(lambda a, b: seen.append(function(a, b)), 2, 2.0)
    value = seen[0].value if hasattr(seen[0], "counts") else seen[0]
    assert dict(found) == counted and value == result == function(2.0, 2.0)


@pytest.mark.parametrize("function", [math.exp, math.sqrt, float, lambda x: math.exp(x - 1.0) + 1.0])
def test_what_would_count_nothing_is_refused(function):
    with pytest.raises(TypeError, match=r"which would count nothing: write x\.exp\(\) for math\.exp\(x\)"):
        measure.operations(function, 2.0)


def test_bad_input():
    with pytest.raises(TypeError, match="runs a function"):
        measure.operations(3)
    for bad in (torch.ones(2), "12", [1.0, None], True):
        with pytest.raises(TypeError, match="counts on numbers and nested lists of them, got a"):
            measure.operations(sum, bad)
