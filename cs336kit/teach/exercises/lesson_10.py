"""Exercises of lesson 10: the training loop."""

import itertools

import torch

from cs336kit.teach.exercises.core import Case, Exercise, Mistake

# --- 10.1: how many starts --------------------------------------------------------------------------------------------


def starts(tokens, sequence):
    return tokens - sequence


_STARTS = Exercise(
    id="10.1",
    reference=starts,
    cases=lambda: [Case((12, 4)), Case((5, 4), label="5 tokens, sequences of 4"), Case((466_273, 64)), Case((1025, 1))],
    mistakes=(
        Mistake(
            lambda n, s: n - s - 1,
            "{case} gave {given}: one start too few. A sequence and its target take S + 1 tokens together, and the last "
            "window of S + 1 tokens begins at N − S − 1, which counts too.",
        ),
        Mistake(
            lambda n, s: n - s + 1,
            "{case} gave {given}: one start too many. That is the number of windows of S tokens, and the target of the "
            "last one would lie behind the end of the file.",
        ),
        Mistake(lambda n, s: n, "{case} gave {given}: the late starts have no S tokens left behind them."),
        Mistake(
            lambda n, s: n // s,
            "{case} gave {given}: that counts sequences that do not overlap. Here a sequence may begin at any token.",
        ),
        Mistake(
            lambda n, s: n // (s + 1),
            "{case} gave {given}: that counts windows that do not overlap. Here a sequence may begin at any token.",
        ),
    ),
    hints=(
        "Draw 5 tokens as boxes. Where can a sequence of 4 begin, if its last target must be one of the boxes?",
        "A window has S + 1 tokens. The first begins at 0, the last ends at the last token. Count them, both included.",
        "return tokens - (sequence + 1) + ___",
    ),
    checked="12, 5, 1,025 and 466,273 tokens; with 5 tokens and sequences of 4 there is exactly one start.",
)

# --- 10.2: x and y ----------------------------------------------------------------------------------------------------


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


