"""Exercises of lesson 11: update rules, their state, and what decays."""

import math

from cs336kit.teach.exercises.core import exercise

_MIXED = [0.5, -1.0, 3.0, 0.0, -2.5]


@exercise(
    "11.1",
    mistakes={
        "(0.1, ...)": "the buffer grows to many times a steady gradient, and your steps grow with it.",
        "(2.0, ...)": "it is the other way round: momentum makes the steps longer, so the rate has to be smaller.",
        "(0.095, ...)": "you multiplied by mu. Ask instead what the fading sum of equal gradients grows to.",
        "(0.005, 20)": "1/(1 − mu) steps is a rule of thumb. After so many, less than two thirds of the speed is reached.",
        "(0.005, 58)": "after 58 steps the speed is just below 95 %.",
        "(0.005, 1)": "the first step is one gradient long, a twentieth of the final speed.",
    },
    hints=(
        "Write down v after one, two and three equal gradients. What does it grow to?",
        "What is still missing from v after t steps fades by mu in every step.",
    ),
    checked="v grows to 20 times a steady gradient, and needs 59 steps for 95 % of that.",
    tolerance=1e-6,
)
def rate_under_momentum():
    return (0.1 * (1 - 0.95), 59)


def _adamw(wrong):
    """AdamW on one number, with one of the ways to get it wrong."""

    def answer(p, gradients, lr, betas, eps, weight_decay):
        (beta1, beta2), m, v = betas, 0.0, 0.0
        for t, g in enumerate(gradients, start=1):
            g = g + weight_decay * p if wrong == "penalty" else g
            rate = 1 if wrong == "decay alone" else lr
            p = p * (1 - rate * weight_decay) if wrong not in ("penalty", "decay after") else p
            m = beta1 * m + (1 if wrong == "sum" else 1 - beta1) * g
            v = beta2 * v + (1 - beta2) * g * g
            corrected = m / (1 - beta1**t), v / (1 - beta2**t)
            if wrong == "overwritten":
                m, v = corrected
            m_hat, v_hat = (m, v) if wrong == "no correction" else corrected
            m_hat, v_hat = (m if wrong == "only v" else m_hat), (v if wrong == "only m" else v_hat)
            p = p - lr * m_hat / (math.sqrt(v_hat + eps) if wrong == "eps inside" else math.sqrt(v_hat) + eps)
            p = p * (1 - lr * weight_decay) if wrong == "decay after" else p
        return p

    return answer


@exercise(
    "11.2",
    cases={
        "one step of gradient 0.001": (1.0, [0.001], 0.1, (0.9, 0.999), 1e-8, 0.0),
        "three steps of gradient 2": (0.0, [2.0, 2.0, 2.0], 0.1, (0.9, 0.999), 1e-8, 0.0),
        "one step of gradient 0 with decay 0.5": (2.0, [0.0], 0.1, (0.9, 0.999), 1e-8, 0.5),
        "five mixed steps with decay": (-1.0, _MIXED, 0.01, (0.8, 0.95), 1e-8, 0.1),
        "tiny gradients and a large eps": (0.0, [1e-6, 1e-6], 0.1, (0.9, 0.999), 1e-4, 0.0),
    },
    mistakes={
        _adamw("no correction"): "both averages start at 0, so at first they are too small. Correct for that.",
        _adamw("only m"): "you corrected m, but v starts at 0, too.",
        _adamw("only v"): "you corrected v, but m starts at 0, too.",
        _adamw(
            "sum"
        ): "your m is a fading sum. In Adam it is an average, in which a new gradient enters with only a part of its weight.",
        _adamw(
            "overwritten"
        ): "you kept the corrected m and v for the next step. Correct a copy, and carry on with the "
        "averages themselves.",
        _adamw("eps inside"): "you put eps inside the root, where it counts like its own root.",
        _adamw("penalty"): "that is a penalty: what you add to the gradient is divided by √v. AdamW shrinks p itself.",
        _adamw("decay alone"): "you shrink p by the decay alone, but the learning rate scales the decay, too.",
        _adamw("decay after"): "you shrink p after the step, so you shrink the step as well.",
    },
    hints=(
        "What do m and v hold after the first gradient, if they started at 0? What do you divide by to repair that?",
        "With a gradient of exactly 0, by what factor should p change in one step?",
    ),
    checked="a first step, steady and mixed gradients, decay with and without a gradient, and an eps that matters.",
    avoid=("torch", "AdamW"),
)
def adamw_ends(p, gradients, lr, betas, eps, weight_decay):
    m = v = 0.0
    for t, g in enumerate(gradients, start=1):
        p = p * (1 - lr * weight_decay)
        m = betas[0] * m + (1 - betas[0]) * g
        v = betas[1] * v + (1 - betas[1]) * g * g
        p = p - lr * m / (1 - betas[0] ** t) / (math.sqrt(v / (1 - betas[1] ** t)) + eps)
    return p


