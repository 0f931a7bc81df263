"""Exercises of lesson 08: computation graphs."""

import itertools
import math

import torch

from cs336kit import measure
from cs336kit.teach.exercises.core import exercise


@exercise(
    "08.1",
    cases=[
        ("subtract", 5.0, 2.0),
        ("subtract", -1.5, 4.0),
        ("divide", 6.0, 2.0),
        ("divide", 3.0, -4.0),
        ("max", 5.0, 2.0),
        ("max", 1.0, 2.5),
        ("max", 3.0, 3.0),
    ],
    mistakes={
        "(right[0], (1.0, 1.0)) if name == 'subtract' else right": "a difference falls when b grows, so its slope by b is not 1.",
        "(right[0], (1 / b, 1 / b)) if name == 'divide' else right": "b is in the denominator, so its slope is a different one.",
        "(right[0], (1 / b, a / b**2)) if name == 'divide' else right": "a / b falls when b grows and a is positive. Check "
        "the sign.",
        "(right[0], (1.0, 1.0)) if name == 'max' else right": "a small change in the smaller one leaves the result alone.",
        "(right[0], (float(a >= b), float(b >= a))) if name == 'max' else right": "at a tie you passed the gradient on to "
        "both. The task says that a gets it.",
        "(right[0], (0.5, 0.5)) if name == 'max' and a == b else right": "at a tie you gave half to each. The task says that "
        "a gets it.",
        "(right[0], (a, b)) if name == 'max' else right": "a slope says how fast the result grows, not how large it is.",
    },
    hints=(
        "Let one of the two numbers grow a little and hold the other fixed. How much does the result grow?",
        "A difference has constant slopes. Write the quotient as a times a power of b. For the larger of the two, ask which of "
        "them the result is at the moment.",
    ),
    checked="differences, quotients and maxima, with negative numbers and a tie.",
)
def operation(name, a, b):
    if name == "subtract":
        return a - b, (1.0, -1.0)
    if name == "divide":
        return a / b, (1 / b, -a / b**2)
    return max(a, b), (1.0, 0.0) if a >= b else (0.0, 1.0)


