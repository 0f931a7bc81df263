"""What measure.graph reads, against torch's own hooks and against graphs small enough to know by heart."""

import enum

import pytest
import torch
from torch import nn

from cs336kit import measure
from cs336kit.lm import Scalar

pytestmark = pytest.mark.torch


def named(graph, name):
    (node,) = (node for node in graph.nodes if node.tensor == name)
    return node


def leaf_bytes(graph):
    storages = {saved.storage: saved for node in graph.nodes for saved in node.saved}
    return sum(saved.bytes for saved in storages.values() if saved.kind != "tensor")


def hooked_bytes(make, parameters):
    """Unique saved storages, seen by hooks while the graph is built: an independent instrument."""
    seen, skip = {}, {p.untyped_storage()._cdata for p in parameters}

    def pack(tensor):
        seen[tensor.untyped_storage()._cdata] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = make()
    return result, sum(t.untyped_storage().nbytes() for key, t in seen.items() if key not in skip)


class Block(nn.Module):
    def __init__(self, bias=True):
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(16), nn.Linear(16, 48, bias=bias), nn.Linear(16, 16)
        self.up, self.down, self.drop = nn.Linear(16, 64), nn.Linear(64, 16), nn.Dropout(0.5)

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).view(2, 8, 3, 2, 8).permute(2, 0, 3, 1, 4)
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.drop(self.out(y.transpose(1, 2).reshape(2, 8, 16)))
        return x + self.down(nn.functional.gelu(self.up(x)))


MODELS = {
    "mlp": lambda: nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4), nn.Softmax(-1)),
    "tied": lambda: nn.Sequential(*[nn.Linear(16, 16)] * 3),
    "block": Block,
    "frozen": lambda: nn.Sequential(nn.Linear(16, 32).requires_grad_(False), nn.Tanh(), nn.Linear(32, 4)),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_saved_bytes_equal_what_hooks_see(name, device):
    with torch.device(device):
        model, x = MODELS[name](), torch.randn(2, 8, 16)
    loss, expected = hooked_bytes(lambda: model(x).square().mean(), model.parameters())
    graph = measure.graph(loss, names=dict(model.named_parameters()))
    assert graph.saved_bytes == expected > 0


def test_the_lectures_graph_node_by_node():
    x, w = torch.tensor([1.0, 2.0, 3.0]), torch.ones(3, requires_grad=True)
    residual = x @ w - 5
    loss = residual**2 * 0.5
    graph = measure.graph(loss, names={"x": x, "w": w, "residual": residual})
    assert [node.name for node in graph.nodes] == [
        "AccumulateGrad",
        "DotBackward0",
        "SubBackward0",
        "PowBackward0",
        "MulBackward0",
    ]
    assert [node.kind for node in graph.nodes] == ["leaf"] + ["compute"] * 4
    assert graph.edges == ((0, 1), (1, 2), (2, 3), (3, 4))
    (saved,) = graph.nodes[1].saved
    assert (saved.tensor, saved.shape, saved.bytes, saved.kind) == ("x", (3,), 12, "tensor")
    assert named(graph, "residual").name == "SubBackward0" and named(graph, "w").shape == (3,)
    assert graph.nodes[3].saved[0].tensor == "residual"


def test_parameters_are_marked_and_counted_apart():
    linear = nn.Linear(3, 2, bias=False)
    h = linear(torch.ones(5, 3, requires_grad=True))
    graph = measure.graph((h * h).sum(), names={"weight": linear.weight})
    kinds = {saved.tensor: saved.kind for node in graph.nodes for saved in node.saved}
    assert kinds == {"weight": "parameter", "": "tensor"} or kinds == {"weight": "parameter", "": "leaf"}
    assert leaf_bytes(graph) == 4 * (3 * 2 + 5 * 3)
    assert graph.saved_bytes == 4 * 5 * 2  # h, once, although the product keeps it on both sides
    assert named(graph, "weight").kind == "parameter"


def test_a_frozen_parameter_is_recognized_with_and_without_its_name():
    linear, norm = nn.Linear(3, 2, bias=False).requires_grad_(False), nn.LayerNorm(2).requires_grad_(False)
    h = linear(torch.ones(5, 3, requires_grad=True)).sum()
    for names in (dict(linear.named_parameters()), None):
        graph = measure.graph(h, names=names)
        assert (graph.saved_bytes, leaf_bytes(graph)) == (0, 24)
    after = lambda: norm(linear(torch.ones(5, 3, requires_grad=True))).sum()  # noqa: E731
    assert measure.graph(after()).saved_bytes == measure.saved_activation_bytes(after).total > 0


