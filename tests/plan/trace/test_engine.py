"""The backward pass that calls nodes one by one, beside torch's own engine: gradients, and the bytes of every segment."""

import contextlib

import pytest
import torch
import transformers
from torch import nn

from benchmarks import traced as rows
from cs336plan.trace import build, counting, cuda, engine
from cs336plan.trace.kernels import kernels

pytestmark = pytest.mark.torch


class Halved(torch.autograd.Function):
    """Two results, of which nobody may use the second."""

    @staticmethod
    def forward(ctx, x, scale, y):
        ctx.save_for_backward(x)
        return x * scale, y * scale

    @staticmethod
    def backward(ctx, first, second):
        (x,) = ctx.saved_tensors
        return 0.5 * first * x / x, None, 0.5 * second


class Mixed(nn.Module):
    """Shared weights, broadcasting, a cast, an operation in place, results that nobody uses, and a function of its own."""

    def __init__(self):
        super().__init__()
        self.shared, self.row = nn.Linear(4, 4), nn.Parameter(torch.randn(4))
        self.column, self.wide = nn.Parameter(torch.randn(3, 1)), nn.Parameter(torch.randn(4, 6).double())
        self.other, self.unused = nn.Parameter(torch.randn(3, 4)), nn.Parameter(torch.randn(2))
        self.single = nn.Parameter(torch.tensor(0.7))

    def forward(self, x):
        y = self.shared(torch.tanh(self.shared(x))) * self.column * self.single + self.row
        y, _ = Halved.apply(y, 0.5, self.other)
        y = y.clone()
        y[:, 1] *= 3.0
        largest, _ = y.topk(2, dim=-1)
        return (y.double() @ self.wide).sum() + largest.sum() + y.split(2, dim=-1)[0].float().mean()


def test_gradients_are_those_of_torchs_engine():
    torch.manual_seed(0)
    model, x = Mixed(), torch.randn(3, 4)
    model(x).backward()
    expected = {name: p.grad for name, p in model.named_parameters()}
    model.zero_grad(set_to_none=True)
    ran = []
    value = model(x)
    stops = {value.grad_fn._sequence_nr(): lambda: ran.append("the sum")}
    held = [value]
    del value
    engine.backward(held, stops)
    assert ran == ["the sum"] and not held
    for name, parameter in model.named_parameters():
        if expected[name] is None or name == "other":
            # Torch's engine gives zeros to what it materializes.
            assert parameter.grad is None or not parameter.grad.any(), name
        else:
            assert torch.allclose(parameter.grad, expected[name]), name
    model.wide.grad = None
    engine.backward([model(x)], {})  # once more, beside gradients that are there
    assert torch.allclose(model.row.grad, 2 * expected["row"])
    assert torch.allclose(model.wide.grad, expected["wide"])


def segments(name, precision, checkpointing, faked):
    """Bytes of every segment of both passes, and the layers' own loss."""
    how = {"precision": precision, "attention": "sdpa", "checkpointing": checkpointing}
    config = build.configuration(build.read(rows.small(name)).values)
    with build.fake():
        model, _ = build.model_of(config, **how)
        tokens = counting.ids(2, 24)

        def loss():
            with counting._cast(precision, model):
                return model(input_ids=tokens, labels=tokens, use_cache=False).loss

        with kernels(model):
            found = counting._peaks(build.layers_of(model, config) or (), loss, faked=faked)
        strides = {
            n: (p.grad.shape, p.grad.stride(), p.grad.dtype) for n, p in model.named_parameters() if p.grad is not None
        }
    return found, strides


@pytest.mark.parametrize(
    "precision, checkpointing", [pytest.param("bf16", False, marks=pytest.mark.proof), ("autocast", True)]
)
@pytest.mark.parametrize(
    "name", [each if each == "gpt2" else pytest.param(each, marks=pytest.mark.proof) for each in rows.ROWS]
)
def test_every_segment_has_the_bytes_of_torchs_engine(name, precision, checkpointing, monkeypatch):
    transformers.logging.set_verbosity_error()
    monkeypatch.setattr(cuda, "Workspaces", contextlib.nullcontext)  # what kernels have for a moment is CUDA's alone
    theirs, ours = (segments(name, precision, checkpointing, faked) for faked in (False, True))
    if name == "recurrent_gemma":  # its scan writes into views, of which some are freed later here
        assert all(ours[0][place] >= theirs[0][place] for place in theirs[0]) and ours[1] == theirs[1]
    else:
        assert ours == theirs
