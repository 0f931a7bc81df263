"""Exercise 10.3: accumulation over batches of different sizes."""

import torch

from cs336kit.teach.exercises.core import Case, Exercise, Mistake


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


EXERCISE = Exercise(
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
            lambda parts: sum(g for g, _ in parts) / sum(n for _, n in parts),
            "For {case} you added means and divided by the number of sequences. First turn each mean into a sum: times its "
            "count.",
        ),
        Mistake(
            lambda parts: sum(g * n for g, n in parts) / len(parts),
            "For {case} the sum over all sequences is right; you divided it by the number of batches. Divide by the number "
            "of sequences.",
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
