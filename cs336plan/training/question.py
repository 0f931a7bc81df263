"""A question about a training run, and the checks that fill in what it leaves open."""

from dataclasses import dataclass, replace
from typing import Any

from cs336kit.predict.checks import checked, fraction, known, shown
from cs336kit.predict.checks import count as whole
from cs336kit.predict.decoder.programs import linear_components, model_leaves, program
from cs336kit.predict.decoder.step import EVERY_ATTENTION, check_sizes
from cs336kit.predict.devices import DEVICES
from cs336kit.predict.hardware import Accelerator
from cs336kit.predict.layouts import Layout, as_layout, check_layout
from cs336kit.predict.links import node_of
from cs336kit.predict.models import MODELS
from cs336kit.predict.names import unknown
from cs336kit.predict.napkin import NAPKIN_OPTIMIZERS
from cs336kit.predict.optimizers import OPTIMIZERS
from cs336kit.predict.packed import PACKINGS
from cs336kit.predict.precision import POLICIES
from cs336kit.predict.transformer import TransformerConfig

#: Optimizers that need the shapes of a model, besides NAPKIN_OPTIMIZERS.
SHAPED_OPTIMIZERS = tuple(name for name in OPTIMIZERS if name not in NAPKIN_OPTIMIZERS)
#: Optimizers that torch also has as one fused kernel.
FUSED = ("sgd", "momentum", "adagrad", "adam", "adamw")
#: Length of a sequence where neither the question nor the model asks for less.
_USUAL_SEQUENCE = 4096

#: Where adapters are unless the question says so; in latent attention, one matrix makes keys and values.
_USUAL_TARGETS = ("query", "value")

#: The share of the dense peak that matrix products reach, unless the question says otherwise: the fastest in bf16 on H100
#: SXM, 794.5 of 989 TFLOP/s (A100 SXM: 0.87, B200 SXM: 0.78, MI300X: 0.51). Source: Bekman, "Machine Learning Engineering",
#: stas00/ml-engineering@744d01e, compute/accelerator, "Maximum Achievable Matmul FLOPS comparison table".
PRODUCT_RATE = 0.8

#: More accelerators than anybody has: a larger number is more likely a typing error.
LARGEST_COUNT = 10**8
#: More sequences than anybody has at a time; its divisors are still found at once.
LARGEST_BATCH = 10**12


