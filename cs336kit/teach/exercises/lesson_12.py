"""Exercises of lesson 12: the decoder."""

from cs336kit.teach.exercises.core import exercise


@exercise(
    "12.1",
    cases={
        "Llama-3 8B": (4096, 32, 8, 128),
        "GPT-3": (12288, 96, 96, 128),
        "Gemma 2B": (2048, 8, 1, 256),
        "Gemma 7B, whose heads are together wider than D": (3072, 16, 16, 256),
    },
    mistakes={
        "right - d_model * heads * head_dim": "the output projection is missing. It maps all heads' A·h numbers back to D.",
        "right_if(kv_heads=heads)": "there are fewer key and value heads: those two matrices have K·h rows, not A·h.",
        "4 * d_model**2": "4D² holds only for full heads with A·h = D.",
        "right_if(head_dim=d_model // heads)": "you took D/A for the width of a head, but head_dim is given and may differ.",
        "right - d_model * kv_heads * head_dim": "keys and values are two matrices, and only one of width K·h is counted.",
        "2 * right": "those are FLOPs for a token, two for each weight. The weights are asked for.",
    },
    hints=(
        "How many matrices does attention have, and between which two widths does each of them map?",
        "Query: D → A·h. Key and value: D → K·h each. Output: A·h → D. Each matrix has (width in) × (width out) weights.",
        "return 2 * d_model * head_dim * (___ + ___)",
    ),
    checked="Llama-3 8B, GPT-3, Gemma 2B and Gemma 7B (whose heads are together wider than D).",
)
def attention_parameters(d_model, heads, kv_heads, head_dim):
    return 2 * d_model * head_dim * (heads + kv_heads)
