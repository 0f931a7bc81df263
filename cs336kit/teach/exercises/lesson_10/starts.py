"""Exercise 10.1: how many starts a sequence has."""

from cs336kit.teach.exercises.core import Case, Exercise, Mistake


def starts(tokens, sequence):
    return max(0, tokens - sequence)


EXERCISE = Exercise(
    id="10.1",
    reference=starts,
    cases=lambda: [
        Case((12, 4)),
        Case((5, 4), label="5 tokens, sequences of 4"),
        Case((466_273, 64)),
        Case((1025, 1)),
        Case((3, 8)),
    ],
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
        Mistake(
            lambda n, s: n - s,
            "{case} gave {given}: the file is too short for one sequence, so there is no place at all, and not fewer.",
        ),
        Mistake(lambda n, s: n - 1, "{case} gave {given}: a start needs S tokens behind it, and not only one."),
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
        "return max(0, tokens - (sequence + 1) + ___)",
    ),
    checked="12, 5, 1,025 and 466,273 tokens; with 5 tokens and sequences of 4 there is exactly one start, with 3 and 8 none.",
)
