"""Exercise 13.4: a mixture of experts."""

from cs336kit.teach.exercises.core import Case, Exercise, Mistake


def mixture(d_model, d_ff, experts, experts_per_token):
    expert = 3 * d_model * d_ff
    router = d_model * experts
    return experts * expert + router, 2 * (experts_per_token * expert + router)


EXERCISE = Exercise(
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
