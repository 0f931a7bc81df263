"""Claims about computation graphs and backward."""

import math
import warnings

import torch
from claims.settled import near, settles

from cs336kit import lm, measure


def affine():
    """The lecture's y = 0.5 (x · w − 5)²."""
    x, w = torch.tensor([1.0, 2.0, 3.0]), torch.ones(3, requires_grad=True)
    pred = x @ w
    return x, w, pred, 0.5 * (pred - 5) ** 2


def slope(function, at, step=1e-6):
    """The derivative by a central difference, which knows nothing of graphs."""
    return (function(at + step) - function(at - step)) / (2 * step)


@settles("autograd-xw-5")
def test_xw_5():
    _, w, _, loss = affine()
    loss.backward()
    return [1.0, 2.0, 3.0], w.grad.tolist()


@settles("autograd-nonleaf-grad-none")
def test_nonleaf_grad_none():
    x, w, pred, loss = affine()
    loss.backward()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # reading the gradient of a computed tensor warns
        missing = [t.grad is None for t in (loss, pred, x, w)]
    return [True, True, True, False], missing


@settles("graph-node-kinds")
def test_graph_node_kinds():
    # An input, a parameter and what is computed from them: three nodes in a drawing, as the course's scalars keep it.
    drawing = lm.Scalar(3.0, name="input") * lm.Scalar(1.0, name="parameter")
    in_torch = torch.tensor(3.0) * torch.tensor(1.0, requires_grad=True)
    return 3, *(len(measure.graph(result).nodes) for result in (drawing, in_torch))


@settles("chain-rule-4x")
def test_chain_rule_4x():
    x = torch.tensor(3.0, requires_grad=True)
    y = x**2
    loss = 2 * y
    loss.backward()
    return (4 * 3.0, 2 * 3.0**2), (x.grad.item(), loss.item())


@settles("fanout-sum")
def test_fanout_sum():
    y = torch.tensor(0.64, dtype=torch.float64, requires_grad=True)
    u, v = y.sin(), y.exp()
    (u * v).backward()
    branches = v.item() * math.cos(0.64) + u.item() * math.exp(0.64)
    return branches, near(y.grad.item(), branches, relative=1e-14)  # a few roundings of 1e-16


@settles("fanout-step-label")
def test_fanout_step_label():
    # A hook on each tensor notes the forward step whose inputs have just received their gradient.
    x = torch.tensor(0.8, requires_grad=True)
    y = x**2
    u, v = y.sin(), y.exp()
    undone = []
    for step, tensor in (1, x), (2, y), (3, u), (3, v):
        tensor.register_hook(lambda grad, step=step: undone.append(step))
    (u * v).backward()
    return 3, undone[-1]


@settles("grad-shape")
def test_grad_shape():
    A = torch.randn(3, 4, requires_grad=True)
    (A @ torch.randn(4, 2)).sum().backward()
    return tuple(A.shape), tuple(A.grad.shape)


@settles("sigmoid-affine-backward")
def test_sigmoid_affine_backward():
    random = torch.Generator().manual_seed(0)
    A, x, b = (torch.randn(s, generator=random, dtype=torch.float64, requires_grad=True) for s in ((3, 4), (4,), (3,)))
    y, y_grad = torch.sigmoid(A @ x + b), torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    y.backward(y_grad)
    u = [y_grad[i].item() * y[i].item() * (1 - y[i].item()) for i in range(3)]
    A_grad = [[u[i] * x[j].item() for j in range(4)] for i in range(3)]
    x_grad = [sum(u[i] * A[i, j].item() for i in range(3)) for j in range(4)]
    said = [u, A_grad, x_grad]
    return said, near([t.grad.tolist() for t in (b, A, x)], said, relative=1e-12)


@settles("linreg-graph")
def test_linreg_graph():
    # The graph computes (w0 + w1·x − y)², and its gradients are the slopes of that function.
    def loss(w0, w1, x=3.0, y=5.0):
        return (w0 + w1 * x - y) ** 2

    w0, w1 = lm.Scalar(1.0), lm.Scalar(2.0)
    u = w1 * 3.0
    L = (w0 + u + -5.0) ** 2
    L.backward()
    slopes = [slope(lambda w: loss(w, 2.0), 1.0), slope(lambda w: loss(1.0, w), 2.0)]
    return [loss(1.0, 2.0), *slopes], near([L.value, w0.grad, w1.grad], [loss(1.0, 2.0), *slopes], relative=1e-6)


@settles("batch-grad-sum")
def test_batch_grad_sum():
    random = torch.Generator().manual_seed(0)
    rows = torch.randn(5, 4, generator=random, dtype=torch.float64)
    w = torch.randn(4, generator=random, dtype=torch.float64, requires_grad=True)

    def gradient(loss):
        return torch.autograd.grad(loss, w)[0].tolist()

    each = torch.stack([torch.autograd.grad((row @ w) ** 2, w)[0] for row in rows]).sum(0).tolist()
    summed, mean = gradient(((rows @ w) ** 2).sum()), gradient(((rows @ w) ** 2).mean())
    return each, near(summed, each, relative=1e-12), near(mean, each, relative=1e-12)


@settles("grads-accumulate-from-zero")
def test_grads_accumulate_from_zero():
    x = torch.tensor(3.0, requires_grad=True)
    loss = 2 * x**2
    loss.retain_grad()
    loss.backward(retain_graph=True)
    once, at_loss = x.grad.item(), loss.grad.item()
    loss.backward()
    return (1.0, 0.0 + 4 * 3.0, 2 * 4 * 3.0), (at_loss, once, x.grad.item())