@dataclass(frozen=True)
class Question:
    """A training run: the model, the hardware, and how it is trained.

    `model` is a name of MODELS, a configuration, or a number of parameters. `batch` sequences of `sequence` tokens are what one
    accelerator works on at a time; a number of parameters has no activations, so it takes neither. `sharded` splits parameters,
    gradients and optimizer state over all accelerators.
    """

    model: TransformerConfig | str | int | float
    name: str = "model"
    #: an accelerator of the table, or its name; None if `memory_bytes` and `peak_flops_per_second` describe the chip
    accelerator: str | Accelerator | None = "h100-sxm"
    count: int = 1
    tokens: int | float | None = None
    batch: int | None = None
    sequence: int | None = None
    precision: str = "mixed"
    optimizer: str = "adamw"
    #: None: "sdpa", or "flash_attention" where torch's function would write the scores out (see `usual_attention`)
    attention: str | None = None
    checkpointing: bool = False
    #: model FLOPs utilization: FLOPs of the model over peak × time of the whole run, whatever that time is spent on
    mfu: float = 0.4
    sharded: bool = True
    #: replace the accelerator's own numbers
    memory_bytes: int | float | None = None
    peak_flops_per_second: float | None = None
    #: memory left free: a whole number of bytes, a fraction of the memory below 1, or None for the default
    allowance: int | float | None = None
    #: sequences of one optimizer step over all accelerators, and the micro-batches in which each one processes its own
    global_batch: int | None = None
    accumulate: int | None = None
    #: optimizer steps
    steps: int | None = None
    #: parts of the tokens whose logits and loss are computed one after the other
    chunks: int = 1
    #: rank of the adapters beside `lora_targets`; everything else is frozen
    lora_rank: int | None = None
    #: components with adapters; if empty, queries and values
    lora_targets: tuple[str, ...] = ()
    #: how frozen matrices are quantized, such as "nf4"
    base: str | None = None
    #: components that are not trained
    frozen: tuple[str, ...] = ()
    #: the device by whose rules operations save tensors: "cuda" or "cpu"
    device: str = "cuda"
    #: such as "fsdp=64,tp=8"; None: all accelerators shard the state (`sharded`), or each holds a replica
    layout: Layout | str | None = None
    #: bytes per second each way from one accelerator to other nodes, and accelerators of a node (None: see `node_of`)
    between_nodes: float | None = None
    node: int | None = None
    #: of one accelerator, in any currency
    price_per_hour: float | None = None
    #: power of one accelerator with its share of the machine
    watts: float | None = None
    #: whether the optimizer is one kernel without temporary tensors (torch's fused=True)
    fused: bool = False
    #: days that the run may take; the answer says how many accelerators that needs, and `count` stays as it is
    within_days: float | None = None
    #: the share of the peak that matrix products reach, from which the bounds of a step follow
    product_rate: float = PRODUCT_RATE
    #: bytes per second each way that one accelerator has to its neighbors in the node, in place of the table's
    link: float | None = None

    @property
    def config(self) -> TransformerConfig | None:
        """The configuration that is meant; None for a number of parameters."""
        model = MODELS[self.model] if isinstance(self.model, str) else self.model
        return model if isinstance(model, TransformerConfig) else None

    @property
    def passes(self) -> int:
        """Forward and backward passes of one optimizer step."""
        return self.accumulate or 1

    @property
    def step_sequences(self) -> int | None:
        """Sequences of one optimizer step over all accelerators, each of which works on its own sequences."""
        return self.batch and self.batch * self.passes * self.placed.data_ranks

    @property
    def can_be_causal(self) -> bool:
        """Whether attention can leave pairs out: not written out, nor of transformers' modules, which count all pairs."""
        return self.attention != "eager"

    @property
    def per_node(self) -> int:
        """Accelerators of a node: as given, or as the table has them."""
        return self.node_for(self.count)

    def node_for(self, count: int) -> int:
        """The same if there were `count` accelerators."""
        return self.node or node_of(self.accelerator, count)

    @property
    def placed(self) -> Layout:
        """The layout that was given, or that `count` and `sharded` mean, with the micro-batches of a step."""
        meant = Layout(fsdp=self.count) if self.sharded else Layout(dp=self.count)
        return replace(meant if self.layout is None else as_layout(self.layout), microbatches=self.passes)


def settled(q: Question) -> Question:
    """The question with every default filled in; a ValueError says what is impossible or contradictory."""
    if not isinstance(q, Question):
        raise ValueError(f"question must be a Question, got {shown(q)}: give one, such as Question('llama-3-8b')")
    if isinstance(q.model, str):
        if q.model not in MODELS:
            unknown(q.model, otherwise="predict.from_hf reads a config.json, and a number such as 70e9 is parameters")
        q = replace(q, model=MODELS[q.model], name=q.model if q.name == Question.name else q.name)
    q = replace(q, **checked(
        q, limits={"count": LARGEST_COUNT, "batch": LARGEST_BATCH},
        choices={"attention": EVERY_ATTENTION, "precision": POLICIES, "device": DEVICES},
        tokens=whole, mfu=fraction, product_rate=fraction, allowance=None,
    ))  # fmt: skip
    optimizer = q.optimizer.lower() if isinstance(q.optimizer, str) else q.optimizer
    if q.fused and optimizer not in FUSED:
        raise ValueError(f"torch has no fused {shown(q.optimizer)}: take one of {', '.join(FUSED)}, or leave fused out")
    q = replace(q, optimizer=optimizer)
    q = _with_shape(q, q.config) if q.config else _without_shape(q)
    if (q.price_per_hour is not None or q.watts is not None) and q.tokens is None:
        raise ValueError("a cost needs a time, and a time the tokens to train on: give tokens (or steps)")
    if q.within_days is not None and q.tokens is None:
        raise ValueError(
            "how many accelerators it takes for so many days depends on the tokens to train on: give tokens (or steps)"
        )
    return q


