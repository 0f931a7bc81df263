"""Exercises of lesson 16: mixed precision."""

import math
import operator

import torch
import torch.nn.functional as F
from torch import nn

from cs336kit.teach.exercises.core import exercise


class _Watched(nn.Module):
    """A scale and two linear layers that note the type of what they return, and whether autocast is on in the backward pass.

    The scale is in no product, so its gradient is not rounded. A copy comes with tiny gradients, as if from an earlier step,
    and notes whether they are still there when its backward pass begins.
    """

    def __init__(self, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 8)
        self.scale = nn.Parameter(torch.ones(16))
        self.types, self.backward, self.late = set(), set(), True

    def __setstate__(self, state):
        super().__setstate__(state)
        for p in self.parameters():
            p.grad = torch.full_like(p, 1e-30)

    def gradients(self):
        return any(p.grad is not None and bool(p.grad.any()) for p in self.parameters())

    def note(self, _):
        self.late = self.gradients()

    def forward(self, x):
        inner = self.up(x * self.scale)
        logits = self.down(inner.relu())
        self.types |= {inner.dtype, logits.dtype}
        if inner.requires_grad:
            logits.register_hook(self.note)
            inner.register_hook(lambda _: self.backward.add(torch.is_autocast_enabled("cpu")))
        return logits


def _said(types):
    """Some types in the course's words."""
    names = {torch.bfloat16: "bf16", torch.float32: "fp32", torch.float16: "fp16"}
    return " and ".join(sorted(names.get(type, str(type)) for type in types)) or "none"


def _types_and_weights(loss, args):
    """What ran in which type, and where the step has moved the weights."""
    model = args[0]
    return {
        "the products": _said(model.types),
        "the loss": _said([loss.dtype] if isinstance(loss, torch.Tensor) else []),
        "the weights": _said({p.dtype for p in model.parameters()}),
        "autocast in the backward pass": {(): "no backward pass", (False,): "off"}.get((*model.backward,), "on"),
        "the loss is": loss.detach().item() if isinstance(loss, torch.Tensor) else loss,
        "the new weights": torch.cat([p.detach().float().flatten() for p in model.parameters()]),
        "gradients are left": model.late and model.gradients(),
    }


def _steps():
    def case(seed, optimizer, tokens, scale, **options):
        with torch.random.fork_rng(devices=()):
            model = _Watched(seed)
            x, targets = scale * torch.randn(tokens, 16), torch.randint(8, (tokens,))
        return model, optimizer(model.parameters(), **options), x, targets

    return {
        "a small step of SGD": case(0, torch.optim.SGD, 6, 1.0, lr=1e-3),
        "a longer step of SGD": case(1, torch.optim.SGD, 12, 1.0, lr=2.0),
        "large logits, AdamW": case(2, torch.optim.AdamW, 9, 30.0, lr=1e-3),
    }


@exercise(
    "16.1",
    tolerance=1e-5,
    cases=_steps,
    observe=_types_and_weights,
    mistakes={
        "right_if(whole=True, outside=True)": "that is still the program as it was.",
        "right_if(whole=True)": "the model itself is still turned into bf16. Autocast rounds copies of the weights for products, "
        "and the updates need weights that are fp32.",
        "right_if(whole=True, back=True)": "the weights are fp32 in the end, but they went through bf16, which rounded them and "
        "their update.",
        "right_if(outside=True)": "autocast ends before the loss, so cross-entropy gets bf16 logits and computes in bf16.",
        "right_if(inside=True)": "the backward pass runs under autocast, too. Its operations have the types of the forward pass "
        "already, and autocast would cast those that ran in fp32.",
        "right_if(whole=True, inside=True)": "the model itself is still turned into bf16, and the backward pass is under "
        "autocast.",
        "right_if(cast=False)": "without autocast no product runs in bf16.",
        "right_if(type=torch.float16)": "that is fp16, in which small gradients vanish. The program is meant for bf16.",
        "right_if(move=False)": "the weights have not moved: the optimizer makes no step, or its step comes when the gradients "
        "are empty.",
        "right_if(rounded=True)": "you rounded the gradients to bf16. Autocast gives those of fp32 weights in fp32.",
        "right_if(clear=False)": "the gradients of this step are still there, and the next backward pass would add to them.",
    },
    hints=(
        "Go through the lines and ask for each: which type do the weights have now, and which the result?",
        "Which operations are on autocast's second list, the one for 32 bits, and which lines should be out of its reach?",
    ),
    checked="products in bf16, loss and weights in fp32, no autocast in the backward pass, with SGD and AdamW.",
)
def step(
    model, optimizer, x, targets, *, whole=False, back=False, outside=False, inside=False, cast=True, rounded=False, move=True,
    clear=True, type=torch.bfloat16,
):  # fmt: skip
    if whole:
        model.to(torch.bfloat16)
    with torch.autocast("cpu", dtype=type, enabled=cast):
        logits = model(x)
        loss = None if outside else F.cross_entropy(logits, targets)
        if inside:
            loss.backward()
    if outside:
        loss = F.cross_entropy(logits, targets)
    if not inside:
        loss.backward()
    for p in model.parameters() if rounded else ():
        p.grad = p.grad.bfloat16().float()
    if move:
        optimizer.step()
    if clear:
        optimizer.zero_grad()
    if back:
        model.float()
    return loss


