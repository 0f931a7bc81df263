"""Exercises of lesson 19: a cache for a window, where a batch saturates, what to shrink, shared pages, a fair draft."""

import math

import torch

from cs336kit.teach.exercises.core import exercise


def _slots(window, position, *, h=8, rubbish=9.0):
    """Room for the last tokens, filled by the tokens before `position`, and query, key and value of the token there."""
    draw = torch.Generator().manual_seed(100 * window + position)
    keys, values = torch.full((2, window, h), rubbish)
    for past in range(position):
        keys[past % window], values[past % window] = torch.randn(2, h, generator=draw)
    return keys, values, position, *torch.randn(3, h, generator=draw)


def _masked(keys, values, position, q, k, v):
    slot, empty = position % len(keys), torch.arange(len(keys)) > position
    keys[slot], values[slot] = k, v
    scores = (keys @ q / math.sqrt(len(q))).masked_fill(empty, -math.inf)
    return scores.softmax(0) @ values


def _unseen(keys, values, position, q, k, v):
    slot = position % len(keys)
    found = attend_next_in_window(keys, values, position, q, keys[slot].clone(), values[slot].clone())
    keys[slot], values[slot] = k, v
    return found


def _shifted(keys, values, position, q, k, v):
    if position < len(keys):
        return attend_next_in_window(keys, values, position, q, k, v)
    for rows in (keys, values):
        rows[:-1] = rows[1:].clone()
    return attend_next_in_window(keys, values, position, q, k, v, slot=len(keys) - 1)


@exercise(
    "19.1",
    cases=lambda: {
        "the first token, window of 4": _slots(4, 0),
        "the third token, window of 4": _slots(4, 2),
        "the second token, with NaN where nothing is written": _slots(4, 1, rubbish=math.nan),
        "the token that fills a window of 4": _slots(4, 3),
        "the first that pushes another out of 4": _slots(4, 4),
        "token 11, window of 4": _slots(4, 10),
        "token 7, window of 1": _slots(1, 6),
    },
    observe=lambda found, args: {"result": found, "keys": args[0], "values": args[1]},
    mistakes={
        _masked: "a weight of 0 times rubbish can be NaN. Read only what has been written.",
        "right_if(seen=len(keys))": "rows not yet written to took part in the softmax. How many tokens are there so far?",
        "right_if(seen=min(position, len(keys)))": "the new token itself is missing among those that are read. At position 0 "
        "there is one token already.",
        "right_if(seen=position % len(keys) + 1)": "you read only as far as the slot that was written. Once the room is full, "
        "the rows behind it hold tokens of the window, too.",
        _shifted: "the result is right, but you moved rows. Only the row of the token that leaves may change.",
        _unseen: "the new token did not see itself. Write its key and value before you read.",
        "right_if(q=q * math.sqrt(len(q)))": "you did not divide the scores by √h.",
        "right_if(slot=min(position, len(keys) - 1))": "once the room is full, you overwrite the newest token, but the oldest "
        "has to go.",
        "right": "write into keys and values, the tensors that you were given, or the next token finds nothing.",
    },
    hints=(
        "Which slot holds the token that leaves the window when this one enters? Does the order of the keys matter to softmax?",
        "Positions go round and round through the rows. Until all have been written once, read only those that have.",
    ),
    checked="the first tokens, a full window, one that has gone round twice, a window of 1, and that the room was reused.",
    tolerance=1e-5,
)
def attend_next_in_window(keys, values, position, q, k, v, *, slot=None, seen=None):
    slot = position % len(keys) if slot is None else slot
    seen = min(position + 1, len(keys)) if seen is None else seen
    keys[slot], values[slot] = k, v
    scores = keys[:seen] @ q / math.sqrt(len(q))
    return scores.softmax(dim=-1) @ values[:seen]


