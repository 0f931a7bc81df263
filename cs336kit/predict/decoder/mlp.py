"""The MLP of a block as a program, and a mixture of such experts."""

from contextlib import nullcontext
from itertools import pairwise

from cs336kit.predict.decoder.blocks import ExpertsKind, MLPKind
from cs336kit.predict.decoder.norms import norm
from cs336kit.predict.engine.builder import Builder
from cs336kit.predict.engine.operations import INDICES, Leaf, Storage, Tensor


class MLP:
    """What `lm` builds as the MLP of a layer, on tokens."""

    def __init__(self, b: Builder, kind: MLPKind):
        self.b, self.c = b, kind

    def __call__(self, x: Tensor) -> Tensor:
        b, c = self.b, self.c

        def linear(name: str, kept: str) -> Tensor:
            return b.linear(
                name, x, c.width, component=f"{c.component} {name}", bias=name in c.biases, name=kept, cast="mlp inputs"
            )

        if c.gated:
            gate = linear("gate", "gate")
            acted = _activated(b, c.activation, gate)
            up = linear("up", "up")
            if c.activation == "swiglu_clipped":
                up = _clipped(b, up)
            hidden = b.mul("product", acted, up, name="mlp down's input")
            b.free(acted, up)
        else:
            up = linear("up", "gelu input" if "gelu" in c.activation else "up")
            hidden = _activated(b, c.activation, up, name="mlp down's input")
        inner = hidden
        norms: list[Leaf] = []  # which the module has after its matrices
        if c.inner_norm is not None:
            with b.aside(norms):
                inner = norm(b, "inner norm", hidden, c.inner_norm, name="mlp down's input", kept_as="mlp inner norm")
        out = b.linear("down", inner, c.d_model, component=f"{c.component} down", bias="down" in c.biases)
        b.leaves += norms
        if len(out.shape) == 3:
            out = b.ranks.leave(out)
        b.free(inner, unless=hidden)
        b.free(hidden)
        return b.dropout("dropout", out, c.dropout, mask="mlp dropout mask")


