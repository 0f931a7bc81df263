"""Exercises of lesson 13: parameters and FLOPs of Transformers."""

from cs336kit.teach.exercises.core import Case, Exercise, Mistake

# --- 13.1: parameters of attention with grouped heads ----------------------------------------------------------------


def attention_parameters(d_model, heads, kv_heads, head_dim):
    return 2 * d_model * head_dim * (heads + kv_heads)


_ATTENTION = Exercise(
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

# --- 13.2: every parameter of a GPT-2 --------------------------------------------------------------------------------


def gpt2_parameters(layers, d_model, vocab, context):
    return layers * (12 * d_model**2 + 13 * d_model) + (vocab + context) * d_model + 2 * d_model


_GPT2 = Exercise(
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

# --- 13.3: FLOPs of a forward pass -----------------------------------------------------------------------------------


def _weights(layers, d_model, d_ff):
    return layers * (4 * d_model**2 + 2 * d_model * d_ff)


def forward_flops(layers, d_model, d_ff, vocab, sequence, causal):
    pairs = sequence**2 / 2 if causal else sequence**2
    products = 2 * sequence * (_weights(layers, d_model, d_ff) + d_model * vocab)
    return int(products + 4 * layers * pairs * d_model)


def _halves_one(layers, d_model, d_ff, vocab, sequence, causal):
    full = forward_flops(layers, d_model, d_ff, vocab, sequence, False)
    return full - layers * sequence**2 * d_model if causal else full


_FLOPS = Exercise(
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
            lambda L, D, F, V, S, c: (forward_flops(L, D, F, V, S, c) + 2 * S * (_weights(L, D, F) + D * V)) // 2,
            "Only one of the two S² products is counted: for {case} you returned {given}. Queries meet keys, and then "
            "the weights meet the values.",
        ),
        Mistake(
            lambda L, D, F, V, S, c: 2 * S * (_weights(L, D, F) + D * V),
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
            lambda L, D, F, V, S, c: 2 * S * (_weights(L, D, F) + D * V) + 4 * D * S**2 // (2 if c else 1),
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

# --- 13.4: a mixture of experts --------------------------------------------------------------------------------------


def mixture(d_model, d_ff, experts, experts_per_token):
    expert = 3 * d_model * d_ff
    router = d_model * experts
    return experts * expert + router, 2 * (experts_per_token * expert + router)


_MIXTURE = Exercise(
    id="13.4",
    reference=mixture,
    cases=lambda: [
        Case((4096, 14336, 8, 2), label="Mixtral 8x7B"),
        Case((6144, 16384, 8, 2), label="Mixtral 8x22B"),
        Case((64, 96, 16, 1), label="16 experts, one per token"),
        Case((64, 96, 4, 3), label="4 experts, three per token"),
    ],
    mistakes=(
        Mistake(
            lambda D, F, X, k: (mixture(D, F, X, k)[0], 2 * (3 * D * F * X + D * X)),
            "You let every expert compute: for {case} you returned {given}. A token visits experts_per_token of them.",
        ),
        Mistake(
            lambda D, F, X, k: (3 * D * F * X, 2 * 3 * D * F * k),
            "The router is missing: for {case} you returned {given}. It has D·experts weights, and every token meets all "
            "of them.",
        ),
        Mistake(
            lambda D, F, X, k: (3 * D * F * k + D * X, mixture(D, F, X, k)[1]),
            "You stored only the visited experts: for {case} you returned {given}. Which ones are visited depends on the "
            "token, so all must be in memory.",
        ),
        Mistake(
            lambda D, F, X, k: (2 * D * F * X + D * X, 2 * (2 * D * F * k + D * X)),
            "A SwiGLU has three matrices: for {case} you returned {given}, with two per expert.",
        ),
        Mistake(
            lambda D, F, X, k: (mixture(D, F, X, k)[0], mixture(D, F, X, k)[1] // 2),
            "A multiply and an add are two FLOPs: for {case} you returned {given}, half of the FLOPs.",
        ),
        Mistake(
            lambda D, F, X, k: (mixture(D, F, X, k)[0], 2 * 3 * D * F * k),
            "The router's FLOPs are missing: for {case} you returned {given}. Every token is multiplied by its D × experts "
            "matrix too.",
        ),
        Mistake(
            lambda D, F, X, k: (3 * D * F * X, mixture(D, F, X, k)[1]),
            "The router's D·experts weights are missing among the parameters: for {case} you returned {given}.",
        ),
        Mistake(
            lambda D, F, X, k: (3 * D * F * X + X, 2 * (3 * D * F * k + X)),
            "You gave the router one weight per expert: for {case} you returned {given}. It maps D features to experts "
            "scores, a D × experts matrix.",
        ),
        Mistake(
            lambda D, F, X, k: mixture(D, F, X, k)[::-1],
            "The pair is the wrong way round: for {case} you returned {given}. Parameters come first, then FLOPs.",
        ),
        Mistake(
            lambda D, F, X, k: (mixture(D, F, X, k)[0], 3 * mixture(D, F, X, k)[1]),
            "This is forward and backward: for {case} you returned {given}. The forward pass alone is asked for.",
        ),
        Mistake(
            lambda D, F, X, k: (mixture(D, F, X, k)[0], 2 * k * (3 * D * F + D * X)),
            "You ran the router once per visited expert: for {case} you returned {given}. A token meets it once.",
        ),
        Mistake(
            lambda D, F, X, k: (mixture(D, F, X, k)[0], 2 * (3 * D * F * k + D * k)),
            "The router scores all experts before it chooses: for {case} you returned {given}, with scores for the chosen "
            "ones only.",
        ),
    ),
    hints=(
        "What must lie in memory, and what does one token multiply?",
        "An expert has 3·D·F weights, the router D·experts. All are stored; a token meets the router and "
        "experts_per_token experts.",
        "return experts * expert + router, 2 * (___ * expert + ___)",
    ),
    checked="Mixtral 8x7B and 8x22B, 16 experts with one per token, 4 experts with three.",
)

# --- 13.5: the context at which attention matters --------------------------------------------------------------------


def context_for_share(layers, d_model, d_ff, vocab, share):
    weights = _weights(layers, d_model, d_ff) + d_model * vocab
    return share / (1 - share) * weights / (2 * layers * d_model)


_SHARE = Exercise(
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
            lambda L, D, F, V, s: s * (_weights(L, D, F) + D * V) / (2 * L * D),
            "You took the share of the rest: for {case} you returned {given}. The share is of the whole pass, attention "
            "included, so divide by 1 − share too.",
        ),
        Mistake(
            lambda L, D, F, V, s: s / (1 - s) * _weights(L, D, F) / (2 * L * D),
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
            lambda L, D, F, V, s: s * _weights(L, D, F) / (2 * L * D),
            "Two things are missing: for {case} you returned {given}. The head is part of the pass, and so is attention itself.",
        ),
        Mistake(
            lambda L, D, F, V, s: context_for_share(L, D, 3 * F / 2, V, s),
            "You gave the MLP three matrices: for {case} you returned {given}. A GELU MLP has two.",
        ),
        Mistake(
            lambda L, D, F, V, s: s / (1 - s) * (_weights(L, D, F) + 2 * D * V) / (2 * L * D),
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

EXERCISES = (_ATTENTION, _GPT2, _FLOPS, _MIXTURE, _SHARE)
