"""Exercises of lesson 09: update rules, their state, and what is decayed and clipped."""

import math

import torch

from cs336kit.teach.exercises.core import Case, Exercise, Mistake


def momentum_buffer(gradients, momentum):
    velocity = 0.0
    for gradient in gradients:
        velocity = momentum * velocity + gradient
    return velocity


def _average(gradients, momentum):
    mean = 0.0
    for gradient in gradients:
        mean = momentum * mean + (1 - momentum) * gradient
    return mean


def _decays_the_new(gradients, momentum):
    velocity = 0.0
    for gradient in gradients:
        velocity = momentum * (velocity + gradient)
    return velocity


def _adam(
    p,
    gradients,
    lr,
    betas,
    eps,
    weight_decay=0.0,
    *,
    correct=(True, True),
    power=True,
    inside=False,
    root=True,
    outside=False,
    sums=False,
    decay="w",
):
    """AdamW on one number, with a switch for each way to get it wrong."""
    beta1, beta2 = betas
    m = v = 0.0
    for t, g in enumerate(gradients, start=1):
        before = p
        if decay == "l2":
            g = g + weight_decay * p
        elif decay == "w":
            p = p * (1 - lr * weight_decay)
        elif decay == "without lr":
            p = p * (1 - weight_decay)
        m = beta1 * m + (1 if sums else 1 - beta1) * g
        v = beta2 * v + (1 if sums else 1 - beta2) * g * g
        t = t if power else 1
        m_hat = m / (1 - beta1**t) if correct[0] else m
        v_hat = v / (1 - beta2**t) if correct[1] else v
        scale = math.sqrt(v_hat + eps) if inside else (math.sqrt(v_hat) if root else v_hat) + eps
        if outside:
            scale = (math.sqrt(v) + eps) / math.sqrt(1 - beta2**t)
        p = p - lr * m_hat / scale
        if decay == "grows":
            p = p + lr * weight_decay * before
        elif decay == "after":
            p = p * (1 - lr * weight_decay)
    return p


def adam(p, gradients, lr, betas, eps):
    return _adam(p, gradients, lr, betas, eps)


def adamw(p, gradients, lr, betas, eps, weight_decay):
    return _adam(p, gradients, lr, betas, eps, weight_decay)


def _adam_with(**switches):
    return lambda p, gradients, lr, betas, eps: _adam(p, gradients, lr, betas, eps, **switches)


def _adamw_with(**switches):
    return lambda p, gradients, lr, betas, eps, weight_decay: _adam(
        p, gradients, lr, betas, eps, weight_decay, **switches
    )


def adamw_state_bytes(shapes, element_bytes):
    return sum(2 * math.prod(shape) * element_bytes + 4 for shape in shapes)


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


def _norm(gradients):
    return math.sqrt(sum(float((g.double() ** 2).sum()) for g in gradients))


def clip(gradients, max_norm):
    norm = _norm(gradients)
    return [g * min(1.0, max_norm / norm) for g in gradients] if norm else list(gradients)


def _in_place(gradients, max_norm):
    norm = _norm(gradients)
    return [g.mul_(min(1.0, max_norm / norm) if norm else 1.0) for g in gradients]


def _clipped(result, args):
    """The result, or a word for it where the tensors that were given have themselves been scaled to the limit."""
    gradients, max_norm = args
    same = any(new is old for new, old in zip(result, gradients, strict=False))
    return (
        "your own input, changed in place" if same and math.isclose(_norm(result), max_norm, rel_tol=1e-4) else result
    )


def _clip_each(gradients, max_norm):
    return [clip([g], max_norm)[0] for g in gradients]


def _scale_up(gradients, max_norm):
    norm = math.sqrt(sum(float((g**2).sum()) for g in gradients))
    return [g * (max_norm / norm) for g in gradients] if norm else list(gradients)


def _sum_of_norms(gradients, max_norm):
    total = sum(float(g.norm()) for g in gradients)
    return [g * min(1.0, max_norm / total) for g in gradients] if total else list(gradients)


def _clip_cases():
    a, b = torch.tensor([3.0, 4.0]), torch.tensor([[12.0], [0.0]])
    yield Case(args=([a, b], 1.3), label="two gradients of norms 5 and 12, max_norm=1.3")
    yield Case(args=([a / 100, b / 100], 1.0), label="gradients that are already small enough")
    yield Case(args=([torch.tensor([10.0, 0.1])], 1.0), label="one gradient with a large and a small element")
    yield Case(args=([torch.zeros(3)], 1.0), label="a gradient of zeros")


_STEADY = [2.0, 2.0, 2.0]
_MIXED = [0.5, -1.0, 3.0, 0.0, -2.5]

