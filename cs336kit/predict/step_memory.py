"""Memory in the course of one training step: exact at the borders between blocks, and the moments that can be the peak."""

from math import prod
from typing import NamedTuple

from cs336kit.predict._common.breakdown import Breakdown
from cs336kit.predict._common.checks import known
from cs336kit.predict.activations import ACTIVATION_PRECISIONS, saved_activation_bytes, saved_block_bytes
from cs336kit.predict.napkin import BYTES_OF_PARTS
from cs336kit.predict.parameters import parameters, shapes_of_parts
from cs336kit.predict.training_memory import TRAINING_PRECISIONS, training_memory
from cs336kit.predict.transformer import TransformerConfig

#: The loss is one fp32 number, whatever the precision of the model.
_LOSS = 4


#: An RMSNorm written out works on so many fp32 tensors at once in its backward pass, its kept input among them.
_RMSNORM_ROWS = 6
_OF_MLP = (
    "mlp norm",
    "mlp inputs",
    "gelu input",
    "gate",
    "silu",
    "up",
    "mlp down's input",
    "mlp dropout mask",
    "expert outputs",
    "routing weights",
    "bf16 copies of weights",
)


class Moment(NamedTuple):
    """A stage of the step and the bytes alive at its end, beyond parameters and optimizer state."""

    stage: str
    live_bytes: int


def _gradients(config: TransformerConfig, size: int) -> tuple[int, int, int]:
    """Bytes of the gradients of head and final norm, of one block, and of all parameters."""
    parts = parameters(config)
    head = size * (config.vocab * config.d_model + parts["final norm"])
    outside = ("token embedding", "position embedding", "final norm", "head")
    block = sum(value for name, value in parts.items() if name not in outside) // config.layers
    return head, size * block, size * parts.total


def _routing(config: TransformerConfig, tokens: int) -> int:
    """Bytes of the indices by which one block's experts find their tokens: chosen experts, token and place, in int64."""
    return 3 * 8 * tokens * config.experts_per_token if config.experts else 0


def step_timeline(
    config: TransformerConfig,
    batch: int,
    sequence: int,
    *,
    precision: str = "fp32",
    attention: str = "eager",
    checkpointing: bool = False,
) -> list[Moment]:
    """Live bytes beyond parameters and optimizer state when each stage of a step ends, from old gradients freed.

    Stages: "embedding", "block 1 forward" … "loss", "block L backward" … "block 1 backward", "backward", "step". At a
    border only what autograd keeps, the residual stream or its gradient, the gradients so far, and the loss are alive.
    Left out: temporary tensors inside a stage, see `step_peak`.
    """
    activations, _ = known("training precision", precision, TRAINING_PRECISIONS)
    size = ACTIVATION_PRECISIONS[activations]
    head, block_gradient, all_gradients = _gradients(config, BYTES_OF_PARTS[precision]["gradients"])
    policy = {"precision": activations, "attention": attention}
    saved = saved_activation_bytes(config, batch, sequence, checkpointing=checkpointing, **policy).total
    stream = size.stream * batch * sequence * config.d_model
    routing = 0 if checkpointing else _routing(config, batch * sequence)
    saved += config.layers * routing
    block = stream if checkpointing else saved_block_bytes(config, batch, sequence, **policy).total + routing
    loss = 2 * _LOSS  # the loss and its gradient
    # Autocast's cache holds the bf16 copies until autocast ends; those of matrices are saved too, unless recomputed.
    cached = 0
    if size.casts:
        _, shapes, _ = shapes_of_parts(config)
        norms = config.norms_per_block * (1 + config.norm_bias) * config.d_model
        biases = sum(shape[0] for shape in shapes if len(shape) == 1) - norms
        cached = 2 * (biases + checkpointing * sum(prod(shape) for shape in shapes if len(shape) == 2))
    # A block's input is still in the caller's hands; it is one more tensor where the norm kept an fp32 copy instead.
    copied = activations == "bf16" and config.norm == "rmsnorm" and not checkpointing
    held = 2 * stream if copied else stream
    moments = [Moment("embedding", stream)]
    moments += [Moment(f"block {i + 1} forward", (i + 1) * (block + cached) + held) for i in range(config.layers)]
    moments.append(Moment("loss", saved + _LOSS))
    for i in range(config.layers, -1, -1):
        done = config.layers - i
        stage = "head backward" if i == config.layers else f"block {i + 1} backward"
        moments.append(Moment(stage, i * block + stream + head + done * block_gradient + loss))
    moments.append(Moment("backward", all_gradients + _LOSS))
    moments.append(Moment("step", 0))
    return moments