def usual_sequence(config: TransformerConfig) -> int:
    """Tokens of a sequence where nobody says how many."""
    return min(config.context, _USUAL_SEQUENCE)


def _with_shape(q: Question, config: TransformerConfig) -> Question:
    known("optimizer", q.optimizer, OPTIMIZERS)
    sequence = usual_sequence(config) if q.sequence is None else q.sequence
    batch, sequence = check_sizes(config, batch=1 if q.batch is None else q.batch, sequence=sequence)
    q = replace(q, batch=batch, sequence=sequence, lora_targets=_targets(q, config))
    if q.frozen:
        _check_frozen(q, config)
    q = _with_passes(_with_layout(q, config))
    q = replace(q, attention=q.attention or usual_attention(q))
    if q.tokens is None and q.steps is not None:
        assert q.step_sequences is not None
        return replace(q, tokens=q.steps * q.step_sequences * sequence)
    return q


def usual_attention(q: Question) -> str:
    """What such a run takes where nobody says: torch's fused function, or, where it has no kernel for the heads, FlashAttention.

    With windows, caps and sinks, torch's function writes the scores of all pairs out, and a step needs several times the
    memory; such models are run with a kernel that knows them (FlashAttention, FlexAttention), where there is one.
    """
    return "flash_attention" if writes_scores(replace(q, attention="sdpa")) else "sdpa"


def writes_scores(q: Question) -> bool:
    """Whether torch's fused function has no kernel for these heads and writes out scores, while another kernel would not."""
    if q.config is None or q.attention != "sdpa":
        return False
    try:
        walked = program(q.config, **step_program(q))
        written = any(op.kind == "softmax" and op.part == "attention" for op, _ in walked.operations())
        if written:
            program(q.config, **step_program(q) | {"attention": "flash_attention"})
    except ValueError:
        # A precision, a device or heads that no such kernel supports; or a run that cannot be, as its peak will say.
        return False
    return written


def trained(q: Question) -> dict[str, Any]:
    """The options of `predict.program` that say which parameters are trained."""
    return {"frozen": q.frozen, "lora_rank": q.lora_rank, "lora_targets": q.lora_targets, "base": q.base}


def step_program(q: Question) -> dict[str, Any]:
    """The options of `predict.program` for a pass of a settled question about a configuration."""
    return {
        "batch": q.batch, "sequence": q.sequence, "layout": q.placed, "precision": q.precision, "attention": q.attention,
        "checkpointing": q.checkpointing, "chunks": q.chunks, "device": q.device, **trained(q),
    }  # fmt: skip


def _with_layout(q: Question, config: TransformerConfig) -> Question:
    """The layout says how many accelerators there are, and how many micro-batches a step has."""
    if q.layout is None:
        return q
    layout = as_layout(q.layout)
    if q.count not in (1, layout.count):
        raise ValueError(
            f"the layout {layout} has {layout.count:,} ranks, and count is {q.count:,}: leave count out, or make them equal"
        )
    if q.accumulate is not None and layout.microbatches not in (1, layout.pp, q.accumulate):
        raise ValueError(
            f"accumulate={q.accumulate} and microbatches={layout.microbatches} of the layout set the same number: leave one out"
        )
    passes = q.accumulate or (None if q.global_batch is not None else layout.microbatches)
    check_layout(config, layout, sequence=q.sequence)
    return replace(q, layout=layout, count=layout.count, accumulate=passes)


