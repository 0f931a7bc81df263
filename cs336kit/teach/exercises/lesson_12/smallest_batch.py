"""Exercise 12.5: from which batch on autocast saves memory."""

from cs336kit.teach.exercises.core import Case, Exercise, Mistake


def smallest_batch(fp32_bytes, autocast_bytes, copies_bytes):
    return copies_bytes // (fp32_bytes - autocast_bytes) + 1


EXERCISE = Exercise(
    id="12.5",
    reference=smallest_batch,
    cases=lambda: [
        Case((100, 60, 250), label="100 and 60 bytes a sequence, 250 of copies"),
        Case((345_344, 226_560, 229_380), label="345,344 and 226,560 bytes a sequence, 229,380 of copies"),
        Case((100, 60, 80), label="100 and 60 bytes a sequence, 80 of copies"),
        Case((100, 60, 79), label="100 and 60 bytes a sequence, 79 of copies"),
        Case((100, 60, 0), label="no copies"),
    ],
    mistakes=(
        Mistake(
            lambda a, c, w: w // (a - c),
            "For {case} you returned {given}: at that batch autocast does not keep fewer bytes yet. Round up, and a draw "
            "is not fewer.",
        ),
        Mistake(
            lambda a, c, w: -(-w // (a - c)),
            "For {case} you returned {given}: there both keep the same, and fewer is asked. Take one sequence more where "
            "the division leaves no rest.",
        ),
        Mistake(
            lambda a, c, w: 1, "For {case} you returned {given}: the copies of the weights are kept at any batch size."
        ),
        Mistake(
            lambda a, c, w: w // a + 1,
            "For {case} you returned {given}: per sequence autocast saves the difference, not all of fp32's bytes.",
        ),
        Mistake(
            lambda a, c, w: w / (a - c),
            "For {case} you returned {given}: a batch is a whole number of sequences.",
        ),
    ),
    hints=(
        "Write the bytes of both as a function of B. Which of the two has a constant?",
        "fp32 keeps a·B, autocast c·B + w. Ask for c·B + w < a·B and solve for the smallest whole B.",
        "return copies_bytes // (___ - ___) + 1",
    ),
    checked="the decoder of this lesson, an exact draw, one byte below a draw, and no copies.",
)