#: The largest number of fp16.
_LARGEST = 65504.0


@exercise(
    "16.2",
    cases={
        "gradients of 1, from a scale of 2¹⁸, patience 3": ([1.0] * 8, 2.0**18, 3),
        "small gradients, patience 2": ([1e-3] * 7, 8.0, 2),
        "calm steps, one large gradient, calm steps": ([0.01, 0.01, 400.0, 0.01, 0.01, 0.01, 0.01], 1024.0, 3),
        "two overflows with a clean step between": ([100.0, 1.0, 100.0, 1.0, 1.0, 1.0], 1000.0, 2),
        "a gradient above the largest number": ([1e5, 1e5, 1.0], 1.0, 2),
        "the largest number itself": ([65504.0, 1.0], 1.0, 2),
        "no step": ([], 2.0, 3),
    },
    mistakes={
        "right_if(reset=False)": "a skipped step ends the row of good steps. Count again from 0.",
        "right_if(again=False)": "after the scale was doubled, the count of steps begins again.",
        "right_if(halve=False)": "you left the scale as it was after an overflow, so the next step overflows as well.",
        "right_if(patience=patience + 1)": "you doubled the scale one step too late. `patience` steps are enough.",
        "right_if(patience=10**9)": "your scale never grows again. When the gradients become smaller, they vanish.",
        "right_if(beyond=operator.ge)": "the largest number itself still fits. Only what is above it overflows.",
        "right_if(seen=lambda gradient, _: gradient)": "you looked at the gradient itself, but what overflows is the gradient "
        "times the scale.",
    },
    hints=(
        "Which two numbers does the scaler carry from one step to the next?",
        "The scale, and how many steps in a row were made. An overflow changes both of them, and so does a full count.",
    ),
    checked="overflows at the start, in a row and in the middle of a count, growth, scales below 1, and no step at all.",
)
def scales(gradients, scale, patience, *, reset=True, again=True, halve=True, seen=operator.mul, beyond=operator.gt):
    used, clean = [], 0
    for gradient in gradients:
        if beyond(seen(gradient, scale), _LARGEST):
            used.append(None)
            scale, clean = scale / 2 if halve else scale, 0 if reset else clean
            continue
        used.append(scale)
        clean += 1
        if clean >= patience:
            scale, clean = scale * 2, 0 if again else clean
    return used


def _gap(value, fraction_bits):
    return 2.0 ** (math.floor(math.log2(abs(value))) - fraction_bits)


def _count(weights, updates, stays):
    return sum(bool(stays(w, u)) for w, u in zip(weights, updates, strict=True))


def _small(weights, updates, fraction_bits, is_small):
    """How many updates are small beside the gap at the sum."""
    return _count(weights, updates, lambda w, u: w + u != 0 and is_small(abs(u), _gap(w + u, fraction_bits)))