def _targets(q: Question, config: TransformerConfig) -> tuple[str, ...]:
    """The components with adapters, where there are some."""
    if q.lora_rank is None:
        if q.base is not None:
            raise ValueError(
                f"base={shown(q.base)} quantizes frozen weights, but here all are trained: give lora_rank, too"
            )
        return q.lora_targets or _USUAL_TARGETS
    if q.base is not None:
        known("packing", q.base, PACKINGS)
    if q.frozen:
        raise ValueError("lora_rank already freezes everything but the adapters: leave frozen out")
    matrices = dict.fromkeys(name for name, in_blocks in linear_components(config).items() if in_blocks)
    if not q.lora_targets:
        return tuple(name if name in matrices else "key and value" for name in _USUAL_TARGETS)
    if q.lora_targets == ("all",):
        return tuple(name for name in matrices if name != "router")
    for name in q.lora_targets:
        known("target of adapters", name, matrices)
    return q.lora_targets


def _check_frozen(q: Question, config: TransformerConfig) -> None:
    components = dict.fromkeys(leaf.component for leaf in model_leaves(config))
    for name in q.frozen:
        known("component", name, components)
    # A tied head has no parameters of its own.
    if set(components) <= set(q.frozen):
        raise ValueError("every component is frozen, so there is nothing to train: leave one out of frozen")


def _with_passes(q: Question) -> Question:
    """Global batch, micro-batch and number of micro-batches agree, or the one that is missing is found."""
    if q.global_batch is None:
        return replace(q, accumulate=q.passes)
    assert q.batch is not None
    together = q.batch * q.placed.data_ranks
    if q.accumulate is None:
        passes, rest = divmod(q.global_batch, together)
        if rest or not passes:
            nearest = max(passes, 1) * together
            raise ValueError(
                f"a global batch of {q.global_batch} sequences is not a whole number of micro-batches of {q.batch} on each of "
                f"{q.placed.data_ranks}: give a multiple of {together:,}, such as {nearest:,}, or another batch"
            )
        if q.layout is not None and (layout := as_layout(q.layout)).microbatches not in (1, layout.pp, passes):
            raise ValueError(
                f"a global batch of {q.global_batch} sequences takes {passes} micro-batches of {q.batch} on each of "
                f"{q.placed.data_ranks}, and the layout says microbatches={layout.microbatches}: leave one out"
            )
        return replace(q, accumulate=passes)
    if together * q.accumulate != q.global_batch:
        raise ValueError(
            f"{q.batch} × {q.placed.data_ranks} accelerators × {q.accumulate} micro-batches are "
            f"{together * q.accumulate} sequences a step, not the global batch of {q.global_batch}: leave one of them out"
        )
    return q


#: What a number of parameters cannot answer; the default of each asks for nothing.
_NEEDS_SHAPE = (
    "batch", "sequence", "attention", "checkpointing", "global_batch", "accumulate", "chunks", "lora_rank", "base",
    "frozen", "layout",
)  # fmt: skip


def _without_shape(q: Question) -> Question:
    q = replace(q, model=whole("parameters", q.model))
    for name in _NEEDS_SHAPE:
        if getattr(q, name) not in (getattr(Question, name), None):
            about = "the parts" if name in ("lora_rank", "base", "frozen") else "activations"
            raise ValueError(
                f"{name} is about {about}, which need the shape of the model, not only its number of parameters: "
                f"name a model or give a configuration, or leave {name} out"
            )
    if q.steps is not None and q.tokens is None:
        raise ValueError(
            "steps need a batch of tokens, which a number of parameters does not have: give tokens, or name a model"
        )
    if q.optimizer in SHAPED_OPTIMIZERS:
        raise ValueError(
            f"{q.optimizer} keeps state by shape, which a number of parameters does not tell: name a model, or take one "
            f"of {', '.join(NAPKIN_OPTIMIZERS)}"
        )
    known("optimizer", q.optimizer, {name: OPTIMIZERS[name] for name in NAPKIN_OPTIMIZERS})
    return q
