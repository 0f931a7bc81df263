"""Exercise 06.4: an affine layer over a batch."""

from cs336kit.teach.exercises.core import Case, Exercise, Mistake
from cs336kit.teach.exercises.lesson_06.tensors import normal


def affine_backward(x, w, grad_y):
    return grad_y @ w.T, x.T @ grad_y, grad_y.sum(0)


def _affine_cases():
    square = (normal(3, 3, seed=0), normal(3, 3, seed=1), normal(3, 3, seed=2))
    wide = (normal(5, 2, seed=3), normal(2, 4, seed=4), normal(5, 4, seed=5))
    one = (normal(1, 4, seed=6), normal(4, 3, seed=7), normal(1, 3, seed=8))
    strided = (normal(6, 4, seed=9)[::2], normal(5, 4, seed=10).T, normal(5, 3, seed=11).T)
    labels = ("three square matrices", "B=5, D=2, K=4", "a batch of one", "views that are not contiguous")
    return [Case(args, label=label) for args, label in zip((square, wide, one, strided), labels, strict=True)]


EXERCISE = Exercise(
    id="06.4",
    reference=affine_backward,
    cases=_affine_cases,
    mistakes=(
        Mistake(
            lambda x, w, g: (g @ w, x.T @ g, g.sum(0)),
            "For {case} the gradient of x is wrong: you multiplied by w, and it must be wᵀ. With square matrices the shapes "
            "do not tell you.",
        ),
        Mistake(
            lambda x, w, g: (g @ w.T, x @ g, g.sum(0)),
            "For {case} the gradient of w is wrong: xᵀ is needed, because the sum runs over the batch.",
        ),
        Mistake(
            lambda x, w, g: (g @ w.T, g.T @ x, g.sum(0)),
            "For {case} the gradient of w came out transposed: a gradient has the shape of its tensor, (D, K).",
        ),
        Mistake(
            lambda x, w, g: (g @ w.T, x.T @ g / len(x), g.mean(0)),
            "For {case} you averaged over the batch. y is given its gradient already; every row contributes, so sum.",
        ),
        Mistake(
            lambda x, w, g: (g @ w.T, x.T @ g, g),
            "For {case} the gradient of b is wrong: b is used by every row (a fan-out), so its gradient is the sum over rows.",
        ),
        Mistake(
            lambda x, w, g: (g @ w.T, x.T @ g, g.sum(1)),
            "For {case} the gradient of b is wrong: you summed over the columns. b has K elements; sum over the batch.",
        ),
        Mistake(
            lambda x, w, g: (g @ w.T, x.T @ g, g.mean(0)),
            "For {case} the gradient of b is a mean over the batch. Nothing divided by B: sum the rows.",
        ),
        Mistake(
            lambda x, w, g: (x.T @ g, g @ w.T, g.sum(0)),
            "For {case} the first two gradients are exchanged: x, w, b is the order that is asked for.",
        ),
        Mistake(
            lambda x, w, g: (g @ w.T, x.T @ g, g.sum(0, keepdim=True)),
            "For {case} the gradient of b has the shape (1, K). A gradient has the shape of its tensor, (K).",
        ),
        Mistake(
            lambda x, w, g: (g @ w.T, x.T @ g),
            "For {case} you returned two gradients. The third, b's, is missing.",
        ),
    ),
    hints=(
        "Each gradient has the shape of its tensor. Which products of x, w and y.grad have those shapes?",
        "x.grad (B, D) needs (B, K) times (K, D); w.grad (D, K) needs (D, B) times (B, K); b is added to every row.",
        "return grad_y @ w.T, x.T @ …, grad_y.sum(…)",
    ),
    checked="square matrices, B=5 D=2 K=4, a batch of one and non-contiguous views, in float64.",
)
