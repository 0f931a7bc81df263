"""Exercise 10.4: prefetching."""

from cs336kit.teach.exercises.core import Case, Exercise, Mistake


def order_of_work(n):
    work = [("copy", 0)] if n else []
    for i in range(n):
        if i + 1 < n:
            work.append(("copy", i + 1))
        work.append(("train", i))
    return work


def _without_prefetch(n):
    return [(action, i) for i in range(n) for action in ("copy", "train")]


def _stale(n):
    """The loop that stops fetching one batch early and uses the one before again."""
    work, ahead = order_of_work(n)[:1], 0
    for i in range(n):
        current = ahead
        if i + 2 != n and i + 1 < n:
            ahead = i + 1
            work.append(("copy", ahead))
        work.append(("train", current))
    return work


def _one_too_many(n):
    return [("copy", 0), *(pair for i in range(n) for pair in (("copy", i + 1), ("train", i)))]


EXERCISE = Exercise(
    id="10.4",
    reference=order_of_work,
    cases=lambda: [
        Case((4,), label="four batches"),
        Case((1,), label="one batch"),
        Case((0,), label="no batch"),
        Case((9,), label="nine batches"),
    ],
    mistakes=(
        Mistake(
            _without_prefetch,
            "For {case} each copy starts when the training step before it is over: nothing is prefetched. Copy batch "
            "i + 1 before you train on batch i.",
        ),
        Mistake(
            lambda n: [("copy", i) for i in range(n)] + [("train", i) for i in range(n)],
            "For {case} all copies come first: every batch lies in the GPU's memory at once. Only one may be ahead.",
        ),
        Mistake(
            lambda n: order_of_work(n)[:-1],
            "For {case} the last batch was copied and never trained on. It still waits when the loop ends.",
        ),
        Mistake(
            lambda n: order_of_work(n)[1:],
            "For {case} batch 0 was never copied. Before the loop there is one copy to start.",
        ),
        Mistake(
            _stale,
            "For {case} you trained on a batch twice and never copied the last: that is the condition i + 2 != n. The "
            "next batch exists as long as i + 1 < n.",
        ),
        Mistake(
            lambda n: _one_too_many(n)[1:],
            "For {case} you returned {given}: training on batch 0 comes before its copy, and a batch n is copied that does "
            "not exist.",
        ),
        Mistake(
            _one_too_many,
            "For {case} you returned {given}: batch n does not exist, the last one is n − 1. With no batch there is "
            "nothing to copy.",
        ),
    ),
    hints=(
        "At any moment one batch is in use and one is on its way. What happens before the loop, and what in its last round?",
        "First the copy of batch 0, if there is one. Then for each i: the copy of i + 1, if there is one, and training on i.",
        'for i in range(n): if i + 1 < ___: work.append(("copy", ___)); work.append(("train", ___))',
    ),
    checked="no batch, one, four and nine: each copied once, one ahead, and trained on once.",
)
