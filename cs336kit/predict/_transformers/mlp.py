"""The MLP as transformers writes it, and a mixture of such experts."""

from cs336kit.predict._transformers.modules import Modules
from cs336kit.predict.engine.operations import INDICES, Storage, Tensor


class MLP:
    """The MLP of an architecture, or its experts."""

    def __init__(self, modules: Modules):
        self.modules, self.b, self.c, self.how = modules, modules.b, modules.c, modules.how

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """The MLP or its experts, and the sum with `residual` if given."""
        b, c = self.b, self.c
        if c.experts:
            return self._mixture(x)
        if c.gated:
            gate = self.modules.linear("gate", x, c.d_ff, "mlp gate", name="gate", cast="mlp inputs")
            active = self._activation("activation", gate, "silu")
            up = self.modules.linear("up", x, c.d_ff, "mlp up", name="up", cast="mlp inputs")
            hidden = b.mul("product", active, up, name="mlp down's input")
            b.free(active, up)
        else:
            up = self.modules.linear("up", x, c.d_ff, "mlp up", name="gelu input", cast="mlp inputs")
            if self.how.inline_mlp:
                b.free(x)
            hidden = self._activation("activation", up, "mlp down's input")
        out = self.modules.linear("down", hidden, c.d_model, "mlp down")
        if residual is None:
            b.free(hidden)
            return self.modules.returned("mlp", "dropout", out, None, "")
        out = self.modules.returned("mlp", "dropout", out, residual, "attention norm")
        b.free(hidden)
        return out

    def _activation(self, place: str, x: Tensor, name: str) -> Tensor:
        """The function between the matrices; x is freed."""
        b, kind = self.b, self.c.mlp
        if kind in ("relu", "reglu"):
            y = b.pointwise(place, "relu", x, keeps="output", name=name)
        elif kind in ("gelu_new", "geglu_new") and not self.how.own_gelu:
            y = self._gelu_new(place, x, name)
        elif kind == "swiglu":
            y = b.pointwise(place, "silu", x, keeps="input", name=name)
        else:
            if kind == "gelu_new":
                b.free(b.made(f"{place}/written out", "temporary", (4, *x.shape), x.dtype))
            y = b.pointwise(place, "gelu", x, keeps="input", name=name)
            if kind == "gelu_new":  # four results are alive at once, in its own backward pass besides the gradient
                b.last.scratch = (x.bytes,) * 4
        b.free(x)
        return y

    def _gelu_new(self, place: str, x: Tensor, name: str) -> Tensor:
        """½ x (1 + tanh(√(2/π) (x + 0.044715 x³))), in Python's order: each result is freed once it is used."""
        b, kept = self.b, x.storage.name
        half = b.pointwise(f"{place}/half", "mul", x, name=kept)
        base = b.in_fp32("pow", place, x, name=kept)
        cube = b.power(f"{place}/cube", "pow", base, keeps="input")
        b.free(base, unless=x)
        small = b.pointwise(f"{place}/small", "mul", cube)
        b.free(cube)
        total = b.add(f"{place}/sum", x, small)
        b.free(small)
        inner = b.pointwise(f"{place}/inner", "mul", total)
        b.free(total)
        tanh = b.pointwise(f"{place}/tanh", "tanh", inner, keeps="output", name=kept)
        b.free(inner)
        one = b.passed(f"{place}/1 + tanh", "add", (tanh,), x.shape, name=kept)
        b.free(tanh)
        y = b.mul(f"{place}/product", half, one, name=name)
        b.free(half, one)
        return y

    def _mixture(self, x: Tensor) -> Tensor:
        """Tokens sorted by expert, and one grouped product for all, which autocast leaves in the weights' type."""
        b, c, (B, S, D) = self.b, self.c, x.shape
        N, k, F = B * S, c.experts_per_token, c.d_ff
        rows = N * k
        tokens = b.view(x, N, D)
        given = b.linear("router", tokens, c.experts, component="router", name="router scores", cast="mlp inputs")
        wide = b.cast("scores/fp32", given, "fp32")
        soft = b.softmax_in("fp32", "softmax", wide, name="routing weights")
        chosen = Storage(INDICES, 8 * rows)
        top = b.with_statistics("topk", "topk", (soft,), (N, k), (chosen,))
        b.last.watched = soft.bytes
        total = b.computed("sum", "sum", (top,), (N, 1), name="routing weights")
        # The division is in place, so it saves a copy of what it divides.
        before = Storage("routing weights", 4 * rows)
        shares = b.combined("normalize", "div", top, total, keeps=(total,))
        b.last.allocates += (before,)
        if shares.needs_gradient:
            b.last.keeps += (before,)
        b.free(wide, unless=given)
        b.free(soft, top, total)
        # Integers: the order of the experts and of the tokens, held in variables, and the tokens' rows; then all for histc.
        ids, order = (b.made(f"sort/{name}", "sort", (rows,), "int64", name=INDICES) for name in ("ids", "order"))
        own = b.made("sort/tokens", "rows", (rows,), "int64", name=INDICES)
        mine = b.index("tokens", tokens, own, (rows, D), name="mlp inputs")
        b.free(own)
        weight = b.index("weights", shares, order, (rows, 1), name="routing weights")
        counted = b.made("sort/fp32", "cast", (rows,), "fp32")
        kind = b.policy.weights
        mine = b.converted("cast", mine, kind, name="mlp inputs")
        both = self._grouped("gate and up", mine, 2 * F, ("mlp gate", "mlp up"), "gate and up")
        gate, up = b.chunk("halves", both)
        silu = b.pointwise("silu", "silu", gate, keeps="input", name="silu")
        hidden = b.mul("product", silu, up, name="mlp down's input")
        b.free(both, silu)
        out = self._grouped("down", hidden, D, ("mlp down",), "expert outputs")
        b.free(hidden)
        weighted = b.mul("weighted", out, weight)
        back = b.made("sort/back", "empty", (rows,), "int64", name=INDICES)
        b.free(b.made("sort/numbers", "temporary", (rows,), "int64"))
        ordered = b.index("original order", weighted, back, (rows, D), name="expert outputs")
        b.free(weighted)
        summed = b.computed("sum of experts", "sum", (ordered,), (N, D))
        result = b.view(b.converted("cast", summed, x.dtype), *x.shape)
        b.free(ids, order, counted, mine, out, weight, back, ordered, given, shares)
        return result

    def _grouped(self, place: str, x: Tensor, outputs: int, components: tuple[str, ...], name: str) -> Tensor:
        """One product for all experts: each row with the matrix of its expert."""
        b, (rows, inputs) = self.b, x.shape
        E = self.c.experts
        weights = [b.parameter(component, E, outputs // len(components), inputs) for component in components]
        flops = 2 * rows * inputs * outputs
        y = b.product(
            place, "matmul", (x, *weights), (rows, outputs), flops, component=components[0], keeps=(x,), name=name
        )
        for gradient in b.last.gradients:
            if gradient.of in weights[1:]:  # the product for the first gradient computes these, too
                gradient.flops = 0
        return y
