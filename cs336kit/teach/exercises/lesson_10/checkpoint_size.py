"""Exercise 10.5: the size of a checkpoint."""

import itertools

from cs336kit.teach.exercises.core import Case, Exercise, Mistake

_STATES = {"sgd": 0, "momentum": 1, "adamw": 2}


def checkpoint_tensor_bytes(parameters, tensors, optimizer):
    return 4 * parameters * (1 + _STATES[optimizer]) + (4 * tensors if optimizer == "adamw" else 0)


def _size_cases():
    sizes = ((124_439_808, 148), (8_256, 3), (1, 1))
    return [Case((*size, name)) for name, size in itertools.product(("adamw", "momentum", "sgd"), sizes)]


EXERCISE = Exercise(
    id="10.5",
    reference=checkpoint_tensor_bytes,
    cases=_size_cases,
    mistakes=(
        Mistake(
            lambda p, n, o: checkpoint_tensor_bytes(p, n, o) + 4 * p,
            "{case} gave {given}: you saved the gradients too. They are made anew in the next step.",
        ),
        Mistake(
            lambda p, n, o: 4 * p * (1 + _STATES[o]),
            "{case} gave {given}: AdamW also keeps a step counter of 4 bytes for each parameter tensor.",
        ),
        Mistake(
            lambda p, n, o: 4 * p * (1 + min(1, _STATES[o])) + (4 * n if o == "adamw" else 0),
            "{case} gave {given}: AdamW keeps two averages of the gradient, the mean and the mean square.",
        ),
        Mistake(
            lambda p, n, o: checkpoint_tensor_bytes(p, n, o) + (0 if o == "adamw" else 4 * n),
            "{case} gave {given}: only AdamW counts its steps, for the bias correction. SGD and momentum keep no counter.",
        ),
        Mistake(
            lambda p, n, o: checkpoint_tensor_bytes(p, n, o) + (4 * n if o == "adamw" else 0),
            "{case} gave {given}: the counters are fp32 numbers, 4 bytes each.",
        ),
        Mistake(
            lambda p, n, o: checkpoint_tensor_bytes(p, n, o) - (4 * n - 4 if o == "adamw" else 0),
            "{case} gave {given}: you saved one counter. AdamW keeps one for each parameter tensor.",
        ),
        Mistake(
            lambda p, n, o: checkpoint_tensor_bytes(p, n, o) - 4 * p,
            "{case} gave {given}: that is the optimizer's state alone. The parameters are in the file too.",
        ),
        Mistake(
            lambda p, n, o: checkpoint_tensor_bytes(p, n, o) // 4,
            "{case} gave {given}: those are numbers. Each fp32 number takes 4 bytes.",
        ),
        Mistake(
            lambda p, n, o: 4 * p,
            "{case} gave {given}: these are the parameters alone. Without the optimizer's state the next step differs.",
        ),
        Mistake(
            lambda p, n, o: checkpoint_tensor_bytes(p, n, o) // 2,
            "{case} gave {given}: that is two bytes an element. The parameters are fp32.",
        ),
    ),
    hints=(
        "What does the optimizer remember from one step to the next?",
        "SGD remembers nothing, momentum one tensor like the parameters, AdamW two and a counter per parameter tensor.",
        "return 4 * parameters * (1 + {'sgd': 0, 'momentum': ___, 'adamw': ___}[optimizer]) + (4 * ___ if optimizer == "
        "'adamw' else 0)",
    ),
    checked="SGD, momentum and AdamW on GPT-2's 124,439,808 parameters in 148 tensors, and on two small models.",
)
