"""Exercises of lesson 08: computation graphs."""

import itertools

import torch

from cs336kit.teach.exercises.core import exercise


@exercise(
    "08.1",
    cases={
        "w0=1, w1=2, x=3, y=4": (1.0, 2.0, 3.0, 4.0),
        "w0=0.5, w1=−1, x=2, y=4": (0.5, -1.0, 2.0, 4.0),
        "a perfect prediction": (0.0, 1.0, -3.0, -3.0),
        "x = 0": (2.0, 3.0, 0.0, 1.0),
        "w0=−1.5, w1=0.25, x=−4, y=2.5": (-1.5, 0.25, -4.0, 2.5),
    },
    mistakes={
        "(right[0] / 2, right[1] / 2)": "the derivative of z² is 2z, and your 2 is missing.",
        "(right[0], right[0])": "u = w1·x, so the way to w1 has one more factor, du/dw1 = x.",
        "(-right[0], -right[1])": "the sign is turned: z = ŷ − y, and ŷ enters with +1.",
        "right[::-1]": "these are the two gradients in the other order; w0 comes first.",
        "(right[0], right[0] * w1)": "you multiplied by w1, which is du/dx. The way to w1 goes through du/dw1 = x.",
        "right_if(w0=0)": "w0 is missing from the residual, z = w0 + w1·x − y.",
    },
    hints=(
        "Which factors lie on the way from the loss back to w0, and which one more on the way to w1?",
        "z.grad = dloss/dz. Both w0 and u reach z through sums only, so their gradients equal z.grad.",
        "z = w0 + w1*x - y; w0.grad = 2*z; w1.grad = w0.grad times du/dw1, and u = w1*x.",
    ),
    checked="five points, with a zero residual, x = 0 and negative numbers among them.",
)
def regression_gradients(w0, w1, x, y):
    z = w0 + w1 * x - y
    return 2 * z, 2 * z * x


@exercise(
    "08.2",
    cases={f"x = {x:g}": (x,) for x in (3.0, -2.0, 0.5, 1.25, 0.0)},
    mistakes={
        "2 * x * x * 2 * x": "only the branch through v: you lost what u had left in y.grad. Write y.grad += ….",
        "3 * 2 * x": "only the branch through u. y feeds v too, and both contributions add up.",
        "3 + 2 * x * x": "that is dloss/dy. One more step back: multiply by dy/dx = 2x.",
        "3 * 2 * x * x * 2 * x": "you multiplied the two branches. Factors along one way multiply; ways add.",
        "(3 + 2 * x) * 2 * x": "dv/dy is 2y, not 2x; the local derivative uses the node's own input.",
        "3 * 2 * x + 2 * x * x": "the branch through v stops at y. Add both branches at y, then go on to x.",
    },
    hints=(
        "How many ways lead from the loss back to y?",
        "y.grad is a sum of two products, one per branch: dloss/du·du/dy + dloss/dv·dv/dy.",
        "y.grad = 1*3 + 1*(2*y); then x.grad = y.grad * (the derivative of x²).",
    ),
    checked="five values of x, negative and zero among them.",
)
def fan_out_gradient(x):
    return (3 + 2 * x * x) * 2 * x


def _by_queue(nodes):
    gradients, waiting, seen = [0.0] * (len(nodes) - 1) + [1.0], [len(nodes) - 1], set()
    while waiting:
        i = waiting.pop(0)
        for parent, slope in nodes[i] if i not in seen else ():
            gradients[parent] += slope * gradients[i]
            waiting.append(parent)
        seen.add(i)
    return gradients


@exercise(
    "08.3",
    cases={
        "the chain y = x², loss = 2y at x = 3": ([[], [(0, 6.0)], [(1, 2.0)]],),
        "a fan-out with two branches": ([[], [(0, 3.0)], [(0, 14.0)], [(1, 1.0), (2, 1.0)]],),
        "x·x, one parent twice": ([[], [(0, 5.0), (0, 5.0)]],),
        "a graph of five nodes": ([[], [], [(0, 3.0), (1, 2.0)], [(2, 1.0), (0, -1.0)], [(3, 4.0), (2, 0.5)]],),
        "a node used now and again one step later": ([[], [(0, 2.0)], [(1, 3.0)], [(1, 1.0), (2, 1.0)]],),
        "a graph with a node that the result does not use": ([[], [(0, 2.0)], [(0, 7.0)], [(1, 1.0)]],),
        "a single leaf": ([[]],),
    },
    mistakes={
        "backward(nodes, add=lambda old, new: new)": "a parent that is used twice kept only one contribution: use +=.",
        "backward(nodes, order=iter)": "you went forward through the list. Start at the last node and go back.",
        "backward(nodes, last=0.0)": "everything is 0 because nothing starts it. The last node's own gradient is 1.",
        "backward(nodes, times=lambda slope, own: slope + own)": "along a way, local derivatives multiply.",
        "right_if(nodes=[list(dict(edges).items()) for edges in nodes])": "the same parent twice counts twice, as in x·x.",
        _by_queue: "a node passed its gradient on before all of it had arrived. The order of the list, backwards, never does.",
    },
    hints=(
        "Which node's gradient do you know before you start, and in which order do the others become known?",
        "Set the last gradient to 1, walk the list backwards, and give every parent slope × own gradient, added up.",
        "for i in reversed(range(len(nodes))): for parent, slope in nodes[i]: gradients[parent] += …",
    ),
    checked="seven graphs: a chain, a fan-out, a parent used twice, a node used early and late, and a single leaf among them.",
)
def backward(nodes, *, last=1.0, order=reversed, add=lambda old, new: old + new, times=lambda slope, own: slope * own):
    gradients = [0.0] * len(nodes)
    gradients[-1] = last
    for i in order(range(len(nodes))):
        for parent, slope in nodes[i]:
            gradients[parent] = add(gradients[parent], times(slope, gradients[i]))
    return gradients


