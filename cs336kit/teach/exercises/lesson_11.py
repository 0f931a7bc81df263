"""Exercises of lesson 11: update rules, their state, and what is decayed and clipped."""

import math

import torch

from cs336kit.teach.exercises.core import exercise

_MIXED = [0.5, -1.0, 3.0, 0.0, -2.5]


@exercise(
    "11.1",
    cases=[([2.0], 0.9), ([1.0, 1.0], 0.9), (_MIXED, 0.8), ([1.0] * 50, 0.5)],
    mistakes={
        "right * (1 - momentum)": "an average, with weight 1 − momentum on the new gradient. torch's buffer is a decayed sum.",
        "right_if(momentum=1)": "nothing decays in your sum: multiply the old buffer by momentum first.",
        "right * momentum": "the newest gradient enters undecayed: you multiplied it by momentum too.",
        "right_if(gradients=gradients[::-1])": "you let the newest gradients decay most; the oldest has decayed most often.",
        "right_if(gradients=[*gradients, gradients[-1]])": "that is Nesterov's direction, g + momentum · buffer.",
        "right_if(momentum=0)": "that is the last gradient alone; the buffer remembers the earlier ones.",
    },
    hints=(
        "What is the buffer after one gradient, and after two?",
        "Each step multiplies the old buffer by momentum and adds the new gradient.",
        "Start at 0.0 and loop: velocity = momentum * velocity + ____.",
    ),
    checked="one gradient, two, five of both signs, and 50 that reach the limit g/(1 − momentum).",
)
def momentum_buffer(gradients, momentum):
    velocity = 0.0
    for gradient in gradients:
        velocity = momentum * velocity + gradient
    return velocity


def _adam(wrong):
    """Adam on one number, with one of the ways to get it wrong."""

    def answer(p, gradients, lr, betas, eps, weight_decay=0.0):
        (beta1, beta2), m, v = betas, 0.0, 0.0
        for t, g in enumerate(gradients, start=1):
            g = g + weight_decay * p if wrong == "l2" else g
            p = p * (1 - lr * weight_decay) if wrong not in ("l2", "decay after") else p
            m = beta1 * m + (1 - beta1) * g
            v = beta2 * v + (1 - beta2) * g * g
            corrected = m / (1 - beta1**t), v / (1 - beta2**t)
            if wrong == "overwritten":
                m, v = corrected
            m_hat = m if wrong in ("no correction", "only v corrected") else corrected[0]
            v_hat = v if wrong in ("no correction", "only m corrected") else corrected[1]
            p = p - lr * m_hat / (math.sqrt(v_hat + eps) if wrong == "eps inside" else math.sqrt(v_hat) + eps)
            p = p * (1 - lr * weight_decay) if wrong == "decay after" else p
        return p

    return answer


@exercise(
    "11.2",
    cases={
        "one step, gradient 0.001": (1.0, [0.001], 0.1, (0.9, 0.999), 1e-8),
        "three steps of gradient 2": (0.0, [2.0, 2.0, 2.0], 0.1, (0.9, 0.999), 1e-8),
        "five mixed steps": (1.0, _MIXED, 0.01, (0.8, 0.95), 1e-8),
        "tiny gradients and a large eps": (0.0, [1e-6, 1e-6], 0.1, (0.9, 0.999), 1e-4),
    },
    mistakes={
        _adam("no correction"): "both averages start at 0 and are too small at first: divide them by 1 − βᵗ.",
        _adam("only m corrected"): "you corrected m and not v: √v is too small at first, so p moves too far.",
        _adam("only v corrected"): "you corrected v and not m: the first steps are too short by 1 − β₁ᵗ.",
        _adam("eps inside"): "you put eps inside the root, where it weighs like √eps. torch adds it after the root.",
        _adam(
            "overwritten"
        ): "you kept the corrected m and v for the next step. Correct a copy, and carry on with the averages.",
        "adam(p, gradients, lr, betas, eps, sums=True)": "m and v are averages: the new gradient enters with 1 − β.",
    },
    hints=(
        "What do m and v hold after the first step, if they started at 0?",
        "Divide m by 1 − beta1**t and v by 1 − beta2**t, with t from 1; then p −= lr · m̂ / (√v̂ + eps).",
        "for t, g in enumerate(gradients, start=1): update m, v; then p -= lr * (m / ____) / (math.sqrt(v / ____) + eps).",
    ),
    checked="a first step, steady and mixed gradients, other betas, and an eps that matters.",
)
def adam(p, gradients, lr, betas, eps, *, weight_decay=0.0, sums=False):
    m = v = 0.0
    for t, g in enumerate(gradients, start=1):
        p = p * (1 - lr * weight_decay)
        m = betas[0] * m + (1 if sums else 1 - betas[0]) * g
        v = betas[1] * v + (1 - betas[1]) * g * g
        p = p - lr * m / (1 - betas[0] ** t) / (math.sqrt(v / (1 - betas[1] ** t)) + eps)
    return p


