"""Exercises of lesson 18: a sum over ranks, what hides, a divided vocabulary, uneven stages, a plan for 64 GPUs."""

import math

import torch

from cs336kit import predict
from cs336kit.teach.exercises.core import exercise


def _by_rank(ranks, size):
    return ([torch.arange(size) + 100 * rank**2 for rank in range(ranks)],)


@exercise(
    "18.1",
    cases={
        "four ranks": _by_rank(4, 2),
        "two ranks": _by_rank(2, 3),
        "eight ranks": _by_rank(8, 5),
        "one rank": _by_rank(1, 4),
        "two ranks with a matrix each": ([torch.arange(6.0).view(2, 3), torch.ones(2, 3)],),
    },
    mistakes={
        "right_if(at_once=False)": "within a round, a rank added what its partner had already changed. All ranks exchange at "
        "the same time, so let each round start from what everybody held before it.",
        "right_if(rounds=1)": "after one round a rank has the sum of only two ranks. Go on, with partners farther away.",
        "(right[0], right[1] // values[0].numel())": "that is the number of messages. Each carries the whole tensor.",
        "(right[0], right[1] * len(values))": "that is what all ranks send together. Return what one of them sends.",
        "(right[0], 2 * (len(values) - 1) * values[0].numel() / len(values))": "that is what the ring sends. Here a rank "
        "sends its whole tensor in every round.",
        "(right[0], (len(values) - 1) * values[0].numel())": "a sum over more ranks is no larger: every message is one tensor.",
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


#: The tokens of a batch, and how many a GPU needs to hide its sending: FLOP/s ÷ bytes per second.
_TOKENS, _NEED = 512 * 8192, 4000


@exercise(
    "18.2",
    tolerance=1e-3,  # 1,048 are as good as 1,048.6
    mistakes={
        "(_TOKENS / _NEED, ...)": "so many GPUs would have enough tokens each, but A has only 512 sequences to give them.",
        "(..., _TOKENS / _NEED)": "so many GPUs would have enough tokens each, but they would not be whole sequences of B's.",
        "(1024, ...)": "A has only 512 sequences. What would the other GPUs do?",
        "(..., 2048)": "a sequence of B's has 2,048 tokens. Is that enough for a GPU to hide the gradients behind?",
        "(256, ...)": "one sequence of A's has more than twice the tokens that a GPU needs. Does a second have to be there?",
        "(..., 512)": "an all-reduce sends each gradient of 2 bytes about twice, 4 bytes, against 4 FLOPs for each token. Four "
        "sequences of B's are more than it takes.",
    },
    hints=(
        "How many tokens does a GPU need so that its backward pass takes as long as sending the gradients?",
        "Each parameter has 4 FLOPs for each token on one side, and 4 bytes on the other. Then count whole sequences.",
    ),
    checked="512 for A, where the sequences run out first, and 1,024 for B, with two sequences each, whatever the model.",
)
def how_many_hide():
    return tuple(_TOKENS // length // math.ceil(_NEED / length) for length in (8192, 2048))


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
        "_own_losses(logits, targets)": "each rank made a loss of its own columns, but a softmax divides by a sum over the "
        "columns of all ranks.",
        "right_if(highest=False)": "exp of a large logit is inf. Subtract the token's largest one first.",
        "right_if(missing=True)": "a rank that does not have the target's column added something anyway.",
        "right_if(total=True)": "that is the sum over tokens. The loss is their mean.",
    },
    hints=(
        "The loss of a token is the log of a sum over all columns, minus one logit. What can a rank compute of this from its own "
        "columns?",
        "Use three numbers of each rank and token: its largest logit, the sum of exp(logit − largest of all), and the target's "
        "logit, or 0 if that column is another rank's. A rank's columns begin where those of the rank before it end.",
    ),
    checked="one to four ranks with uneven columns, one token, and logits so large that exp of them is inf.",
    tolerance=1e-4,
    avoid=(
        *(
            "cat",
            "concat",
            "concatenate",
            "hstack",
            "vstack",
            "dstack",
            "column_stack",
            "row_stack",
            "block_diag",
            "pad",
        ),
        *("cross_entropy", "CrossEntropyLoss"),
    ),
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
        "sum(seconds) * microbatches": "you let each microbatch wait until the one before it has left the last stage.",
        "(len(seconds) + microbatches - 1) * max(seconds)": "you gave every stage the time of the slowest one. It sets the pace, "
        "but the first microbatch passes the others in their own time.",
        "sum(seconds) + microbatches - 1": "microbatches do not leave one second apart: the slowest stage sets the distance.",
        "sum(seconds) + (microbatches - 1) * seconds[0]": "the first stage sets the pace only if no other stage is slower.",
        "sum(seconds) + (microbatches - 1) * seconds[-1]": "the last stage sets the pace only if no other stage is slower.",
        "sum(seconds) + microbatches * max(seconds)": "you counted the first microbatch twice: it is in the sum already.",
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


def _seconds(layout, hidden=False, again=True):
    """A step of the 70B model, checkpointed unless not `again`, on 64 H100s, if nothing hides or if all does."""
    step = predict.step_seconds(
        predict.MODELS["llama-3-70b"], layout=layout, accelerator="h100-sxm", batch=1, sequence=8192, matmul_efficiency=0.5,
        between_nodes=50e9, checkpointing=again,
    )  # fmt: skip
    return step.lower if hidden else step.upper


@exercise(
    "18.5",
    tolerance=0.02,
    mistakes={
        "('a', ...)": "64 ranks with a sequence each make a step of 64 sequences, but the step should have 16.",
        "('b', ...)": "b would be the fastest, but every rank holds a whole quarter of the parameters and of their gradients. "
        "Look at the peak.",
        "('c', _seconds('tp=8,sp,pp=8,microbatches=16', again=False))": "these are the seconds without checkpointing. Here all "
        "blocks are checkpointed, in what a plan needs, too.",
        "('d', _seconds('zero1=8,tp=8,sp,microbatches=2', again=False))": "d is right, but these are the seconds without "
        "checkpointing.",
        "('c', ...)": "c fits, but nearly a third of its time is the bubble of 8 stages and 16 microbatches.",
        "('d', _seconds('zero1=8,tp=8,sp,microbatches=2', hidden=True))": "d is right, but that is its step if all that is sent "
        "hides. Here nothing does.",
        "('d', _seconds('zero1=8,tp=8,sp'))": "d is right, but one pass of it has 8 sequences. Two microbatches make 16.",
    },
    hints=(
        "For each plan, ask how many sequences are in a step, whether its peak fits, and what it waits for.",
        '`predict.Layout.parse("fsdp=64").global_batch(1)` gives the sequences in a step, and `plan`, defined above, gives the '
        "GB at the peak and the seconds.",
    ),
    checked="d. (a) makes another batch, (b) does not fit, (c) waits in its bubble.",
)
def plan_for_64():
    return "d", _seconds("zero1=8,tp=8,sp,microbatches=2")
