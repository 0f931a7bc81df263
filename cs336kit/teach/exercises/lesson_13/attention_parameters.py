"""Exercise 13.1: parameters of attention with grouped heads."""

from cs336kit.teach.exercises.core import Case, Exercise, Mistake


def attention_parameters(d_model, heads, kv_heads, head_dim):
    return 2 * d_model * head_dim * (heads + kv_heads)


EXERCISE = Exercise(
    id="13.1",
    reference=attention_parameters,
    cases=lambda: [
        Case((4096, 32, 8, 128), label="Llama-3 8B"),
        Case((12288, 96, 96, 128), label="GPT-3"),
        Case((2048, 8, 1, 256), label="Gemma 2B"),
        Case((3072, 16, 16, 256), label="Gemma 7B, whose heads are together wider than D"),
    ],
    mistakes=(
        Mistake(
            lambda D, A, K, h: D * h * (A + 2 * K),
            "The output projection is missing: for {case} you returned {given}. It maps the A·h numbers of all heads "
            "back to D.",
        ),
        Mistake(
            lambda D, A, K, h: 4 * D * A * h,
            "You counted the key and value heads as if there were as many as query heads: for {case} you returned "
            "{given}. Those two matrices have K·h rows, not A·h.",
        ),
        Mistake(
            lambda D, A, K, h: 4 * D * D,
            "4D² holds only for full heads with A·h = D: for {case} you returned {given}.",
        ),
        Mistake(
            lambda D, A, K, h: 2 * D * (D // A) * (A + K),
            "You took D/A for the width of a head: for {case} you returned {given}, but head_dim is given and may differ.",
        ),
        Mistake(
            lambda D, A, K, h: D * h * (2 * A + K),
            "Keys and values are two matrices: for {case} you returned {given}, with only one of width K·h.",
        ),
        Mistake(
            lambda D, A, K, h: 2 * D * D + 2 * D * K * h,
            "You gave the query and output matrices D rows: for {case} you returned {given}. All query heads together are "
            "A·h wide, which need not be D.",
        ),
        Mistake(
            lambda D, A, K, h: 2 * D * h * (A + K) + (A + 2 * K) * h + D,
            "You counted biases: for {case} you returned {given}. The weights alone are asked for.",
        ),
        Mistake(
            lambda D, A, K, h: D * h * (A + K),
            "You counted two matrices: for {case} you returned {given}. There are four: query, key, value and output.",
        ),
        Mistake(
            lambda D, A, K, h: 4 * D * h * (A + K),
            "You counted FLOPs for a token: for {case} you returned {given}, two for each weight. The weights are asked for.",
        ),
        Mistake(
            lambda D, A, K, h: 2 * D * (A + K),
            "The width of a head is missing: for {case} you returned {given}. Every head owns h rows of each matrix.",
        ),
        Mistake(
            lambda D, A, K, h: 2 * D * h * (A + K) * A,
            "You multiplied by the number of heads twice: for {case} you returned {given}. The A·h rows are all heads.",
        ),
    ),
    hints=(
        "How many matrices does attention have, and between which two widths does each of them map?",
        "Query: D → A·h. Key and value: D → K·h each. Output: A·h → D. Each matrix has (width in) × (width out) weights.",
        "return 2 * d_model * head_dim * (___ + ___)",
    ),
    checked="Llama-3 8B, GPT-3, Gemma 2B and Gemma 7B (whose heads are together wider than D).",
)
