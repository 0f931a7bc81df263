"""Exercises of lesson 12: attention in pieces, masks, rotary positions, and what is wrong with a decoder."""

import gc
import math

import torch

from cs336kit.teach.exercises.core import exercise


def _numbers_held():
    """How many numbers all young tensors hold, each storage once, and all young lists of floats."""
    held = gc.get_objects(generation=0)
    storages = [tensor.untyped_storage() for tensor in held if type(tensor) is torch.Tensor]
    sizes = {storage.data_ptr(): storage.nbytes() // 4 for storage in storages}
    return sum(sizes.values()) + sum(
        len(some) for some in held if type(some) is list and some and type(some[0]) is float
    )


class _Pieces:
    """Pairs of keys and values that come once, in memory that is used again for the next pair.

    With more than 20 of them, they also look for copies: who still holds as many numbers as all values has kept the pieces.
    """

    def __init__(self, keys, values, sizes):
        self.parts = list(zip(keys.split(sizes), values.split(sizes), strict=True))
        self.used = False

    def __iter__(self):
        if self.used:
            raise ValueError("the pieces come once, and you asked for them a second time")
        self.used = True
        return self._watched() if len(self.parts) > 20 else self._shown()

    def _shown(self):
        for part in self.parts:
            shown = tuple(tensor.clone() for tensor in part)
            yield shown
            for tensor in shown:
                tensor.fill_(-1.0)  # not NaN, which a wrong softmax makes, too

    def _watched(self):
        # What is made meanwhile stays young, so that nobody has to look through all that torch has brought.
        collects = gc.isenabled()
        gc.disable()
        try:
            before = _numbers_held()
            yield from self._shown()
            if _numbers_held() - before >= sum(values.numel() for _, values in self.parts):
                raise ValueError(
                    "after the last piece you still hold all of them, or copies. Keep none, only the three things"
                )
        finally:
            if collects:
                gc.enable()


def _pieces(size, *sizes, h=8):
    """A query whose scores are about `size` large, and pieces of so many keys."""
    draw = torch.Generator().manual_seed(sum(sizes) + h)
    query, (keys, values) = torch.randn(h, generator=draw), torch.randn(2, sum(sizes), h, generator=draw)
    return size * query, _Pieces(keys, values, list(sizes))


def _growing():
    """Pieces of which the last one has scores that are more than a hundred larger than those of the first."""
    query, pieces = _pieces(1, 3, 3, 3)
    pieces.parts[-1] = (300 * query / query.norm() + torch.zeros(3, len(query)), pieces.parts[-1][1])
    return 3 * query, pieces


def _low():
    """Pieces whose scores are all about -120, where every exponential is 0 in fp32."""
    query, pieces = _pieces(1, 2, 3)
    down = -120 * math.sqrt(len(query)) * query / query.square().sum()
    pieces.parts = [(keys + down, values) for keys, values in pieces.parts]
    return query, pieces


def _in_fp32(result, args):
    """The result, where fp64 is as good an answer as fp32."""
    return result.float() if isinstance(result, torch.Tensor) and result.dtype == torch.float64 else result


def _mean_of_pieces(query, pieces):
    means = [torch.softmax(keys @ query / math.sqrt(len(query)), dim=0) @ values for keys, values in pieces]
    return torch.stack(means).mean(dim=0)


def _minus_300(query, pieces):
    scores = [(keys @ query / math.sqrt(len(query)) - 300, values.clone()) for keys, values in pieces]
    return sum(part.exp() @ values for part, values in scores) / sum(part.exp().sum() for part, _ in scores)


def _joined(query, pieces):
    keys, values = (torch.cat(parts) for parts in zip(*pieces, strict=True))
    return torch.softmax(keys @ query / math.sqrt(len(query)), dim=0) @ values


@exercise(
    "12.1",
    cases=lambda: {
        "pieces of 3, 2 and 4 keys": _pieces(1, 3, 2, 4),
        "one piece of 5 keys": _pieces(1, 5),
        "pieces of one key each": _pieces(2, 1, 1, 1, 1, h=4),
        "scores of several hundred": _pieces(300, 4, 4, 4),
        "a later piece with scores of several hundred": _growing(),
        "scores of about -120": _low(),
        "24 pieces of 4 keys each": _pieces(1, *24 * [4]),
    },
    observe=_in_fp32,
    mistakes={
        _mean_of_pieces: "you gave every piece the same weight, but one with a good key has to count for more than one without.",
        "right_if(query=query * math.sqrt(len(query)))": "you did not divide the scores by √h.",
        "right_if(rescale=False)": "when a later piece has a larger maximum, what you have added up so far was computed with "
        "the old one. Convert it to the new one.",
        "right_if(divide=False)": "your weights do not sum to 1. At the end, divide by all that you have added.",
        "right_if(every=False)": "a later piece was so much larger than your first maximum that an exponential overflows: let "
        "the maximum grow.",
        "right_if(start=0.0)": "your maximum begins at 0, and where all scores are far below, every exponential is 0, and 0 ÷ 0 "
        "is NaN. Begin at -∞.",
        _minus_300: "NaN comes from 0 ÷ 0, ∞ ÷ ∞ or ∞ · 0, so an exponential was 0 or infinite. Subtract a number that follows "
        "the scores, and take the exponential of differences alone.",
        "right_if(running=False)": "you took the largest score of this piece alone. Where an earlier piece was far larger, the "
        "factor becomes infinite: take the largest so far.",
        "right_if(maximum=False)": "an exponential overflows. Subtract a maximum first, as softmax does.",
        _joined: "you kept the pieces until the end, but by then their memory has been used for the next ones.",
    },
    hints=(
        "Weights relative to an old maximum become weights relative to a new one by a factor that is the same for all of them, "
        "so both sums are converted by this one factor.",
        "Begin with a largest score of -∞ and with sums of 0. Then the first piece needs no case of its own, since the "
        "exponential of -∞ is 0.",
    ),
    checked="several pieces, one piece, single keys, scores of several hundred, and that no piece was kept.",
    tolerance=1e-4,
)
def attend_in_pieces(
    query, pieces, *, rescale=True, maximum=True, divide=True, every=True, running=True, start=-math.inf
):
    largest, total, mixed = torch.tensor(start), 0.0, 0.0
    for keys, values in pieces:
        scores = keys @ query / math.sqrt(len(query))
        before = largest
        if every or before == -math.inf:
            largest = torch.maximum(largest, scores.max()) if running else scores.max()
        shrink = torch.exp(before - largest) if rescale and maximum else 1.0
        weights = torch.exp(scores - largest if maximum else scores)
        total = total * shrink + weights.sum()
        mixed = mixed * shrink + weights @ values
    return mixed / total if divide else mixed


def _places(documents):
    place = torch.arange(len(documents))
    return place[:, None] - place


@exercise(
    "12.2",
    cases=lambda: {
        "documents 0 0 0 1 1, no window": (torch.tensor([0, 0, 0, 1, 1]), None),
        "one document, window of 2": (torch.tensor([5, 5, 5, 5]), 2),
        "documents 3 3 3 3 3 1 1 1, window of 3": (torch.tensor([3, 3, 3, 3, 3, 1, 1, 1]), 3),
        "documents 0 1 2, window of 1": (torch.tensor([0, 1, 2]), 1),
    },
    mistakes={
        "right_if(documents=torch.zeros_like(documents))": "in your mask a token may read tokens of another document.",
        "right | right.T": "in your mask a token may read later ones, which are what the model should predict.",
        "right & (_places(documents) > 0)": "your tokens do not see themselves, so a document's first one sees nothing.",
        "right.T": "you swapped rows and columns: a row says what one query sees.",
        "~right": "True should mean that a token may look, but yours means that it may not.",
        "right_if(window=None)": "your mask is right without a window, and the same with one.",
        "right if window is None else right_if(window=window + 1)": "the window counts the token itself.",
    },
    hints=(
        "Three conditions hold at once, for each pair of a query and a key. Make a matrix of booleans for each.",
        "documents[:, None] has one row for each query. The difference of two positions says how far back a key lies.",
    ),
    checked="several documents, one document, windows of 1, 2 and 3, and none.",
)
def may_look(documents, window):
    back = _places(documents)
    allowed = (documents[:, None] == documents) & (back >= 0)
    return allowed if window is None else allowed & (back < window)


def _interleaved(weight, head_dim):
    heads = weight.unflatten(0, (-1, head_dim))
    return torch.stack(heads.chunk(2, dim=1), dim=2).flatten(0, 2)


def _matrix(rows, columns):
    return torch.arange(rows * columns, dtype=torch.float32).reshape(rows, columns)


@exercise(
    "12.3",
    cases=lambda: {
        "one head of 6": (_matrix(6, 6), 6),
        "three heads of 4, D = 12": (_matrix(12, 12), 4),
        "two key heads of 8 for D = 32": (_matrix(16, 32), 8),
    },
    mistakes={
        _interleaved: "this goes the other way, from halves to neighbors. Which row should come second?",
        "right_if(head_dim=len(weight))": "you treated all rows as one head. Pairs never cross from head to head.",
        "right_if(weight=weight.T).T": "you moved columns. The features of a head are rows of this matrix.",
        "weight": "you moved nothing. Write down which rows form a pair in each of the two kinds of code.",
        "right.unflatten(0, (-1, 2, head_dim // 2)).flip(1).flatten(0, 2)": "you swapped the two halves, so each pair turns the "
        "other way: the even rows come first.",
    },
    hints=(
        "Take one head with six rows. Neighbors are the pairs (0, 1), (2, 3) and (4, 5). Where must these rows stand so that "
        "code with halves makes the same pairs?",
        "Cut the rows into heads first. A slice with a step of 2 then takes one member of each pair.",
    ),
    checked="one head, three heads, and key heads of a wide model.",
    avoid=("reorder_pairs",),
    tolerance=0,
)
def to_halves(weight, head_dim):
    heads = weight.unflatten(0, (-1, head_dim))
    return torch.cat([heads[:, 0::2], heads[:, 1::2]], dim=1).flatten(0, 1)


@exercise(
    "12.4",
    mistakes={
        "(..., ..., 'C', 'A')": "decoder 3 is right for one token alone. Would it be with a norm over the positions?",
        "('D', 'B', ..., ...)": "decoder 2 is wrong for one token alone. What could rotary positions do to a token that has only "
        "itself to read?",
        "('A', ..., ..., ...)": "decoder 1 is right at position 0 even in longer texts. What would it read with the mask "
        "inverted?",
        "(..., 'C', ..., ...)": "decoder 2 never looks ahead. Does a norm over the positions?",
        "(..., ..., 'B', ...)": "decoder 3 reads something that comes later. Angles decide how much is read, not what.",
        "(..., ..., ..., 'D')": "decoder 4 reads something that comes later. Gate and up use only their own position.",
    },
    hints=(
        "Two questions tell the four apart: is a token alone already wrong, and does anything depend on later tokens?",
        "A token alone gives its own value the weight 1. Which of the four parts can still make a difference then?",
    ),
    checked="rotary pairs, gate and up, the mask, the norm: two tests, a token alone and a changed last token, tell all four.",
)
def faults():
    return "B", "D", "A", "C"