_BATCH = Exercise(
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

# --- 10.3: accumulation over batches of different sizes ---------------------------------------------------------------


def accumulated(parts):
    total = sum(count for _, count in parts)
    return sum(gradient * (count / total) for gradient, count in parts)


def _accumulation_cases():
    generator = torch.Generator().manual_seed(0)

    def draw(*counts):
        return [(torch.randn(3, generator=generator, dtype=torch.float64), count) for count in counts]

    return [
        Case((draw(6, 2),), label="two batches, of 6 and 2 sequences"),
        Case((draw(4, 4, 4),), label="three batches of 4 sequences"),
        Case((draw(8, 8, 1),), label="batches of 8, 8 and a last one of 1"),
        Case((draw(5),), label="one batch"),
    ]


_ACCUMULATED = Exercise(
    id="10.3",
    reference=accumulated,
    cases=_accumulation_cases,
    mistakes=(
        Mistake(
            lambda parts: sum(g for g, _ in parts),
            "For {case} you added the gradients without dividing: the step is as many times too long as there are "
            "batches. Each loss was already a mean.",
        ),
        Mistake(
            lambda parts: sum(g for g, _ in parts) / len(parts),
            "For {case} you took the mean over the batches: right for batches of one size, wrong here. A sequence in a "
            "small batch would count for more than one in a large batch.",
        ),
        Mistake(
            lambda parts: sum(g * n for g, n in parts),
            "For {case} you added up the sum over all sequences. Divide it by the number of sequences.",
        ),
        Mistake(
            lambda parts: sum(g / n for g, n in parts),
            "For {case} you divided every gradient by its own count. Each is a mean already: weigh it by its share of the "
            "sequences.",
        ),
        Mistake(
            lambda parts: parts[-1][0],
            "For {case} only the last batch is left: something zeroed the gradients in between.",
        ),
    ),
    hints=(
        "Each gradient is a mean over its own batch. What would the mean over all sequences be?",
        "Turn every mean back into a sum (times its count), add the sums, and divide by all sequences.",
        "return sum(gradient * count for gradient, count in parts) / sum(___ for ___ in parts)",
    ),
    checked="equal batches, a short last batch, very unequal ones, and a single batch.",
    tolerance=1e-9,
)

# --- 10.4: prefetching ------------------------------------------------------------------------------------------------


def with_prefetch(batches):
    order, ahead = [], None
    for batch in batches:
        if ahead is not None:
            order.append(ahead)
        ahead = batch
    if ahead is not None:
        order.append(ahead)
    return order


def _drops_last(batches):
    return with_prefetch(batches)[:-1]


def _stale(batches):
    """The loop that stops fetching one batch early and uses the last one again."""
    order, ahead = [], batches[0] if batches else None
    for i in range(len(batches)):
        order.append(ahead)
        if i + 2 != len(batches) and i + 1 < len(batches):
            ahead = batches[i + 1]
    return order


_PREFETCH = Exercise(
    id="10.4",
    reference=with_prefetch,
    cases=lambda: [
        Case((["a", "b", "c", "d"],), label="four batches"),
        Case((["a"],), label="one batch"),
        Case(([],), label="no batch"),
        Case((list(range(9)),), label="nine batches"),
    ],
    mistakes=(
        Mistake(
            _drops_last,
            "For {case} you returned {given}: the last batch was fetched and never used. It still waits when the loop ends.",
        ),
        Mistake(
            lambda batches: list(batches)[1:],
            "For {case} you returned {given}: the first batch was replaced by the second before it was used.",
        ),
        Mistake(
            _stale,
            "For {case} you returned {given}: the loop stopped fetching one batch early and used a batch twice. That is "
            "the condition i + 2 != n; the next batch exists as long as i + 1 < n.",
        ),
        Mistake(
            lambda batches: [None, *batches],
            "For {case} you returned {given}: before the first batch there is nothing to hand over.",
        ),
        Mistake(
            lambda batches: [*batches, *batches[-1:]],
            "For {case} you returned {given}: the last batch was handed over twice.",
        ),
    ),
    hints=(
        "At any moment two batches are in hand: the one in use, and the one ahead. What is ahead when the loop ends?",
        "For each batch: first hand over what was ahead, if anything was, then let the new one be ahead. After the loop, "
        "one is left.",
        "after the loop: if ahead is not None: order.append(___)",
    ),
    checked="no batch, one, four and nine: each used once and in order.",
)

# --- 10.5: the size of a checkpoint -----------------------------------------------------------------------------------

_STATES = {"sgd": 0, "momentum": 1, "adamw": 2}


def checkpoint_tensor_bytes(parameters, tensors, optimizer):
    return 4 * parameters * (1 + _STATES[optimizer]) + (4 * tensors if optimizer == "adamw" else 0)


def _size_cases():
    sizes = ((124_439_808, 148), (8_256, 3), (1, 1))
    return [Case((*size, name)) for name, size in itertools.product(("adamw", "momentum", "sgd"), sizes)]


_SIZE = Exercise(
    id="10.5",
    reference=checkpoint_tensor_bytes,
    cases=_size_cases,
    mistakes=(
        Mistake(
            lambda p, n, o: checkpoint_tensor_bytes(p, n, o) + 4 * p,
            "{case} gave {given}: you saved the gradients too. They are made anew in the next step.",
        ),
        Mistake(
            lambda p, n, o: 4 * p * (1 + _STATES[o]),
            "{case} gave {given}: AdamW also keeps a step counter of 4 bytes for each parameter tensor.",
        ),
        Mistake(
            lambda p, n, o: 4 * p * (1 + min(1, _STATES[o])) + (4 * n if o == "adamw" else 0),
            "{case} gave {given}: AdamW keeps two averages of the gradient, the mean and the mean square.",
        ),
        Mistake(
            lambda p, n, o: 4 * p,
            "{case} gave {given}: these are the parameters alone. Without the optimizer's state the next step differs.",
        ),
        Mistake(
            lambda p, n, o: checkpoint_tensor_bytes(p, n, o) // 2,
            "{case} gave {given}: that is two bytes an element. The parameters are fp32.",
        ),
    ),
    hints=(
        "What does the optimizer remember from one step to the next?",
        "SGD remembers nothing, momentum one tensor like the parameters, AdamW two and a counter per parameter tensor.",
        "return 4 * parameters * (1 + {'sgd': 0, 'momentum': ___, 'adamw': ___}[optimizer]) + (4 * ___ if optimizer == "
        "'adamw' else 0)",
    ),
    checked="SGD, momentum and AdamW on GPT-2's 124,439,808 parameters in 148 tensors, and on two small models.",
)

EXERCISES = (_STARTS, _BATCH, _ACCUMULATED, _PREFETCH, _SIZE)
