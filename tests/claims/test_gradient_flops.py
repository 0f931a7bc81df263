"""Claims about what backward costs: products counted by torch, single operations by numbers that count."""

import itertools

import torch
from claims.settled import near, settles

from cs336kit import lm, measure, predict

B, D, K = 64, 32, 16


def two_layers(*, input_gradient=True):
    """x, w1, w2 in fp64, so that hand-written gradients agree to many digits."""
    random = torch.Generator().manual_seed(0)
    x, w1, w2 = (torch.randn(s, generator=random, dtype=torch.float64) / s[0] ** 0.5 for s in ((B, D), (D, D), (D, K)))
    return x.requires_grad_(input_gradient), w1.requires_grad_(), w2.requires_grad_()


def step(**kwargs):
    """FLOPs of forward and backward of the mean square of two layers."""
    x, w1, w2 = two_layers(**kwargs)
    return measure.flops(lambda: (x @ w1 @ w2).square().mean().backward(), by="pass")


def layer_backward(rows, inner, columns, *, input_gradient):
    """FLOPs of the backward pass of one layer alone."""
    x, w = torch.ones(rows, inner, requires_grad=input_gradient), torch.ones(inner, columns, requires_grad=True)
    return measure.flops(lambda: (x @ w).sum().backward(), by="pass")["backward"]


@settles("gf-forward-2layer")
def test_forward_2layer():
    return 2 * B * D * D + 2 * B * D * K, step()["forward"]


@settles("gf-loss-elementwise")
def test_loss_elementwise():
    # The loop runs on numbers that count; the adds begin with the first square.
    def mean_square(numbers):
        squares = [h * h for h in numbers]
        return sum(squares[1:], squares[0]) / len(numbers)

    counted = measure.operations(mean_square, list(range(6 * 4)))
    return {"multiply": 6 * 4, "add": 6 * 4 - 1, "divide": 1}, dict(counted)


@settles("gf-g2-formula")
def test_g2_formula():
    x, w1, w2 = two_layers()
    h2 = (x @ w1 @ w2).detach().requires_grad_()
    (h2**2).mean().backward()
    said = (2 / (B * K) * h2.detach()).tolist()
    return said, near(h2.grad.tolist(), said, relative=1e-14)  # a few roundings of 1e-16


@settles("gf-weight-grads")
def test_weight_grads():
    x, w1, w2 = two_layers()
    h1 = x @ w1
    h2 = h1 @ w2
    h1.retain_grad()
    h2.retain_grad()
    (h2**2).mean().backward()
    G2, H1, W1, W2, X = (t.detach() for t in (h2.grad, h1, w1, w2, x))
    G1 = G2 @ W2.T
    said = {"dW2": H1.T @ G2, "G1": G1, "dW1": X.T @ G1, "GX": G1 @ W1.T}
    so = {"dW2": w2.grad, "G1": h1.grad, "dW1": w1.grad, "GX": x.grad}
    return dict.fromkeys(said, True), {
        name: torch.allclose(so[name], said[name], rtol=1e-10, atol=1e-14) for name in said
    }


@settles("gf-w2-grad-2bdk")
def test_w2_grad_2bdk():
    return 2 * B * D * K, layer_backward(B, D, K, input_gradient=False)


@settles("gf-layer2-4bdk")
def test_layer2_4bdk():
    return 4 * B * D * K, layer_backward(B, D, K, input_gradient=True)


@settles("gf-layer1-4bdd")
def test_layer1_4bdd():
    return 4 * B * D * D, *(layer_backward(B, D, D, input_gradient=needed) for needed in (True, False))


@settles("gf-total-6")
def test_total_6():
    return 6 * B * D**2 + 6 * B * D * K, *(step(input_gradient=needed).total for needed in (True, False))


@settles("gf-w2-loop-indices")
def test_w2_loop_indices():
    # As printed, on B = K = D, where the indices at least stay inside.
    n = 3
    random = torch.Generator().manual_seed(0)
    h1, g2 = torch.randint(-9, 9, (n, n), generator=random), torch.randint(-9, 9, (n, n), generator=random)
    grad = torch.zeros_like(g2)
    for b, k, d in itertools.product(range(n), repeat=3):
        grad[b, d] += g2[b, k] * h1[b, d]
    return grad.tolist(), (h1.T @ g2).tolist()


@settles("gf-w2-four-ops")
def test_w2_four_ops():
    def gradient(h1, g2):
        grad = [[0.0] * len(g2[0]) for _ in h1[0]]
        for b, d, k in itertools.product(range(len(h1)), range(len(h1[0])), range(len(g2[0]))):
            grad[d][k] += h1[b][d] * g2[b][k]
        return grad

    b, d, k = 4, 3, 2
    counted = measure.operations(gradient, torch.ones(b, d).tolist(), torch.ones(b, k).tolist())
    return 4, counted.total // (b * d * k)


@settles("gf-backward-4np")
def test_backward_4np():
    parameters = D * D + D * K
    return 4 * B * parameters, *(step(input_gradient=needed)["backward"] for needed in (True, False))


@settles("gf-backward-twice-forward")
def test_backward_twice_forward():
    # A whole decoder, where the input of the first product is an embedding, which needs a gradient.
    config = predict.MODELS["gpt2"]
    with torch.device("meta"):
        model, tokens = lm.DecoderOnly(config), torch.zeros(1, 64, dtype=torch.int64)
    counted = measure.flops(lambda: model(tokens).sum().backward(), by="pass")
    return 2.0, counted["backward"] / counted["forward"]


@settles("gf-5dij")
def test_5dij():
    # Products by torch, and φ' once for each of the D·J outputs; a fifth D·I·J would be a broadcast of all three sizes.
    points, I, J = 96, 128, 160
    W, z = torch.randn(J, I, requires_grad=True), torch.randn(I, points, requires_grad=True)
    products = measure.flops(lambda: (W @ z).sigmoid().sum().backward(), by="pass")["backward"]
    return 5 * points * I * J, products + 2 * points * J


@settles("gf-eq-3.1-index")
def test_eq_31_index():
    # With I = J the misprinted index i runs, too.
    random = torch.Generator().manual_seed(0)
    W, z = (torch.randn(s, generator=random, dtype=torch.float64, requires_grad=True) for s in ((8, 8), (8, 5)))
    y = (W @ z).sigmoid()
    (y**2).sum().backward()
    y = y.detach()
    gradients = {index: torch.einsum(f"jn,{index}n,in->ji", 2 * y, y * (1 - y), z.detach()) for index in "ij"}
    return gradients["i"].tolist(), near(W.grad.tolist(), gradients["j"].tolist(), relative=1e-9)
