"""Count the FLOPs of a function while it runs, by operator, by module, or by forward and backward pass."""

from collections.abc import Callable

from cs336kit import _torch
from cs336kit._torch.flops import flop_counter
from cs336kit.measure._trace import Trace
from cs336kit.measure.device import runnable
from cs336kit.predict import Breakdown

GROUPINGS = ("operator", "module", "pass")


def flops(function: Callable[[], object], *, by: str = "operator", depth: int | None = None) -> Breakdown:
    """Run `function()` once and return the FLOPs of its matrix products as a Breakdown by operator, module or pass.

    Convention: a multiply and an add are two FLOPs; attention is counted in full, even if a causal mask hides half.
    Counted on CPU and GPU alike, forward and backward: products of matrices and vectors, convolutions, grouped and
    scaled matrix products, recurrent layers, fused attention (2 products forward; 5 backward, eager needs 4).
    Left out, as in torch: element-wise operations, outer products, reductions, softmax, norms, embeddings, bilinear
    layers, factorizations, and what a compiled graph runs. If nothing is counted, the Breakdown has total 0.
    `by="module"` attributes to each module what its own code ran (also in backward), with names cut to `depth` parts;
    `by="pass"` separates forward from backward.
    Source: torch.utils.flop_counter, with formulas for the operators that it lacks and for the gradients of grouped
    convolutions.
    """
    runnable("measure.flops", function)
    if by not in GROUPINGS:
        raise ValueError(f"by must be one of {', '.join(map(repr, GROUPINGS))}, got {by!r}.")
    if depth is not None and (by != "module" or isinstance(depth, bool) or not isinstance(depth, int) or depth < 1):
        raise ValueError(f"depth cuts the names of by='module' to a whole number of parts, at least 1; got {depth!r}.")
    counts: dict[str, int] = {}
    trace = Trace()

    def record(operator: str, amount: int) -> None:
        if by == "pass":
            name = "backward" if _torch.in_backward() else "forward"
        else:
            name = operator if by == "operator" else ".".join(trace.frame().module.split(".")[:depth])
        counts[name] = counts.get(name, 0) + amount

    # A function mode is active here, so torch does not run an encoder layer as one fused operator, which no counter sees into.
    with trace.watching(), flop_counter(record):
        function()
    return Breakdown({name: amount for name, amount in counts.items() if amount}, unit="FLOPs")