def _normal(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@exercise(
    "08.4",
    cases=lambda: {
        "three square matrices": (_normal(3, 3, seed=0), _normal(3, 3, seed=1), _normal(3, 3, seed=2)),
        "B=5, D=2, K=4": (_normal(5, 2, seed=3), _normal(2, 4, seed=4), _normal(5, 4, seed=5)),
        "a batch of one": (_normal(1, 4, seed=6), _normal(4, 3, seed=7), _normal(1, 3, seed=8)),
        "views that are not contiguous": (
            _normal(6, 4, seed=9)[::2],
            _normal(5, 4, seed=10).T,
            _normal(5, 3, seed=11).T,
        ),
    },
    mistakes={
        "(grad_y @ w, *right[1:])": "the gradient of x needs wᵀ. With square matrices the shapes do not tell you.",
        "(right[0], x @ grad_y, right[2])": "the gradient of w needs xᵀ, because the sum runs over the batch.",
        "(right[0], right[1].T, right[2])": "the gradient of w came out transposed: it has the shape of w, (D, K).",
        "(right[0], right[1] / len(x), right[2] / len(x))": "you averaged over the batch. Every row contributes, so sum.",
        "(*right[:2], grad_y.sum(1))": "the gradient of b is summed over the columns. b has K elements; sum over the batch.",
        "(*right[:2], grad_y)": "b is used by every row (a fan-out), so its gradient is the sum over rows.",
    },
    hints=(
        "Each gradient has the shape of its tensor. Which products of x, w and y.grad have those shapes?",
        "x.grad (B, D) needs (B, K) times (K, D); w.grad (D, K) needs (D, B) times (B, K); b is added to every row.",
        "return grad_y @ w.T, x.T @ …, grad_y.sum(…)",
    ),
    checked="square matrices, B=5 D=2 K=4, a batch of one and non-contiguous views, in float64.",
)
def affine_backward(x, w, grad_y):
    return grad_y @ w.T, x.T @ grad_y, grad_y.sum(0)


@exercise(
    "08.5",
    cases={
        "batch 32, sizes (16, 64, 8)": (32, (16, 64, 8)),
        "batch 1, sizes (5, 3)": (1, (5, 3)),
        "batch 1024, sizes (784, 512, 256, 10)": (1024, (784, 512, 256, 10)),
        "batch 7, five sizes of 4": (7, (4, 4, 4, 4, 4)),
    },
    mistakes={
        "right + 4 * batch * sum(sizes[1:-1])": "ReLU's result and the next product's input are one storage: count it once.",
        "right + batch * sum(sizes[1:-1])": "ReLU keeps no mask of its own: its result, kept already, tells where it was 0.",
        "4 * batch * sum(sizes)": "you counted the last product's output. No product needs its own output for backward.",
        "4 * batch * sum(sizes[1:-1])": "x is missing. The first weight's gradient is xᵀ times something, so x is kept.",
        "right // 4": "these are elements. An fp32 element takes 4 bytes.",
        "4 * batch * sum(sizes[1:])": "these are the outputs of the products. A product keeps its input.",
    },
    hints=(
        "Which operand does a product need again in order to compute the gradient of its weight?",
        "Every product keeps its input: x for the first, the ReLU's result for the others, which ReLU shares.",
        "4 bytes × batch × (the sum of all sizes except one of them).",
    ),
    checked="four networks of 1 to 4 layers.",
)
def kept_bytes(batch, sizes):
    return 4 * batch * sum(sizes[:-1])


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
    "08.6",
    cases=lambda: {
        "a vector, h = 1/4": (_cubes, torch.tensor([1.0, 2.0, -1.0], dtype=torch.float64), 0.25),
        "a matrix, h = 1/8": (_cubes, _normal(2, 3, seed=1), 0.125),
        "a transposed matrix, h = 1/2": (_cubes, _normal(3, 2, seed=2).T, 0.5),
        "a single number": (_cubes, torch.tensor(2.0, dtype=torch.float64), 0.25),
    },
    mistakes={
        "numeric_gradient(f, x, h, below=0)": "this is the forward difference, whose error is of order h. Step to both sides.",
        "2 * right": "twice too large: from x − h to x + h the distance is 2h.",
        "torch.full(x.shape, (f(x + h) - f(x - h)) / (2 * h), dtype=x.dtype)": "you moved all elements of x together.",
        _not_put_back: "later elements drift: an element was not put back before the next moved.",
        "torch.zeros_like(right)": "the gradient is 0: up and down are one tensor under two names. Clone x twice.",
        _into_a_copy: "reshape or flatten of a transposed tensor is a copy, and writing there changes nothing.",
    },
    hints=(
        "For one number you would compute (f(x + h) − f(x − h)) / (2h). What is x + h for one element of a tensor?",
        "For every element, make two copies of x, raise that element by h in one and lower it in the other.",
        "up = x.clone(); up[index] += h; down = x.clone(); down[index] -= h; gradient[index] = (f(up) - f(down)) / …",
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
