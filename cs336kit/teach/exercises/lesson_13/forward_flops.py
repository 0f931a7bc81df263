"""Exercise 13.3: FLOPs of a forward pass."""

from cs336kit.teach.exercises.core import Case, Exercise, Mistake
from cs336kit.teach.exercises.lesson_13.weights import block_weights


def forward_flops(layers, d_model, d_ff, vocab, sequence, causal):
    pairs = sequence**2 / 2 if causal else sequence**2
    products = 2 * sequence * (block_weights(layers, d_model, d_ff) + d_model * vocab)
    return int(products + 4 * layers * pairs * d_model)


def _halves_one(layers, d_model, d_ff, vocab, sequence, causal):
    full = forward_flops(layers, d_model, d_ff, vocab, sequence, False)
    return full - layers * sequence**2 * d_model if causal else full


EXERCISE = Exercise(
    id="13.3",
    reference=forward_flops,
    cases=lambda: [
        Case((12, 768, 3072, 50257, 1024, False), label="GPT-2 at 1024 tokens"),
        Case((12, 768, 3072, 50257, 1024, True), label="GPT-2 at 1024 tokens, causal"),
        Case((96, 12288, 49152, 50257, 2048, False), label="GPT-3 at 2048 tokens"),
        Case((2, 64, 100, 300, 511, True), label="511 tokens through a toy whose F is not 4D, causal"),
    ],
    mistakes=(
        Mistake(
            lambda *a: forward_flops(*a) // 2,
            "A multiply and an add are two FLOPs: for {case} you returned {given}, half of them.",
        ),
        Mistake(
            lambda L, D, F, V, S, c: forward_flops(L, D, F, V, S, c) + 2 * S * D * V,
            "You counted FLOPs for the embedding: for {case} you returned {given}. It looks rows up and multiplies nothing.",
        ),
        Mistake(
            lambda L, D, F, V, S, c: forward_flops(L, D, F, V, S, c) - 2 * S * D * V,
            "The head is missing: for {case} you returned {given}. It multiplies every position by a D × V matrix, also "
            "where the matrix is shared.",
        ),
        Mistake(
            lambda L, D, F, V, S, c: forward_flops(L, D, F, V, S, False) // (2 if c else 1),
            "You halved everything: for {case} you returned {given}. The mask hides half of the S² part; the weights "
            "still multiply every token.",
        ),
        Mistake(
            _halves_one,
            "You halved one of the two S² products: for {case} you returned {given}. The mask hides half of the scores and "
            "half of the weights that multiply the values.",
        ),
        Mistake(
            lambda L, D, F, V, S, c: forward_flops(L, D, F, V, S, False),
            "You counted all S² pairs: for {case} you returned {given}. With causal=True half of them are hidden.",
        ),
        Mistake(
            lambda L, D, F, V, S, c: (forward_flops(L, D, F, V, S, c) + 2 * S * (block_weights(L, D, F) + D * V)) // 2,
            "Only one of the two S² products is counted: for {case} you returned {given}. Queries meet keys, and then "
            "the weights meet the values.",
        ),
        Mistake(
            lambda L, D, F, V, S, c: 2 * S * (block_weights(L, D, F) + D * V),
            "This is 2 FLOPs per weight and token alone: for {case} you returned {given}. Attention's S² part has no weights.",
        ),
        Mistake(
            lambda L, D, F, V, S, c: forward_flops(L, D, 4 * D, V, S, c),
            "You took 4D for the width of the MLP: for {case} you returned {given}, but d_ff is given and may differ.",
        ),
        Mistake(
            lambda L, D, F, V, S, c: forward_flops(L, D, F, V, S, c) + (2 * L * S * D if c else 0),
            "You counted S(S + 1)/2 pairs, which is what the mask leaves: for {case} you returned {given}. The convention here "
            "is half of S², the diagonal halved too.",
        ),
        Mistake(
            lambda L, D, F, V, S, c: forward_flops(L, D, F, V, S, c) - (2 * L * D if c and S % 2 else 0),
            "S * S // 2 loses half a pair where S is odd: for {case} you returned {given}. Halve after multiplying.",
        ),
        Mistake(
            lambda L, D, F, V, S, c: forward_flops(L, D, F, V, S, c) + 2 * S * L * D * F,
            "You gave the MLP three matrices: for {case} you returned {given}. A GELU MLP has two.",
        ),
        Mistake(
            lambda L, D, F, V, S, c: forward_flops(L, D, F, V, S, c) - 2 * (S - 1) * D * V,
            "You applied the head to one position: for {case} you returned {given}. A forward pass gives logits for all S.",
        ),
        Mistake(
            lambda L, D, F, V, S, c: forward_flops(L, D, F, V, S, c) + 2 * (L - 1) * S * D * V,
            "The head exists once per model, not once per layer: for {case} you returned {given}.",
        ),
        Mistake(
            lambda L, D, F, V, S, c: forward_flops(1, D, F, V, S, c),
            "This is one layer and the head: for {case} you returned {given}. Multiply what is in a block by layers.",
        ),
        Mistake(
            lambda L, D, F, V, S, c: 2 * S * (block_weights(L, D, F) + D * V) + 4 * D * S**2 // (2 if c else 1),
            "The S² part is there for one layer only: for {case} you returned {given}.",
        ),
        Mistake(
            lambda L, D, F, V, S, c: forward_flops(L, D, F, V, S, c) - 2 * S * L * D * D,
            "One of attention's four matrices is missing: for {case} you returned {given}. Query, key, value and output each "
            "cost 2·D² for a token.",
        ),
        Mistake(
            lambda L, D, F, V, S, c: forward_flops(L, D, F, V, S, c) // S,
            "This is one token's share: for {case} you returned {given}. The whole sequence is asked for.",
        ),
        Mistake(
            lambda *a: 3 * forward_flops(*a),
            "This is forward and backward: for {case} you returned {given}, three times the forward pass.",
        ),
    ),
    hints=(
        "Which matrices does a token meet, and what do tokens do with each other?",
        "2 FLOPs per weight and token, head included. Then two products over pairs of positions, S²·D multiply-adds each; "
        "causal keeps half of the pairs.",
        "return 2*S*(L*(4*D*D + 2*D*F) + ___) + (2 if causal else ___) * L*S*S*D",
    ),
    checked="GPT-2 and GPT-3, and an odd number of tokens through a toy whose F is not 4D; full and causal.",
)