EXERCISES = (
    Exercise(
        id="09.1",
        reference=momentum_buffer,
        cases=lambda: [
            Case(args=([2.0], 0.9)),
            Case(args=([1.0, 1.0], 0.9)),
            Case(args=(_MIXED, 0.8)),
            Case(args=([1.0] * 50, 0.5), label="50 gradients of 1 at momentum 0.5"),
        ],
        mistakes=(
            Mistake(
                _average,
                "You returned an average, with weight 1 − momentum on the new gradient. torch's buffer is a decayed sum: "
                "{expected} for {case}.",
            ),
            Mistake(lambda g, m: sum(g), "Nothing decays in your sum: multiply the old buffer by momentum first."),
            Mistake(_decays_the_new, "The newest gradient enters undecayed: you multiplied it by momentum too."),
            Mistake(
                lambda g, m: sum(x * m**i for i, x in enumerate(g)),
                "You let the newest gradients decay most; the oldest has been multiplied by momentum most often.",
            ),
            Mistake(
                lambda g, m: momentum_buffer([*g, g[-1]], m),
                "That is Nesterov's direction, g + momentum · buffer; the buffer itself is {expected} for {case}.",
            ),
            Mistake(lambda g, m: g[-1], "You returned the last gradient alone; the buffer remembers the earlier ones."),
        ),
        hints=(
            "What is the buffer after one gradient, and after two?",
            "Each step multiplies the old buffer by momentum and adds the new gradient.",
            "Start at 0.0 and loop: velocity = momentum * velocity + ____.",
        ),
        checked="one gradient, two, five of both signs, and 50 that reach the limit g/(1 − momentum).",
    ),
    Exercise(
        id="09.2",
        reference=adam,
        cases=lambda: [
            Case(args=(1.0, [0.001], 0.1, (0.9, 0.999), 1e-8), label="one step, gradient 0.001"),
            Case(args=(0.0, _STEADY, 0.1, (0.9, 0.999), 1e-8), label="three steps of gradient 2"),
            Case(args=(1.0, _MIXED, 0.01, (0.8, 0.95), 1e-8), label="five mixed steps"),
            Case(args=(0.0, [1e-6, 1e-6], 0.1, (0.9, 0.999), 1e-4), label="tiny gradients and a large eps"),
        ],
        mistakes=(
            Mistake(
                _adam_with(correct=(False, False)),
                "Both averages start at 0 and are too small at first: you forgot the bias correction by 1 − βᵗ. "
                "For {case} you end at {given}, and {expected} is right.",
            ),
            Mistake(
                _adam_with(correct=(True, False)),
                "You corrected m and not v: √v is too small at first, so that {case} moves too far.",
            ),
            Mistake(
                _adam_with(correct=(False, True)),
                "You corrected v and not m: the first steps are too short by 1 − β₁ᵗ.",
            ),
            Mistake(
                _adam_with(inside=True),
                "You put eps inside the root, √(v̂ + eps): it then weighs like √eps. torch adds it after the root.",
            ),
            Mistake(_adam_with(root=False), "You divided by v̂ itself; the step is m̂ over its root."),
            Mistake(
                _adam_with(outside=True),
                "You added eps to √v before correcting v, so that it counts for more at first. torch corrects, then adds.",
            ),
            Mistake(
                _adam_with(sums=True),
                "m and v are averages: the new gradient enters with 1 − β. Without it they are sums, too large for {case}.",
            ),
            Mistake(
                _adam_with(power=False),
                "You correct by 1 − β in every step; after t steps m lacks βᵗ, so raise beta to the power t.",
            ),
            Mistake(
                lambda p, gs, lr, betas, eps: adam(p, gs, lr, betas[::-1], eps),
                "You swapped the betas: the first belongs to m, the average of gradients, the second to v.",
            ),
            Mistake(
                lambda p, gs, lr, betas, eps: 2 * p - adam(p, gs, lr, betas, eps),
                "You walk uphill: the step is subtracted from p.",
            ),
        ),
        hints=(
            "What do m and v hold after the first step, if they started at 0?",
            "Divide m by 1 − beta1**t and v by 1 − beta2**t, with t from 1; then p −= lr · m̂ / (√v̂ + eps).",
            "for t, g in enumerate(gradients, start=1): update m, v; then p -= lr * (m / ____) / (math.sqrt(v / ____) + eps).",
        ),
        checked="a first step, steady and mixed gradients, other betas, and an eps that matters.",
    ),
    Exercise(
        id="09.3",
        reference=adamw,
        cases=lambda: [
            Case(args=(2.0, [0.0], 0.1, (0.9, 0.999), 1e-8, 0.5), label="one step of gradient 0 with decay 0.5"),
            Case(args=(2.0, [1.0], 0.1, (0.9, 0.999), 1e-8, 0.5), label="one step of gradient 1 with decay 0.5"),
            Case(args=(-1.0, _MIXED, 0.01, (0.9, 0.99), 1e-8, 0.1), label="five mixed steps"),
            Case(args=(-1.0, _MIXED, 0.01, (0.9, 0.99), 1e-8, 0.0), label="five mixed steps without decay"),
        ],
        mistakes=(
            Mistake(
                _adamw_with(decay="l2"),
                "That is Adam with an L2 penalty: you added the decay to the gradient, where √v̂ divides it away. AdamW "
                "shrinks p itself; for {case} that gives {expected}.",
            ),
            Mistake(
                _adamw_with(decay="without lr"),
                "torch's AdamW shrinks by 1 − lr·weight_decay; you left out lr, which makes the decay ignore the schedule.",
            ),
            Mistake(
                _adamw_with(decay="after"),
                "You shrink p after the step, so that the step shrinks too. torch shrinks first: {expected} for {case}.",
            ),
            Mistake(_adamw_with(decay="grows"), "Your parameter grows: the decay has to pull it towards 0."),
            Mistake(
                _adamw_with(decay="none"), "weight_decay does nothing in your answer: {case} should end at {expected}."
            ),
        ),
        hints=(
            "With a gradient of exactly 0, by what factor should p change?",
            "Multiply p by 1 − lr·weight_decay before the step, and keep the decay out of m and v.",
            "Take your answer to 09.2 and add one line at the start of the loop: p = p * (1 - ____).",
        ),
        checked="a gradient of 0, a single step, five mixed steps, and no decay at all.",
    ),
    Exercise(
        id="09.4",
        reference=adamw_state_bytes,
        cases=lambda: [
            Case(args=([(1000, 10)], 4), label="one fp32 matrix of 10,000 elements"),
            Case(args=([(1000, 10)], 2), label="one bf16 matrix of 10,000 elements"),
            Case(args=([(64, 64), (64,), ()], 2), label="a bf16 matrix, a vector and a scalar"),
        ],
        mistakes=(
            Mistake(
                lambda shapes, e: sum(2 * math.prod(s) * e for s in shapes),
                "Each parameter tensor also has a step counter, a 4-byte fp32 scalar: {given} lacks them.",
            ),
            Mistake(
                lambda shapes, e: sum(math.prod(s) * e + 4 for s in shapes),
                "AdamW keeps two tensors for each parameter, m and v: {given} counts one.",
            ),
            Mistake(
                lambda shapes, e: sum(3 * math.prod(s) * e + 4 for s in shapes),
                "You counted the parameters themselves; the question is for the optimizer's state alone.",
            ),
            Mistake(
                lambda shapes, e: sum(8 * math.prod(s) + 4 for s in shapes),
                "You assumed fp32 state. torch makes it in the parameter's own dtype: {expected} for {case}.",
            ),
            Mistake(
                lambda shapes, e: sum(2 * math.prod(s) * e for s in shapes) + 4,
                "There is one step counter for each tensor, not one for the whole optimizer: look at {case}.",
            ),
            Mistake(
                lambda shapes, e: sum((2 * math.prod(s) + 1) * e for s in shapes),
                "The step counter is fp32 whatever the parameter is: 4 bytes, as whole numbers above 256 need in bf16.",
            ),
        ),
        hints=(
            "Which tensors does AdamW keep for each parameter, and in which dtype?",
            "exp_avg and exp_avg_sq in the parameter's dtype, and one fp32 step counter for each tensor.",
            "sum(2 * math.prod(shape) * ____ + ____ for shape in shapes).",
        ),
        checked="fp32 and bf16, a matrix, a vector and a 0-d scalar.",
    ),
    Exercise(
        id="09.5",
        reference=clip,
        cases=_clip_cases,
        tolerance=1e-5,
        observe=_clipped,
        mistakes=(
            Mistake(
                _clip_each,
                "You clipped each tensor by its own norm, which turns the direction of the update. One factor for all.",
            ),
            Mistake(
                lambda gs, m: [g.clamp(-m, m) for g in gs],
                "You clamped element by element; that changes the direction. Scale all gradients by one factor.",
            ),
            Mistake(
                _scale_up,
                "You also scale *up*: gradients that are below the limit must stay as they are.",
            ),
            Mistake(
                lambda gs, m: [g * min(1.0, m / max(1e-9, *(float(t.norm()) for t in [*gs, gs[0]]))) for g in gs],
                "You took the norm of the longest tensor alone; the joint norm of 5 and 12 is 13, not 12.",
            ),
            Mistake(
                lambda gs, m: [g * min(1.0, m / max(1e-9, sum(float((t**2).sum()) for t in gs))) for g in gs],
                "You divided by the sum of squares; the norm is its root.",
            ),
            Mistake(
                _in_place,
                "You changed the gradients that you were given; the task asks for new tensors (g * scale, not g.mul_).",
            ),
            Mistake(
                _sum_of_norms,
                "Norms of parts do not add: the joint norm of parts with norms 5 and 12 is 13, not 17.",
            ),
            Mistake(lambda gs, m: list(gs), "Nothing was clipped: {case} is longer than the limit."),
        ),
        hints=(
            "If all gradients were laid end to end in one vector, how long would it be?",
            "The joint norm is the root of the sum of all squares; multiply every gradient by max_norm/norm if below 1.",
            "scale = min(1.0, max_norm / norm), with norm = math.sqrt(sum(float((g**2).sum()) for g in ____)).",
        ),
        checked="two tensors together, gradients below the limit, uneven elements, and zeros.",
    ),
    Exercise(
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
    ),
)
