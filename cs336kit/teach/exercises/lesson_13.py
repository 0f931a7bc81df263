"""Exercises of lesson 13: the training loop."""

import itertools

import torch

from cs336kit.teach.exercises.core import exercise


@exercise(
    "13.1",
    cases=[(12, 4), (5, 4), (466_273, 64), (1025, 1), (3, 8)],
    mistakes={
        "tokens - sequence - 1": "one start too few. The last window of S + 1 tokens begins at N − S − 1, which counts too.",
        "tokens - sequence + 1": "that counts windows of S tokens, and the last target would lie behind the end of the file.",
        "tokens - sequence": "the file is too short for one sequence, so there is no place at all, and not fewer.",
        "tokens - 1": "a start needs S tokens behind it, and not only one.",
        "tokens // sequence": "that counts sequences that do not overlap. Here one may begin at any token.",
        "tokens // (sequence + 1)": "that counts windows that do not overlap. Here a sequence may begin at any token.",
    },
    hints=(
        "Draw 5 tokens as boxes. Where can a sequence of 4 begin, if its last target must be one of the boxes?",
        "A window has S + 1 tokens. The first begins at 0, the last ends at the last token. Count them, both included.",
        "return max(0, tokens - (sequence + 1) + ___)",
    ),
    checked="12, 5, 1,025 and 466,273 tokens; with 5 tokens and sequences of 4 there is exactly one start, with 3 and 8 none.",
)
def starts(tokens, sequence):
    return max(0, tokens - sequence)


@exercise(
    "13.2",
    cases=lambda: {
        "10 tokens, starts 0 and 5, S = 4": (torch.tensor([7, 1, 8, 2, 8, 1, 8, 2, 8, 4]), [0, 5], 4),
        "10 tokens, start 2, S = 1": (torch.tensor([7, 1, 8, 2, 8, 1, 8, 2, 8, 4]), [2], 1),
        "100 tokens, starts 3, 94 and 3, S = 5": (torch.arange(100) ** 2 % 97, [3, 94, 3], 5),
    },
    mistakes={
        "(right[0], right[0])": "y equals x: the model is asked for the token that it sees, and nothing is learned.",
        "(right[0], batch_at(tokens.roll(2), starts, sequence)[1])": "y is one token behind x: what was just read.",
        "(right[0], batch_at(tokens.roll(-1), starts, sequence)[1])": "y is two tokens ahead of x: a token is skipped.",
        "(right[0], right[0].roll(-1, dims=1))": "y wraps around: its last column is the first token of x. Read S + 1 tokens.",
        "right[::-1]": "x and y are exchanged: x comes first, y is one token ahead.",
        "(right[0][:, :-1], right[0][:, 1:])": "you cut S tokens in S − 1 and S − 1. Read S + 1, so that both have S.",
    },
    hints=(
        "What should the model say after x[0, 0]? That token is y[0, 0].",
        "For every start i, x is tokens i … i + S − 1 and y is tokens i + 1 … i + S. Stack the rows.",
        "y = torch.stack([tokens[i + ___ : i + ___ + sequence] for i in starts])",
    ),
    checked="repeated starts, sequences of 1, 4 and 5, and the last window of the data, whose target is the last token.",
)
def batch_at(tokens, starts, sequence):
    rows = torch.stack([tokens[i : i + sequence + 1] for i in starts])
    return rows[:, :-1], rows[:, 1:]


def _parts(*counts):
    draw = torch.Generator().manual_seed(len(counts))
    return ([(torch.randn(3, generator=draw, dtype=torch.float64), count) for count in counts],)


