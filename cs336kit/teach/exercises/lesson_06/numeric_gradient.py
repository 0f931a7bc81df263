"""Exercise 06.6: a numeric gradient for any shape."""

import itertools

import torch

from cs336kit.teach.exercises.core import Case, Exercise, Mistake
from cs336kit.teach.exercises.lesson_06.tensors import normal


def numeric_gradient(f, x, h):
    gradient = torch.zeros(x.shape, dtype=x.dtype)  # zeros_like would copy the strides of a transposed x
    for i in range(x.numel()):
        step = torch.zeros(x.numel(), dtype=x.dtype)
        step[i] = h
        step = step.view(x.shape)
        gradient.view(-1)[i] = (f(x + step) - f(x - step)) / (2 * h)
    return gradient


def _forward_difference(f, x, h):
    gradient = torch.zeros(x.shape, dtype=x.dtype)
    for i in range(x.numel()):
        step = torch.zeros(x.numel(), dtype=x.dtype)
        step[i] = h
        gradient.view(-1)[i] = (f(x + step.view(x.shape)) - f(x)) / h
    return gradient


def _all_at_once(f, x, h):
    return torch.full(x.shape, float((f(x + h) - f(x - h)) / (2 * h)), dtype=x.dtype)


def _not_restored(f, x, h):
    x, gradient = x.clone(), torch.zeros(x.shape, dtype=x.dtype)
    for i in range(x.numel()):
        index = tuple(int(k) for k in torch.unravel_index(torch.tensor(i), x.shape))
        x[index] += h
        above = f(x)
        x[index] -= 2 * h
        gradient[index] = (above - f(x)) / (2 * h)
    return gradient


def _backward_difference(f, x, h):
    return _forward_difference(f, x, -h)


def _half_steps(f, x, h):
    return numeric_gradient(f, x, h / 2)


def _into_a_copy(f, x, h):
    x, gradient = x.clone(), torch.zeros_like(x)
    for i in range(x.numel()):
        up, down = x.clone(), x.clone()
        up.reshape(-1)[i] += h  # of a transposed x, reshape makes a copy, and up itself stays as it was
        down.reshape(-1)[i] -= h
        gradient.reshape(-1)[i] = (f(up) - f(down)) / (2 * h)
    return gradient


def _no_clone(f, x, h):
    x, gradient = x.clone(), torch.zeros(x.shape, dtype=x.dtype)
    for place in itertools.product(*map(range, x.shape)):
        up, down = x, x
        up[place] += h
        down[place] -= h
        gradient[place] = (f(up) - f(down)) / (2 * h)
    return gradient


def _whole_rows(f, x, h):
    gradient = torch.zeros(x.shape, dtype=x.dtype)
    for i in range(len(x)):
        up, down = x.clone(), x.clone()
        up[i] += h
        down[i] -= h
        gradient[i] = (f(up) - f(down)) / (2 * h)
    return gradient


def _cubes(x):
    return float((x * x * x).sum() + x.prod())


EXERCISE = Exercise(
    id="06.6",
    reference=numeric_gradient,
    cases=lambda: [
        Case((_cubes, torch.tensor([1.0, 2.0, -1.0], dtype=torch.float64), 0.25), label="a vector, h = 1/4"),
        Case((_cubes, normal(2, 3, seed=1), 0.125), label="a matrix, h = 1/8"),
        Case((_cubes, normal(3, 2, seed=2).T, 0.5), label="a transposed matrix, h = 1/2"),
        Case((_cubes, torch.tensor(2.0, dtype=torch.float64), 0.25), label="a single number"),
    ],
    mistakes=(
        Mistake(
            _forward_difference,
            "For {case} this is the forward difference, (f(x + h) − f(x)) / h, whose error is of order h. Step to both sides.",
        ),
        Mistake(
            lambda f, x, h: 2 * numeric_gradient(f, x, h),
            "For {case} the result is twice too large: from x − h to x + h the distance is 2h.",
        ),
        Mistake(
            _all_at_once,
            "For {case} every element is the same: you moved all elements of x together. Move one, hold the others.",
        ),
        Mistake(
            _not_restored,
            "For {case} the first element is right and later ones drift: an element was not put back before the next moved.",
        ),
        Mistake(
            lambda f, x, h: -numeric_gradient(f, x, h),
            "For {case} the sign is turned: f(x + h) comes first.",
        ),
        Mistake(
            _backward_difference,
            "For {case} this is the backward difference, (f(x) − f(x − h)) / h, whose error is of order h. Step to both sides.",
        ),
        Mistake(
            _half_steps,
            "For {case} you stepped by h/2 to each side. Step by h, and divide by 2h.",
        ),
        Mistake(
            _into_a_copy,
            "For {case} the gradient is 0: reshape or flatten of a transposed tensor is a copy, and writing there changes "
            "nothing. Index the tensor itself with all its indices.",
        ),
        Mistake(
            _no_clone,
            "For {case} the gradient is 0: up and down are one tensor under two names, so both are back at x. Clone it twice.",
        ),
        Mistake(
            _whole_rows,
            "For {case} a whole row moved at once. Move one element at a time, whatever the number of dimensions.",
        ),
    ),
    hints=(
        "For one number you would compute (f(x + h) − f(x − h)) / (2h). What is x + h for one element of a tensor?",
        "For every element, make two copies of x, raise that element by h in one and lower it in the other.",
        "up = x.clone(); up[index] += h; down = x.clone(); down[index] -= h; gradient[index] = (f(up) - f(down)) / …",
    ),
    checked="a vector, a matrix, a transposed matrix and a single number, with steps from 1/8 to 1/2.",
    tolerance=1e-9,
)
