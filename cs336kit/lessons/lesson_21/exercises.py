"""Exercises of lesson 21: a claim and what settles it."""

from itertools import pairwise

import torch

from cs336kit import measure
from cs336kit.teach.exercises.core import exercise


def _chain(*widths, needs=False, frozen=0):
    """Linear layers of these widths and five inputs; needs: their gradient is asked for; frozen: so many first layers."""
    net = torch.nn.Sequential(*(torch.nn.Linear(a, b) for a, b in pairwise(widths)))
    for layer in list(net)[:frozen]:
        layer.requires_grad_(False)
    return net, torch.ones(5, widths[0], requires_grad=needs)


@exercise(
    "21.1",
    cases=lambda: {
        "three layers whose input needs a gradient": _chain(32, 32, 32, 32, needs=True),
        "three layers on data": _chain(32, 32, 32, 32),
        "one layer on data": _chain(64, 16),
        "a wide layer on data, then a narrow one": _chain(64, 128, 32),
        "two layers on data, of which the first is frozen": _chain(48, 48, 48, frozen=1),
    },
    mistakes={
        "(2.0, right[1] + 1)": "that is the whole step divided by its forward pass. Subtract the forward pass first.",
        "(2.0, 1 / right[1])": "you divided the forward pass by the backward pass.",
        "(right[1], 2.0)": "your two values are swapped: what is said comes first, then what is so.",
        "(2.0, 2.0)": "two values of 2.0 are not right here. If the second one is no count of yours, count "
        "it; if it is, you made the input ask for a gradient, or a frozen layer, which nobody did here.",
        "right[1]": "that is what is so. Return a pair, with what is said before it.",
    },
    hints=(
        "Which two runs can you count, and which difference is the backward pass?",
        "`measure.flops(function).total` counts what runs inside a function. A loss can be any single number, such as a sum.",
    ),
    checked="three layers with and without a gradient for the input, a single one, unequal widths, and a frozen layer.",
)
def settle(net, x):
    forward = measure.flops(lambda: net(x)).total
    step = measure.flops(lambda: net(x).sum().backward()).total
    return 2.0, (step - forward) / forward


_PEAK, _RUN = 1513 / 2, 300


@exercise(
    "21.2",
    tolerance=0.01,
    mistakes={
        "('A', ...)": "that is a different card. The one in your machine has fewer cores and a lower clock.",
        "('B', _RUN / 1513)": "B is right, but the star means that two of every four factors are zero, and yours are not.",
        "('C', ...)": "that is what one program reached. You could compare a utilization against it with nobody else's.",
        "('B', _PEAK / _RUN)": "B is right, but you divided the peak by what you reach.",
        "('B', 100 * _RUN / _PEAK)": "B is right, but give the utilization as a fraction, as the 0.46 is.",
    },
    hints=(
        "For each number, ask which card, format and condition it is for, and whether it is a promise or a measurement.",
        "The published 0.46 divides by the dense peak of its chip. Turn one of the three numbers into such a peak.",
    ),
    checked="B, at 0.397: the number of your card, and half of it, because of the star.",
)
def which_peak():
    return "B", _RUN / _PEAK


def _random(S, D, seed=0):
    return torch.randn(S, D, generator=torch.Generator().manual_seed(seed))


def _changed(f, S, D, change=None):
    """[t][s]: whether row s of the output changes if row t of the input does."""
    x, other = _random(S, D), _random(S, D, seed=1)
    found = []
    for t in range(S):
        z = x.clone()
        z[t] = other[t] if change is None else x[t] + change
        found.append((f(z) - f(x)).abs().amax(dim=1).gt(1e-4).tolist())
    return found


def _last(felt):
    """For each row of the output the last row of the input that it felt, or 0 if it felt none."""
    return [max((t for t, rows in enumerate(felt) if rows[s]), default=0) for s in range(len(felt))]


