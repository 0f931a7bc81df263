"""Exercise 09.6: which parameters are decayed."""

from cs336kit.teach.exercises.core import Case, Exercise, Mistake


def decay_groups(shapes):
    return {
        "decay": [name for name, shape in shapes.items() if len(shape) >= 2],
        "no decay": [name for name, shape in shapes.items() if len(shape) < 2],
    }


def _groups_by(rule):
    return lambda shapes: {
        "decay": [name for name, shape in shapes.items() if rule(name, shape)],
        "no decay": [name for name, shape in shapes.items() if not rule(name, shape)],
    }


EXERCISE = Exercise(
    id="09.6",
    reference=decay_groups,
    cases=lambda: [
        Case(
            args=({"embedding.weight": (100, 8), "norm.weight": (8,), "up.weight": (32, 8), "up.bias": (32,)},),
            label="an embedding, a norm, and a layer with its bias",
        ),
        Case(args=({"scale": (), "bias_table": (4, 4)},), label="a scalar, and a matrix with bias in its name"),
    ],
    mistakes=(
        Mistake(
            _groups_by(lambda name, shape: "bias" not in name),
            "You went by the name bias. A norm's weight is not a bias, and is not decayed; ask for the dimensions.",
        ),
        Mistake(
            _groups_by(lambda name, shape: True),
            "You decay everything, norms and biases too: pulling a norm's scale to 0 silences its layer.",
        ),
        Mistake(
            _groups_by(lambda name, shape: len(shape) < 2),
            "Your two groups are swapped: matrices are decayed, vectors and scalars are not.",
        ),
        Mistake(
            _groups_by(lambda name, shape: len(shape) >= 1),
            "Vectors are norms' scales and biases: only tensors of two or more dimensions are decayed.",
        ),
    ),
    hints=(
        "Which parameters are multiplied with an activation vector, and which only scale or shift one?",
        "Tensors with two or more dimensions are decayed, the others are not; names do not matter.",
        "'decay': [name for name, shape in shapes.items() if len(shape) >= ____], and the rest.",
    ),
    checked="an embedding, a norm, a bias, a scalar, and a misleading name.",
)