@exercise(
    "19.2",
    cases={
        "Llama-3-8B on an H100": (7_504_658_432, 32, 32, 8, 128, 295.3),
        "Llama-3-8B on an A100": (7_504_658_432, 32, 32, 8, 128, 153.0),
        "Llama-2-7B on an H100": (6_607_077_376, 32, 32, 32, 128, 295.3),
        "one key head for 71 query heads, ridge 295.3": (6_627_000_000, 32, 71, 1, 64, 295.3),
        "one key head for 128 query heads, ridge 100": (10_000_000_000, 32, 128, 1, 64, 100.0),
        "as many query heads for a key head as the ridge": (10_000_000_000, 32, 64, 1, 64, 64.0),
        "a ridge just above that": (10_000_000_000, 32, 64, 1, 64, 64.5),
    },
    mistakes={
        "P / (2 * L * K * h * ridge)": "you left out the FLOPs of attention, which grow with the text, too.",
        "right if right == math.inf else P / (2 * L * A * h * (ridge - 1))": "the cache holds K heads of keys and values, not A.",
        "right if right == math.inf else P / (L * h * (K * ridge - 2 * A))": "keys alone are half of the cache: it holds "
        "values, too.",
        "right if right == math.inf else right / 2": "a multiplication and an addition are two FLOPs, for weights and for keys.",
        "P / (2 * L * h * (K * ridge - A)) if K * ridge != A else None": "there is no limit where even the cache alone keeps "
        "the chip busy: return math.inf.",
    },
    hints=(
        "With very many sequences, the bytes of the weights no longer matter. For one sequence, compare the time to compute its "
        "token and the time to read its cache.",
        "Both grow with the length, but one of them also has a part that does not. Set them equal. When do they never meet?",
    ),
    checked="Llama-3-8B on two chips, as many key heads as query heads, a single key head, and caches that are no limit.",
    tolerance=1e-6,
)
def longest_text(P, L, A, K, h, ridge):
    # 2P + 4·L·A·h·T FLOPs over 4·L·K·h·T bytes of cache, and the weights' bytes divided by ever more sequences.
    missing = K * ridge - A
    return math.inf if missing <= 0 else P / (2 * L * h * missing)


_WEIGHTS, _TOKEN = 2 * 7_504_658_432, 131_072
_LONG, _SHORT = 60 * 7000 * _TOKEN, 4 * 1000 * _TOKEN


@exercise(
    "19.3",
    tolerance=0.03,
    mistakes={
        "('A', ..., ...)": "with 60 texts of 7,000 tokens, which is larger, the weights or the cache?",
        "('C', ..., ...)": "at this intensity the chip waits for bytes, so the FLOP/s of a second one would wait, too.",
        "('B', 2.0, ...)": "the plan halves only the cache. The weights are still read in full, two bytes each.",
        "('B', (_WEIGHTS + _LONG) / (_WEIGHTS / 2 + _LONG), ...)": "that is what halving the weights would give.",
        "('B', 1 / what_to_shrink()[1], ...)": "that is the new time ÷ the old one. How many times as fast is it?",
        "('B', ..., 'B')": "4 texts of 1,000 tokens have a cache of half a gigabyte. What else does a step read?",
        "('B', ..., 'C')": "with 4 sequences the chip computes for a hundredth of the time, so more FLOP/s change nothing.",
    },
    hints=(
        "Write down the bytes that one step reads, for both servers: weights once, and the cache of all sequences.",
        "In both, reading memory sets the time, so the speed-up is a ratio of bytes, before and after.",
    ),
    checked="the cache of 60 long texts is 55 of 70 GB, so B, at 1.65; of 4 short ones it is half a gigabyte, so A.",
)
def what_to_shrink():
    return "B", (_WEIGHTS + _LONG) / (_WEIGHTS + _LONG / 2), "A"


@exercise(
    "19.4",
    cases={
        "a prompt of 40, answers of 10 and 30, pages of 16": (40, [10, 30], 16),
        "a prompt of 40, answers of 0 and 10, pages of 16": (40, [0, 10], 16),
        "a prompt of 32, answers of 1 and 16, pages of 16": (32, [1, 16], 16),
        "a prompt of 5, answers of 3, 3 and 20, pages of 8": (5, [3, 3, 20], 8),
        "a prompt of 100, one answer of 7, pages of 1": (100, [7], 1),
        "a prompt of 64, answers of 0 and 5, pages of 32": (64, [0, 5], 32),
    },
    mistakes={
        "sum(-(-(prompt + answer) // page) for answer in answers)": "you copied the whole prompt for every answer. Its full "
        "pages can be shared.",
        "-(-prompt // page) + sum(-(-answer // page) for answer in answers)": "the prompt's last page is not full, and each "
        "answer continues in it. So each needs its own copy of that page, and no new page for its first tokens.",
        "prompt // page + sum(-(-answer // page) for answer in answers)": "you lost the tokens of the prompt behind its last "
        "full page. Each answer goes on after a copy of them.",
        "right_if(answers=[answer for answer in answers if answer])": "an answer of no tokens has a copy of the prompt's last "
        "page, too.",
        "prompt // page + sum((prompt % page + answer) // page for answer in answers)": "a page that is partly full is taken, "
        "too: round up.",
        "right + (prompt % page > 0)": "a page of the prompt that is not full is copied for each answer, and the original is not "
        "kept.",
        "-(-(prompt + sum(answers)) // page)": "two answers cannot write into one page: each has its own.",
        "right_if(answers=answers[:1])": "you counted the pages of the first answer only.",
    },
    hints=(
        "Which pages of the prompt are never written to again?",
        "Take the prompt's full pages once. What is left of the prompt comes first in every answer's own pages.",
    ),
    checked="prompts that end inside a page and at its end, answers of one token and of none, one answer, pages of 1.",
)
def pages_taken(prompt, answers, page):
    shared, rest = divmod(prompt, page)
    return shared + sum(math.ceil((rest + answer) / page) for answer in answers)