@exercise(
    "11.3",
    cases={
        "an embedding, a norm, and a layer with its bias": (
            {"embedding.weight": (100, 8), "norm.weight": (8,), "up.weight": (32, 8), "up.bias": (32,)},
        ),
        "a scalar, and a matrix with bias in its name": ({"scale": (), "bias_table": (4, 4)},),
        "three axes, and names that are not in order": ({"z": (4, 4), "kernel": (3, 3, 8), "a": (2, 2), "b": (8,)},),
    },
    mistakes={
        "right_if(rule=lambda name, shape: 'bias' not in name and 'norm' not in name)": "go by axes, not by names: a matrix may "
        "have `bias` in its name, and a scale none of these words.",
        "right_if(rule=lambda name, shape: 'bias' not in name)": "a norm's weight is not a bias, but it does not decay, "
        "either.",
        "right_if(rule=lambda name, shape: 'weight' in name)": "a norm has a weight, too: go by axes, not by names.",
        "right_if(rule=lambda name, shape: True)": "you let everything decay: a norm's scale at 0 silences its layer.",
        "right_if(rule=lambda name, shape: len(shape) < 2)": "the groups are swapped: matrices decay.",
        "right_if(rule=lambda name, shape: len(shape) >= 1)": "vectors are scales of norms and biases: no decay.",
    },
    hints=(
        "Which parameters are multiplied by an activation vector, and which only scale or shift one?",
        "A shape says how many axes a parameter has. A name says only what somebody called it.",
    ),
    checked="an embedding, a norm, a bias, a scalar, and a misleading name.",
)
def decay_groups(shapes, rule=lambda name, shape: len(shape) >= 2):
    decayed = [name for name, shape in shapes.items() if rule(name, shape)]
    return {"decay": decayed, "no decay": [name for name in shapes if name not in decayed]}


@exercise(
    "11.4",
    cases={
        "one fp32 matrix of 10,000 elements": ({"w": (1000, 10)}, 4, set()),
        "a bf16 matrix, a vector and a scalar": ({"w": (64, 64), "b": (64,), "s": ()}, 2, set()),
        "an adapter of two thin matrices beside a frozen one": (
            {"w": (256, 256), "a": (256, 8), "b": (8, 256)},
            2,
            {"w"},
        ),
        "a frozen matrix, and a trained one whose name begins alike": ({"w": (16, 16), "w2": (16, 4)}, 2, {"w"}),
    },
    mistakes={
        "right - 4 * (len(shapes) - len(frozen))": "each parameter tensor also has a step counter, a 4-byte fp32 scalar.",
        "right_if(frozen=())": "the optimizer skips what never gets a gradient, so that has no state.",
        "right - element_bytes * sum(math.prod(s) for n, s in shapes.items() if n not in frozen)": "AdamW keeps two tensors for "
        "each parameter, but you counted one.",
        "right_if(element_bytes=4)": "you assumed fp32 state. torch makes it in the parameter's own dtype.",
        "right - 4 * (len(shapes) - len(frozen)) + 4": "there is one step counter for each tensor, not one for the optimizer.",
        "right - (4 - element_bytes) * (len(shapes) - len(frozen))": "the step counter is fp32, whatever the parameter is.",
    },
    hints=(
        "Which tensors does AdamW keep for one parameter tensor, and in which dtype is each of them?",
        "Try it: make an optimizer, take two steps, and look into `optimizer.state`.",
    ),
    checked="fp32 and bf16, a matrix, a vector and a scalar, and adapters beside a frozen matrix.",
)
def state_bytes(shapes, element_bytes, frozen):
    trained = [math.prod(shape) for name, shape in shapes.items() if name not in frozen]
    return sum(2 * element_bytes * size + 4 for size in trained)


@exercise(
    "11.5",
    mistakes={
        "('A', 10 * 8.03)": "that is what A's step needs, and it is more than 80.",
        "('A', ...)": "by default, AdamW runs as foreach on a GPU. What does its step hold on top?",
        "('C', ...)": "Adafactor fits, but so do m and v in full.",
        "('B', 8.03 * 8)": "that is the step. What is in memory during the backward pass of the second of the four batches?",
        "('B', 8.03 * 12 + 12)": "torch makes the state in the dtype of the parameters: 2 bytes each for m and v.",
        "('B', 8.03 * 16 + 12)": "16 bytes per parameter is fp32; here all four are bf16.",
    },
    hints=(
        "Two moments can be the peak: the end of the last batch's forward pass, and the step. Write down what lives in each.",
        "Which of the plans needs more memory in its step than in the backward pass?",
    ),
    checked="A's step needs 80.3 GB and does not fit; B is largest when a backward pass begins, 76.2 GB.",
    tolerance=0.01,
)
def which_step_fits():
    return ("B", 8 * 8.03 + 12)
