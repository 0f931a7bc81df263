"""Read the graph of a result: which operations computed it, and which bytes each of them saves for backward."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from cs336kit import _torch


@dataclass(frozen=True)
class Saved:
    """One tensor or number that a node saves for backward."""

    #: the operand's name in the operation: "self", "mat2", "result"
    name: str
    #: the tensor's own name, if `names` has one
    tensor: str
    shape: tuple[int, ...]
    #: size of its whole storage
    bytes: int
    #: number of the storage in this graph: equal numbers share memory
    storage: int
    #: "parameter" (an nn.Parameter), "leaf" (another tensor that collects a gradient) or "tensor"
    kind: str
    #: for a scalar only: the local derivative
    value: float | None = None


@dataclass(frozen=True)
class Node:
    """One operation, or one leaf that collects a gradient."""

    index: int
    #: torch's own name ("MulBackward0"), or the operation of a scalar
    name: str
    #: the tensor's own name, if it has one
    tensor: str
    #: "parameter", "leaf", "constant" or "compute"
    kind: str
    shape: tuple[int, ...]
    saved: tuple[Saved, ...] = ()
    #: whether backward has already freed what was saved
    freed: bool = False
    #: for a scalar only
    value: float | None = None
    grad: float | None = None

    @property
    def bytes(self) -> int:
        """Bytes of the distinct storages that this node saves, including parameters."""
        return sum({saved.storage: saved.bytes for saved in self.saved}.values())


@dataclass(frozen=True)
class Graph:
    """Nodes in an order in which they can be computed, and edges (from, to) in the forward direction."""

    nodes: tuple[Node, ...]
    edges: tuple[tuple[int, int], ...]

    @property
    def saved_bytes(self) -> int:
        """Bytes saved for backward, each storage once, without parameters and other leaves, which exist anyway."""
        storages = {saved.storage: saved for node in self.nodes for saved in node.saved}
        return sum(saved.bytes for saved in storages.values() if saved.kind == "tensor")


def graph(result: Any, *, names: Mapping[str, torch.Tensor] | None = None) -> Graph:
    """The computation graph that ends in `result`: a torch tensor, or a scalar with value, grad and parents.

    names: tensors to recognize, for example {"x": x, **dict(model.named_parameters())}: leaves, computed tensors, and
    saved tensors, which are looked up by their storage. A scalar saves one slope of 8 bytes per parent.
    An input that needs no gradient has no node in torch. With activation checkpointing, reading the graph recomputes.
    Errors: TypeError for anything else; ValueError for a tensor without a graph.
    """
    if isinstance(result, torch.Tensor):
        if result.grad_fn is None:
            state = "it is a leaf" if result.requires_grad else "it does not require a gradient"
            raise ValueError(
                f"This tensor of shape {tuple(result.shape)} has no graph: {state}. Give a computed result."
            )
        return _Reader(dict(names or {})).read(result.grad_fn)
    if all(hasattr(result, attribute) for attribute in ("value", "grad", "parents", "slopes")):
        return _scalar_graph(result)
    raise TypeError(f"A graph belongs to a torch tensor or to a lm.Scalar; you gave a {type(result).__name__}.")


class _Reader:
    """Walks torch's backward nodes and holds every storage meanwhile, because addresses are reused."""

    def __init__(self, names: dict[str, torch.Tensor]):
        self.held: list = [*names.values(), *(tensor.grad_fn for tensor in names.values())]
        self.by_node = {id(t.grad_fn): name for name, t in names.items() if t.grad_fn is not None}
        self.by_leaf = {id(t): name for name, t in names.items() if t.is_leaf}
        self.by_storage = {_torch.storage_key(t): name for name, t in reversed(names.items())}
        self.kind = {_torch.storage_key(t): "parameter" for t in names.values() if isinstance(t, torch.nn.Parameter)}
        self.number: dict[int, int] = {}

    def read(self, root: Any) -> Graph:
        order = _forward_order(root, _inputs)
        for node in order:
            if hasattr(node, "variable"):
                self.held.append(node.variable)
                self.kind[_torch.storage_key(node.variable)] = _leaf_kind(node.variable)
        index = {id(node): i for i, node in enumerate(order)}
        edges = [(index[id(source)], index[id(node)]) for node in order for source in _inputs(node)]
        return Graph(tuple(self._node(i, node) for i, node in enumerate(order)), tuple(edges))

    def _node(self, index: int, node: Any) -> Node:
        name = node.name().removeprefix("torch::autograd::")
        if hasattr(node, "variable"):
            leaf = node.variable
            # Two parameters may share one buffer.
            known = self.by_leaf.get(id(leaf)) or self.by_storage.get(_torch.storage_key(leaf), "")
            return Node(index, name, known, _leaf_kind(leaf), tuple(leaf.shape))
        try:
            saved, freed = tuple(self._saved(name, tensor) for name, tensor in _torch.node_saved(node)), False
        except RuntimeError as error:
            if "freed" not in str(error):
                raise
            saved, freed = (), True
        return Node(index, name, self.by_node.get(id(node), ""), "compute", _torch.node_shape(node), saved, freed)

    def _saved(self, name: str, tensor: torch.Tensor) -> Saved:
        self.held.append(tensor)
        key = _torch.storage_key(tensor)
        number = self.number.setdefault(key, len(self.number))
        size = tensor.untyped_storage().nbytes()
        owner = tensor if tensor._base is None else tensor._base
        if isinstance(owner, torch.nn.Parameter):  # one that is frozen has no node
            self.kind.setdefault(key, "parameter")
        kind = self.kind.get(key, "tensor")
        return Saved(name, self.by_storage.get(key, ""), tuple(tensor.shape), size, number, kind)


def _leaf_kind(tensor: torch.Tensor) -> str:
    return "parameter" if isinstance(tensor, torch.nn.Parameter) else "leaf"


def _inputs(node: Any) -> list:
    return [source for source, _ in node.next_functions if source is not None]


def _scalar_graph(root: Any) -> Graph:
    order = _forward_order(root, lambda node: node.parents)
    index = {id(node): i for i, node in enumerate(order)}
    nodes, stored = [], 0
    for i, node in enumerate(order):
        saved = []
        for parent, slope in zip(node.parents, node.slopes, strict=True):
            saved.append(Saved(f"slope for {parent.name or parent.operation}", "", (), 8, stored, "tensor", slope))
            stored += 1
        kind = "compute" if node.parents else "constant" if node.operation == "constant" else "leaf"
        nodes.append(Node(i, node.operation, node.name, kind, (), tuple(saved), False, node.value, node.grad))
    edges = [(index[id(parent)], index[id(node)]) for node in order for parent in node.parents]
    return Graph(tuple(nodes), tuple(edges))


def _forward_order(root: Any, parents: Callable) -> list:
    """Every node once, after all nodes that it was computed from (depth first, without recursion)."""
    order, seen, path = [], {id(root)}, [(root, iter(parents(root)))]
    held = [root]  # an id is only an identity while its object lives
    while path:
        node, waiting = path[-1]
        following = next((parent for parent in waiting if id(parent) not in seen), None)
        if following is None:
            order.append(node)
            path.pop()
        else:
            seen.add(id(following))
            held.append(following)
            path.append((following, iter(parents(following))))
    return order