def peak_moments(
    config: TransformerConfig,
    batch: int,
    sequence: int,
    *,
    precision: str = "fp32",
    attention: str = "eager",
    checkpointing: bool = False,
) -> dict[str, int]:
    """Live bytes, beyond parameters and optimizer state, at the moments of a step that can be its peak.

    "loss": two gradients of the logits beside everything saved; "head backward": the gradient of the head's matrix;
    "mlp backward" and "attention backward", in the last block or the first (the last to run backward, when all other
    gradients are there), with the gradients of its wide tensors; "norm backward": the fp32 tensors of an RMSNorm;
    "tied embedding": two copies of its gradient; "optimizer step": all gradients and what AdamW needs for one tensor at
    a time (torch's `foreach=False`).
    "recomputation": a checkpointed block with experts, computed again.
    Exact for dense blocks in every precision, with dropout, window or checkpointing, where no other moment is higher:
    that takes F ≥ 2.5·D, A·h = D and, with dropout and explicit attention, S up to D; else toy models are up to 2 %
    off, and up to 11 % with a narrow MLP. Experts are taken to share the tokens equally: then within 2.5 %. A router that
    prefers some experts needs more, 15 % of a toy model.
    """
    activations, _ = known("training precision", precision, TRAINING_PRECISIONS)
    size = ACTIVATION_PRECISIONS[activations]
    policy = {"precision": activations, "attention": attention}
    gradient = BYTES_OF_PARTS[precision]["gradients"]
    head, block_gradient, all_gradients = _gradients(config, gradient)
    saved = saved_activation_bytes(config, batch, sequence, checkpointing=checkpointing, **policy).total
    block = saved_block_bytes(config, batch, sequence, **policy)
    tokens, D = batch * sequence, config.d_model
    stream, row, pairs = size.stream * tokens * D, size.matmul * tokens * D, tokens * config.vocab
    table = gradient * config.vocab * D
    routing = _routing(config, tokens)
    saved += 0 if checkpointing else config.layers * routing
    moments = {
        "loss": saved + 2 * 4 * pairs + _LOSS,
        "head backward": saved + (size.matmul - 4) * pairs + row + table + _LOSS,
        "optimizer step": all_gradients + _LOSS + BYTES_OF_PARTS[precision]["weights"] * _adamw_elements(config),
    }
    if config.tied_head:
        moments["tied embedding"] = all_gradients + 2 * table + 2 * _LOSS
    # Before the backward pass of block i: the blocks below it and the gradients above. Linear in i: an end is the peak.
    each = stream if checkpointing else block.total + routing
    rest = config.layers - 1
    before = head + stream + 2 * _LOSS + max(rest * each, rest * block_gradient)
    inside = _inside_block(config, block, tokens, size, gradient, block_gradient, checkpointing=checkpointing)
    moments |= {name: before + value for name, value in inside.items()}
    if config.norm == "rmsnorm":
        final = config.layers * each + head + 2 * _LOSS + _RMSNORM_ROWS * 4 * tokens * D
        moments["norm backward"] = max(final, moments["norm backward"])
    return moments


def _inside_block(config, block, tokens, size, gradient, block_gradient, *, checkpointing) -> dict[str, int]:
    """The moments of one block's backward pass: what it still keeps, its gradients so far, temporary tensors."""
    c, moments = config, {}
    # Under autocast the copies of the query, key and value matrices outlive the products inside attention.
    matrices = c.d_model * (c.query_width + 2 * c.kv_width)
    copies = 2 * matrices if size.casts else 0
    # A parallel MLP has run backward before: its gradient of the normed input waits for that of attention.
    waiting = size.stream * tokens * c.d_model if c.norms_per_block == 1 else 0
    moments["mlp backward"] = _mlp_backward(c, block, tokens, size, gradient, checkpointing=checkpointing)
    still_missing = gradient * (matrices + (c.query_width + 2 * c.kv_width) * (c.bias != "none"))
    still_missing += gradient * (1 + c.norm_bias) * c.d_model
    kept = sum(block[name] for name in ("attention norm", "query, key, value inputs", "query", "key", "value"))
    done = block_gradient - still_missing + kept + copies + waiting
    pairs = block.get("softmax output", 0)
    if pairs:
        masks = block.get("weights' dropout mask", 0) + block.get("dropped weights", 0)
        # With fused attention, dropout takes torch to a path in fp32: the gradient of its output is cast too.
        output = block["query"]
        # The gradient of the weights, then that of the scores; value and its side are gone by then.
        moments["attention backward"] = done + pairs + max(block["value"] + output + pairs + masks, 2 * pairs)
    else:
        gradients = block["query"] + block["key"] + block["value"]
        temporary = block["logsumexp"] + 2 * block["attention output's input"] + gradients
        moments["attention backward"] = done + temporary + block.get("window mask", 0)
    if c.norm == "rmsnorm":
        moments["norm backward"] = _norm_of_block(c, block, tokens, size, gradient, block_gradient)
    if c.experts and checkpointing:
        # The sum of the experts' outputs, the scores, and under autocast the fp32 input that all of them cast.
        sums = (2 if size.casts else 1) * size.stream * tokens * c.d_model + size.matmul * tokens * c.experts_per_token
        moments["recomputation"] = block.total + _routing(c, tokens) + sums
    # An RMSNorm in bf16 keeps an fp32 copy of its input; a checkpoint holds the input itself beside it.
    held = size.stream * tokens * c.d_model if checkpointing and c.norm == "rmsnorm" and size.stream == 2 else 0
    return {name: value + held for name, value in moments.items()}