@exercise(
    "13.3",
    cases=lambda: {
        "two batches, of 6 and 2 sequences": _parts(6, 2),
        "three batches of 4 sequences": _parts(4, 4, 4),
        "batches of 8, 8 and a last one of 1": _parts(8, 8, 1),
        "one batch": _parts(5),
    },
    mistakes={
        "sum(g for g, _ in parts)": "you added the gradients without dividing. Each loss was already a mean.",
        "sum(g for g, _ in parts) / len(parts)": "a mean over the batches: a sequence in a small one would count for more.",
        "sum(g * n for g, n in parts)": "you added up the sum over all sequences. Divide it by their number.",
        "sum(g for g, _ in parts) / sum(n for _, n in parts)": "first turn each mean into a sum: times its count.",
        "sum(g * n for g, n in parts) / len(parts)": "the sum is right; divide by the sequences, not by the batches.",
        "parts[-1][0]": "only the last batch is left: something zeroed the gradients in between.",
    },
    hints=(
        "Each gradient is a mean over its own batch. What would the mean over all sequences be?",
        "Turn every mean back into a sum (times its count), add the sums, and divide by all sequences.",
        "return sum(gradient * count for gradient, count in parts) / sum(___ for ___ in parts)",
    ),
    checked="equal batches, a short last batch, very unequal ones, and a single batch.",
)
def accumulated(parts):
    return sum(gradient * count for gradient, count in parts) / sum(count for _, count in parts)


@exercise(
    "13.4",
    cases={"four batches": (4,), "one batch": (1,), "no batch": (0,), "nine batches": (9,)},
    mistakes={
        "[(action, i) for i in range(n) for action in ('copy', 'train')]": "nothing is prefetched: copy i + 1 before "
        "you train on i.",
        "sorted(right)": "all copies come first: every batch lies in the GPU's memory at once. Only one may be ahead.",
        "right[:-1]": "the last batch was copied and never trained on. It still waits when the loop ends.",
        "right[1:]": "batch 0 was never copied. Before the loop there is one copy to start.",
        "[*right[:-1], ('copy', n), *right[-1:]]": "batch n does not exist, the last one is n − 1.",
        "[w for w in right[:-1] if w != ('copy', n - 1)] + [('train', n - 2)]": "you trained on a batch "
        "twice and never copied the last: the next batch exists as long as i + 1 < n.",
    },
    hints=(
        "At any moment one batch is in use and one is on its way. What happens before the loop, and what in its last round?",
        "First the copy of batch 0, if there is one. Then for each i: the copy of i + 1, if there is one, and training on i.",
        'for i in range(n): if i + 1 < ___: work.append(("copy", ___)); work.append(("train", ___))',
    ),
    checked="no batch, one, four and nine: each copied once, one ahead, and trained on once.",
)
def order_of_work(n):
    work = [("copy", 0)] if n else []
    for i in range(n):
        if i + 1 < n:
            work.append(("copy", i + 1))
        work.append(("train", i))
    return work


_STATES = {"sgd": 0, "momentum": 1, "adamw": 2}


@exercise(
    "13.5",
    cases=[(*size, name) for name, size in itertools.product(_STATES, ((124_439_808, 148), (8_256, 3), (1, 1)))],
    mistakes={
        "right + 4 * parameters": "you saved the gradients too. They are made anew in the next step.",
        "right - 4 * tensors if optimizer == 'adamw' else right": "AdamW also keeps a 4-byte step counter for each tensor.",
        "right - 4 * parameters if optimizer == 'adamw' else right": "AdamW keeps two averages, the mean and the mean square.",
        "right - 4 * tensors + 4 if optimizer == 'adamw' else right": "AdamW keeps one counter for each parameter tensor.",
        "right if optimizer == 'adamw' else right + 4 * tensors": "only AdamW counts its steps, for the bias correction.",
        "right - 4 * parameters": "that is the optimizer's state alone. The parameters are in the file too.",
    },
    hints=(
        "What does the optimizer remember from one step to the next?",
        "SGD remembers nothing, momentum one tensor like the parameters, AdamW two and a counter per parameter tensor.",
        "4 * parameters * (1 + {'sgd': 0, 'momentum': ___, 'adamw': ___}[optimizer]) + (4 * ___ if optimizer == 'adamw' else 0)",
    ),
    checked="SGD, momentum and AdamW on GPT-2's 124,439,808 parameters in 148 tensors, and on two small models.",
)
def checkpoint_tensor_bytes(parameters, tensors, optimizer):
    return 4 * parameters * (1 + _STATES[optimizer]) + (4 * tensors if optimizer == "adamw" else 0)
