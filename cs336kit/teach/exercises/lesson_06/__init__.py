"""Exercises of lesson 06: computation graphs."""

import itertools

import torch

from cs336kit.teach.exercises.core import Case, Exercise, Mistake


def _tensor(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# --- 06.1: the gradients of linear regression ------------------------------------------------------------------------


def regression_gradients(w0, w1, x, y):
    z = w0 + w1 * x - y
    return 2 * z, 2 * z * x


_REGRESSION = Exercise(
    id="06.1",
    reference=regression_gradients,
    cases=lambda: [
        Case((1.0, 2.0, 3.0, 4.0), label="w0=1, w1=2, x=3, y=4"),
        Case((0.5, -1.0, 2.0, 4.0), label="w0=0.5, w1=−1, x=2, y=4"),
        Case((0.0, 1.0, -3.0, -3.0), label="a perfect prediction"),
        Case((2.0, 3.0, 0.0, 1.0), label="x = 0"),
        Case((-1.5, 0.25, -4.0, 2.5), label="w0=−1.5, w1=0.25, x=−4, y=2.5"),
    ],
    mistakes=(
        Mistake(
            lambda w0, w1, x, y: (w0 + w1 * x - y, (w0 + w1 * x - y) * x),
            "For {case} you returned {given}: the derivative of z² is 2z, and your 2 is missing.",
        ),
        Mistake(
            lambda w0, w1, x, y: (2 * (w0 + w1 * x - y),) * 2,
            "For {case} you returned {given}, twice the same: u = w1·x, so the way to w1 has one more factor, du/dw1 = x.",
        ),
        Mistake(
            lambda w0, w1, x, y: (2 * (y - w0 - w1 * x), 2 * (y - w0 - w1 * x) * x),
            "For {case} you returned {given}, with the sign turned: z = ŷ − y, and ŷ enters with +1.",
        ),
        Mistake(
            lambda w0, w1, x, y: regression_gradients(w0, w1, x, y)[::-1],
            "For {case} you returned {given}: these are the two gradients in the other order; w0 comes first.",
        ),
        Mistake(
            lambda w0, w1, x, y: (2 * (w0 + w1 * x - y), 2 * (w0 + w1 * x - y) * w1),
            "For {case} you returned {given}: you multiplied by w1, which is du/dx. The way to w1 goes through du/dw1 = x.",
        ),
        Mistake(
            lambda w0, w1, x, y: (2 * (w1 * x - y), 2 * (w1 * x - y) * x),
            "For {case} you returned {given}: w0 is missing from the residual, z = w0 + w1·x − y.",
        ),
        Mistake(
            lambda w0, w1, x, y: (2 * (w0 + w1 * x - y) ** 2, 2 * (w0 + w1 * x - y) ** 2 * x),
            "For {case} you returned {given}: you multiplied by the loss z². Its derivative with respect to z is 2z.",
        ),
    ),
    hints=(
        "Which factors lie on the way from the loss back to w0, and which one more on the way to w1?",
        "z.grad = dloss/dz. Both w0 and u reach z through sums only, so their gradients equal z.grad.",
        "z = w0 + w1*x - y; w0.grad = 2*z; w1.grad = w0.grad times du/dw1, and u = w1*x.",
    ),
    checked="five points, with a zero residual, x = 0 and negative numbers among them.",
)

# --- 06.2: fan-out ----------------------------------------------------------------------------------------------------


def fan_out_gradient(x):
    y = x * x
    return (3 + 2 * y) * 2 * x


_FAN_OUT = Exercise(
    id="06.2",
    reference=fan_out_gradient,
    cases=lambda: [Case((x,), label=f"x = {x:g}") for x in (3.0, -2.0, 0.5, 1.25, 0.0)],
    mistakes=(
        Mistake(
            lambda x: 2 * x * x * 2 * x,
            "For {case} you returned {given}: only the branch through v. You assigned y.grad a second time and lost what "
            "u had left there; write y.grad += ….",
        ),
        Mistake(
            lambda x: 3 * 2 * x,
            "For {case} you returned {given}: only the branch through u. y feeds v too, and both contributions add up.",
        ),
        Mistake(
            lambda x: 3 + 2 * x * x,
            "For {case} you returned {given}: that is dloss/dy. One more step back: multiply by dy/dx = 2x.",
        ),
        Mistake(
            lambda x: 3 * 2 * x * x * 2 * x,
            "For {case} you returned {given}: you multiplied the two branches. Factors along one way multiply; ways add.",
        ),
        Mistake(
            lambda x: (3 + 2 * x) * 2 * x,
            "For {case} you returned {given}: dv/dy is 2y, not 2x; the local derivative uses the node's own input.",
        ),
        Mistake(
            lambda x: 3 * 2 * x + 2 * x * x,
            "For {case} you returned {given}: the branch through v stops at y. Add both branches at y, then go on to x.",
        ),
        Mistake(
            lambda x: (3 + 2 * x * x) * x,
            "For {case} you returned {given}: half of it. The last step multiplies by dy/dx = 2x, not by x.",
        ),
        Mistake(
            lambda x: (3 * x * x + 2 * x * x) * 2 * x,
            "For {case} you returned {given}: du/dy is 3, the slope of u = 3y, not u itself.",
        ),
    ),
    hints=(
        "How many ways lead from the loss back to y?",
        "y.grad is a sum of two products, one per branch: dloss/du·du/dy + dloss/dv·dv/dy.",
        "y.grad = 1*3 + 1*(2*y); then x.grad = y.grad * (the derivative of x²).",
    ),
    checked="five values of x, negative and zero among them.",
)

# --- 06.3: backward over a list of nodes ------------------------------------------------------------------------------


def backward(nodes):
    gradients = [0.0] * len(nodes)
    gradients[-1] = 1.0
    for i in reversed(range(len(nodes))):
        for parent, slope in nodes[i]:
            gradients[parent] += slope * gradients[i]
    return gradients


def _assigns(nodes):
    gradients = [0.0] * len(nodes)
    gradients[-1] = 1.0
    for i in reversed(range(len(nodes))):
        for parent, slope in nodes[i]:
            gradients[parent] = slope * gradients[i]
    return gradients


def _forward_order(nodes):
    gradients = [0.0] * len(nodes)
    gradients[-1] = 1.0
    for i in range(len(nodes)):
        for parent, slope in nodes[i]:
            gradients[parent] += slope * gradients[i]
    return gradients


def _no_seed(nodes):
    return [0.0] * len(nodes)


def _adds_slopes(nodes):
    gradients = [0.0] * len(nodes)
    gradients[-1] = 1.0
    for i in reversed(range(len(nodes))):
        for parent, slope in nodes[i]:
            gradients[parent] += slope + gradients[i]
    return gradients


def _one_edge_per_parent(nodes):
    return backward([list(dict(edges).items()) for edges in nodes])


def _depth_first(nodes):
    gradients = [0.0] * len(nodes)
    gradients[-1] = 1.0

    def visit(i):
        for parent, slope in nodes[i]:
            gradients[parent] += slope * gradients[i]
            visit(parent)

    visit(len(nodes) - 1)
    return gradients


def _breadth_first(nodes):
    gradients = [0.0] * len(nodes)
    gradients[-1] = 1.0
    waiting, seen = [len(nodes) - 1], set()
    while waiting:
        i = waiting.pop(0)
        for parent, slope in nodes[i] if i not in seen else ():
            gradients[parent] += slope * gradients[i]
            waiting.append(parent)
        seen.add(i)
    return gradients


def _all_start_at_one(nodes):
    gradients = [1.0] * len(nodes)
    for i in reversed(range(len(nodes))):
        for parent, slope in nodes[i]:
            gradients[parent] += slope * gradients[i]
    return gradients


_BACKWARD = Exercise(
    id="06.3",
    reference=backward,
    cases=lambda: [
        Case(([[], [(0, 6.0)], [(1, 2.0)]],), label="the chain y = x², loss = 2y at x = 3"),
        Case(([[], [(0, 3.0)], [(0, 14.0)], [(1, 1.0), (2, 1.0)]],), label="a fan-out with two branches"),
        Case(([[], [(0, 5.0), (0, 5.0)]],), label="x·x, one parent twice"),
        Case(
            ([[], [], [(0, 3.0), (1, 2.0)], [(2, 1.0), (0, -1.0)], [(3, 4.0), (2, 0.5)]],),
            label="a graph of five nodes",
        ),
        Case(([[], [(0, 2.0)], [(1, 3.0)], [(1, 1.0), (2, 1.0)]],), label="a node used now and again one step later"),
        Case(([[], [(0, 2.0)], [(0, 7.0)], [(1, 1.0)]],), label="a graph with a node that the result does not use"),
        Case(([[]],), label="a single leaf"),
    ],
    mistakes=(
        Mistake(
            _assigns,
            "For {case} you returned {given}: a parent that is used twice kept only one contribution. Accumulate with +=.",
        ),
        Mistake(
            _forward_order,
            "For {case} you returned {given}: you went forward through the list, so most nodes passed on a gradient of 0. "
            "Start at the last node and go back.",
        ),
        Mistake(
            _no_seed,
            "For {case} you returned {given}: everything is 0 because nothing starts it. The last node's own gradient is 1.",
        ),
        Mistake(
            _adds_slopes,
            "For {case} you returned {given}: you added the local derivative to the gradient; along a way they multiply.",
        ),
        Mistake(
            _one_edge_per_parent,
            "For {case} you returned {given}: the same parent twice counts twice, as in x·x, whose derivative is 2x.",
        ),
        Mistake(
            _breadth_first,
            "For {case} you returned {given}: a node passed its gradient on before all of it had arrived. The order of the "
            "list, backwards, never does.",
        ),
        Mistake(
            _depth_first,
            "For {case} you returned {given}: a node was visited once per way that leads to it, and each time passed on all "
            "that it had. Visit every node once, when its gradient is complete.",
        ),
        Mistake(
            _all_start_at_one,
            "For {case} you returned {given}: every gradient started at 1. Only the last node's does; the others start at 0.",
        ),
    ),
    hints=(
        "Which node's gradient do you know before you start, and in which order do the others become known?",
        "Set the last gradient to 1, walk the list backwards, and give every parent slope × own gradient, added up.",
        "for i in reversed(range(len(nodes))): for parent, slope in nodes[i]: gradients[parent] += …",
    ),
    checked="seven graphs: a chain, a fan-out, a parent used twice, a node used early and late, and a single leaf among them.",
)

# --- 06.4: an affine layer over a batch -------------------------------------------------------------------------------


def affine_backward(x, w, grad_y):
    return grad_y @ w.T, x.T @ grad_y, grad_y.sum(0)


def _affine_cases():
    square = (_tensor(3, 3, seed=0), _tensor(3, 3, seed=1), _tensor(3, 3, seed=2))
    wide = (_tensor(5, 2, seed=3), _tensor(2, 4, seed=4), _tensor(5, 4, seed=5))
    one = (_tensor(1, 4, seed=6), _tensor(4, 3, seed=7), _tensor(1, 3, seed=8))
    strided = (_tensor(6, 4, seed=9)[::2], _tensor(5, 4, seed=10).T, _tensor(5, 3, seed=11).T)
    labels = ("three square matrices", "B=5, D=2, K=4", "a batch of one", "views that are not contiguous")
    return [Case(args, label=label) for args, label in zip((square, wide, one, strided), labels, strict=True)]


_AFFINE = Exercise(
    id="06.4",
    reference=affine_backward,
    cases=_affine_cases,
    mistakes=(
        Mistake(
            lambda x, w, g: (g @ w, x.T @ g, g.sum(0)),
            "For {case} the gradient of x is wrong: you multiplied by w, and it must be wᵀ. With square matrices the shapes "
            "do not tell you.",
        ),
        Mistake(
            lambda x, w, g: (g @ w.T, x @ g, g.sum(0)),
            "For {case} the gradient of w is wrong: xᵀ is needed, because the sum runs over the batch.",
        ),
        Mistake(
            lambda x, w, g: (g @ w.T, g.T @ x, g.sum(0)),
            "For {case} the gradient of w came out transposed: a gradient has the shape of its tensor, (D, K).",
        ),
        Mistake(
            lambda x, w, g: (g @ w.T, x.T @ g / len(x), g.mean(0)),
            "For {case} you averaged over the batch. y is given its gradient already; every row contributes, so sum.",
        ),
        Mistake(
            lambda x, w, g: (g @ w.T, x.T @ g, g),
            "For {case} the gradient of b is wrong: b is used by every row (a fan-out), so its gradient is the sum over rows.",
        ),
        Mistake(
            lambda x, w, g: (g @ w.T, x.T @ g, g.sum(1)),
            "For {case} the gradient of b is wrong: you summed over the columns. b has K elements; sum over the batch.",
        ),
        Mistake(
            lambda x, w, g: (g @ w.T, x.T @ g, g.mean(0)),
            "For {case} the gradient of b is a mean over the batch. Nothing divided by B: sum the rows.",
        ),
        Mistake(
            lambda x, w, g: (x.T @ g, g @ w.T, g.sum(0)),
            "For {case} the first two gradients are exchanged: x, w, b is the order that is asked for.",
        ),
        Mistake(
            lambda x, w, g: (g @ w.T, x.T @ g, g.sum(0, keepdim=True)),
            "For {case} the gradient of b has the shape (1, K). A gradient has the shape of its tensor, (K).",
        ),
        Mistake(
            lambda x, w, g: (g @ w.T, x.T @ g),
            "For {case} you returned two gradients. The third, b's, is missing.",
        ),
    ),
    hints=(
        "Each gradient has the shape of its tensor. Which products of x, w and y.grad have those shapes?",
        "x.grad (B, D) needs (B, K) times (K, D); w.grad (D, K) needs (D, B) times (B, K); b is added to every row.",
        "return grad_y @ w.T, x.T @ …, grad_y.sum(…)",
    ),
    checked="square matrices, B=5 D=2 K=4, a batch of one and non-contiguous views, in float64.",
)

# --- 06.5: the bytes that a ReLU network keeps ------------------------------------------------------------------------


def kept_bytes(batch, sizes):
    return 4 * batch * sum(sizes[:-1])


_KEPT = Exercise(
    id="06.5",
    reference=kept_bytes,
    cases=lambda: [
        Case((32, (16, 64, 8)), label="batch 32, sizes (16, 64, 8)"),
        Case((1, (5, 3)), label="batch 1, sizes (5, 3)"),
        Case((1024, (784, 512, 256, 10)), label="batch 1024, sizes (784, 512, 256, 10)"),
        Case((7, (4, 4, 4, 4, 4)), label="batch 7, five sizes of 4"),
    ],
    mistakes=(
        Mistake(
            lambda b, s: 4 * b * (s[0] + 2 * sum(s[1:-1])),
            "For {case} you returned {given}: every hidden layer counts twice there. ReLU keeps its result, and the next "
            "product keeps the same tensor: one storage.",
        ),
        Mistake(
            lambda b, s: 4 * b * sum(s),
            "For {case} you returned {given}: you counted the last product's output. No product needs its own output for "
            "backward.",
        ),
        Mistake(
            lambda b, s: 4 * b * sum(s[1:-1]),
            "For {case} you returned {given}: x is missing. The first weight's gradient is xᵀ times something, so x is kept.",
        ),
        Mistake(
            lambda b, s: b * sum(s[:-1]),
            "For {case} you returned {given}: these are elements. An fp32 element takes 4 bytes.",
        ),
        Mistake(
            lambda b, s: 4 * (b * sum(s[:-1]) + sum(m * n for m, n in zip(s, s[1:], strict=False))),
            "For {case} you returned {given}: you counted the weights. They are referred to, and exist anyway.",
        ),
        Mistake(
            lambda b, s: 4 * b * sum(s[1:]),
            "For {case} you returned {given}: these are the outputs of the products. A product keeps its input.",
        ),
        Mistake(
            lambda b, s: 8 * b * sum(s[:-1]),
            "For {case} you returned {given}, twice too much: an fp32 element takes 4 bytes.",
        ),
        Mistake(
            lambda b, s: 4 * b * s[0],
            "For {case} you returned {given}: only x. Every product keeps its own input, the later ones the ReLU's result.",
        ),
    ),
    hints=(
        "Which operand does a product need again in order to compute the gradient of its weight?",
        "Every product keeps its input: x for the first, the ReLU's result for the others, which ReLU shares.",
        "4 bytes × batch × (the sum of all sizes except one of them).",
    ),
    checked="four networks of 1 to 4 layers.",
)

# --- 06.6: a numeric gradient for any shape ---------------------------------------------------------------------------


def numeric_gradient(f, x, h):
    gradient = torch.zeros(x.shape, dtype=x.dtype)  # zeros_like would copy the strides of a transposed x
    for i in range(x.numel()):
        step = torch.zeros(x.numel(), dtype=x.dtype)
        step[i] = h
        step = step.view(x.shape)
        gradient.view(-1)[i] = (f(x + step) - f(x - step)) / (2 * h)
    return gradient


def _forward_difference(f, x, h):
    gradient = torch.zeros(x.shape, dtype=x.dtype)
    for i in range(x.numel()):
        step = torch.zeros(x.numel(), dtype=x.dtype)
        step[i] = h
        gradient.view(-1)[i] = (f(x + step.view(x.shape)) - f(x)) / h
    return gradient


def _all_at_once(f, x, h):
    return torch.full(x.shape, float((f(x + h) - f(x - h)) / (2 * h)), dtype=x.dtype)


def _not_restored(f, x, h):
    x, gradient = x.clone(), torch.zeros(x.shape, dtype=x.dtype)
    for i in range(x.numel()):
        index = tuple(int(k) for k in torch.unravel_index(torch.tensor(i), x.shape))
        x[index] += h
        above = f(x)
        x[index] -= 2 * h
        gradient[index] = (above - f(x)) / (2 * h)
    return gradient


def _backward_difference(f, x, h):
    return _forward_difference(f, x, -h)


def _half_steps(f, x, h):
    return numeric_gradient(f, x, h / 2)


def _into_a_copy(f, x, h):
    x, gradient = x.clone(), torch.zeros_like(x)
    for i in range(x.numel()):
        up, down = x.clone(), x.clone()
        up.reshape(-1)[i] += h  # of a transposed x, reshape makes a copy, and up itself stays as it was
        down.reshape(-1)[i] -= h
        gradient.reshape(-1)[i] = (f(up) - f(down)) / (2 * h)
    return gradient


def _no_clone(f, x, h):
    x, gradient = x.clone(), torch.zeros(x.shape, dtype=x.dtype)
    for place in itertools.product(*map(range, x.shape)):
        up, down = x, x
        up[place] += h
        down[place] -= h
        gradient[place] = (f(up) - f(down)) / (2 * h)
    return gradient


def _whole_rows(f, x, h):
    gradient = torch.zeros(x.shape, dtype=x.dtype)
    for i in range(len(x)):
        up, down = x.clone(), x.clone()
        up[i] += h
        down[i] -= h
        gradient[i] = (f(up) - f(down)) / (2 * h)
    return gradient


def _cubes(x):
    return float((x * x * x).sum() + x.prod())


_NUMERIC = Exercise(
    id="06.6",
    reference=numeric_gradient,
    cases=lambda: [
        Case((_cubes, torch.tensor([1.0, 2.0, -1.0], dtype=torch.float64), 0.25), label="a vector, h = 1/4"),
        Case((_cubes, _tensor(2, 3, seed=1), 0.125), label="a matrix, h = 1/8"),
        Case((_cubes, _tensor(3, 2, seed=2).T, 0.5), label="a transposed matrix, h = 1/2"),
        Case((_cubes, torch.tensor(2.0, dtype=torch.float64), 0.25), label="a single number"),
    ],
    mistakes=(
        Mistake(
            _forward_difference,
            "For {case} this is the forward difference, (f(x + h) − f(x)) / h, whose error is of order h. Step to both sides.",
        ),
        Mistake(
            lambda f, x, h: 2 * numeric_gradient(f, x, h),
            "For {case} the result is twice too large: from x − h to x + h the distance is 2h.",
        ),
        Mistake(
            _all_at_once,
            "For {case} every element is the same: you moved all elements of x together. Move one, hold the others.",
        ),
        Mistake(
            _not_restored,
            "For {case} the first element is right and later ones drift: an element was not put back before the next moved.",
        ),
        Mistake(
            lambda f, x, h: -numeric_gradient(f, x, h),
            "For {case} the sign is turned: f(x + h) comes first.",
        ),
        Mistake(
            _backward_difference,
            "For {case} this is the backward difference, (f(x) − f(x − h)) / h, whose error is of order h. Step to both sides.",
        ),
        Mistake(
            _half_steps,
            "For {case} you stepped by h/2 to each side. Step by h, and divide by 2h.",
        ),
        Mistake(
            _into_a_copy,
            "For {case} the gradient is 0: reshape or flatten of a transposed tensor is a copy, and writing there changes "
            "nothing. Index the tensor itself with all its indices.",
        ),
        Mistake(
            _no_clone,
            "For {case} the gradient is 0: up and down are one tensor under two names, so both are back at x. Clone it twice.",
        ),
        Mistake(
            _whole_rows,
            "For {case} a whole row moved at once. Move one element at a time, whatever the number of dimensions.",
        ),
    ),
    hints=(
        "For one number you would compute (f(x + h) − f(x − h)) / (2h). What is x + h for one element of a tensor?",
        "For every element, make two copies of x, raise that element by h in one and lower it in the other.",
        "up = x.clone(); up[index] += h; down = x.clone(); down[index] -= h; gradient[index] = (f(up) - f(down)) / …",
    ),
    checked="a vector, a matrix, a transposed matrix and a single number, with steps from 1/8 to 1/2.",
    tolerance=1e-9,
)

EXERCISES = (_REGRESSION, _FAN_OUT, _BACKWARD, _AFFINE, _KEPT, _NUMERIC)
