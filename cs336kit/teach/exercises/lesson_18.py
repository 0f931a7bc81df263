"""Exercises of lesson 18: a sum over ranks, what hides, a divided vocabulary, uneven stages, a plan for 64 GPUs."""

import torch

from cs336kit import predict
from cs336kit.teach.exercises.core import exercise


def _by_rank(ranks, size):
    return ([torch.arange(size) + 100 * rank**2 for rank in range(ranks)],)


@exercise(
    "18.1",
    cases={
        "two ranks": _by_rank(2, 3),
        "four ranks": _by_rank(4, 2),
        "eight ranks": _by_rank(8, 5),
        "one rank": _by_rank(1, 4),
    },
    mistakes={
        "doubling(values, at_once=False)": "within a round, a rank has added what its partner had already changed. All ranks "
        "exchange at the same time: let a round begin from what everybody held before it.",
        "doubling(values, rounds=1)": "after one round a rank knows two ranks' numbers. Go on, with partners farther away.",
        "(right[0], right[1] // values[0].numel())": "that is the number of messages. Each carries all elements of the tensor.",
        "(right[0], right[1] * len(values))": "that is what all ranks send together. Return what one of them sends.",
        "(right[0], 2 * (len(values) - 1) * values[0].numel() / len(values))": "that is what the ring sends. Here a rank sends "
        "its whole tensor in every round.",
        "(right[0], (len(values) - 1) * values[0].numel())": "a sum of more ranks has no more elements: every message is as "
        "large as the tensor.",
    },
    hints=(
        "Four ranks need two rounds. In the first, 0 exchanges with 1 and 2 with 3. Who has to meet in the second?",
        "`rank ^ distance` gives each rank its partner, for distances 1, 2, 4 and so on. Make a new list in every round.",
    ),
    checked="one, two, four and eight ranks, and what each rank sends.",
)
def doubling(values, *, rounds=None, at_once=True):
    values, ranks, sent = list(values), len(values), 0
    for step in range(ranks.bit_length() - 1 if rounds is None else rounds):
        before = list(values) if at_once else values
        for rank in range(ranks):
            values[rank] = before[rank] + before[rank ^ 2**step]
        sent += values[0].numel()
    return values, sent


_TOKENS, _SPEED, _LINK = 2048 * 2000, 400e12, 100e9


@exercise(
    "18.2",
    tolerance=0.01,
    mistakes={
        "(_TOKENS / (_SPEED / _LINK) * 6 / 4, ...)": "the forward pass comes before the first gradient is there. Only the four "
        "FLOPs of the backward pass can hide anything.",
        "(_TOKENS / (_SPEED / _LINK) * 2, ...)": "an all-reduce sends every gradient twice: once to be summed, once to be "
        "handed out.",
        "(_TOKENS / (_SPEED / _LINK) / 2, ...)": "a gradient has 2 bytes in bf16, and is sent twice: 4 bytes, not 8.",
        "(_SPEED / _LINK, ...)": "that is how many tokens each GPU needs. How many GPUs can have as many?",
        "(..., 'fewer')": "a larger model has more gradients to send, and by the same factor more FLOPs to hide them.",
        "(..., 'more')": "a larger model has more FLOPs to hide the gradients, and by the same factor more gradients.",
    },
    hints=(
        "How many tokens does a GPU need, so that its backward pass takes as long as its sending?",
        "For each parameter: 4 FLOPs for each token on one side, 4 bytes on the other. Divide the batch by what you find.",
    ),
    checked="1,024 GPUs with two sequences each, whatever the dense model: its size stands on both sides.",
)
def how_many_hide():
    return _TOKENS / (_SPEED / _LINK), "as many"


def _own_losses(logits, targets):
    losses = [torch.nn.functional.cross_entropy(part, targets % part.shape[1]) for part in logits]
    return sum(losses) / len(losses)


def _logits(ranks, tokens, width, *, scale=1.0, seed=0):
    generator = torch.Generator().manual_seed(seed)
    widths = [width + rank % 2 for rank in range(ranks)]
    parts = [scale * torch.randn(tokens, each, generator=generator) for each in widths]
    return parts, torch.randint(sum(widths), (tokens,), generator=generator)