class Experts:
    """What `lm` builds for the experts of a layer, on N tokens. `apart`: each is listed by itself, even if others are like it."""

    def __init__(self, b: Builder, kind: ExpertsKind, N: int, *, apart: bool):
        self.b, self.c, self.N, self.apart = b, kind, N, apart
        self.D, self.expert = kind.one.d_model, MLP(b, kind.one)

    def __call__(self, x: Tensor) -> Tensor:
        mixed = self.mixture(x)
        if self.c.shared is None:
            return mixed
        with self.b.within("shared"):
            shared = self._shared(self.c.shared, x)
        total = self.b.add("shared sum", mixed, shared)
        self.b.free(mixed, shared)
        return total

    def _shared(self, kind: MLPKind, x: Tensor) -> Tensor:
        """The shared expert, which every token visits, times a weight of its own if the configuration says so."""
        b, shared = self.b, MLP(self.b, kind)(x)
        if not self.c.shared_gate:
            return shared
        score = b.linear("weight", x, 1, component="shared weight", name="shared weight", cast="mlp inputs")
        weight = b.pointwise("sigmoid", "sigmoid", score, saves="output", name="shared weight")
        b.free(score)
        weighted = b.mul("weighted", shared, weight, name="shared expert")
        b.free(shared, weight)
        return weighted

    def mixture(self, x: Tensor) -> Tensor:
        """The router, then one expert after another on the tokens that chose it; their results are added up."""
        b, c = self.b, self.c
        N, k = self.N, c.per_token
        # Where others read x, too (the residual sum behind a norm, a shared expert), this view's gradients are summed before.
        tokens = b.passed("tokens", "view", (x,), (N, self.D), alias=True)
        given = b.linear(
            "router", tokens, c.count, component="router", bias=c.router_bias, name="router scores", cast="mlp inputs"
        )
        chosen = Storage(INDICES, 8 * N * k)
        scores = b.with_statistics("topk", "topk", (given,), (N, k), (chosen,), name="routing scores")
        b.last.dispatch_workspace = given.bytes
        indices = Tensor((N, k), "int64", chosen, False)
        b.hold(indices)
        b.free(given)
        wide = b.cast("scores/fp32", scores, "fp32")
        soft = b.softmax_in("fp32", "softmax", wide, name="routing weights")
        b.free(wide, unless=scores)
        weights = b.converted("weights/cast", soft, x.dtype, name="routing weights")
        held: tuple[Tensor, ...] = ()
        if b.layout.ep > 1:
            total = self._dispatched(tokens, weights)
        else:
            total = b.made("zeros", "full", (N, self.D), x.dtype, name="sum of experts")
            for count, sizes in self._groups(N * k):
                with b.repeat("experts", count) if count > 1 else nullcontext():
                    total, held = self._visit(tokens, weights, total, sizes, held)
        b.free(*held, scores, indices, weights)
        return b.ranks.leave(b.view(total, *x.shape))

    def _dispatched(self, tokens: Tensor, weights: Tensor) -> Tensor:
        """Rows go to the ranks of their experts, evenly shared, and come back; the experts of a rank are one matrix product."""
        b, c = self.b, self.c
        N, rows = self.N, self.N * c.per_token
        order = b.made("order", "sort", (rows,), "int64", name=INDICES)
        mine = b.index("dispatch/rows", tokens, order, (rows, self.D), name="dispatched tokens")
        given = b.ranks.exchange("dispatch", mine, experts=c.per_token, name="mlp inputs")
        b.free(mine)
        b.stacked = c.count // b.layout.ep
        with b.within("expert"):
            out = self.expert(given)
        b.stacked = 0
        b.free(given)
        back = b.ranks.exchange("combine", out, experts=c.per_token, name="expert outputs")
        b.free(out)
        weight = b.index("weights", weights, order, (rows, 1), name="routing weights")
        part = b.mul("weighted", back, weight, name="expert outputs")
        b.free(back, weight)
        total = b.made("zeros", "full", (N, self.D), tokens.dtype, name="sum of experts")
        total = b.index_add("sum", total, order, part)
        b.free(order, part)
        return total

    def _groups(self, visits: int) -> list[tuple[int, int]]:
        """(how many experts, tokens of each) in order. The first and the last are listed alone, and so is any whose number of
        tokens differs from that of the one before: what they allocate and free differs.
        """
        sizes = self.c.routing
        if sizes is None:
            share, more = divmod(visits, self.c.count)
            sizes = (share + 1,) * more + (share,) * (self.c.count - more)
        if self.apart:
            return [(1, size) for size in sizes]
        groups = [(1, sizes[0])]
        repeating = False
        for before, size in pairwise(sizes[:-1]):
            if size == before and repeating:
                groups[-1] = (groups[-1][0] + 1, size)
            else:
                groups.append((1, size))
                repeating = size == before
        return [*groups, (1, sizes[-1])]

    def _visit(
        self, tokens: Tensor, weights: Tensor, total: Tensor, n: int, held: tuple[Tensor, ...]
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """One expert on its n tokens. The caller's variables of the expert before live until they are reassigned."""
        b, c = self.b, self.c
        N, k = self.N, c.per_token
        with b.within("expert"):
            equal = b.made("equal", "compare", (N, k), "int8")
            rows = b.made("nonzero", "nonzero", (2, n), "int64", name=INDICES)
            b.free(equal, *held[:1])
            mine = b.index("tokens", tokens, rows, (n, self.D), name="mlp inputs")
            out = self.expert(mine)
            b.free(mine)
            weight = b.index("weights", weights, rows, (n, 1), name="routing weights")
            out.storage.name = "expert outputs"
            part = b.mul("weighted", out, weight, name="expert outputs")
            b.free(out, weight, *held[1:])
            total = b.index_add("sum", total, rows, part)
        return total, (rows, part)


def _activated(b: Builder, mlp: str, x: Tensor, *, name: str = "") -> Tensor:
    """The activation of this MLP; it saves its input, or for ReLU its output. x is freed."""
    kind = _ACTIVATIONS[mlp]
    if kind in ("relu", "relu2"):
        y = b.pointwise("relu", "relu", x, saves="output", name=name or "relu")
        if kind == "relu2":
            relu, wide = y, b.in_fp32("pow", "square", y)
            y = b.power("square", "square", wide, saves="input", name=name or "squared relu")
            b.free(relu, *([wide] if wide is not relu else []))
    elif kind == "clipped":
        low = b.pointwise("clamp", "clamp", x, saves="input", name="clipped gate")
        b.free(x)
        scaled = b.pointwise("gate/scale", "mul", low)
        soft = b.pointwise("sigmoid", "sigmoid", scaled, saves="output", name="sigmoid")
        b.free(scaled)
        x, y = low, b.mul("gate", low, soft, name="gated")
        b.free(soft)
    elif kind == "xielu":
        learned = [b.parameter("activations", 1) for _ in range(2)]
        y = b.computed("xielu", "xielu", (x, *learned), x.shape, saves=(x, *learned), name=name)
    else:
        y = b.pointwise(kind, kind, x, saves="input", name=name or kind)
    b.free(x)
    return y


def _clipped(b: Builder, up: Tensor) -> Tensor:
    """gpt-oss's second factor: the clipped value plus one."""
    low = b.pointwise("up/clamp", "clamp", up, saves="input")
    b.free(up)
    more = b.passed("up/one more", "add", (low,), up.shape, name="up")
    b.free(low)
    return more


#: mlp of a configuration → the operation of its activation
_ACTIVATIONS = {
    "gelu": "gelu", "gelu_tanh": "gelu", "gelu_new": "gelu", "relu": "relu", "relu2": "relu2", "silu": "silu",
    "xielu": "xielu", "swiglu": "silu", "swiglu_clipped": "clipped", "geglu": "gelu", "geglu_tanh": "gelu", "geglu_new": "gelu",
    "reglu": "relu", "relu2glu": "relu2",
}  # fmt: skip
