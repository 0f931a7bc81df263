"""Claims about optimizers: their formulas, and what they keep for every parameter."""

import math
import warnings

import torch
from claims.settled import figures, outcome_of, settles


def walk(kind, gradients, *, size=1, **options):
    """A parameter that starts at 0 and meets these gradients: where it stands after each step, and its state."""
    weight = torch.nn.Parameter(torch.zeros(size, dtype=torch.float64))
    optimizer, path = kind([weight], **options), []
    for gradient in gradients:
        weight.grad = torch.full_like(weight, gradient)
        optimizer.step()
        path.append(weight[0].item())
    return path, optimizer.state[weight]


def state_tensors(kind, **options):
    """How many tensors of the parameter's size torch keeps for it after a step."""
    _, state = walk(kind, [1.0], size=100, **options)
    return sum(torch.is_tensor(value) and value.numel() == 100 for value in state.values())


@settles("adagrad-formula")
def test_adagrad_formula():
    # To four digits: 1e-5 inside the root against torch's 1e-10 after it; only small gradients tell them apart.
    def formula_and_torch(gradient):
        path, _ = walk(torch.optim.Adagrad, [gradient], lr=1.0)
        return figures(gradient / math.sqrt(gradient**2 + 1e-5), 4), figures(-path[0], 4)

    def agree(gradient):
        formula, by_torch = formula_and_torch(gradient)
        return formula == by_torch

    return True, agree(1.0), agree(1e-3)


@settles("adagrad-averaging")
def test_adagrad_averaging():
    _, state = walk(torch.optim.Adagrad, [2.0] * 3)
    return 2.0**2, state["sum"].item()


@settles("adagrad-sum-index")
def test_adagrad_sum_index():
    # As printed the bound variable is t itself: every term of the sum is the last gradient.
    gradients = [1.0, 2.0, 3.0]
    _, state = walk(torch.optim.Adagrad, gradients)
    return sum(gradients[-1] ** 2 for _ in gradients), state["sum"].item()


@settles("adagrad-none-grad")
def test_adagrad_none_grad():
    def step(*parameters):
        for p in parameters:
            p.data -= 0.1 * p.grad.data

    used, unused = torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.ones(2))
    used.sum().backward()
    return "runs", outcome_of(lambda: step(used)), outcome_of(lambda: step(used, unused))


@settles("opt-state-sgd-0")
def test_state_sgd():
    return 0, state_tensors(torch.optim.SGD), state_tensors(torch.optim.SGD, momentum=0.9)


@settles("opt-state-momentum-1")
def test_state_momentum():
    return 1, state_tensors(torch.optim.SGD, momentum=0.9)


@settles("opt-momentum-average")
def test_momentum_average():
    # The running average of gradients that are all 1 is 1.
    _, state = walk(torch.optim.SGD, [1.0] * 500, momentum=0.9)
    return 1.0, figures(state["momentum_buffer"].item(), 6)


@settles("opt-state-adagrad-1")
def test_state_adagrad():
    return 1, state_tensors(torch.optim.Adagrad)


@settles("opt-state-rmsprop-1")
def test_state_rmsprop():
    return 1, state_tensors(torch.optim.RMSprop), state_tensors(torch.optim.RMSprop, momentum=0.9)


@settles("opt-state-adam-2")
def test_state_adam():
    return 2, state_tensors(torch.optim.Adam)


@settles("adam-is-rmsprop-plus-momentum")
def test_adam_is_rmsprop_plus_momentum():
    # The averages of both by hand, and bias correction as the condition. Adam's ε of 1e-8 is the last digits.
    gradients, rate, beta1, beta2 = [1.0, 3.0, -2.0], 0.01, 0.9, 0.999
    path, _ = walk(torch.optim.Adam, gradients, lr=rate, betas=(beta1, beta2))

    def by_hand(corrected):
        p = m = v = 0.0
        for t, g in enumerate(gradients, 1):
            m, v = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g * g
            unbias = (1 - beta1**t, 1 - beta2**t) if corrected else (1, 1)
            p -= rate * (m / unbias[0]) / (math.sqrt(v / unbias[1]) + 1e-8)
        return figures(p, 9)

    return figures(path[-1], 9), by_hand(corrected=True), by_hand(corrected=False)


@settles("rmsprop-is-ema-adagrad")
def test_rmsprop_is_ema_adagrad():
    # AdaGrad's step on an exponential average of the squares in place of their sum, without either's ε.
    gradients, alpha, rate = [1.0, 3.0, -2.0], 0.9, 0.01
    p = average = 0.0
    for g in gradients:
        average = alpha * average + (1 - alpha) * g * g
        p -= rate * g / math.sqrt(average)
    path, _ = walk(torch.optim.RMSprop, gradients, lr=rate, alpha=alpha, eps=0)
    return figures(p, 12), figures(path[-1], 12)


@settles("randn-float-size")
def test_randn_float_size():
    return "runs", outcome_of(lambda: torch.randn([4.0, 3]))


@settles("mse-broadcast")
def test_mse_broadcast():
    # Perfect predictions of two targets: the loss that is meant is 0.
    y = torch.tensor([4.0, 5.0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of the two shapes
        return 0.0, torch.nn.functional.mse_loss(y[:, None], y).item()


@settles("zero-grad-none")
def test_zero_grad_none():
    weight = torch.nn.Parameter(torch.ones(1000))
    weight.sum().backward()
    torch.optim.SGD([weight]).zero_grad(set_to_none=True)
    return 0, sum(p.grad.nbytes for p in [weight] if p.grad is not None)