@exercise(
    "11.3",
    cases={
        "one step of gradient 0 with decay 0.5": (2.0, [0.0], 0.1, (0.9, 0.999), 1e-8, 0.5),
        "one step of gradient 1 with decay 0.5": (2.0, [1.0], 0.1, (0.9, 0.999), 1e-8, 0.5),
        "five mixed steps": (-1.0, _MIXED, 0.01, (0.9, 0.99), 1e-8, 0.1),
        "five mixed steps without decay": (-1.0, _MIXED, 0.01, (0.9, 0.99), 1e-8, 0.0),
    },
    mistakes={
        _adam(
            "l2"
        ): "that is an L2 penalty: √v̂ divides a decay away that is added to the gradient. AdamW shrinks p itself.",
        "right_if(weight_decay=weight_decay / lr)": "torch's AdamW shrinks by 1 − lr·weight_decay; you left out lr.",
        _adam("decay after"): "you shrink p after the step, so that the step shrinks too. torch shrinks first.",
        "right_if(weight_decay=-weight_decay)": "your parameter grows: the decay has to pull it towards 0.",
        "right_if(weight_decay=0)": "weight_decay does nothing in your answer.",
    },
    hints=(
        "With a gradient of exactly 0, by what factor should p change?",
        "Multiply p by 1 − lr·weight_decay before the step, and keep the decay out of m and v.",
        "Take your answer to 09.2 and add one line at the start of the loop: p = p * (1 - ____).",
    ),
    checked="a gradient of 0, a single step, five mixed steps, and no decay at all.",
)
def adamw(p, gradients, lr, betas, eps, weight_decay):
    return adam(p, gradients, lr, betas, eps, weight_decay=weight_decay)


@exercise(
    "11.4",
    cases={
        "one fp32 matrix of 10,000 elements": ([(1000, 10)], 4),
        "one bf16 matrix of 10,000 elements": ([(1000, 10)], 2),
        "a bf16 matrix, a vector and a scalar": ([(64, 64), (64,), ()], 2),
    },
    mistakes={
        "right - 4 * len(shapes)": "each parameter tensor also has a step counter, a 4-byte fp32 scalar.",
        "right - element_bytes * sum(math.prod(shape) for shape in shapes)": "AdamW keeps two tensors, m and v: you count one.",
        "right + element_bytes * sum(math.prod(shape) for shape in shapes)": "that counts the parameters, which are not state.",
        "right_if(element_bytes=4)": "you assumed fp32 state. torch makes it in the parameter's own dtype.",
        "right - 4 * len(shapes) + 4": "there is one step counter for each tensor, not one for the whole optimizer.",
        "right - (4 - element_bytes) * len(shapes)": "the step counter is fp32 whatever the parameter is: 4 bytes.",
    },
    hints=(
        "Which tensors does AdamW keep for each parameter, and in which dtype?",
        "exp_avg and exp_avg_sq in the parameter's dtype, and one fp32 step counter for each tensor.",
        "sum(2 * math.prod(shape) * ____ + ____ for shape in shapes).",
    ),
    checked="fp32 and bf16, a matrix, a vector and a 0-d scalar.",
)
def adamw_state_bytes(shapes, element_bytes):
    return sum(2 * math.prod(shape) * element_bytes + 4 for shape in shapes)


