"""Reverse-mode automatic differentiation on single numbers: the ideas of autograd without its speed."""

import itertools
import math

_created = itertools.count()  # a result is always created after its parents: creation order is a topological order


class Scalar:
    """A number that remembers which numbers it was computed from.

    `parents` are those numbers and `slopes` the local derivatives, one per parent, computed in the forward pass.
    As in PyTorch, gradients of leaves accumulate over calls of `backward`; set `grad = 0.0` in between.
    Left out: tensors, infinities, second derivatives, freeing the graph. Source: Baydin et al. (2018), section 3.2.
    """

    def __init__(
        self, value: float, *, parents: "tuple[Scalar, ...]" = (), slopes: tuple[float, ...] = (), operation: str = "leaf",
        name: str = "",
    ):  # fmt: skip
        self.value, self.grad = float(value), 0.0
        self.parents, self.slopes, self.operation, self.name = parents, slopes, operation, name
        self._index = next(_created)

    def backward(self) -> None:
        """Add d self / d node to `node.grad` for every leaf, and set it for every computed node."""
        nodes = self._ancestors()
        for node in nodes:
            if node.parents:
                node.grad = 0.0
        self.grad += 1.0
        for node in sorted(nodes, key=lambda node: node._index, reverse=True):
            for parent, slope in zip(node.parents, node.slopes, strict=True):
                parent.grad += slope * node.grad  # += because another branch may have been here already

    def _ancestors(self) -> "set[Scalar]":
        found, waiting = {self}, [self]
        while waiting:
            for parent in waiting.pop().parents:
                if parent not in found:
                    found.add(parent)
                    waiting.append(parent)
        return found

    def __add__(self, other: "Scalar | float") -> "Scalar":
        other = _scalar(other)
        return Scalar(self.value + other.value, parents=(self, other), slopes=(1.0, 1.0), operation="+")

    def __mul__(self, other: "Scalar | float") -> "Scalar":
        other = _scalar(other)
        return Scalar(self.value * other.value, parents=(self, other), slopes=(other.value, self.value), operation="×")

    def __pow__(self, power: float) -> "Scalar":
        if not isinstance(power, int | float):
            raise TypeError(f"A Scalar is raised to a plain number only; you gave {power!r}. Use (y * x.log()).exp().")
        slope = power * self.value ** (power - 1) if power else 0.0  # x⁰ is flat, at 0 too
        return Scalar(self.value**power, parents=(self,), slopes=(slope,), operation=f"^{power}")

    def exp(self) -> "Scalar":
        result = math.exp(self.value)
        return Scalar(result, parents=(self,), slopes=(result,), operation="exp")

    def log(self) -> "Scalar":
        return Scalar(math.log(self.value), parents=(self,), slopes=(1 / self.value,), operation="log")

    def sin(self) -> "Scalar":
        return Scalar(math.sin(self.value), parents=(self,), slopes=(math.cos(self.value),), operation="sin")

    def relu(self) -> "Scalar":
        return Scalar(max(self.value, 0.0), parents=(self,), slopes=(float(self.value > 0),), operation="relu")

    def sigmoid(self) -> "Scalar":
        result = 1 / (1 + math.exp(-self.value)) if self.value > -700 else 0.0  # exp overflows above 709
        return Scalar(result, parents=(self,), slopes=(result * (1 - result),), operation="sigmoid")

    def __neg__(self) -> "Scalar":
        return self * -1.0

    def __sub__(self, other: "Scalar | float") -> "Scalar":
        other = _scalar(other)
        return Scalar(self.value - other.value, parents=(self, other), slopes=(1.0, -1.0), operation="−")

    def __truediv__(self, other: "Scalar | float") -> "Scalar":
        return self * _scalar(other) ** -1

    def __rsub__(self, other: "Scalar | float") -> "Scalar":
        return _scalar(other) - self

    def __rtruediv__(self, other: "Scalar | float") -> "Scalar":
        return _scalar(other) / self

    __radd__, __rmul__ = __add__, __mul__

    def __repr__(self) -> str:
        label = self.name or self.operation
        return f"Scalar({label}: value={self.value:.6g}, grad={self.grad:.6g})"


def _scalar(value: "Scalar | float") -> Scalar:
    return value if isinstance(value, Scalar) else Scalar(value, operation="constant")
