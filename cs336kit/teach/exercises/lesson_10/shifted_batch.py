"""Exercise 10.2: x and y of a batch."""

import torch

from cs336kit.teach.exercises.core import Case, Exercise, Mistake


def batch_at(tokens, starts, sequence):
    x = torch.stack([tokens[i : i + sequence] for i in starts])
    y = torch.stack([tokens[i + 1 : i + 1 + sequence] for i in starts])
    return x, y


def _with_shift(shift):
    def wrong(tokens, starts, sequence):
        def rows(first):
            return torch.stack([torch.roll(tokens, -first)[i : i + sequence] for i in starts])

        return rows(0), rows(shift)

    return wrong


def _rolled(tokens, starts, sequence):
    x = torch.stack([tokens[i : i + sequence] for i in starts])
    return x, x.roll(-1, dims=1)


def _swapped(tokens, starts, sequence):
    return tuple(reversed(batch_at(tokens, starts, sequence)))


def _next_number(tokens, starts, sequence):
    x = torch.stack([tokens[i : i + sequence] for i in starts])
    return x, x + 1


def _last_only(tokens, starts, sequence):
    x = torch.stack([tokens[i : i + sequence] for i in starts])
    return x, torch.stack([tokens[i + sequence] for i in starts])


def _short(tokens, starts, sequence):
    window = torch.stack([tokens[i : i + sequence] for i in starts])
    return window[:, :-1], window[:, 1:]


def _batch_cases():
    tokens = torch.tensor([7, 1, 8, 2, 8, 1, 8, 2, 8, 4])
    return [
        Case((tokens, [0, 5], 4), label="10 tokens, starts 0 and 5, S = 4"),
        Case((tokens, [2], 1), label="10 tokens, start 2, S = 1"),
        Case((torch.arange(100) ** 2 % 97, [3, 94, 3], 5), label="100 tokens, starts 3, 94 and 3, S = 5"),
    ]


EXERCISE = Exercise(
    id="10.2",
    reference=batch_at,
    cases=_batch_cases,
    mistakes=(
        Mistake(
            _with_shift(0),
            "For {case} your y equals x: the model is asked for the token that it sees. The loss falls to zero and "
            "nothing is learned.",
        ),
        Mistake(
            _with_shift(-1), "For {case} your y is one token behind x: the model is asked for what it has just read."
        ),
        Mistake(_with_shift(2), "For {case} your y is two tokens ahead of x: a token is skipped."),
        Mistake(
            _rolled,
            "For {case} your y wraps around: its last column is the first token of x. The target of the last position "
            "is the next token of the file, so read S + 1 tokens.",
        ),
        Mistake(
            _next_number,
            "For {case} your y is x + 1: you moved the numbers of the tokens. Ahead in the text is meant: read one place on.",
        ),
        Mistake(
            _last_only,
            "For {case} your y holds one target for each row. Every position has its own: y has the shape of x.",
        ),
        Mistake(_swapped, "For {case} x and y are exchanged: x comes first, y is one token ahead."),
        Mistake(
            _short,
            "For {case} you cut S tokens into S − 1 and S − 1. Read S + 1 tokens, so that x and y have S each.",
        ),
    ),
    hints=(
        "What should the model say after x[0, 0]? That token is y[0, 0].",
        "For every start i, x is tokens i … i + S − 1 and y is tokens i + 1 … i + S. Stack the rows.",
        "y = torch.stack([tokens[i + ___ : i + ___ + sequence] for i in starts])",
    ),
    checked="repeated starts, sequences of 1, 4 and 5, and the last window of the data, whose target is the last token.",
)