@exercise(
    "21.3",
    cases={
        "a sum over all rows up to one's own": (lambda x: x.cumsum(dim=0), 6, 4),
        "a sum over one's own row and all later ones": (lambda x: x.flip(0).cumsum(dim=0).flip(0), 6, 4),
        "a norm over the features of each row": (lambda x: torch.nn.functional.layer_norm(x, x.shape[1:]), 5, 8),
        "a norm over all rows, feature by feature": (lambda x: (x - x.mean(dim=0)) / x.std(dim=0), 5, 3),
        "one's own row and the next": (lambda x: x + torch.nn.functional.pad(x[1:], (0, 0, 0, 1)), 4, 2),
        "the row before, and for the first row the last": (lambda x: x.roll(1, dims=0), 4, 3),
        "one's own row times the row before": (lambda x: x * x.roll(1, dims=0), 4, 2),
    },
    mistakes={
        "_last(_changed(f, S, D, change=1.0))": "you added the same number to a whole row, which is just what a norm over the "
        "features takes away. Put random numbers in its place.",
        "[max((s for s, felt in enumerate(row) if felt), default=0) for row in _changed(f, S, D)]": "that is the last output row "
        "that each input row reaches. The task asks for the last input row that each output row depends on.",
        "[column.index(True) for column in zip(*_changed(f, S, D))]": "that is the first input row that each output depends on.",
        "[sum(column) for column in zip(*_changed(f, S, D))]": "that is how many rows each output depends on.",
        "[s + 1 for s in right]": "rows are counted from zero.",
    },
    hints=(
        "What happens to the output if you change a single row of the input?",
        "For each row of the input: replace it in a copy, run f on both, and see which rows of the output differ.",
    ),
    checked="sums over the past and the future, norms over features and rows, a window, and a shift.",
)
def last_seen(f, S, D):
    return _last(_changed(f, S, D))


def _days(peak=989.4e12, rate=0.4, parameters=13e9):
    return 6 * parameters * 260e9 / (64 * peak * rate * 86400)


@exercise(
    "21.4",
    tolerance=0.02,
    labels=(0, 1),
    mistakes={
        "(5, 3, ...)": "you found both sentences. Give the smaller number first.",
        "(3, 5, _days(1979e12))": "you found both sentences. Now the days: without the zeros, an H100 is half as fast.",
        "(3, 5, 2 * _days())": "you found both sentences. Halve the peak once, not twice.",
        "(4, 5, ...)": "5 is one of them, but 4 is right: the bytes take 7.8 ms and the FLOPs 26 µs. Compute both again.",
        "(2, 5, ...)": "5 is one of them, but 2 is right: 2 + 2 + 4 + 4 + 4 is 16, and 16 times 13 is 208.",
        "(2, 3, ...)": "3 is one of them, but 2 is right: 2 + 2 + 4 + 4 + 4 is 16, and 16 times 13 is 208.",
        "(1, 5, ...)": "5 is one of them, but 1 is right: 13 billion times two bytes is 26 GB.",
    },
    hints=(
        "Compute every number of the five sentences again, and divide what is said by what you get. Two ratios are not 1.",
        "Both ratios are 2 or a half. Which factor of two belongs in each formula?",
    ),
    checked="3 leaves out the two bytes of a number, 5 takes the sparse peak; with the dense one it takes 9.3 days.",
)
def two_slips():
    return 3, 5, _days()


@exercise(
    "21.5",
    mistakes={
        "('wrong', ..., ..., ...)": "the first claim was true when it was written: async became a keyword with Python 3.7.",
        "(..., 'wrong', ..., ...)": "2.5 is neither, but it is close: nobody would buy a different card because of it.",
        "(..., 'holds', ..., ...)": "it is 2.42 GB or 2.25 GiB, and 2.5 is neither.",
        "(..., ..., 'holds', ...)": "in fp32 without tensor cores it is 19.5. Which condition is missing from the claim?",
        "(..., ..., ..., 'imprecise')": "it is a different loss, and training goes on with it: more than a lost digit.",
        "(..., ..., ..., 'typo')": "nothing near the line has it right, so nobody can tell that a slip of the pen was meant.",
    },
    hints=(
        "For each claim, ask in turn: is there a case in which it is so? Was there once? What would it cost to believe it?",
        "The four verdicts are all different. The text around a claim does not help here: none is a typo.",
    ),
    checked="outdated, imprecise, holds-with-condition, wrong.",
)
def verdicts():
    return "outdated", "imprecise", "holds-with-condition", "wrong"
