"""One pass of a model, asked for in full: what is computed from it is passed this, and nothing else about the pass."""

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypedDict, Unpack

from cs336kit.predict.checks import boolean, known, non_negative_int, positive_int, several
from cs336kit.predict.devices import FLASH, Device
from cs336kit.predict.devices import device as device_of
from cs336kit.predict.layouts import Layout, as_layout, check_layout
from cs336kit.predict.packed import PACKINGS
from cs336kit.predict.precision import PrecisionPolicy, policy
from cs336kit.predict.transformer import TransformerConfig, check_config

#: How `lm` computes attention: with the softmax written out, or with torch's fused function.
ATTENTION = dict.fromkeys(("eager", "sdpa"))
#: These, and a kernel that no module of `lm` calls.
EVERY_ATTENTION = {**ATTENTION, "flash_attention": None}
#: A training step, a forward pass without autograd, one over a prompt that fills a cache, and one of a new token with a cache.
PHASES = dict.fromkeys(("train", "forward", "prefill", "decode"))
#: Caches: new tensors at every call, or tensors that are allocated once, in which a window is a ring buffer.
CACHES = dict.fromkeys(("growing", "contiguous"))
#: The tokens of each expert, in each layer; None for a layer without experts.
Routing = tuple[tuple[int, ...] | None, ...]


class Options(TypedDict, total=False):
    """What can be said of any pass besides its size and its ranks; `predict.program` says what each means."""

    precision: str | PrecisionPolicy
    attention: str
    device: str | Device
    checkpointing: bool
    phase: str
    causal: bool
    frozen: Iterable[str]
    lora_rank: int | None
    lora_targets: Iterable[str]
    expert_tokens: Sequence[Any] | None
    chunks: int
    base: str | None
    cache: str
    unrolled: bool


class StepOptions(Options, total=False):
    """These, and which rank it is: all that `Step.of` takes besides the size."""

    layout: Layout | str | None
    stage: int


#: Every option's name.
_NAMES = sorted(StepOptions.__optional_keys__)


@dataclass(frozen=True)
class Step:
    """One rank's pass over one micro-batch, checked: everything that its program depends on.

    Made by `Step.of`, which takes names and texts and refuses what cannot be; `at` changes some of it. The names of components
    (`frozen`, `lora_targets`) are checked where the program is made.
    """

    config: TransformerConfig
    batch: int
    sequence: int
    policy: PrecisionPolicy
    attention: str
    device: Device
    checkpointing: bool = False
    phase: str = "train"
    causal: bool = False
    frozen: tuple[str, ...] = ()
    lora_rank: int | None = None
    lora_targets: tuple[str, ...] = ("query", "value")
    routing: Routing | None = None
    chunks: int = 1
    base: str | None = None
    layout: Layout = field(default_factory=Layout)
    stage: int = 0
    cache: str = "growing"
    unrolled: bool = False

    def __hash__(self) -> int:
        # Programs are kept by their step, which is asked for many times.
        try:
            remembered: int = self.__dict__["_hash"]
        except KeyError:
            remembered = hash(tuple([getattr(self, name) for name in self.__dataclass_fields__]))
            object.__setattr__(self, "_hash", remembered)
        return remembered

    def __getstate__(self) -> dict[str, Any]:
        # Strings have other hashes in each process, so a pickled hash would match nothing there.
        return {name: value for name, value in self.__dict__.items() if name != "_hash"}

    @property
    def trains(self) -> bool:
        """Whether autograd records the pass."""
        return self.phase == "train"

    @property
    def queries(self) -> int:
        """Positions of a sequence that a rank computes: in a decoding step the new one, else its part of the sequence."""
        return 1 if self.phase == "decode" else self.sequence // self.layout.cp

    @property
    def rows(self) -> int:
        """Positions outside the tensor-parallel parts, which the ranks of tp divide if sp is set."""
        return self.queries // self.layout.tp if self.layout.sp else self.queries

    def at(self, *, layout: Layout | None = None, stage: int | None = None) -> "Step":
        """The same pass on another stage of the pipeline, or in another layout."""
        layout, stage = layout or self.layout, self.stage if stage is None else stage
        if layout == self.layout and stage == self.stage:
            return self
        _check_layout(self.config, layout, stage, self.phase, self.sequence, routed=self.routing is not None)
        return replace(self, layout=layout, stage=stage)

    @classmethod
    def of(cls, config: TransformerConfig, *, batch: int, sequence: int, **options: Unpack[StepOptions]) -> "Step":
        """The step that these options ask for; without them: a training step in fp32 on a CPU, with eager attention.

        Errors: TypeError for a name that is no option, with the nearest one; ValueError for impossible sizes and values.
        """
        for name in options:
            if name not in _NAMES:
                near = difflib.get_close_matches(name, _NAMES, n=1, cutoff=0.6)
                meant = f": did you mean {near[0]}?" if near else f"; there are {', '.join(_NAMES)}"
                raise TypeError(f"a step has no option {name}{meant}")
        return cls._checked(config, batch=batch, sequence=sequence, **options)

    @classmethod
    def _checked(
        cls,
        config: TransformerConfig,
        *,
        batch: int,
        sequence: int,
        precision: str | PrecisionPolicy = "fp32",
        attention: str = "eager",
        device: str | Device = "cpu",
        checkpointing: bool = False,
        phase: str = "train",
        causal: bool = False,
        frozen: Iterable[str] = (),
        lora_rank: int | None = None,
        lora_targets: Iterable[str] = ("query", "value"),
        expert_tokens: Sequence[Any] | None = None,
        chunks: int = 1,
        base: str | None = None,
        layout: Layout | str | None = None,
        stage: int = 0,
        cache: str = "growing",
        unrolled: bool = False,
    ) -> "Step":
        batch, sequence = check_sizes(config, batch=batch, sequence=sequence)
        known("attention", attention, EVERY_ATTENTION)
        kind, on = policy(precision), device_of(device)
        if attention == "flash_attention":
            _check_flash(config, kind, on)
        known("phase", phase, PHASES)
        known("cache", cache, CACHES)
        boolean("checkpointing", checkpointing)
        boolean("causal", causal)
        frozen, targets = several("frozen", frozen), several("lora_targets", lora_targets)
        if lora_rank is not None:
            positive_int("lora_rank", lora_rank)
            if not targets:
                raise ValueError(
                    "lora_rank without lora_targets adds nothing to train: name components, such as 'query'"
                )
        layout = as_layout(layout)
        _check_layout(config, layout, stage, phase, sequence, routed=expert_tokens is not None)
        if base is not None:
            known("packing", base, PACKINGS)
        if positive_int("chunks", chunks) > 1 and phase != "train":
            raise ValueError(f"chunks={chunks} divides the loss, and phase={phase!r} has none: leave it out")
        # In a decoding step, each sequence has one new token.
        routing = _routing(config, batch * (1 if phase == "decode" else sequence), expert_tokens)
        return cls(
            config, batch, sequence, kind, attention, on, checkpointing=checkpointing, phase=phase, causal=causal,
            frozen=frozen, lora_rank=lora_rank, lora_targets=targets, routing=routing, chunks=min(chunks, batch * sequence),
            base=base, layout=layout, stage=int(stage), cache=cache, unrolled=boolean("unrolled", unrolled),
        )  # fmt: skip


