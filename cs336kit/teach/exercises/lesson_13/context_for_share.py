"""Exercise 13.5: the context at which attention matters."""

from cs336kit.teach.exercises.core import Case, Exercise, Mistake
from cs336kit.teach.exercises.lesson_13.weights import block_weights


def context_for_share(layers, d_model, d_ff, vocab, share):
    weights = block_weights(layers, d_model, d_ff) + d_model * vocab
    return share / (1 - share) * weights / (2 * layers * d_model)


EXERCISE = Exercise(
    id="13.5",
    reference=context_for_share,
    cases=lambda: [
        Case((12, 768, 3072, 50257, 0.1), label="10 % of GPT-2"),
        Case((96, 12288, 49152, 50257, 0.5), label="half of GPT-3"),
        Case((96, 12288, 49152, 50257, 0.02), label="2 % of GPT-3"),
        Case((2, 64, 100, 300, 0.25), label="a quarter of a toy whose F is not 4D"),
    ],
    mistakes=(
        Mistake(
            lambda L, D, F, V, s: s * (block_weights(L, D, F) + D * V) / (2 * L * D),
            "You took the share of the rest: for {case} you returned {given}. The share is of the whole pass, attention "
            "included, so divide by 1 − share too.",
        ),
        Mistake(
            lambda L, D, F, V, s: s / (1 - s) * block_weights(L, D, F) / (2 * L * D),
            "The head is missing from the rest: for {case} you returned {given}.",
        ),
        Mistake(
            lambda *a: 2 * context_for_share(*a),
            "You counted one S² product, or half of the pairs: for {case} you returned {given}, twice the context. Full "
            "attention has two products over all pairs.",
        ),
        Mistake(
            lambda *a: context_for_share(*a) / 2,
            "You forgot a factor of two on one side: for {case} you returned {given}. Both the weights and the pairs cost "
            "two FLOPs per multiply-add.",
        ),
        Mistake(
            lambda L, D, F, V, s: context_for_share(L, D, 4 * D, V, s),
            "You took 4D for the width of the MLP: for {case} you returned {given}, but d_ff is given and may differ.",
        ),
        Mistake(
            lambda *a: int(context_for_share(*a)),
            "You rounded down: for {case} you returned {given}. The length at which the share is met exactly is a float.",
        ),
        Mistake(
            lambda *a: round(context_for_share(*a)),
            "You rounded: for {case} you returned {given}. The length at which the share is met exactly is a float.",
        ),
        Mistake(
            lambda L, D, F, V, s: context_for_share(L, D, F, V, 1 - s),
            "You swapped the two parts: for {case} you returned {given}, where everything but attention has that share.",
        ),
        Mistake(
            lambda L, D, F, V, s: context_for_share(L, D, F, V, s) * L,
            "The S² part is there once per layer: for {case} you returned {given}, as if one layer had it.",
        ),
        Mistake(
            lambda L, D, F, V, s: s * block_weights(L, D, F) / (2 * L * D),
            "Two things are missing: for {case} you returned {given}. The head is part of the pass, and so is attention itself.",
        ),
        Mistake(
            lambda L, D, F, V, s: context_for_share(L, D, 3 * F / 2, V, s),
            "You gave the MLP three matrices: for {case} you returned {given}. A GELU MLP has two.",
        ),
        Mistake(
            lambda L, D, F, V, s: s / (1 - s) * (block_weights(L, D, F) + 2 * D * V) / (2 * L * D),
            "You counted FLOPs for the embedding: for {case} you returned {given}. It multiplies nothing.",
        ),
    ),
    hints=(
        "Write both parts for one token: what grows with S, and what does not?",
        "Per token: 2·W for the W weights it meets, and 4·L·S·D for attention. Set attention = share · (attention + 2W) "
        "and solve for S.",
        "return share / (1 - share) * (layers*(4*d_model**2 + 2*d_model*d_ff) + ___) / (___ * layers * d_model)",
    ),
    checked="10 % of GPT-2, half of GPT-3, 2 % of GPT-3, and a quarter of a toy whose F is not 4D.",
)
