"""The parts of attention, MLP and block: linear layers, dropout, norms, capped scores."""

from cs336kit.predict._transformers.writings import Writing
from cs336kit.predict.engine.builder import Builder
from cs336kit.predict.engine.operations import Tensor
from cs336kit.predict.transformer import TransformerConfig


class Modules:
    """The small modules of an architecture."""

    def __init__(self, b: Builder, config: TransformerConfig, how: Writing):
        self.b, self.c, self.how = b, config, how

    def dropped(self, at: str, place: str, x: Tensor, mask: str) -> Tensor:
        """Dropout, if this architecture has it."""
        return self.b.dropout(place, x, self.c.dropout if at in self.how.dropouts else 0.0, mask=mask)

    def returned(self, at: str, place: str, x: Tensor, residual: Tensor | None, name: str) -> Tensor:
        """What attention or MLP returns: x after dropout, and its sum with a residual if it gets one."""
        b, mask = self.b, f"{at} dropout mask"
        if residual is None:
            return self.dropped(at, place, x, mask)
        b.hold(x)  # in a variable until the sum is there
        dropped = self.dropped(at, place, x, mask)
        y = b.add(f"{at} sum", residual, dropped, name=name)
        b.free(x, dropped)
        return y

    def linear(self, place: str, x: Tensor, outputs: int, component: str, *, name: str = "", cast: str = "") -> Tensor:
        """A linear layer of a block; the last word of `component` names its matrix."""
        bias = self.c.has_bias(component.split()[-1])
        cached = not self.how.transposes
        return self.b.linear(place, x, outputs, component=component, bias=bias, name=name, cast=cast, cached=cached)

    def norm(self, place: str, x: Tensor, *, name: str, component: str = "norms") -> Tensor:
        """A norm over the last axis, as the module writes it; the caller frees x."""
        b, c, kind = self.b, self.c, self.how.norm
        with b.within("", part="norms"):
            if kind == "torch":
                return b.layer_norm(place, x, component=component, shift=c.norm_bias, name=name, kept_as=place)
            if kind == "wide":
                return b.rms_norm(place, x, component=component, scale=x.shape[-1:], name=name, kept_as=place)
            return self._fp32_norm(place, x, kind, component, name)

    def _fp32_norm(self, place: str, x: Tensor, kind: str, component: str, name: str) -> Tensor:
        b, D = self.b, x.shape[-1]
        weight = b.parameter(component, D)
        wide = b.cast(f"{place}/fp32", x, "fp32", name=place)
        made = [] if wide is x else [wide]
        few = (*x.shape[:-1], 1)
        squared = wide
        if kind == "centered":
            mean = b.computed(f"{place}/mean of x", "mean", (wide,), few)
            # The module subtracts the mean twice, once for the variance and once for the result.
            squared = b.add(f"{place}/center for variance", wide, mean, name=place)
        square = b.power(f"{place}/square", "square", squared, keeps="input")
        b.free(squared, unless=wide)
        variance = b.computed(f"{place}/mean", "mean", (square,), few)
        b.free(square)
        shifted = b.passed(f"{place}/add eps", "add", (variance,), few)
        held = [variance]  # in variables until the norm returns, but where the variance is part of a line
        if kind == "offset":
            b.free(held.pop())
        inverse = b.pointwise(f"{place}/rsqrt", "rsqrt", shifted, keeps="output", name=place)
        centered = wide
        if kind == "centered":
            centered = b.add(f"{place}/center", wide, mean, name=place)
            made.append(centered)
            held.append(mean)
        normed = b.mul(f"{place}/normalize", centered, inverse, name=place)
        b.free(shifted, inverse, *made)
        factor = weight
        if kind == "narrow":
            narrow = b.cast(f"{place}/cast", normed, x.dtype, name=place)
            result = b.mul(f"{place}/scale", narrow, weight, name=name)
            b.free(normed, *held)
            b.free(narrow, unless=normed)
            return result
        if kind in ("offset", "centered"):
            factor = b.cast(f"{place}/weight", weight, "fp32", name=f"copies of {component}")
        if kind == "offset":
            raised = b.passed(f"{place}/1 + weight", "add", (factor,), (D,), name=f"copies of {component}")
            b.free(factor, unless=weight)
            factor = raised
        scaled = b.mul(f"{place}/scale", normed, factor, name=name)
        b.free(normed, factor, unless=weight)
        result = b.converted(f"{place}/back", scaled, x.dtype, name=name)
        b.free(*held)
        return result