def test_two_parameters_in_one_buffer_keep_their_names():
    buffer = torch.ones(2, 3)
    names = {"a": nn.Parameter(buffer[0]), "b": nn.Parameter(buffer[1])}
    graph = measure.graph((names["a"] * names["b"]).sum(), names=names)
    assert [node.tensor for node in graph.nodes if node.kind == "parameter"] == ["a", "b"]
    assert named(graph, "b").shape == (3,)


def test_views_share_one_storage():
    x = torch.ones(4, 4, requires_grad=True)
    h = x.exp()
    graph = measure.graph((h[:2] * h[2:]).sum())
    saved = [s for node in graph.nodes for s in node.saved]
    assert len(saved) == 3 and len({s.storage for s in saved}) == 1
    assert graph.saved_bytes == 64 and graph.nodes[-2].bytes == 64


def test_backward_frees_what_was_saved():
    x = torch.ones(3, requires_grad=True)
    loss = x.exp().sum()
    assert measure.graph(loss).saved_bytes == 12
    loss.backward()
    graph = measure.graph(loss)
    assert graph.saved_bytes == 0
    assert [node.freed for node in graph.nodes] == [False, True, False]


def test_saved_lists_and_custom_functions_are_read():
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x, x + 1)
            return 2 * x

        @staticmethod
        def backward(ctx, grad):
            return 2 * grad

    x = torch.ones(4, requires_grad=True)
    graph = measure.graph(Double.apply(x)[torch.tensor([0, 1])].sum())
    assert [node.bytes for node in graph.nodes] == [0, 32, 16, 0]
    assert (graph.saved_bytes, leaf_bytes(graph)) == (16 + 16, 16)


def test_a_tensor_changed_in_place_is_not_called_freed():
    x = torch.ones(3, requires_grad=True)
    h = x.exp()
    loss = (h * h).sum()
    h.add_(1)
    with pytest.raises(RuntimeError, match="inplace"):
        measure.graph(loss)


def test_long_chains_need_no_recursion():
    x = torch.ones(1, requires_grad=True)
    for _ in range(3000):
        x = x + 1
    assert len(measure.graph(x).nodes) == 3001


def test_the_scalar_engine_gives_the_same_structure():
    x, w = Scalar(2.0, name="x"), Scalar(3.0, name="w")
    y = x * w
    loss = y * y
    loss.backward()
    graph = measure.graph(loss)
    assert [(n.tensor, n.name, n.kind, n.value, n.grad) for n in graph.nodes] == [
        ("x", "leaf", "leaf", 2.0, 36.0),
        ("w", "leaf", "leaf", 3.0, 24.0),
        ("", "×", "compute", 6.0, 12.0),
        ("", "×", "compute", 36.0, 1.0),
    ]
    assert graph.edges == ((0, 2), (1, 2), (2, 3), (2, 3))
    assert graph.saved_bytes == 32 and graph.nodes[2].saved[0].name == "slope for x"
    assert not any(node.freed for node in graph.nodes)
    assert [saved.storage for node in graph.nodes for saved in node.saved] == [0, 1, 2, 3]


def test_constants_of_the_scalar_engine_are_marked():
    assert [n.kind for n in measure.graph(Scalar(2.0) + 1).nodes] == ["leaf", "constant", "compute"]


@pytest.mark.parametrize("tensor", [torch.ones(2), torch.ones(2, requires_grad=True)])
def test_a_tensor_without_a_graph_is_refused(tensor):
    with pytest.raises(ValueError, match=r"has no graph: it (is a leaf|does not require)"):
        measure.graph(tensor)


def test_anything_else_is_refused():
    with pytest.raises(TypeError, match=r"lm\.Scalar; you gave a float"):
        measure.graph(3.0)
    # A Python object with a value is not yet a node of a graph.
    with pytest.raises(TypeError, match=r"lm\.Scalar; you gave a Enum"):
        measure.graph(enum.Enum("Enum", "one").one)
