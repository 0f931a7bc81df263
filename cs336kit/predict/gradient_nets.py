"""Networks as lists of products, for `gradient_flops`: linear nets, LoRA, and the blocks of a decoder."""

from collections.abc import Iterable, Sequence
from itertools import pairwise

from cs336kit.predict._common.checks import known, positive_int
from cs336kit.predict.gradients import Matmul, Pointwise, Step
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
        w, y, size = step.right, step.output, {"rows": step.rows, "count": step.count}
        base, down, up = f"{y}.base", f"{y}.down", f"{y}.up"
        result += [
            Matmul(left=step.left, right=w, output=base, inner=step.inner, columns=step.columns, **size),
            Matmul(left=step.left, right=f"{w}.A", output=down, inner=step.inner, columns=rank, **size),
            Matmul(left=down, right=f"{w}.B", output=up, inner=rank, columns=step.columns, **size),
            Pointwise(inputs=(base, up), output=y, keeps=False),
        ]
    return tuple(result)


def decoder_block(
    config: TransformerConfig,
    *,
    batch: int,
    sequence: int,
    attention: str = "sdpa",
    x: str = "x",
    prefix: str = "",
) -> tuple[Step, ...]:
    """One pre-norm block, from `x` to `<prefix>out`: q, k, v, scores, mix, o, and up, down (GELU) or gate, up, down.

    attention: "eager" (two products and a softmax) or "sdpa" (one fused kernel, whose backward computes the scores
    again). All S × S scores are counted, also under a causal mask or a window, as counters do. Weights are named
    w_q … w_down, norms norm1 and norm2, with the prefix before them. Dropout counts as config.dropout says.
    Errors: ValueError for a mixture of experts.
    """
    known("attention", attention, {"eager": 0, "sdpa": 1})
    if config.experts:
        raise ValueError(f"experts={config.experts}: routed products are not counted here; give a dense configuration.")
    if config.norms_per_block != 2:
        raise ValueError("norms_per_block=1: a parallel block is not counted here; give a block with two norms.")
    tokens = positive_int("batch", batch) * positive_int("sequence", sequence)

    def name(tensor: str) -> str:
        return prefix + tensor

    def linear(left: str, to: str, inner: int, columns: int) -> Matmul:
        size = {"rows": tokens, "inner": inner, "columns": columns}
        return Matmul(left=name(left), right=name(f"w_{to}"), output=name(to), **size)

    def point(output: str, *inputs: str, keeps: bool = True) -> Pointwise:
        return Pointwise(inputs=tuple(map(name, inputs)), output=name(output), keeps=keeps)

    D, F, wide, kv = config.d_model, config.d_ff, config.query_width, config.kv_width
    heads, h, dropout = config.heads * batch, config.head_dim, config.dropout > 0
    fused = name("attention") if attention == "sdpa" else ""
    per_head = {"rows": sequence, "count": heads, "fused": fused}
    normed = Pointwise(inputs=(x, name("norm1")), output=name("n1"))
    to_heads = [linear("n1", "q", D, wide), linear("n1", "k", D, kv), linear("n1", "v", D, kv)]
    scores = Matmul(left=name("q"), right=name("k"), output=name("scores"), inner=h, columns=sequence, **per_head)
    mix = Matmul(left=name("weights"), right=name("v"), output=name("mix"), inner=sequence, columns=h, **per_head)
    # A fused kernel keeps nothing between its two products.
    attended = [scores, point("weights", "scores", keeps=not fused), mix, linear("mix", "o", wide, D)]
    residual = [
        point("o_dropped", "o", keeps=dropout),
        Pointwise(inputs=(x, name("o_dropped")), output=name("x1"), keeps=False),
        point("n2", "x1", "norm2"),
    ]
    if config.mlp == "swiglu":
        mlp = [linear("n2", "gate", D, F), linear("n2", "up", D, F), point("act", "gate", "up")]
    else:
        mlp = [linear("n2", "up", D, F), point("act", "up")]
    end = [point("down_dropped", "down", keeps=dropout), point("out", "x1", "down_dropped", keeps=False)]
    return (normed, *to_heads, *attended, *residual, *mlp, linear("act", "down", F, D), *end)


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
    size = {"rows": batch * sequence, "inner": config.d_model, "columns": config.vocab}
    steps += [Pointwise(inputs=(x, "norm"), output="n"), Matmul(left="n", right=head, output="logits", **size)]
    return tuple(steps), tuple(blocks)