def _norm(gradients):
    return math.sqrt(sum(float((g.double() ** 2).sum()) for g in gradients))


def _not_in_place(result, args):
    """The result, or a word for it where the tensors that were given have themselves been scaled to the limit."""
    same = any(new is old for new, old in zip(result, args[0], strict=False))
    return "in place" if same and math.isclose(_norm(result), args[1], rel_tol=1e-4) else result


@exercise(
    "11.5",
    cases=lambda: {
        "two gradients of norms 5 and 12, max_norm=1.3": (
            [torch.tensor([3.0, 4.0]), torch.tensor([[12.0], [0.0]])],
            1.3,
        ),
        "gradients that are already small enough": ([torch.tensor([0.03, 0.04]), torch.tensor([[0.12], [0.0]])], 1.0),
        "one gradient with a large and a small element": ([torch.tensor([10.0, 0.1])], 1.0),
        "a gradient of zeros": ([torch.zeros(3)], 1.0),
    },
    mistakes={
        "[clip([g], max_norm)[0] for g in gradients]": "you clipped each tensor by its own norm; take one factor for all.",
        "[g.clamp(-max_norm, max_norm) for g in gradients]": "clamping element by element changes the direction.",
        "[g * (max_norm / (_norm(gradients) or 1)) for g in gradients]": "gradients below the limit must stay as they are.",
        "[g.mul_(min(1.0, max_norm / (_norm(gradients) or 1))) for g in gradients]": "you changed the "
        "gradients that you were given; the task asks for new tensors (g * scale, not g.mul_).",
        "clip(gradients, max_norm, norm=sum(float(g.norm()) for g in gradients))": "norms of parts do not add: 5 and 12 give 13.",
        "clip(gradients, max_norm, norm=_norm(gradients) ** 2)": "you divided by the sum of squares; the norm is its root.",
    },
    hints=(
        "If all gradients were laid end to end in one vector, how long would it be?",
        "The joint norm is the root of the sum of all squares; multiply every gradient by max_norm/norm if below 1.",
        "scale = min(1.0, max_norm / norm), with norm = math.sqrt(sum(float((g**2).sum()) for g in ____)).",
    ),
    checked="two tensors together, gradients below the limit, uneven elements, and zeros.",
    observe=_not_in_place,
    tolerance=1e-5,
)
def clip(gradients, max_norm, *, norm=None):
    norm = _norm(gradients) if norm is None else norm
    return [g * (max_norm / norm) if norm > max_norm else g for g in gradients]


@exercise(
    "11.6",
    cases={
        "an embedding, a norm, and a layer with its bias": (
            {"embedding.weight": (100, 8), "norm.weight": (8,), "up.weight": (32, 8), "up.bias": (32,)},
        ),
        "a scalar, and a matrix with bias in its name": ({"scale": (), "bias_table": (4, 4)},),
    },
    mistakes={
        "decay_groups(shapes, lambda name, shape: 'bias' not in name)": "a norm's weight is not a bias, and is not "
        "decayed: ask for dimensions.",
        "decay_groups(shapes, lambda name, shape: 'weight' in name)": "a norm has a weight too: go by the dimensions, "
        "not by the name.",
        "decay_groups(shapes, lambda name, shape: True)": "you decay everything: a norm's scale at 0 silences its layer.",
        "decay_groups(shapes, lambda name, shape: len(shape) < 2)": "the groups are swapped: matrices are decayed.",
        "decay_groups(shapes, lambda name, shape: len(shape) >= 1)": "vectors are norms' scales and biases, and not decayed.",
    },
    hints=(
        "Which parameters are multiplied with an activation vector, and which only scale or shift one?",
        "Tensors with two or more dimensions are decayed, the others are not; names do not matter.",
        "'decay': [name for name, shape in shapes.items() if len(shape) >= ____], and the rest.",
    ),
    checked="an embedding, a norm, a bias, a scalar, and a misleading name.",
)
def decay_groups(shapes, rule=lambda name, shape: len(shape) >= 2):
    decayed = [name for name, shape in shapes.items() if rule(name, shape)]
    return {"decay": decayed, "no decay": [name for name in shapes if name not in decayed]}
