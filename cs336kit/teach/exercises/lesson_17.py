"""Exercises of lesson 17: parameters and FLOPs of a Transformer."""

from cs336kit.teach.exercises.core import exercise


def _weights(layers, d_model, d_ff):
    """Attention's four matrices with full heads, and the two of a GELU MLP, in all layers."""
    return layers * (4 * d_model**2 + 2 * d_model * d_ff)


@exercise(
    "17.1",
    cases={
        "GPT-2": (12, 768, 50257, 1024),
        "GPT-2 XL": (48, 1600, 50257, 1024),
        "GPT-3": (96, 12288, 50257, 2048),
        "a toy with one layer": (1, 8, 11, 5),
    },
    mistakes={
        "right + vocab * d_model": "you counted the head beside the embedding. They are one matrix, V·D once.",
        "right - 2 * layers * d_model": "each LayerNorm has a scale and a shift: two norms make 4D a block, not 2D.",
        "right - 9 * layers * d_model": "the biases of the linear layers are missing: 4D in attention and 5D in the MLP.",
        "right - 3 * layers * d_model": "the biases of query, key and value are missing, D each in every block.",
        "right - 2 * d_model": "the norm in front of the head is missing, 2D.",
        "right - context * d_model": "the learned positions are missing, context × D.",
    },
    hints=(
        "Count one block first: which of its parts have a bias, and what does a LayerNorm own?",
        "A block: 12D² weights, 4D + 5D biases, two norms of 2D. Then once: V·D, context·D, and the final norm.",
        "return layers * (12 * d_model**2 + ___ * d_model) + (vocab + ___) * d_model + ___ * d_model",
    ),
    checked="GPT-2, GPT-2 XL, GPT-3 and a toy with one layer, to the last parameter.",
)
def gpt2_parameters(layers, d_model, vocab, context):
    return layers * (12 * d_model**2 + 13 * d_model) + (vocab + context) * d_model + 2 * d_model


@exercise(
    "17.2",
    cases={
        "GPT-2 at 1024 tokens": (12, 768, 3072, 50257, 1024, False),
        "GPT-2 at 1024 tokens, causal": (12, 768, 3072, 50257, 1024, True),
        "GPT-3 at 2048 tokens": (96, 12288, 49152, 50257, 2048, False),
        "511 tokens through a toy whose F is not 4D, causal": (2, 64, 100, 300, 511, True),
    },
    mistakes={
        "right // 2": "half of them: a multiply and an add are two FLOPs.",
        "right + 2 * sequence * d_model * vocab": "an embedding costs no FLOPs: it looks rows up and multiplies nothing.",
        "right - 2 * sequence * d_model * vocab": "the head is missing, which multiplies every position, shared or not.",
        "right_if(causal=False) // (2 if causal else 1)": "you halved everything: the weights still multiply every token.",
        "right - 2 * layers * sequence**2 * d_model // (2 if causal else 1)": "only one of the two S² products is counted.",
        "right_if(causal=False)": "you counted all S² pairs. With causal=True half of them are hidden.",
    },
    hints=(
        "Which matrices does a token meet, and what do tokens do with each other?",
        "2 FLOPs per weight and token, head included. Then two products over pairs of positions, S²·D multiply-adds each; "
        "causal keeps half of the pairs.",
        "return 2*S*(L*(4*D*D + 2*D*F) + ___) + (2 if causal else ___) * L*S*S*D",
    ),
    checked="GPT-2 and GPT-3, and an odd number of tokens through a toy whose F is not 4D; full and causal.",
)
def forward_flops(layers, d_model, d_ff, vocab, sequence, causal):
    products = 2 * sequence * (_weights(layers, d_model, d_ff) + d_model * vocab)
    return products + (2 if causal else 4) * layers * sequence**2 * d_model


@exercise(
    "17.3",
    cases={
        "Mixtral 8x7B": (4096, 14336, 8, 2),
        "Mixtral 8x22B": (6144, 16384, 8, 2),
        "16 experts, one per token": (64, 96, 16, 1),
        "4 experts, three per token": (64, 96, 4, 3),
    },
    mistakes={
        "right_if(experts_per_token=experts)": "you let every expert compute. A token visits experts_per_token of them.",
        "(right[0] - d_model * experts, right[1] - 2 * d_model * experts)": "the router's D·experts weights are missing.",
        "(3 * d_model * d_ff * experts_per_token + d_model * experts, right[1])": "all experts must be "
        "stored: which are visited depends on the token.",
        "(right[0] - d_model * d_ff * experts, right[1] - 2 * d_model * d_ff * experts_per_token)": "a SwiGLU has 3 matrices.",
        "(right[0], right[1] // 2)": "half of the FLOPs: a multiply and an add are two.",
        "(right[0], right[1] - 2 * d_model * experts)": "the router's FLOPs are missing: it multiplies every token.",
    },
    hints=(
        "What must lie in memory, and what does one token multiply?",
        "An expert has 3·D·F weights, the router D·experts. All are stored; a token meets the router and "
        "experts_per_token experts.",
        "return experts * expert + router, 2 * (___ * expert + ___)",
    ),
    checked="Mixtral 8x7B and 8x22B, 16 experts with one per token, 4 experts with three.",
)
def mixture(d_model, d_ff, experts, experts_per_token):
    expert, router = 3 * d_model * d_ff, d_model * experts
    return experts * expert + router, 2 * (experts_per_token * expert + router)


@exercise(
    "17.4",
    cases={
        "10 % of GPT-2": (12, 768, 3072, 50257, 0.1),
        "half of GPT-3": (96, 12288, 49152, 50257, 0.5),
        "2 % of GPT-3": (96, 12288, 49152, 50257, 0.02),
        "a quarter of a toy whose F is not 4D": (2, 64, 100, 300, 0.25),
    },
    mistakes={
        "right * (1 - share)": "you took the share of the rest. It is of the whole pass: divide by 1 − share too.",
        "right_if(vocab=0)": "the head is missing from the rest.",
        "2 * right": "you counted one S² product, or half of the pairs. Full attention has two, over all pairs.",
        "right / 2": "both the weights and the pairs cost two FLOPs per multiply-add.",
        "right_if(share=1 - share)": "you swapped the two parts: everything but attention has that share.",
        "right * layers": "the S² part is there once per layer.",
    },
    hints=(
        "Write both parts for one token: what grows with S, and what does not?",
        "Per token: 2·W for the W weights it meets, and 4·L·S·D for attention. Set attention = share · (attention + 2W) "
        "and solve for S.",
        "return share / (1 - share) * (layers*(4*d_model**2 + 2*d_model*d_ff) + ___) / (___ * layers * d_model)",
    ),
    checked="10 % of GPT-2, half of GPT-3, 2 % of GPT-3, and a quarter of a toy whose F is not 4D.",
)
def context_for_share(layers, d_model, d_ff, vocab, share):
    return share / (1 - share) * (_weights(layers, d_model, d_ff) + d_model * vocab) / (2 * layers * d_model)
