"""FLOPs of forward and backward, product by product: which gradients are computed, and what is computed twice."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cs336kit.predict._common.breakdown import Breakdown
from cs336kit.predict._common.checks import boolean, finite_results, known, positive_number, several, shown
from cs336kit.predict._common.grid import as_html, as_text
from cs336kit.predict._products import ProductCost, products, run_again
from cs336kit.predict.operations import Op


@dataclass(frozen=True, repr=False)
class GradientFlops:
    """The FLOPs of one training step, one row per product, shown as a table."""

    rows: tuple[ProductCost, ...]

    @property
    def forward(self) -> int:
        return sum(row.forward for row in self.rows)

    @property
    def backward(self) -> int:
        """Everything that runs in backward: gradients, and whatever is computed again for them."""
        return sum(row.backward for row in self.rows)

    @property
    def total(self) -> int:
        """What the hardware executes, and what a counter counts."""
        return self.forward + self.backward

    @property
    def recomputed(self) -> int:
        """The part of backward that repeats forward because of checkpointing."""
        return sum(row.recomputed for row in self.rows)

    @property
    def model_flops(self) -> int:
        """What the model needs however it is run: nothing that is computed a second time."""
        return self.total - sum(row.again + row.recomputed for row in self.rows)

    @property
    def by_tensor(self) -> Breakdown:
        """Tensor → FLOPs of the products that make its gradient, summed over its uses."""
        parts: dict[str, int] = {}
        for row in self.rows:
            for tensor, flops in ((row.left, row.grad_left), (row.right, row.grad_right)):
                if flops:
                    parts[tensor] = parts.get(tensor, 0) + flops
        return Breakdown(parts, unit="FLOPs")

    @finite_results()
    def mfu(self, *, seconds: float, peak_flops_per_second: float) -> float:
        """Model FLOPs utilization: `model_flops` only. Source: Chowdhery et al. (2022), PaLM, appendix B."""
        return self.model_flops / _most(seconds, peak_flops_per_second)

    @finite_results()
    def hfu(self, *, seconds: float, peak_flops_per_second: float) -> float:
        """Hardware FLOPs utilization: everything executed, recomputation included. Source: as for `mfu`."""
        return self.total / _most(seconds, peak_flops_per_second)

    def table(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """Headers and rows of text: each product with its forward, its two gradients and what is computed again."""
        names = [*(f"{row.output} = {row.left} @ {row.right}" for row in self.rows), "total"]
        costs = [[row.forward, row.grad_left, row.grad_right, row.again + row.recomputed] for row in self.rows]
        costs.append([sum(column) for column in zip(*costs, strict=True)])
        rows = [
            (name, *(f"{flops:,}" if flops else "–" for flops in (*cost, sum(cost))))
            for name, cost in zip(names, costs, strict=True)
        ]
        return ("product", "forward", "gradient of left", "gradient of right", "again", "FLOPs"), rows

    def __repr__(self) -> str:
        headers, rows = self.table()
        return as_text([headers, *rows], "<>>>>>")

    def _repr_html_(self) -> str:
        return as_html(*self.table(), "<>>>>>", total=True)


def _most(seconds: float, peak_flops_per_second: float) -> float:
    peak = positive_number("peak_flops_per_second", peak_flops_per_second)
    return positive_number("seconds", seconds) * peak


def checked_operations(operations: object, name: str = "operations") -> tuple[Op, ...]:
    """Operations as a tuple; anything else raises ValueError."""
    given = several(name, operations, "operations")
    for one in given:
        if not isinstance(one, Op):
            raise ValueError(
                f"{name} must be operations, such as linear_net(...) returns, got {shown(one)} among them."
            )
    return given


def leaves(operations: Iterable[Op]) -> tuple[str, ...]:
    """The tensors that no operation computes: inputs and weights, in order of first use."""
    operations = checked_operations(operations)
    computed = {tensor.source for op in operations for tensor in op.outputs}
    read = (tensor for op in operations for tensor in op.inputs if tensor.needs_gradient)
    return tuple(dict.fromkeys(tensor.storage.name for tensor in read if tensor.source not in computed))


def gradient_flops(
    operations: Sequence[Op],
    *,
    frozen: Iterable[str] = (),
    checkpoint: Iterable[Sequence[Op]] = (),
    early_stop: bool = True,
) -> GradientFlops:
    """FLOPs of every matrix product in forward and backward, when all leaves except the frozen ones need a gradient.

    operations: those of `linear_net`, `with_lora`, `decoder_block`, `decoder`. A product's gradient with respect to one
    side is one more product of the same cost, computed only if something on that side needs it. frozen: leaves without
    gradient, the data among them. checkpoint: slices of the operations, each run under torch.utils.checkpoint
    (use_reentrant=False): backward computes it again up to the last tensor that it keeps; a product keeps its inputs
    before it runs, so a last product is not repeated. early_stop=False repeats all of it.
    Left out: element-wise work, biases (which follow their weight), branches that the loss does not use.
    Errors: ValueError for an operation given twice or too early, an unknown frozen name, overlapping segments.
    """
    boolean("early_stop", early_stop)
    operations = checked_operations(operations)
    needs = _needing_gradients(operations, frozen)
    repeated = _repeated(operations, needs, checkpoint, early_stop)
    rows = (
        row._replace(recomputed=row.forward) if op in repeated else row
        for op in operations
        for row in products(op, needs)
    )
    return GradientFlops(tuple(rows))


def _asks(op: Op, needs: set[object]) -> bool:
    return any(gradient.of.source in needs for gradient in op.gradients)


def _needing_gradients(operations: tuple[Op, ...], frozen: Iterable[str]) -> set[object]:
    """Sources of the tensors that need a gradient, if every leaf needs one that is not frozen."""
    frozen = several("frozen", frozen)
    sources = dict.fromkeys(leaves(operations))
    for name in frozen:
        known("leaf in frozen", name, sources)
    computed = {tensor.source for op in operations for tensor in op.outputs}
    needs: set[object] = set()
    done: set[object] = set()
    for op in operations:
        early = [t for t in op.inputs if t.source in computed - done]
        if early or any(t.source in done for t in op.outputs):
            problem = f"uses {early[0].storage.name}, which is computed later" if early else "is computed twice"
            raise ValueError(
                f"{op.outputs[0].storage.name} {problem}: list the operations in the order in which they run, each once."
            )
        needs |= {t.source for t in op.inputs if t.source not in computed and t.storage.name not in frozen}
        done |= {t.source for t in op.outputs}
        if _asks(op, needs):
            needs |= {t.source for t in op.outputs}
    return needs


def _repeated(
    operations: tuple[Op, ...], needs: set[object], checkpoint: Iterable[Sequence[Op]], early_stop: bool
) -> set[Op]:
    """The operations that checkpointed segments run again."""
    given, taken, repeated = set(operations), set[Op](), set[Op]()
    for segment in several("checkpoint", checkpoint, "slices of the operations"):
        if isinstance(segment, Op):
            raise ValueError(
                "checkpoint is a list of segments, each a slice of the operations: checkpoint=[net[:2], net[2:]]."
            )
        segment = checked_operations(segment, "a segment of checkpoint")
        for op in segment:
            if op not in given or op in taken:
                problem = "lies in two checkpointed segments" if op in taken else "is not one of the operations"
                raise ValueError(
                    f"{op.outputs[0].storage.name} {problem}: give slices of the operations that do not overlap."
                )
            taken.add(op)
        once = [(op, 1) for op in segment]
        again = run_again(once, early_stop=early_stop, keeps=lambda op: bool(op.keeps) and _asks(op, needs))
        repeated |= {op for op, _ in again}
    return repeated