def _rest(p, q):
    lacking = [max(a - b, 0.0) for a, b in zip(p, q, strict=True)]
    return [part / sum(lacking) for part in lacking]


@exercise(
    "19.5",
    cases={
        "a token that the target likes more": ([0.7, 0.2, 0.1], [0.4, 0.3, 0.3], 0, 0.999),
        "a token that both like equally": ([0.5, 0.5], [0.5, 0.5], 1, 0.999),
        "half as likely in the target, a low draw": ([0.55, 0.15, 0.3], [0.1, 0.3, 0.6], 1, 0.49),
        "half as likely in the target, a high draw": ([0.55, 0.15, 0.3], [0.1, 0.3, 0.6], 1, 0.51),
        "a token that the target never writes": ([0.9, 0.0, 0.1], [0.2, 0.5, 0.3], 1, 0.0),
        "a likely token that is turned down": ([0.25, 0.25, 0.25, 0.25], [0.7, 0.1, 0.1, 0.1], 0, 0.56),
        "half as likely in the target, a higher draw": ([0.55, 0.15, 0.3], [0.1, 0.3, 0.6], 1, 0.6),
    },
    mistakes={
        "None if draw <= p[token] / q[token] else right or _rest(p, q)": "a draw can be 0, and then your comparison keeps a "
        "token that the target never writes. The draw has to be below the ratio.",
        "None if draw < min(1, p[token] / q[token]) else p": "drawing from all of p favors what the draft proposes often, and "
        "such tokens have had their chance. Draw only what the draft proposes too seldom.",
        "None if p[token] >= q[token] else _rest(p, q)": "a token that the target likes less than the draft is kept in some "
        "cases, those with a low draw.",
        "None if draw < 1 - abs(p[token] - q[token]) else _rest(p, q)": "you kept the token by a difference. It is proposed with "
        "probability q, and q times the chance to keep it should make p, so divide.",
        "None if draw < sum(map(min, p, q)) else _rest(p, q)": "that is how often any token is kept, on average over all of "
        "them. This one has a chance of its own, by its own p and q.",
        "None if draw < min(1, q[token] / p[token] if p[token] else 1) else _rest(p, q)": "your ratio is upside down: what the "
        "target likes more than the draft is always kept.",
        "None if draw < p[token] else _rest(p, q)": "this draw is low enough to keep the token. It has been proposed with "
        "probability q already, and both together should give p.",
        "None if right is None else [abs(a - b) / sum(abs(x - y) for x, y in zip(p, q)) for a, b in zip(p, q)]": "what the draft "
        "proposes more often than the target lacks nothing. Only where p is larger is there a rest.",
        "None if right is None else [0.0 if i == token else a / (1 - p[token]) for i, a in enumerate(p)]": "leaving out the "
        "token that was turned down is not enough. Others can have been proposed too often as well: what does each still lack?",
        "None if right is None else [(a - b) / sum(x - y for x, y in zip(p, q)) for a, b in zip(p, q)]": "all differences sum to "
        "0, up to rounding. A token that the draft proposes too often lacks nothing: count it as 0.",
        "None if right is None else [max(a - b, 0.0) for a, b in zip(p, q)]": "these numbers do not sum to 1: divide by their "
        "sum.",
    },
    hints=(
        "The draft proposes the token with probability q. With what probability must you keep it, so that it is written no more "
        "often than p? That is at most 1.",
        "Once the kept tokens are written, what does each token still lack? It is p minus what the draft has brought, and never "
        "below zero.",
    ),
    checked="equal chances, tokens that the target likes more, less and never, and what is drawn instead.",
    tolerance=1e-6,
)
def judge(p, q, token, draw):
    return None if draw < p[token] / q[token] else _rest(p, q)
