"""Exercises of lesson 20: intervals from resamples, the best split of a budget, and what a sweep leaves out."""

import numpy as np

from cs336kit.predict.scaling import scaling_laws
from cs336kit.teach.exercises.core import exercise


def _slopes(C, P, picks, logs=True, turned=False):
    x, y = (np.log(C), np.log(P)) if logs else (np.array(C, dtype=float), np.array(P, dtype=float))
    x, y = (y, x) if turned else (x, y)
    kept = [pick for pick in picks if len({C[i] for i in pick}) > 1 and len({P[i] for i in pick}) > 1]
    return [float(np.polyfit(x[pick], y[pick], 1)[0]) for pick in kept]


def _with_spread(C, P, picks):
    slopes = _slopes(C, P, picks)
    return float(np.mean(slopes) - np.std(slopes)), float(np.mean(slopes) + np.std(slopes))


_C, _P = [1e18, 1e19, 1e20, 1e21], [3e7, 1.1e8, 2.9e8, 1.2e9]
_SMALL_C, _SMALL_P = [1e9, 1e10, 1e11], [5e3, 2e4, 5e4]
_PICKS = [
    [0, 1, 2, 3],
    [0, 0, 2, 3],
    [1, 1, 2, 2],
    [0, 3, 3, 3],
    [1, 2, 3, 3],
    [0, 1, 1, 2],
    [2, 2, 2, 3],
    [0, 0, 1, 3],
]


@exercise(
    "20.1",
    tolerance=1e-6,
    cases={
        "four budgets and eight resamples": (_C, _P, _PICKS),
        "three budgets and five resamples": (_SMALL_C, _SMALL_P, [[0, 1, 2], [0, 2, 2], [0, 0, 1], [1, 1, 2], [0, 1, 1]]),
        "one resample, in which a budget comes twice": (_C, _P, [[0, 0, 2, 3]]),
        "two runs of equal budgets, and a resample of these alone": (
            [1e18, 1e18, 1e19, 1e20], [3e7, 3.4e7, 1e8, 3.1e8], [[0, 1, 0, 1], [0, 2, 3, 3], [1, 1, 2, 3], [0, 1, 2, 2]],
        ),
        "a resample of one budget alone": (_SMALL_C, _SMALL_P, [[0, 1, 2], [1, 1, 1], [0, 0, 2], [1, 2, 2]]),
    },
    mistakes={
        "right_if(ends=(0, 1))": "these are the smallest and the largest of all resamples. A tenth of them lies below the "
        "interval, and a tenth above.",
        "right_if(ends=(0.05, 0.95))": "nine of ten resamples lie between these, but the task asks for eight of ten: leave "
        "out a tenth on each side.",
        "right_if(logs=False)": "this is the slope of a straight line through P over C. A power law is straight where both "
        "axes are logarithmic.",
        "right_if(turned=True)": "you swapped the axes. The task asks how P grows with C.",
        "right_if(picks=[list(range(len(C)))])": "you fitted the data as they are. Each pick says which points are in a "
        "resample, some of them twice.",
        "right_if(picks=[sorted(set(pick)) for pick in picks])": "what a pick holds twice counts twice in the fit.",
        _with_spread: "that is a mean and a standard deviation. Sort the exponents and look where a tenth of them ends.",
    },
    hints=(
        "What does one pick give you? Write that first, for `picks[0]` alone. And what if a pick has only one budget?",
        "An array takes a list of indices: `np.log(P)[pick]`. For the ends of the interval there is `np.quantile`.",
    ),
    checked="resamples of four and of three budgets, and one that holds a single budget.",
)  # fmt: skip
def interval(C, P, picks, *, ends=(0.1, 0.9), logs=True, turned=False):
    return tuple(np.quantile(_slopes(C, P, picks, logs, turned), ends).tolist())


@exercise(
    "20.2",
    tolerance=2e-3,
    cases={
        "Besiroglu's law at 1e21 FLOPs": (1e21, 1.8172, 482.01, 2085.43, 0.3478, 0.3658),
        "the same at 1e24": (1e24, 1.8172, 482.01, 2085.43, 0.3478, 0.3658),
        "a law with other exponents": (1e18, 1.5, 60.0, 800.0, 0.25, 0.4),
    },
    mistakes={
        "right_if(C=6 * C)": "you took P · N = C. A parameter costs six FLOPs for every token.",
        "C / 6 / right": "that is the number of tokens. The task asks for the number of parameters.",
        "(C / 6) ** 0.5": "you took as many parameters as tokens, but the law does not treat the two alike.",
        "right_if(alpha=beta, beta=alpha)": "alpha and beta are swapped: alpha belongs to the parameters.",
        "right_if(a=a * beta, b=b * alpha)": "there both terms are equal, but it is the gains from a little more of each that "
        "must be.",
        "(C / 120) ** 0.5": "that is 20 tokens for each parameter, which is a rule of thumb and not this law.",
    },
    hints=(
        "The budget leaves one free number. Write the loss as a function of P alone.",
        "On paper, set the derivative to zero. With Python, try many P at equal distances of their logarithm, or use "
        "scipy.optimize.minimize_scalar over ln P.",
    ),
    checked="one law at two budgets, and one with other exponents.",
)
def best_size(C, floor, a, b, alpha, beta):
    G = (alpha * a / (beta * b)) ** (1 / (alpha + beta))
    return G * (C / 6) ** (beta / (alpha + beta))


