"""FLOPs of forward and backward, product by product: which gradients are computed, and what is computed twice."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from cs336kit.predict._common.breakdown import Breakdown
from cs336kit.predict._common.checks import known, positive_int, positive_number
from cs336kit.predict._common.grid import as_html, as_text
from cs336kit.predict.accounting import program
from cs336kit.predict.operations import Op, Repeat, Tensor
from cs336kit.predict.transformer import TransformerConfig


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


def linear_net(sizes: Sequence[int], *, batch: int, activation: bool = False) -> tuple[Step, ...]:
    """x @ w1 @ w2 …: `sizes` are the widths from the input to the output, so n + 1 sizes make n layers.

    Tensors: x, w1 … wn, h1 … hn. With `activation`, every layer but the last is followed by a function that keeps a
    tensor for backward (ReLU, GELU), whose result is a1 … . Biases cost no product.
    """
    if len(sizes) < 2:
        raise ValueError(f"sizes={tuple(sizes)!r}: give at least two widths, of the input and of the output.")
    steps: list[Step] = []
    tensor = "x"
    for i, (inner, columns) in enumerate(pairwise(sizes), start=1):
        steps.append(Matmul(left=tensor, right=f"w{i}", output=f"h{i}", rows=batch, inner=inner, columns=columns))
        tensor = f"h{i}"
        if activation and i < len(sizes) - 1:
            tensor = f"a{i}"
            steps.append(Pointwise(inputs=(f"h{i}",), output=tensor))
    return tuple(steps)


def with_lora(steps: Sequence[Step], *, rank: int, targets: Iterable[str] | None = None) -> tuple[Step, ...]:
    """Beside each target weight w a path through w.A and w.B of this rank: y = x @ w + (x @ w.A) @ w.B.

    targets: names of weights; None for every right side that no step computes. The base weights are not frozen here:
    pass them to `gradient_flops(frozen=…)`. Errors: ValueError for a weight that is not there.
    Source: Hu et al. (2021), LoRA, section 4.1.
    """
    positive_int("rank", rank)
    computed = {step.output for step in steps}
    weights = {s.right: s for s in steps if isinstance(s, Matmul) and s.right not in computed}
    chosen = set(weights) if targets is None else {targets} if isinstance(targets, str) else set(targets)
    for name in sorted(chosen):
        known("weight in targets", name, weights)
    result: list[Step] = []
    for step in steps:
        if not isinstance(step, Matmul) or step.right not in chosen:
            result.append(step)
            continue
        w, y = step.right, step.output
        size: dict[str, Any] = {"rows": step.rows, "count": step.count}
        base, down, up = f"{y}.base", f"{y}.down", f"{y}.up"
        result += [
            Matmul(left=step.left, right=w, output=base, inner=step.inner, columns=step.columns, **size),
            Matmul(left=step.left, right=f"{w}.A", output=down, inner=step.inner, columns=rank, **size),
            Matmul(left=down, right=f"{w}.B", output=up, inner=rank, columns=step.columns, **size),
            Pointwise(inputs=(base, up), output=y, keeps=False),
        ]
    return tuple(result)


#: Last step of a place in a program → the short name of its tensor; others keep their own.
_SHORT = {
    "query": "q", "key": "k", "value": "v", "output": "o", "attention norm": "n1", "mlp norm": "n2",
    "softmax": "weights", "attention sum": "x1", "mlp sum": "out", "gelu": "act", "product": "act",
}  # fmt: skip


def decoder_block(
    config: TransformerConfig, *, batch: int, sequence: int, attention: str = "sdpa", x: str = "x", prefix: str = ""
) -> tuple[Step, ...]:
    """One block of `predict.program` as steps, from `x` to `<prefix>out`: q, k, v, scores, mix, o, and up, down (GELU) or
    gate, up, down.

    Weights are named w_q … w_down, with the prefix before them. attention: "eager" (two products and a softmax) or "sdpa"
    (one fused kernel, whose backward computes the scores again). All S × S scores are counted, also under a causal mask
    or a window, as counters do. Errors: ValueError for a mixture of experts.
    """
    if config.experts:
        raise ValueError(f"experts={config.experts}: routed products are not counted here; give a dense configuration.")
    walked = program(config, batch=batch, sequence=sequence, attention=attention)
    block = next(item for item in walked.items if isinstance(item, Repeat))
    operations = [item for item in block.items if isinstance(item, Op) and item.gradients]
    return tuple(_steps(operations, config, x, prefix))


def _steps(operations: list[Op], config: TransformerConfig, x: str, prefix: str) -> Iterator[Step]:
    """Operations with gradients as steps. A tensor is named after what makes it; the block's input is `x`."""
    names: dict[object, str] = {}
    used: set[str] = set()

    def fresh(name: str) -> str:
        while name in used:
            name += "'"
        used.add(name)
        return prefix + name

    def name_of(tensor: Tensor) -> str:
        default = fresh(tensor.storage.name) if tensor.storage.leaf and tensor.source not in names else x
        return names.setdefault(tensor.source, default)

    heads, h = config.heads * operations[0].inputs[0].shape[0], config.head_dim
    for op, following in zip(operations, [*operations[1:], None], strict=True):
        group, last = op.place.split("/")[1], op.place.split("/")[-1]
        short = "out" if following is None else _SHORT.get(last, last)
        if op.kind == "sdpa":
            q, k, v = map(name_of, op.inputs)
            S, fused = op.inputs[0].shape[2], fresh("attention")
            scores, weights, mix = (fresh(name) for name in ("scores", "weights", "mix"))
            yield Matmul(left=q, right=k, output=scores, rows=S, inner=h, columns=S, count=heads, fused=fused)
            yield Pointwise(inputs=(scores,), output=weights, keeps=False)
            yield Matmul(left=weights, right=v, output=mix, rows=S, inner=S, columns=h, count=heads, fused=fused)
            names[op.outputs[0].source] = mix
            continue
        flowing = [t for t in op.inputs if t.needs_gradient and not t.storage.leaf]
        inputs = tuple(dict.fromkeys(name_of(t) for t in flowing))
        # A norm is one step, whose operations in between count as its input; so is what only moves or rotates a tensor.
        inside = group.endswith("norm") and following is not None and following.place.split("/")[1] == group
        moves = all(storage.leaf for storage in op.keeps) and op.kind not in ("linear", "matmul")
        if inside or (moves and len(inputs) == 1 and not group.endswith("norm")):
            names.update((tensor.source, inputs[0]) for tensor in op.outputs)
            continue
        if group.endswith("norm"):
            short = _SHORT[group]
        if op.kind == "linear":
            W = op.inputs[1]
            output, weight = fresh(short), fresh(f"w_{short}")
            rows = op.inputs[0].elements // W.shape[1]
            yield Matmul(left=inputs[0], right=weight, output=output, rows=rows, inner=W.shape[1], columns=W.shape[0])
        elif op.kind == "matmul":
            output = fresh("scores" if last == "scores" else "mix")
            S, T = op.inputs[0].shape[2], op.inputs[1].shape[2]
            inner, columns = (h, T) if last == "scores" else (T, h)
            left, right = inputs
            yield Matmul(left=left, right=right, output=output, rows=S, inner=inner, columns=columns, count=heads)
        else:
            output = fresh(short)
            # A norm's shift follows its scale, as biases follow their weights.
            scaled = any(t.needs_gradient and t.storage.leaf for t in op.inputs)
            scale = (fresh(f"norm{short[1:]}"),) if scaled else ()
            yield Pointwise(inputs=(*inputs, *scale), output=output, keeps=bool(op.keeps))
        for tensor in op.outputs:
            names[tensor.source] = output


def decoder(
    config: TransformerConfig, *, batch: int, sequence: int, attention: str = "sdpa"
) -> tuple[tuple[Step, ...], tuple[tuple[Step, ...], ...]]:
    """A whole decoder: its steps, from embedding to logits, and its blocks as the segments that checkpointing takes.

    Block i's tensors are named "i.q", "i.w_q" and so on. The leaf "embedding" is the head's matrix too when the head is
    tied, otherwise the head's is "head"; looking up an embedding costs no product.
    """
    inputs = ("embedding", "positions") if config.positions == "learned" else ("embedding",)
    steps: list[Step] = [Pointwise(inputs=inputs, output="x", keeps=False)]
    blocks, x = [], "x"
    for i in range(config.layers):
        block = decoder_block(config, batch=batch, sequence=sequence, attention=attention, x=x, prefix=f"{i}.")
        blocks.append(block)
        steps += block
        x = f"{i}.out"
    head = "embedding" if config.tied_head else "head"
    rows, D, V = batch * sequence, config.d_model, config.vocab
    steps.append(Pointwise(inputs=(x, "norm"), output="n"))
    steps.append(Matmul(left="n", right=head, output="logits", rows=rows, inner=D, columns=V))
    return tuple(steps), tuple(blocks)
