"""FLOPs of forward and backward, product by product: which gradients are computed, and what is computed twice."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cs336kit.predict._common.breakdown import Breakdown
from cs336kit.predict._common.checks import known, positive_int, positive_number
from cs336kit.predict._common.grid import as_html, as_text


@dataclass(frozen=True, kw_only=True)
class Matmul:
    """output = left @ right: `count` products of a rows × inner by an inner × columns matrix."""

    left: str
    right: str
    output: str
    rows: int
    inner: int
    columns: int
    count: int = 1
    #: the name that both products of one fused attention kernel share; empty for an ordinary product
    fused: str = ""

    def __post_init__(self) -> None:
        for name in ("rows", "inner", "columns", "count"):
            positive_int(f"{name} of {self.output} = {self.left} @ {self.right}", getattr(self, name))

    @property
    def inputs(self) -> tuple[str, str]:
        return self.left, self.right

    @property
    def flops(self) -> int:
        """2 · rows · inner · columns for each of the products; a multiply and an add are two FLOPs."""
        return 2 * self.rows * self.inner * self.columns * self.count


@dataclass(frozen=True, kw_only=True)
class Pointwise:
    """Anything without a matrix product (norm, activation, softmax, sum): no FLOPs here, but gradients pass through."""

    inputs: tuple[str, ...]
    output: str
    #: whether it keeps a tensor for backward (an activation does, a sum does not)
    keeps: bool = True


Step = Matmul | Pointwise


@dataclass(frozen=True)
class MatmulCost:
    """FLOPs of one product in a training step; a gradient that nobody needs costs 0."""

    product: Matmul
    forward: int
    grad_left: int
    grad_right: int
    #: forward once more inside the backward kernel (fused attention recomputes its scores)
    again: int = 0
    #: forward once more because the step lies in a checkpointed segment
    recomputed: int = 0

    @property
    def backward(self) -> int:
        return self.grad_left + self.grad_right + self.again + self.recomputed


@dataclass(frozen=True, repr=False)
class GradientFlops:
    """The FLOPs of one training step, one row per product, shown as a table."""

    rows: tuple[MatmulCost, ...]

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
            for tensor, flops in ((row.product.left, row.grad_left), (row.product.right, row.grad_right)):
                if flops:
                    parts[tensor] = parts.get(tensor, 0) + flops
        return Breakdown(parts, unit="FLOPs")

    def mfu(self, *, seconds: float, peak_flops_per_second: float) -> float:
        """Model FLOPs utilization: `model_flops` only. Source: Chowdhery et al. (2022), PaLM, appendix B."""
        return self.model_flops / (positive_number("seconds", seconds) * _peak(peak_flops_per_second))

    def hfu(self, *, seconds: float, peak_flops_per_second: float) -> float:
        """Hardware FLOPs utilization: everything executed, recomputation included. Source: as for `mfu`."""
        return self.total / (positive_number("seconds", seconds) * _peak(peak_flops_per_second))

    def table(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """Headers and rows of text: each product with its forward, its two gradients and what is computed again."""
        rows = []
        for row in self.rows:
            p = row.product
            again = row.again + row.recomputed
            costs = (row.forward, row.grad_left, row.grad_right, again, row.forward + row.backward)
            rows.append((f"{p.output} = {p.left} @ {p.right}", *(f"{flops:,}" if flops else "–" for flops in costs)))
        columns = ("forward", "grad_left", "grad_right")
        sums = [sum(getattr(row, column) for row in self.rows) for column in columns]
        sums += [self.total - self.model_flops, self.total]
        rows.append(("total", *(f"{flops:,}" if flops else "–" for flops in sums)))
        return ("product", "forward", "gradient of left", "gradient of right", "again", "FLOPs"), rows

    def __repr__(self) -> str:
        headers, rows = self.table()
        return as_text([headers, *rows], "<>>>>>")

    def _repr_html_(self) -> str:
        return as_html(*self.table(), "<>>>>>", total=True)


def leaves(steps: Iterable[Step]) -> tuple[str, ...]:
    """The tensors that no step computes: inputs and weights, in order of first use."""
    steps = tuple(steps)
    computed = {step.output for step in steps}
    return tuple(dict.fromkeys(name for step in steps for name in step.inputs if name not in computed))


def gradient_flops(
    steps: Sequence[Step],
    *,
    frozen: Iterable[str] = (),
    checkpoint: Iterable[Sequence[Step]] = (),
    early_stop: bool = True,
) -> GradientFlops:
    """FLOPs of every matrix product in forward and backward, when all leaves except the frozen ones need a gradient.

    A product's gradient with respect to one side is one more product of the same cost, computed only if something on
    that side needs it. frozen: leaves without gradient, the data among them. checkpoint: slices of `steps`, each run
    under torch.utils.checkpoint (use_reentrant=False): backward computes it again up to the last tensor that it keeps;
    a product keeps its inputs before it runs, so a last product is not repeated. early_stop=False repeats all of it.
    Left out: element-wise work, biases (which follow their weight), branches that the loss does not use.
    Errors: ValueError for a tensor computed twice or too late, an unknown frozen name, overlapping segments.
    """
    steps = tuple(steps)
    needs = _needing_gradients(steps, frozen)
    wanted = {step.fused for step in steps if isinstance(step, Matmul) and step.fused and _any(step, needs)}
    seen: set[str] = set()
    repeated = _repeated(steps, needs, checkpoint, early_stop)
    rows = []
    for step in steps:
        if not isinstance(step, Matmul):
            continue
        f, again = step.flops, 0
        left, right = step.left in needs, step.right in needs
        if step.fused in wanted:  # the fused kernel computes every gradient once one is asked for
            left = right = True
            again = 0 if step.fused in seen else f
            seen.add(step.fused)
        rows.append(MatmulCost(step, f, f * left, f * right, again, f * (step.output in repeated)))
    return GradientFlops(tuple(rows))


def _needing_gradients(steps: tuple[Step, ...], frozen: Iterable[str]) -> set[str]:
    sources = {name: None for name in leaves(steps)}
    computed: set[str] = set()
    for step in steps:
        late = [name for name in step.inputs if name not in sources and name not in computed]
        if late or step.output in computed:
            problem = f"uses {late[0]}, which is computed later" if late else "is computed twice"
            raise ValueError(
                f"{step.output} {problem}: list the steps in the order in which they run, each output once."
            )
        computed.add(step.output)
    frozen = {frozen} if isinstance(frozen, str) else set(frozen)
    for name in sorted(frozen):
        known("leaf in frozen", name, sources)
    needs = sources.keys() - frozen
    for step in steps:
        if _any(step, needs):
            needs.add(step.output)
    return needs


def _any(step: Step, needs: set[str]) -> bool:
    return any(name in needs for name in step.inputs)


def _repeated(
    steps: tuple[Step, ...], needs: set[str], checkpoint: Iterable[Sequence[Step]], early_stop: bool
) -> set[str]:
    """The outputs of the products that checkpointed segments compute again."""
    known_steps, taken, repeated = set(steps), set(), set()
    for segment in checkpoint:
        if isinstance(segment, Step):
            raise ValueError(
                "checkpoint is a list of segments, each a slice of the steps: checkpoint=[net[:2], net[2:]]."
            )
        for step in segment:
            if step not in known_steps or step in taken:
                problem = "lies in two checkpointed segments" if step in taken else "is not one of the steps"
                raise ValueError(f"{step.output} {problem}: give slices of the steps that do not overlap.")
            taken.add(step)
        keeps = [i for i, s in enumerate(segment) if _any(s, needs) and (isinstance(s, Matmul) or s.keeps)]
        end = (keeps[-1] if early_stop else len(segment)) if keeps else 0
        repeated |= {step.output for step in segment[:end] if isinstance(step, Matmul)}
    return repeated


def _peak(value: float) -> float:
    return positive_number("peak_flops_per_second", value)
