import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from cs336kit.measure import step_memory

pytestmark = pytest.mark.torch


class Stack(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(8, 8, bias=False) for _ in range(2))

    def forward(self, x):
        for block in self.blocks:
            x = block(x).exp()
        return x.sum()


def test_stages_come_in_the_order_of_the_step_and_end_at_nothing():
    model, x = Stack(), torch.randn(4, 8, requires_grad=True)
    result = step_memory(model, lambda: model(x), torch.optim.SGD(model.parameters()))
    names = [name for name, _, _ in result.stages]
    assert names == [
        "embedding",
        "block 1 forward",
        "block 2 forward",
        "loss",
        "head backward",
        "block 2 backward",
        "block 1 backward",
        "backward",
        "step",
    ]
    live = {name: size for name, size, _ in result.stages}
    # A product of (4, 8) by (8, 8), and an exponential that autograd keeps; then a loss of 4 bytes.
    assert live["embedding"] == 0 and live["block 1 forward"] == 128 and live["block 2 forward"] == 2 * 128
    assert live["loss"] == 2 * 128 + 4
    assert live["backward"] == 2 * 256 + 128 + 4
    assert live["step"] == 128
    # The last product: the gradients of two weights, of what the first block makes and takes, the loss and its own.
    assert (result.peak_bytes, result.peak_operator) == (2 * 256 + 2 * 128 + 2 * 4, "aten.mm.default")
    # Before the first operator there is no point.
    assert result.stages[0] == ("embedding", 0, -1)
    assert [(result.points[index].operator, result.points[index].live_bytes) for _, _, index in result.stages[1:4]] == [
        ("aten.mm.default", 128), ("aten.mm.default", 2 * 128), ("aten.sum.default", 2 * 128 + 4)
    ]  # fmt: skip


def test_a_step_rounds_no_bytes():
    model, x, kept = Stack(), torch.randn(4, 8), []

    def loss():
        kept.append(torch.ones(3, dtype=torch.uint8))
        return model(x)

    assert step_memory(model, loss, torch.optim.SGD(model.parameters())).stages[-1][:2] == ("step", 3)


def test_a_block_whose_input_needs_no_gradient_has_no_mark_in_backward():
    model, x = Stack(), torch.randn(4, 8)
    result = step_memory(model, lambda: model(x), torch.optim.SGD(model.parameters()))
    names = [name for name, _, _ in result.stages]
    assert "block 2 backward" in names and "block 1 backward" not in names


@pytest.mark.parametrize("reentrant", [False, True])
def test_what_checkpointing_repeats_is_marked_once(reentrant):
    model, x = Stack(), torch.randn(4, 8, requires_grad=True)

    def loss():
        y = x
        for block in model.blocks:
            y = checkpoint(block, y, use_reentrant=reentrant).exp()
        return y.sum()

    result = step_memory(model, loss, torch.optim.SGD(model.parameters()))
    names = [name for name, _, _ in result.stages]
    # A reentrant checkpoint runs the last block without a graph, so its output has no gradient that ends the head.
    assert len(names) == len({*names}) == 9 - reentrant
    # In forward nothing but what an exponential keeps is alive.
    live = {name: size for name, size, _ in result.stages}
    assert (live["embedding"], live["block 1 forward"], live["loss"]) == (0, 128, 2 * 128 + 4)
    # What was computed again is gone: the loss and its gradient, the gradients of the weights so far and of the block's
    # input, and in front of the second block that input.
    assert (live["block 2 backward"], live["block 1 backward"]) == (2 * 4 + 256 + 2 * 128, 2 * 4 + 2 * 256 + 128)


def test_blocks_may_be_called_by_keyword_and_return_several_values():
    class Block(nn.Linear):
        def forward(self, hidden, scale=None):
            return super().forward(hidden), scale

    class Other(Stack):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList(Block(8, 8, bias=False) for _ in range(2))

        def forward(self, x):
            for block in self.blocks:
                x = block(hidden=x)[0].exp()
            return x.sum()

    x, borders = torch.randn(4, 8, requires_grad=True), []
    for kind in (Stack, Other):
        model = kind()
        borders.append(step_memory(model, lambda: model(x), torch.optim.SGD(model.parameters())).stages)  # noqa: B023
        x.grad = None
    assert borders[0] == borders[1] and len(borders[0]) == 9


def test_a_model_without_blocks_is_refused():
    model = nn.Linear(2, 1)
    with pytest.raises(ValueError, match=r"there are none: use measure.memory_timeline"):
        step_memory(model, lambda: model(torch.ones(1, 2)).sum(), torch.optim.SGD(model.parameters()))


def test_old_gradients_are_refused():
    model, x = Stack(), torch.randn(4, 8)
    model(x).backward()
    model.blocks[0].weight.grad = None  # one is enough
    with pytest.raises(ValueError, match=r"call model.zero_grad\(\) first"):
        step_memory(model, lambda: model(x), torch.optim.SGD(model.parameters()))


def test_the_hooks_are_removed_when_the_loss_fails():
    model = Stack()
    with pytest.raises(ZeroDivisionError):
        step_memory(model, lambda: 1 / 0, torch.optim.SGD(model.parameters()))
    assert not any(block._forward_hooks or block._forward_pre_hooks for block in model.blocks)
