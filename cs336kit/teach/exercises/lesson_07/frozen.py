"""Exercise 07.3: which gradients are needed."""

from cs336kit.teach.exercises.core import Case, Exercise, Mistake
from cs336kit.teach.exercises.lesson_07.products import products


def backward_flops(batch, sizes, trained):
    total = 0
    for i, (inner, columns) in enumerate(zip(sizes, sizes[1:], strict=False), start=1):
        product = 2 * batch * inner * columns
        if i in trained:
            total += product
        if any(j < i for j in trained):
            total += product
    return total


EXERCISE = Exercise(
    id="07.3",
    reference=backward_flops,
    cases=lambda: [
        Case((32, (8, 16, 4), {1, 2}), label="two layers, both trained"),
        Case((32, (8, 16, 4), {2}), label="two layers, only the last trained"),
        Case((32, (8, 16, 4), {1}), label="two layers, only the first trained"),
        Case((10, (5, 6, 7, 8, 9), {2, 4}), label="four layers, 2 and 4 trained"),
        Case((10, (5, 6, 7, 8, 9), set()), label="nothing trained"),
        Case((3, (2, 2, 2, 2, 2, 2), {1, 2, 3, 4, 5}), label="five equal layers, all trained"),
    ],
    mistakes=(
        Mistake(
            lambda b, s, t: sum(2 * f for f in products(b, s).values()) if t else 0,
            "For {case} you returned {given}: two products for every layer. A frozen weight needs no gradient, and below "
            "the first trained layer nothing is computed at all.",
        ),
        Mistake(
            lambda b, s, t: sum(f for i, f in products(b, s).items() if i in t),
            "For {case} you returned {given}: only the weights' gradients. The gradient has to travel down to a trained "
            "layer, through frozen ones too.",
        ),
        Mistake(
            lambda b, s, t: sum(f * 2 for i, f in products(b, s).items() if i in t),
            "For {case} you returned {given}: two products per trained layer, none per frozen one. A frozen layer above a "
            "trained one passes the gradient on; the lowest trained one passes it to nobody.",
        ),
        Mistake(
            lambda b, s, t: sum(f * ((i in t) + any(j <= i for j in t)) for i, f in products(b, s).items()),
            "For {case} you returned {given}: the lowest trained layer counts 4 there. Nothing below it learns, so the "
            "gradient of its input is not computed.",
        ),
        Mistake(
            lambda b, s, t: sum(f * ((i in t) + any(j > i for j in t)) for i, f in products(b, s).items()),
            "For {case} you returned {given}: you looked for trained layers above. The gradient comes from the loss; what "
            "matters is whether anything below still needs it.",
        ),
        Mistake(
            lambda b, s, t: sum(f * ((i in t) + (i > 1)) for i, f in products(b, s).items()) if t else 0,
            "For {case} you returned {given}: you stop at the first layer only. The gradient stops at the lowest trained "
            "layer.",
        ),
        Mistake(
            lambda b, s, t: sum(f * ((i in t) or any(j < i for j in t)) for i, f in products(b, s).items()),
            "For {case} you returned {given}: one product per layer, where a trained layer above another needs two, for its "
            "weight and for its input.",
        ),
        Mistake(
            lambda b, s, t: backward_flops(b, s, {i + 1 for i in t}),
            "For {case} you returned {given}: you counted the layers from 0. The lowest has the number 1.",
        ),
        Mistake(
            lambda b, s, t: backward_flops(b, s, t) + sum(products(b, s).values()),
            "For {case} you returned {given}: that includes forward. Give backward alone.",
        ),
    ),
    hints=(
        "For each layer ask two questions: who needs the gradient of its weight, and who needs that of its input?",
        "The weight's: if the layer is trained. The input's: if some layer before it is trained.",
        "for layer i: total += product * ((i in trained) + any(… for j in trained))",
    ),
    checked="six choices of trained layers, none and all among them.",
)
