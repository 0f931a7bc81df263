"""Exercise 00.2: gibibytes of an AdamW run."""

from cs336kit.teach.exercises.core import Case, Exercise, Mistake


def adamw_gib(parameters):
    return 16 * parameters / 2**30


EXERCISE = Exercise(
    id="00.2",
    reference=adamw_gib,
    cases=lambda: [
        Case((2**30,), label="2³⁰ parameters"),
        Case((124_439_808,), label="GPT-2"),
        Case((7_000_000_000,), label="7B parameters"),
    ],
    mistakes=(
        Mistake(
            lambda p: 16 * p / 1e9,
            "This is GB, not GiB: for {case} you returned {given}. A GiB is 2³⁰ bytes, 7.4 % more than 10⁹.",
        ),
        Mistake(
            lambda p: 16 * p, "These are bytes: for {case} you returned {given}. Divide by the bytes of one GiB, 2³⁰."
        ),
        Mistake(
            lambda p: 16 * p / 2**20,
            "These are MiB: for {case} you returned {given}, 1,024 times the GiB.",
        ),
        Mistake(
            lambda p: round(16 * p / 2**30, 2),
            "You rounded: for {case} you returned {given}, where {expected} is right. Round when you print, not before.",
        ),
        Mistake(
            lambda p: 4 * p / 2**30,
            "Only the weights are counted: for {case} you returned {given}, 4 bytes a parameter. A gradient and two "
            "moments stand beside each of them.",
        ),
        Mistake(
            lambda p: 8 * p / 2**30,
            "The optimizer is missing: for {case} you returned {given}, weights and gradients alone.",
        ),
        Mistake(
            lambda p: 12 * p / 2**30,
            "One of the four is missing: for {case} you returned {given}, 12 bytes a parameter. Count weight, gradient, "
            "first moment and second moment.",
        ),
        Mistake(
            lambda p: 16 * p // 2**30,
            "You rounded down to whole GiB: for {case} you returned {given}, where {expected} is right. Divide with /.",
        ),
    ),
    hints=(
        "How many numbers does AdamW keep for each parameter, counting the parameter itself?",
        "Four numbers of 4 bytes; then turn bytes into GiB by dividing by 2³⁰.",
        "return ___ * 4 * parameters / 2**___",
    ),
    checked="2³⁰ parameters, GPT-2 and 7B parameters, in GiB.",
)
