"""Exercises of lesson 08: computation graphs."""

import itertools
import math
import weakref

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


class _Token:
    """Lives as long as the node that it is given to."""


class _Watched(torch.nn.Module):
    """A linear layer with a ReLU that notes how many of its graphs are alive whenever a new one begins."""

    def __init__(self, seed):
        super().__init__()
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(seed)
            self.linear = torch.nn.Linear(3, 2)
        self.graphs, self.most = [], 0

    def forward(self, x):
        self.most = max(self.most, sum(graph() is not None for graph in self.graphs))
        result = self.linear(x).relu()
        if result.grad_fn:
            result.grad_fn.metadata["token"] = token = _Token()
            self.graphs.append(weakref.ref(token))
        return result


def _training(seed, batches, lr, fewer=0):
    """A model, and batches of 5 rows, or of which each has `fewer` rows less than the one before it."""
    model, numbers = _Watched(seed), _normal(batches + 1, 5, 5, seed=seed).float()
    held_out, *data = [(rows[: 5 - fewer * i, :3], rows[: 5 - fewer * i, 3:]) for i, rows in enumerate(numbers)]
    return model, torch.optim.SGD(model.parameters(), lr=lr), data, held_out


def _number(loss):
    return loss.item() if isinstance(loss, torch.Tensor) else loss  # float(loss) would warn of a graph


def _numbers_and_graphs(result, args):
    """The losses as numbers, what became of the weights, and which graphs the loop and its results have held."""
    (mean, checks), model = result, args[0]
    return {
        "graphs that the mean loss holds": int(getattr(mean, "requires_grad", False)),
        "held-out losses with a graph": sum(getattr(check, "requires_grad", False) for check in checks),
        # Two are the last step's and the last held-out loss's, whose names have not been given to new ones yet.
        "graphs alive at once": "at most two" if model.most <= 2 else "more and more",
        "the mean loss": _number(mean),
        "the held-out losses": [*map(_number, checks)],
        "the new weights": torch.cat([p.detach().flatten() for p in model.parameters()]),
    }


@exercise(
    "08.3",
    tolerance=1e-5,
    cases=lambda: {
        "five batches, small steps": _training(0, 5, 0.01),
        "eight batches, long steps": _training(1, 8, 0.3),
        "four batches of 4, 3, 2 and 1 rows": _training(6, 4, 0.1, fewer=1),
    },
    observe=_numbers_and_graphs,
    mistakes={
        "right_if(summed=True, noted=True)": "that is still the program as it was.",
        "right_if(noted=True)": "the held-out losses still hold their graphs, with all that their nodes keep: no backward pass "
        "ever frees it.",
        "right_if(summed=True)": "the sum still holds the graph of every batch. Backward has freed what the nodes kept, but the "
        "nodes are there.",
        "right_if(summed=True, noted=True, late=True)": "the graphs are let go only when the loop is over, and until then "
        "each batch adds some. Take the number out of a loss when you have it.",
        "right_if(last=True)": "no graph is left, but you kept the last batch's loss instead of adding up.",
        "right_if(divide=False)": "no graph is left, but you returned the sum of the losses instead of their mean.",
        "right_if(weigh=True)": "no graph is left, but you weighed each loss by the rows of its batch. The program divides by "
        "the number of batches.",
        "right_if(before=True)": "you computed the held-out loss before the step. The program does so after it.",
        "right_if(clear=False)": "the gradients of all batches add up, since nothing sets them back.",
        "right_if(move=False)": "the optimizer makes no step.",
    },
    hints=(
        "Which of the names in the loop are still reachable when the next batch begins, and which of them are results of the "
        "model?",
        "There are two: what is added up, and what is appended. For one of them nobody needs a graph at all, not even for a "
        "moment.",
    ),
    checked="four to eight batches, also of unequal size: the losses, the new weights, and the graphs that are alive whenever "
    "the model is called.",
)
def train(
    model, optimizer, batches, held_out, *, summed=False, noted=False, late=False, last=False, divide=True, weigh=False,
    before=False, clear=True, move=True,
):  # fmt: skip
    def error(x, y):
        return ((model(x) - y) ** 2).mean()

    total, checks, rows = 0.0, [], sum(len(x) for x, _ in batches)
    for x, y in batches:
        if before:
            checks.append(error(*held_out).item())
        loss = error(x, y)
        loss.backward()
        if move:
            optimizer.step()
        if clear:
            optimizer.zero_grad()
        value = (loss if summed else loss.item()) * (len(x) if weigh else 1)
        total = value if last else total + value
        if not before:
            check = error(*held_out)
            checks.append(check if noted else check.item())
    mean = total / (rows if weigh else len(batches)) if divide or last else total
    return (_number(mean), [*map(_number, checks)]) if late else (mean, checks)


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


@exercise(
    "08.5",
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
