"""The MLP of a block as a program, and a mixture of such experts."""

from itertools import pairwise

from cs336kit.predict._builder import Builder
from cs336kit.predict.operations import Storage, Tensor
from cs336kit.predict.transformer import TransformerConfig


class MLP:
    """What `lm` builds for `mlp` and `experts` of a configuration, on N tokens."""

    def __init__(self, b: Builder, config: TransformerConfig, N: int):
        self.b, self.c, self.N = b, config, N
        #: tokens of each expert; None for equal shares
        self.routing: tuple[int, ...] | None = None

    def __call__(self, x: Tensor) -> Tensor:
        return self.mixture(x) if self.c.experts else self.expert(x)

    def mixture(self, x: Tensor) -> Tensor:
        """The router, then one expert after the other on the tokens that chose it; their results are added up."""
        b, c = self.b, self.c
        N, k = self.N, c.experts_per_token
        tokens = b.view(x, N, c.d_model)
        given = b.linear("router", tokens, c.experts, component="router", name="router scores", cast="mlp inputs")
        chosen = Storage("indices", 8 * N * k)
        scores = b.op(
            "topk", "topk", [given], (N, k), keeps=[chosen], statistics=[chosen], watched=given.bytes, name="routing scores"
        )  # fmt: skip
        indices = Tensor((N, k), "int64", chosen, False)
        b.hold(indices)
        b.free(given)
        wide = b.cast("scores/fp32", scores, "fp32")
        soft = b.op("softmax", "softmax", [wide], (N, k), keeps_output=True, name="routing weights")
        if wide is not scores:
            b.free(wide)
        weights = b.cast("weights/cast", soft, x.dtype, name="routing weights")
        if weights is not soft:
            b.free(soft)
        total = b.op("zeros", "full", [], (N, c.d_model), dtype=x.dtype, name="sum of experts")
        held: tuple[Tensor, ...] = ()
        for count, sizes in self._groups(N * k):
            if count > 1:
                with b.repeat("experts", count):
                    total, held = self._visit(tokens, weights, total, sizes, held)
            else:
                total, held = self._visit(tokens, weights, total, sizes, held)
        b.free(*held, scores, indices, weights)
        return b.ranks.leave(b.view(total, *x.shape))

    def _groups(self, visits: int) -> list[tuple[int, int]]:
        """(how many experts, tokens of each) in order. The first and the last stand alone, and so does any whose tokens are
        not as many as those of the one before: what they allocate and let go differs.
        """
        sizes = self.routing
        if sizes is None:
            share, more = divmod(visits, self.c.experts)
            sizes = (share + 1,) * more + (share,) * (self.c.experts - more)
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
        """One expert on its n tokens. The caller's variables of the expert before live until they are assigned anew."""
        b, c = self.b, self.c
        N, k = self.N, c.experts_per_token
        with b.within("expert"):
            equal = b.op("equal", "compare", [], (N, k), dtype="int8")
            rows = b.op("nonzero", "nonzero", [], (2, n), dtype="int64", name="indices")
            b.free(equal, *held[:1])
            mine = b.index("tokens", tokens, rows, (n, c.d_model), name="mlp inputs")
            out = self.expert(mine)
            b.free(mine)
            weight = b.index("weights", weights, rows, (n, 1), name="routing weights")
            out.storage.name = "expert outputs"
            part = b.mul("weighted", out, weight, name="expert outputs")
            b.free(out, weight, *held[1:])
            total = b.index_add("sum", total, rows, part)
        return total, (rows, part)

    def expert(self, x: Tensor) -> Tensor:
        """The MLP that the configuration names."""
        b, c = self.b, self.c
        bias = c.bias == "all"
        if c.mlp == "swiglu":
            gate = b.linear("gate", x, c.d_ff, component="mlp gate", bias=bias, name="gate", cast="mlp inputs")
            silu = b.op("silu", "silu", [gate], gate.shape, keeps=[gate], name="silu")
            b.free(gate)
            up = b.linear("up", x, c.d_ff, component="mlp up", bias=bias, name="up", cast="mlp inputs")
            hidden = b.mul("product", silu, up, name="mlp down's input")
            b.free(silu, up)
        else:
            up = b.linear("up", x, c.d_ff, component="mlp up", bias=bias, name="gelu input", cast="mlp inputs")
            hidden = b.op("gelu", "gelu", [up], up.shape, keeps=[up], name="mlp down's input")
            b.free(up)
        out = b.linear("down", hidden, c.d_model, component="mlp down", bias=bias)
        b.free(hidden)
        if len(out.shape) == 3:
            out = b.ranks.leave(out)
        return b.dropout("dropout", out, c.dropout, mask="mlp dropout mask")
