"""Networks as lists of steps, for `gradient_flops`: linear nets, adapters, and the decoder of `predict.program`."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any

from cs336kit.predict._common.checks import known, positive_int
from cs336kit.predict.gradients import Matmul, Pointwise, Step
from cs336kit.predict.operations import Op, Repeat, Tensor
from cs336kit.predict.programs import program
from cs336kit.predict.transformer import TransformerConfig


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