@exercise(
    "18.3",
    cases={
        "two ranks": _logits(2, 5, 3),
        "four ranks and one token": _logits(4, 1, 6, seed=1),
        "three ranks and large logits": _logits(3, 7, 4, scale=400.0, seed=2),
        "one rank": _logits(1, 4, 9, seed=3),
    },
    mistakes={
        "_own_losses(logits, targets)": "each rank has made a loss of its own columns alone. What a softmax divides "
        "by is a sum over all columns, of all ranks.",
        "divided_loss(logits, targets, highest=False)": "exp of a large logit is inf. Take off the largest logit of the token "
        "first, over all ranks.",
        "divided_loss(logits, targets, missing=True)": "a rank that does not have the target's column added something anyway.",
        "divided_loss(logits, targets, total=True)": "that is the sum over tokens. The loss is their mean.",
    },
    hints=(
        "The loss of a token is the log of a sum over all columns, less one logit. Which of these can a rank say about its own "
        "columns?",
        "Three numbers of each rank and token: its largest logit, the sum of exp(logit − largest of all), and the target's "
        "logit, or 0 if the column is another rank's. Its columns begin where those of the ranks before it end.",
    ),
    checked="one to four ranks with uneven columns, one token, and logits so large that exp of them is inf.",
    tolerance=1e-4,
    avoid=("cat", "concat", "concatenate", "hstack", "cross_entropy"),
)
def divided_loss(logits, targets, *, highest=True, missing=False, total=False):
    top = torch.stack([part.max(dim=1).values for part in logits]).amax(0) if highest else torch.zeros(len(targets))
    sums = [(part - top[:, None]).exp().sum(1) for part in logits]
    picked, first = torch.zeros(len(targets)), 0
    for part in logits:
        inside = (targets >= first) & (targets < first + part.shape[1])
        column = (targets - first).clamp(0, part.shape[1] - 1)
        value = part.gather(1, column[:, None]).squeeze(1) - top
        picked = picked + (value if missing else torch.where(inside, value, 0.0))
        first += part.shape[1]
    losses = sum(sums).log() - picked
    return losses.sum() if total else losses.mean()


@exercise(
    "18.4",
    cases={
        "equal stages": ([1, 1, 1, 1], 4),
        "a slow last stage": ([2, 2, 5], 6),
        "a slow first stage": ([4, 1, 1], 3),
        "a slow stage in the middle": ([1, 3, 2, 1], 8),
        "one microbatch": ([2, 3, 4], 1),
        "one stage": ([3], 5),
    },
    mistakes={
        "sum(seconds) * microbatches": "you let a microbatch wait until the one before it has left the last stage.",
        "(len(seconds) + microbatches - 1) * max(seconds)": "a quick stage is done when it is done. Only the slowest one sets "
        "the pace, and the others are passed once.",
        "sum(seconds) + microbatches - 1": "microbatches do not leave one second apart: the slowest stage decides how far.",
        "sum(seconds) + (microbatches - 1) * seconds[0]": "the first stage sets the pace only if no other one is slower.",
        "sum(seconds) + (microbatches - 1) * seconds[-1]": "the last stage sets the pace only if no other one is slower.",
        "sum(seconds) + microbatches * max(seconds)": "the first microbatch is in the sum already.",
    },
    hints=(
        "Draw the timeline of two stages, one of which takes three times as long. When does the second microbatch begin there?",
        "A task begins when its stage is free and its microbatch has arrived: the later of two times. Keep one time for each "
        "microbatch, and go through the stages.",
    ),
    checked="equal stages, a slow one in every place, one stage, one microbatch.",
)
def finish(seconds, microbatches):
    # All microbatches pass every stage, and leave the slowest one as far apart as that stage takes.
    return sum(seconds) + (microbatches - 1) * max(seconds)


def _seconds(layout):
    """The upper bound of a step of the 70B model, checkpointed, on 64 H100s."""
    return predict.step_seconds(
        predict.MODELS["llama-3-70b"], layout=layout, accelerator="h100-sxm", batch=1, sequence=8192, mfu=0.5,
        between_nodes=50e9, checkpointing=True,
    ).upper  # fmt: skip


@exercise(
    "18.5",
    tolerance=0.02,
    mistakes={
        "('a', ...)": "64 ranks with a sequence of their own each make a step of 64 sequences, and 16 are to be in it.",
        "('b', ...)": "it would be the quickest, but every rank has a whole quarter of the parameters and of their gradients. "
        "Look at the peak.",
        "('c', ...)": "it fits, and nearly a third of its time is the bubble: 8 stages and 16 microbatches.",
        "('d', _seconds('zero1=8,tp=8,sp'))": "one pass of that layout is 8 sequences. Two microbatches make 16.",
    },
    hints=(
        "Ask of each plan: how many sequences are in a step, does its peak fit, and what does it wait for?",
        '`predict.Layout.parse("fsdp=64").global_batch(1)` says how many sequences a step has, and `plan`, defined above, the '
        "GB at the peak and the seconds.",
    ),
    checked="d. (a) makes another batch, (b) does not fit, (c) waits in its bubble.",
)
def plan_for_64():
    return "d", _seconds("zero1=8,tp=8,sp,microbatches=2")