@exercise(
    "20.3",
    mistakes={
        "('schedule', ..., ..., ...)": "a wrong schedule would harm every size. In 1 the best size is at the end of those tried, "
        "so nobody knows whether a smaller one would have been better.",
        "('data', ..., ..., ...)": "every token was new in 1. Look at where the best size is among those tried.",
        "('edge', 'data', ..., ...)": "in 2 every token is new. What is the learning rate where the loss is read?",
        "('edge', 'schedule', 'schedule', ...)": "in 3 each run has a schedule of its own. How often does it read its text?",
        "('edge', 'schedule', 'data', 'data')": "in 4 every token is new. What is counted on each axis?",
    },
    hints=(
        "For each sweep, say what its runs lack that those of the other three have.",
        "One flaw is in a range, one in a rate, one in a number of repetitions, and one in a definition.",
    ),
    checked="edge, schedule, data, counting.",
)
def flaws():
    return "edge", "schedule", "data", "counting"


_LAW = next(law.numbers for law in scaling_laws() if law.name == "besiroglu")
_E, _A, _B, _ALPHA, _BETA = (_LAW[name]["value"] for name in ("E", "A", "B", "alpha", "beta"))
_FLOPS, _SERVED = 1e23, 5e12
_BEST = best_size(_FLOPS, _E, _A, _B, _ALPHA, _BETA)


def _training(parameters):
    """The FLOPs that bring a model to the loss of the best split."""
    goal = _A / _BEST**_ALPHA + _B / (_FLOPS / 6 / _BEST) ** _BETA
    return 6 * parameters * (_B / (goal - _A / parameters**_ALPHA)) ** (1 / _BETA)


#: Shares of the peak that training and decoding reach: a FLOP of decoding takes their ratio as long as one of training.
_TRAINS, _DECODES = 0.40, 0.08
_RATIO = _TRAINS / _DECODES


def _bill(part, training=None, slower=_RATIO):
    """Training and use of a model of so large a part of the best size, in FLOPs of training that would take as long."""
    return (training or _training(part * _BEST)) + slower * 2 * part * _BEST * _SERVED


#: With A's FLOPs of training, 0.376, and with 6 FLOPs for each token that is used, 0.372: nearer than 20.4 can tell, so
#: these are moved apart until they meet in the middle.
_MIDDLE = (_bill(1 / 3, _FLOPS) / _bill(1) + _bill(1 / 3, slower=3 * _RATIO) / _bill(1, slower=3 * _RATIO)) / 2


@exercise(
    "20.4",
    tolerance=0.02,
    mistakes={
        "('A', ...)": "A is the cheapest to train. Add what using it costs: two FLOPs for each parameter and token, at 0.08 of "
        "the peak.",
        "('B', _bill(0.5, slower=1) / _bill(1, slower=1))": "that is right for FLOPs. But a FLOP of decoding takes longer than "
        "one of training: divide both lines of each bill by what they reach of the peak.",
        "('B', _training(_BEST / 2) / _FLOPS)": "that is training alone. Its use is part of the bill.",
        "('B', ...)": "B takes less time than A, but not the least. Compute both lines of all three bills in time: the FLOPs, "
        "divided by what is reached of the peak.",
        "('C', _bill(1 / 3, slower=1) / _bill(1, slower=1))": "C is right, but you added FLOPs. Divide each line by what it "
        "reaches of the peak.",
        "('C', _training(_BEST / 3) / _FLOPS)": "C is right, but that is its training alone. Its use is part of the bill.",
        "('C', 100 * train_and_serve()[1])": "C is right, but that is in percent. Give a fraction.",
        "('C', 1 / train_and_serve()[1])": "C is right, but you divided A's bill by C's.",
        "('C', 1 - train_and_serve()[1])": "C is right, but that is what it saves. What fraction of A's bill is left?",
        "('C', 1 / 3)": "that is its use alone. C costs more to train, because it needs far more tokens for the same loss.",
        "('C', _MIDDLE / 0.98)": "with the same FLOPs the smaller model has a higher loss. How many tokens "
        "bring it to A's?",
        "('C', _MIDDLE * 0.98)": "C is right, but using a model takes 2 FLOPs for each parameter and token. 6 are for training.",
        "('C', _bill(1 / 3, slower=1 / _RATIO) / _bill(1, slower=1 / _RATIO))": "you multiplied by the shares of the peak. A "
        "small share makes a line take longer, so divide by it.",
    },
    hints=(
        "Each of the three bills has two lines, training and all tokens that users will want. Which line shrinks with the "
        "model, and which line takes longer for a FLOP?",
        "The prediction above worked out half the size. Do the same for a third, add 2 FLOPs for each parameter and token "
        "served, and divide each line by the share of the peak at which it runs.",
    ),
    checked="C: twice the FLOPs of A's training, and a third of its use, which takes most of the time.",
)
def train_and_serve():
    return "C", _bill(1 / 3) / _bill(1)
