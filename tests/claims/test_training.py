"""Claims about the training loop."""

import torch
from claims.settled import figures, outcome_of, settles

from cs336kit import lm, measure


@settles("train-loop-order")
def test_loop_order():
    # Beside it, gradients from torch.autograd.grad, which keeps none from one step to the next; to six digits of fp32.
    w_loop = torch.tensor([1.0, -2.0], requires_grad=True)
    w_bare = w_loop.detach().clone().requires_grad_()
    optimizer, losses, by_hand = torch.optim.SGD([w_loop], lr=0.1), [], []
    for _ in range(5):
        loss = w_loop.square().sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(figures(loss.item(), 6))
        bare = w_bare.square().sum()
        (gradient,) = torch.autograd.grad(bare, w_bare)
        w_bare = (w_bare - 0.1 * gradient).detach().requires_grad_()
        by_hand.append(figures(bare.item(), 6))
    return losses, by_hand


@settles("train-linear-recovery")
def test_linear_recovery():
    # The lecture's model, a layer of width 16 and a head. Learned: a hundred batches of 16 bring the loss below a tenth.
    def learned(rate, D=16, B=16):
        torch.manual_seed(0)
        model, truth, losses = lm.Cruncher(D, 1), torch.arange(D, dtype=torch.float32), []
        optimizer = torch.optim.SGD(model.parameters(), lr=rate)
        for _ in range(100):
            x = torch.randn(B, D)
            loss = (model(x) - x @ truth).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses[-1] < losses[0] / 10

    return True, learned(0.01), learned(0.1)


@settles("train-signature")
def test_signature():
    def train(name, get_batch, D, num_layers, lr): ...

    return "runs", outcome_of(lambda: train("simple", None, D=16, num_layers=0, B=4, num_train_steps=10, lr=0.01))


@settles("training-step-6bp")
def test_step_6bp():
    B, D = 32, 64
    model = lm.Cruncher(D, 2)
    parameters = sum(p.numel() for p in model.parameters())

    def step(input_gradient):
        x = torch.randn(B, D, requires_grad=input_gradient)
        return measure.flops(lambda: model(x).square().mean().backward()).total

    return 6 * B * parameters, step(input_gradient=True), step(input_gradient=False)
