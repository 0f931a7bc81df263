"""Exercise 13.2: every parameter of a GPT-2."""

from cs336kit.teach.exercises.core import Case, Exercise, Mistake


def gpt2_parameters(layers, d_model, vocab, context):
    return layers * (12 * d_model**2 + 13 * d_model) + (vocab + context) * d_model + 2 * d_model


EXERCISE = Exercise(
    id="13.2",
    reference=gpt2_parameters,
    cases=lambda: [
        Case((12, 768, 50257, 1024), label="GPT-2"),
        Case((48, 1600, 50257, 1024), label="GPT-2 XL"),
        Case((96, 12288, 50257, 2048), label="GPT-3"),
        Case((1, 8, 11, 5), label="a toy with one layer"),
    ],
    mistakes=(
        Mistake(
            lambda L, D, V, C: gpt2_parameters(L, D, V, C) + V * D,
            "You counted the head beside the embedding: for {case} you returned {given}. They are one matrix, V·D once.",
        ),
        Mistake(
            lambda L, D, V, C: gpt2_parameters(L, D, V, C) - 2 * L * D,
            "Each LayerNorm has a scale and a shift: for {case} you returned {given}, 2D a block short. Two norms make "
            "4D, not 2D.",
        ),
        Mistake(
            lambda L, D, V, C: L * (12 * D**2 + 4 * D) + (V + C) * D + 2 * D,
            "The biases of the linear layers are missing: for {case} you returned {given}. Attention has 4D of them and "
            "the MLP 5D.",
        ),
        Mistake(
            lambda L, D, V, C: 12 * L * D**2 + V * D,
            "12LD² + VD is the estimate: for {case} you returned {given}. Now count positions, biases and norms too.",
        ),
        Mistake(
            lambda L, D, V, C: gpt2_parameters(L, D, V, C) - 2 * D,
            "The norm in front of the head is missing: for {case} you returned {given}, 2D short.",
        ),
        Mistake(
            lambda L, D, V, C: gpt2_parameters(L, D, V, C) - C * D,
            "The learned positions are missing: for {case} you returned {given}, context × D short.",
        ),
        Mistake(
            lambda L, D, V, C: L * 12 * D**2 + (V + C) * D,
            "These are the weights alone: for {case} you returned {given}. Add the biases of the linear layers, and two "
            "numbers per feature for every norm.",
        ),
        Mistake(
            lambda L, D, V, C: gpt2_parameters(L, D, V, C) - D,
            "You gave the norm in front of the head a scale only: for {case} you returned {given}, D short.",
        ),
        Mistake(
            lambda L, D, V, C: gpt2_parameters(L, D, V, C) - 4 * L * D,
            "4D a block are missing: for {case} you returned {given}. Attention's four matrices have a bias of D each, and the "
            "two norms of a block have 4D; one of these is not there.",
        ),
        Mistake(
            lambda L, D, V, C: gpt2_parameters(L, D, V, C) - 5 * L * D,
            "The MLP's biases are missing: for {case} you returned {given}. They are as long as what comes out: F = 4D, then D.",
        ),
        Mistake(
            lambda L, D, V, C: gpt2_parameters(L, D, V, C) - L * D,
            "D a block is missing: for {case} you returned {given}. Four biases of attention have D each, and the MLP's two "
            "4D and D: one of length D was left out.",
        ),
        Mistake(
            lambda L, D, V, C: gpt2_parameters(L, D, V, C) + 3 * L * D,
            "You gave both matrices of the MLP a bias of 4D: for {case} you returned {given}. The second one maps to D numbers, "
            "so its bias has D.",
        ),
        Mistake(
            lambda L, D, V, C: gpt2_parameters(L, D, V, C) + (L - 1) * (V + C) * D,
            "The embeddings exist once per model, not once per layer: for {case} you returned {given}.",
        ),
    ),
    hints=(
        "Count one block first: which of its parts have a bias, and what does a LayerNorm own?",
        "A block: 12D² weights, 4D + 5D biases, two norms of 2D. Then once: V·D, context·D, and the final norm.",
        "return layers * (12 * d_model**2 + ___ * d_model) + (vocab + ___) * d_model + ___ * d_model",
    ),
    checked="GPT-2, GPT-2 XL, GPT-3 and a toy with one layer, to the last parameter.",
)