def check_sizes(config: TransformerConfig, *, batch: int, sequence: int) -> tuple[int, int]:
    """The sizes as ints; raises ValueError unless the model can run on `batch` sequences of `sequence` tokens."""
    check_config(config)
    batch, sequence = positive_int("batch", batch), positive_int("sequence", sequence)
    if config.positions in ("learned", "rope") and sequence > config.context:
        raise ValueError(
            f"sequence={sequence} is longer than context={config.context}, and the model's {config.positions} positions end "
            "there: shorten the sequence or give a configuration with a longer context"
        )
    return batch, sequence


def _check_flash(config: TransformerConfig, kind: PrecisionPolicy, on: Device) -> None:
    if on.name != "cuda":
        raise ValueError(
            f"attention='flash_attention' is a kernel of CUDA, and device is {on.name!r}: give device='cuda'"
        )
    if kind.products not in FLASH.types:
        raise ValueError(
            f"attention='flash_attention' computes in bf16 or fp16, and {kind.name} in {kind.products}: give 'sdpa'"
        )
    if FLASH.widest is not None and config.head_dim > FLASH.widest:
        raise ValueError(
            f"attention='flash_attention' takes heads up to {FLASH.widest} wide, and head_dim is {config.head_dim}: give 'sdpa'"
        )


def _check_layout(
    config: TransformerConfig, layout: Layout, stage: int, phase: str, sequence: int, *, routed: bool
) -> None:
    if layout.count > 1:
        check_layout(config, layout, sequence=None if phase == "decode" else sequence)
        if phase == "decode" and (layout.cp > 1 or layout.sp):
            raise ValueError(
                f"{layout}: one new token is not a sequence to divide; leave cp and sp out of a layout for decoding"
            )
        if routed and (layout.ep > 1 or layout.cp > 1):
            raise ValueError(
                f"expert_tokens with {layout}: the tokens of a rank's experts come from other ranks; leave it out"
            )
    if non_negative_int("stage", stage) >= layout.pp:
        raise ValueError(f"stage={stage}, and the stages of {layout} are 0 to {layout.pp - 1}: give one of them")


def _routing(config: TransformerConfig, tokens: int, expert_tokens: Sequence[Any] | None) -> Routing | None:
    if expert_tokens is None:
        return None
    layers = several("expert_tokens", expert_tokens, kind="numbers of tokens")
    if layers and not isinstance(layers[0], Sequence):
        layers = (layers,) * config.sparse_count
    visits = tokens * config.experts_per_token
    layers = tuple([non_negative_int("expert_tokens", n) for n in several("expert_tokens", sizes)] for sizes in layers)
    for sizes in layers:
        if len(sizes) != config.experts or sum(sizes) != visits:
            raise ValueError(
                f"expert_tokens gives {len(sizes)} experts {sum(sizes)} tokens: this model's {config.experts} experts get "
                f"{visits} in every layer"
            )
    if len(layers) != config.sparse_count or not config.experts:
        raise ValueError(f"expert_tokens has {len(layers)} layers, and the model {config.sparse_count} with experts")
    given = iter(layers)
    return tuple(tuple(next(given)) if config.is_sparse(layer) else None for layer in range(config.layers))