@exercise(
    "16.3",
    cases={
        "weights 3, 5 and 0.3125, updates 0.005, 0.01 and 0.0001 in bf16": (
            [3.0, 5.0, 0.3125],
            [0.005, 0.01, 0.0001],
            7,
        ),
        "weight 1, updates 0.003, 0.0035 and −0.003 in bf16": ([1.0, 1.0, 1.0], [0.003, 0.0035, -0.003], 7),
        "weights −1, updates ±0.003 in bf16": (2 * [-1.0, -1.0, -1.0], 2 * [0.003, -0.003, -0.001], 7),
        "weights 0.125 and 0.25, updates 0.0003 in bf16": (3 * [0.125, 0.25, 0.0625], 9 * [0.0003], 7),
        "weights 1.5 and 1.9375, updates 0.005 and 0.003 in bf16": (5 * [1.5, 1.9375], 5 * [0.005, 0.003], 7),
        "ties at 1 and at 1 + 2⁻⁷ in bf16": ([1.0, 1 + 2.0**-7], [2.0**-8, 2.0**-8], 7),
        "weight 1, update 0.0003 and 0.001 in fp16": (7 * [1.0, 1.0], 7 * [0.0003, 0.001], 10),
        "an update that takes the weight to zero, and none at all": ([0.5, 3.0], [-0.5, 0.0], 7),
    },
    mistakes={
        "len(weights) - right": "that is how many move. The task asks how many stay.",
        "sum(abs(u) < 2.0**-fraction_bits / 2 for u in updates)": "you took the gap at 1 for every weight, but it grows with the "
        "weight.",
        "right_if(at=lambda w, _: w)": "below a power of two the gap is half as wide as above it, so an update towards zero "
        "may move such a weight.",
        "_small(weights, updates, fraction_bits, lambda update, gap: update < gap)": "more than half a gap moves a weight. It "
        "need not be a whole one.",
        "_small(weights, updates, fraction_bits, lambda update, gap: update <= gap / 2)": "an update of exactly half a gap goes "
        "to the even neighbor, which is not always the weight itself.",
        "_small(weights, updates, fraction_bits, lambda update, gap: update < gap / 2)": "an update of exactly half a gap goes "
        "to the even neighbor, which may be the weight itself.",
    },
    hints=(
        "A weight stays if the exact sum is rounded back to it. You wrote that rounding in lesson 02.",
        "Take the gap where the *sum* lies, which for a weight on a power of two may be the lower side. Python's round does "
        "the ties.",
    ),
    checked="both signs, both sides of a power of two, ties, a sum of zero and no update, in bf16 and fp16.",
)
def still(weights, updates, fraction_bits, *, at=operator.add):
    def stays(w, u):
        if w + u == 0:
            return False
        gap = _gap(at(w, u), fraction_bits)
        return round((w + u) / gap) * gap == w

    return _count(weights, updates, stays)


@exercise(
    "16.4",
    cases={
        "steady maxima": ([2.0, 2.0, 2.0, 2.0], 2, 1.0),
        "one jump": ([1.0, 1.0, 5.0, 1.0, 4.0], 3, 1.0),
        "a jump after a short memory": ([5.0, 1.0, 1.0, 4.0, 1.0], 2, 1.0),
        "rising by a half each step": ([1.0, 1.5, 2.25, 3.375], 2, 1.0),
        "the same and a jump, with a margin of 2": ([1.0, 1.5, 2.25, 3.375, 8.0], 2, 2.0),
        "small ones between large ones": ([8.0, 1.0, 3.0, 8.0, 1.0, 3.0, 9.0, 30.0, 60.0], 3, 1.5),
        "a single step": ([3.0], 4, 1.0),
    },
    mistakes={
        "sum(new > margin * max(maxima[: step + 1][-window:]) for step, new in enumerate(maxima))": "a step's own maximum is not "
        "known in time.",
        "sum(maxima[step] >= margin * max(maxima[:step][-window:]) for step in range(1, len(maxima)))": "a maximum that becomes "
        "exactly the largest number of the format does not lie beyond it.",
        "right_if(window=1)": "the scale depends on the greatest of the last `window` maxima, not on the last one only.",
        "right_if(window=len(maxima))": "the scale forgets what was more than `window` steps ago.",
        "right_if(margin=1)": "the margin leaves room above the greatest maximum. Without it, more steps saturate.",
        "right_if(margin=1 / margin)": "the margin makes room: with a larger one, fewer steps lie beyond it.",
        "right + 1": "the first step has nothing before it and does not count.",
    },
    hints=(
        "What does the scale of a step depend on, and which maximum is then compared with it?",
        "Write the scale of a step as a formula and multiply the step's maximum by it. When is that more than the largest "
        "number of the format?",
    ),
    checked="steady, jumping and rising maxima, short and long windows, with and without a margin, and a single step.",
)
def saturated(maxima, window, margin):
    return sum(maxima[step] > margin * max(maxima[:step][-window:]) for step in range(1, len(maxima)))


@exercise(
    "16.5",
    mistakes={
        "('not shown', 'worse', 'worse')": "C's two runs really differ, its margin says. By how much does a nudge make any two "
        "runs differ?",
        "('worse', ..., ...)": "in A the losses differ by 0.01, but each of them is known only to within 0.03.",
        "(..., 'not shown', ...)": "B's difference is far larger than its margin, and far larger than that of a nudge.",
    },
    hints=(
        "For each team, ask two things: is the difference larger than its margin, and larger than what chance alone does?",
        "A has no pairs, so weigh its difference against both margins. Compare B and C with their nudged runs.",
    ),
    checked="only B: A sees nothing behind its margins, and C's difference is no larger than that of a nudge.",
)
def which_is_worse():
    return "not shown", "worse", "not shown"