def _normal(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _softmax(seed, *shape, same=False):
    """A softmax and a gradient for it; `same` makes the gradient constant, so that nothing may come through."""
    grad = _normal(*shape, seed=seed + 1)
    return _normal(*shape, seed=seed).softmax(-1), torch.ones_like(grad) if same else grad


def _by_table(result, grad):
    return ((torch.diag_embed(result) - result[:, :, None] * result[:, None, :]) @ grad[:, :, None])[:, :, 0]


def _with_what_was_kept(result, args):
    """The result; where grad wants a gradient, also whether its graph keeps a table, which is larger than a row."""
    _, grad = args
    if not grad.requires_grad:
        return result
    nodes = measure.graph(result).nodes if result.grad_fn else ()  # without a graph nothing can be seen
    kept = (math.prod(kept.shape) for node in nodes for kept in node.saved)
    return {"gradient": result.detach(), "made": "a table" if max(kept, default=0) > grad.numel() else "no table"}


def _recorded(result, grad):
    return result, grad.requires_grad_()


@exercise(
    "08.2",
    cases=lambda: {
        "2 rows of 3": _softmax(0, 2, 3),
        "3 rows of 3": _softmax(2, 3, 3),
        "one row of 7": _softmax(4, 1, 7),
        "4 rows of one number": _softmax(6, 4, 1),
        "one row of 7, and a look at what was made on the way": _recorded(*_softmax(4, 1, 7)),
    },
    mistakes={
        "result * (1 - result) * grad": "you used only the slope of each number with respect to itself. A larger x makes all the "
        "other results of its row smaller, and they have gradients, too.",
        "result * grad": "you left out the part that all numbers of a row share: they always add up to 1.",
        "result * (grad - (result * grad).sum())": "you summed over all rows. Each row is a softmax of its own.",
        "result * (grad - (result * grad).sum(0, keepdim=True))": "you summed over the wrong axis: softmax runs over the last.",
        "result * grad - (result * grad).sum(-1, keepdim=True)": "the shared part has to be weighted by each result as well.",
        "result * ((result * grad).sum(-1, keepdim=True) - grad)": "all signs are turned around.",
        "result * (grad * (1 - 2 * result) + (result * grad).sum(-1, keepdim=True))": "a larger x makes the other results of its "
        "row smaller, so their slopes are negative.",
        "result * (grad * (1 - result) - (result * grad).sum(-1, keepdim=True))": "you counted the slope of a number with "
        "respect to itself twice: the sum over the others must leave it out.",
        _by_table: "the gradient is right, but you built a table of a row's slopes. It has as many rows and columns as the row "
        "has numbers, and a long row has no room for it.",
        "result * (grad - grad.sum(-1, keepdim=True))": "weight the gradients of a row with the results, then sum.",
    },
    hints=(
        "The gradient with respect to one x is a sum over all y of its row. Which terms of the slopes do all x of a row share?",
        "Write the sum over i for one j, and take the factor with j out. What remains inside is one number per row, the same "
        "for every j.",
    ),
    checked="rows of one to seven numbers, square ones among them, in float64.",
    observe=_with_what_was_kept,
    avoid=("autograd", "backward", "requires_grad_", "exp", "softmax", "jacobian", "vjp"),
)
def softmax_backward(result, grad):
    return result * (grad - (result * grad).sum(-1, keepdim=True))


@exercise(
    "08.3",
    cases={
        "batch 32, sizes (16, 64, 8)": (32, (16, 64, 8)),
        "batch 1, sizes (5, 3)": (1, (5, 3)),
        "batch 1024, sizes (784, 512, 256, 10)": (1024, (784, 512, 256, 10)),
        "batch 7, five sizes of 4": (7, (4, 4, 4, 4, 4)),
    },
    mistakes={
        "right + 4 * batch * sum(sizes[1:-1])": "ReLU's result and the next product's input are one storage: count it once.",
        "right + batch * sum(sizes[1:-1])": "ReLU keeps no mask: its result, which is kept anyway, shows where it was 0.",
        "4 * batch * sum(sizes)": "you counted the last product's output. No product needs its own output for backward.",
        "4 * batch * sum(sizes[1:-1])": "you left out x. The first weight's gradient is xᵀ times something, so x is kept.",
        "right // 4": "you counted elements. An fp32 element takes 4 bytes.",
        "4 * batch * sum(sizes[1:])": "these are the outputs of the products. A product keeps its input.",
    },
    hints=(
        "Which operand does a product need again in order to compute the gradient of its weight?",
        "Go through the operations and write down what each keeps, then strike out what is the same tensor as before.",
    ),
    checked="four networks of 1 to 4 layers.",
)
def kept_bytes_of(batch, sizes):
    return 4 * batch * sum(sizes[:-1])


@exercise(
    "08.4",
    tolerance=0.02,
    mistakes={
        "('B', ...)": "B's hidden width is two thirds of A's, but B keeps twice as many tensors of its width.",
        "('C', ...)": "C keeps everything that B keeps, and also what the written-out silu adds.",
        "('A', 4)": "you counted only one of two. GELU needs its input, and the second matrix needs the result of GELU.",
        "('A', 12)": "a matrix needs its own input for its weights' gradient, not its output.",
        "('A', 9)": "x is not to be counted here.",
    },
    hints=(
        "Go through each formula operation by operation. Matrices keep their input, products both factors.",
        "How many different tensors of the hidden width does each of the three keep? Multiply by that width.",
    ),
    checked="A keeps two tensors of width 4·D; B keeps four and C five of width 8/3·D.",
)
def which_mlp():
    return "A", 8


def _not_put_back(f, x, h):
    gradient = torch.zeros(x.shape, dtype=x.dtype)
    for place in itertools.product(*map(range, x.shape)):
        x[place] += h
        above = f(x)
        x[place] -= 2 * h
        gradient[place] = (above - f(x)) / (2 * h)
    return gradient


def _into_a_copy(f, x, h):
    gradient = torch.zeros_like(x)
    for i in range(x.numel()):
        up, down = x.clone(), x.clone()
        up.reshape(-1)[i] += h  # of a transposed x, reshape makes a copy, and up itself stays as it was
        down.reshape(-1)[i] -= h
        gradient.reshape(-1)[i] = (f(up) - f(down)) / (2 * h)
    return gradient


def _cubes(x):
    return float((x * x * x).sum() + x.prod())


class _Loss:
    """The loss of a batch of rows, which notes how many of its graphs are alive at the same time."""

    def __init__(self, seed):
        self.w = _normal(3, seed=seed).requires_grad_()
        self.alive = self.most = 0

    def __call__(self, rows):
        graph = _Graph(self)
        # What a node keeps holds `graph`, which so lives as long as the graph does.
        with torch.autograd.graph.saved_tensors_hooks(lambda kept: (kept.detach(), graph), lambda kept: kept[0]):
            return (rows @ self.w).square().mean()


class _Graph:
    """Counts as long as something keeps it."""

    def __init__(self, loss):
        self.loss = loss
        loss.alive += 1
        loss.most = max(loss.most, loss.alive)

    def __del__(self):
        self.loss.alive -= 1


def _mean_and_graphs(result, args):
    """The number, and whether the graphs of all batches were alive together, in the loop or still in the result."""
    loss_of, _ = args
    held = loss_of.most > 2 or (isinstance(result, torch.Tensor) and result.requires_grad)
    # Of one batch or two nothing can be seen on the way.
    result = result.detach() if isinstance(result, torch.Tensor) else result
    return {"mean": float(result), "memory": "the graphs of all batches" if held else "one graph at most"}


def _batches(*rows):
    return [_normal(n, 3, seed=i) for i, n in enumerate(rows)]


def _held(loss_of, batches):
    return sum(loss_of(batch) for batch in batches) / len(batches)


def _held_and_weighted(loss_of, batches):
    return sum(loss_of(batch) * len(batch) for batch in batches) / sum(map(len, batches))


def _let_go_at_the_end(loss_of, batches):
    return torch.stack([loss_of(batch) for batch in batches]).mean().item()


def _let_go_at_the_end_and_weighted(loss_of, batches):
    return _held_and_weighted(loss_of, batches).item()


@exercise(
    "08.5",
    cases=lambda: {
        "five batches of 4 rows": (_Loss(0), _batches(4, 4, 4, 4, 4)),
        "batches of 8, 8, 8 and 1 rows": (_Loss(1), _batches(8, 8, 8, 1)),
        "a single batch": (_Loss(2), _batches(6)),
        "seven batches of one to seven rows": (_Loss(3), _batches(1, 2, 3, 4, 5, 6, 7)),
    },
    observe=_mean_and_graphs,
    mistakes={
        _held: "the total holds the graph of each batch. What does it add up, numbers or results that have a graph?",
        _held_and_weighted: "the mean is right now, but the total still holds the graph of each batch.",
        _let_go_at_the_end: "you let go of the graphs at the end. Until then all of them are in memory together, and each batch "
        "counts the same, however few rows it has.",
        _let_go_at_the_end_and_weighted: "the mean is right, but you let go of the graphs only at the end. Until then all of "
        "them are in memory together.",
        "right_if(size=lambda batch: 1)": "each loss is a mean over its own rows, so a batch of one row must not "
        "count as much as a batch of eight.",
        "right_if(divide=len)": "you weighted with the rows and divided by the number of batches.",
        "right_if(divide=lambda batches: 1)": "this is the sum over all rows. Divide by their number.",
        "right_if(some=slice(-1, None))": "this is the loss of the last batch alone.",
    },
    hints=(
        "How long does a graph live? Look for what still refers to the loss of the first batch when the last one is computed.",
        "Nothing here is trained, so no graph need be built at all; or take a plain number from each loss before you add. Then "
        "count rows.",
    ),
    checked="equal and unequal batches: the mean over all rows, and never more than one graph in memory.",
)
def validate(loss_of, batches, *, size=len, divide=None, some=slice(None)):
    with torch.no_grad():
        total = sum(loss_of(batch).item() * size(batch) for batch in batches[some])
    return total / (divide(batches) if divide else sum(map(size, batches[some])))


@exercise(
    "08.6",
    cases=lambda: {
        "a vector, h = 1/4": (_cubes, torch.tensor([1.0, 2.0, -1.0], dtype=torch.float64), 0.25),
        "a matrix, h = 1/8": (_cubes, _normal(2, 3, seed=1), 0.125),
        "a transposed matrix, h = 1/2": (_cubes, _normal(3, 2, seed=2).T, 0.5),
        "a single number": (_cubes, torch.tensor(2.0, dtype=torch.float64), 0.25),
    },
    mistakes={
        "right_if(below=0)": "this is the forward difference, whose error is of order h. Step to both sides.",
        "2 * right": "this is twice too large: the distance from x − h to x + h is 2h.",
        "torch.full(x.shape, (f(x + h) - f(x - h)) / (2 * h), dtype=x.dtype)": "you moved all elements of x together.",
        _not_put_back: "your later elements drift, because you did not put an element back before moving the next.",
        "torch.zeros_like(right)": "the gradient is 0 because up and down are one tensor under two names. Clone x twice.",
        _into_a_copy: "reshape or flatten of a transposed tensor is a copy, and writing there changes nothing.",
    },
    hints=(
        "For one number you would step up and down by h. What does it mean to step for one element of a tensor?",
        "Go over all index tuples. For each, make two copies of x, move that element in both, and call f twice.",
    ),
    checked="a vector, a matrix, a transposed matrix and a single number, with steps from 1/8 to 1/2.",
)
def numeric_gradient(f, x, h, *, below=1):
    gradient = torch.zeros(x.shape, dtype=x.dtype)  # zeros_like would copy the strides of a transposed x
    for place in itertools.product(*map(range, x.shape)):
        step = torch.zeros(x.shape, dtype=x.dtype)
        step[place] = h
        gradient[place] = (f(x + step) - f(x - below * step)) / ((1 + below) * h)
    return gradient