def _mlp_backward(config, block, tokens, size, gradient, *, checkpointing) -> int:
    """The backward pass of a dense MLP peaks in the down projection or in the operation before it."""
    c = config
    if c.experts:
        return _experts_backward(c, block, tokens, size, gradient)
    hidden, elements, bias = size.matmul * tokens * c.d_ff, c.d_ff * c.d_model, (c.bias == "all") * c.d_model
    mask = block.get("mlp dropout mask", 0)
    # Gone: the mask, and the down projection's input. New: its gradient, and those of the tensors that made it.
    before_down = block.total - mask + gradient * (elements + bias) + (2 if c.mlp == "swiglu" else 1) * hidden
    if not size.casts:
        # Both products of the down projection, and its bias unless the recomputed input is freed before.
        down = block.total + hidden + gradient * (elements + bias * (not checkpointing))
        return max(down, before_down)
    # Autocast: the gradient comes in bf16, cast from the stream's (a mask's product takes its place), then is cast back.
    row = 0 if mask else size.matmul * tokens * c.d_model
    down = block.total + hidden + row + 2 * (elements + bias * (not checkpointing))
    cast_back = block.total - mask + (2 + 4 - 2) * elements + 2 * bias
    return max(down, cast_back, before_down - 2 * elements)


def _experts_backward(config, block, tokens, size, gradient) -> int:
    """The experts run backward one by one, the last one first; each is taken to have an equal share of the tokens."""
    c, visits, bias = config, tokens * config.experts_per_token, config.bias == "all"
    matrices, branches = (3, 2) if c.mlp == "swiglu" else (2, 1)
    elements = c.d_ff * c.d_model
    each = matrices * elements + bias * ((matrices - 1) * c.d_ff + c.d_model)
    # What one expert keeps. Its output's two copies are gone when its own backward pass peaks, before down.
    hidden = (2 * branches) * size.matmul * visits * c.d_ff // c.experts
    outputs = block["expert outputs"] // c.experts
    rows = size.matmul * visits * c.d_model * (branches if size.casts else 1) // c.experts
    own = hidden + outputs + rows + block.get("mlp dropout mask", 0) // c.experts
    own += (2 * matrices * elements if size.casts else 0) + 16 * visits // c.experts
    own += 4 * visits // c.experts  # its routing weights
    temporary = gradient * (elements + bias * c.d_model) + hidden // 2 - outputs
    temporary -= block.get("mlp dropout mask", 0) // c.experts + (2 * elements if size.casts else 0)
    # Later experts find the sum of the gradients so far, of the tokens and of the routing weights.
    summed = size.stream * (tokens * c.d_model + visits)
    rest = c.experts - 1
    return block.total + _routing(c, tokens) + temporary + max(0, summed + rest * (gradient * each - own))


def _norm_of_block(config, block, tokens, size, gradient, block_gradient) -> int:
    """The later of a block's RMSNorms to run backward, with all gradients of the block, or the norm before the MLP."""
    c, rows = config, _RMSNORM_ROWS * 4 * tokens * config.d_model
    if c.norms_per_block == 1:
        return block_gradient + rows
    matrices = 2 * c.d_model * (c.query_width + c.kv_width)
    biases = (c.query_width + 2 * c.kv_width) * (c.bias != "none") + c.d_model * (c.bias == "all")
    of_attention = gradient * (matrices + biases + c.d_model)
    kept = sum(value for name, value in block.items() if name not in _OF_MLP) + size.casts * 2 * matrices
    return max(block_gradient, block_gradient - of_attention + kept) + rows


def _adamw_elements(config: TransformerConfig) -> int:
    """Elements that AdamW needs for a moment: two tensors as large as one parameter, beside one as large as the last."""
    first, block, last = shapes_of_parts(config)
    order = [prod(shape) for shape in (*first, *block, *block[: 1 if config.layers > 1 else 0], *last)]
    return max(2 * now + before for before, now in zip([0, *order], order, strict=False))


def step_peak(
    config: TransformerConfig,
    batch: int,
    sequence: int,
    *,
    precision: str = "fp32",
    optimizer: str = "adamw",
    attention: str = "eager",
    checkpointing: bool = False,
) -> Breakdown:
    """What is alive at the peak of a training step whose old gradients are freed: parameters, state, and the rest.

    The last component is named after its moment, see `peak_moments`. Less than the four buckets together when gradients
    and activations take turns; more when the temporary tensors of one moment are larger than all gradients.
    """
    policy = {"precision": precision, "attention": attention, "checkpointing": checkpointing}
    buckets = training_memory(config, batch, sequence, optimizer=optimizer, **policy)
    lasting = {name: buckets[name] for name in buckets if name not in ("gradients", "activations")}
    moments = peak_moments(config, batch, sequence, **policy)
    moment = max(moments, key=moments.get)
    return Breakdown({**lasting, f"alive at the peak: {moment}": moments[moment]}, unit="bytes")
