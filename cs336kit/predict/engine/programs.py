"""From a configuration to its program: sizes and options are checked here, and every other number is computed from it."""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

from cs336kit.predict._transformers.decoder import decoder as transformers_decoder
from cs336kit.predict._transformers.writings import Writing, writing
from cs336kit.predict.checks import boolean, known, non_negative_int, positive_int, several, shown
from cs336kit.predict.devices import FLASH, Device
from cs336kit.predict.devices import device as device_of
from cs336kit.predict.engine.decoder.model import decoder
from cs336kit.predict.engine.operations import Leaf, Op, Program, Repeat, operations
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


def program(
    config: TransformerConfig,
    *,
    batch: int,
    sequence: int,
    precision: str | PrecisionPolicy = "fp32",
    attention: str = "eager",
    device: str | Device = "cpu",
    flavour: str = "course",
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
) -> Program:
    """The operations of one forward pass of `lm.DecoderOnly`, in order: the list from which every estimate is computed.

    - `precision`: a name of POLICIES, or a policy.
    - `attention`: "eager" or "sdpa", as `lm` has them, or "flash_attention", the kernel of the FlashAttention library and of
      serving engines, which supports windows, capped scores and sinks (torch's function writes such attention out).
    - `device`: "cpu" or "cuda", whose operations save different tensors (DEVICES).
    - `checkpointing`: each block saves only its input.
    - `phase`: "train" ends with the loss, F.cross_entropy of fp32 logits. The others run without autograd: "forward" alone,
      "prefill" with a cache that takes the keys and values, and "decode" with one new token after the `sequence` − 1 in a cache.
    - `cache`: "growing" is concatenated anew, "contiguous" is written into tensors for `sequence` tokens.
    - `causal`: attention's FLOPs count half of the pairs, or the band of a sliding window.
    - `frozen`: components (names of `parameters`) that are not trained.
    - `lora_rank`: freezes everything and trains adapters of this rank beside `lora_targets`.
    - `expert_tokens`: the tokens of each expert, one list for each layer or one for all layers; None for equal shares.
    - `chunks`: parts of the tokens whose logits and loss are computed one after the other, each checkpointed, so that the logits
      of all tokens never exist at once.
    - `base`: how frozen matrices of the blocks are quantized (a name of PACKINGS, such as "nf4"); each is dequantized where used.
    - `layout`: a Layout or its text. The program is then that of one rank of the pipeline's `stage`, for one micro-batch of
      `batch` sequences, with collectives among its operations.
    - `unrolled`: every block and expert is listed once for each time that it runs, with storages of its own.
    - `flavour`: "course" for `lm`'s own modules, "transformers" for those of Hugging Face's library. The configuration tells the
      architecture, or "transformers:opt" names it; one that is not described here is refused. The modules are those of version
      5.23, unless a later one is named that writes them otherwise ("transformers:gptj-5.24"). Only a training step or a pass
      without autograd is counted, on one rank or under dp, zero1, zero2 and fsdp, and attention is eager where a module has no
      fused one. Saved bytes are exact. The peak of both passes was exact in 3,730 of 4,154 small modules of 19 families, where
      attention, the MLP, the vocabulary or the parameters dominate, in one block and in more, checkpointed and not. 496 of
      them with two tokens and few bytes were within 1.9 %, all others within 1.2 %, and only three GPT-J whose positions
      rotate whole heads were more than 0.6 % off.

    Errors: ValueError for impossible sizes and unknown names.
    """
    batch, sequence = check_sizes(config, batch=batch, sequence=sequence)
    known("attention", attention, EVERY_ATTENTION)
    if attention == "flash_attention":
        _check_flash(config, policy(precision), device_of(device))
    known("phase", phase, PHASES)
    known("cache", cache, CACHES)
    boolean("checkpointing", checkpointing)
    boolean("causal", causal)
    if flavour != "course":
        others = {
            "causal": causal, "frozen": frozen, "lora_rank": lora_rank, "expert_tokens": expert_tokens,
            "chunks": positive_int("chunks", chunks) > 1, "base": base, "phase": phase not in ("train", "forward"),
            "stage": stage, "cache": cache != "growing", "unrolled": unrolled,
            "attention='flash_attention'": attention == "flash_attention",
        }  # fmt: skip
        layout = as_layout(layout)
        _only_whole_steps(flavour, others)
        how = writing(config, _architecture(flavour))
        _check_whole(config, layout, flavour)
        return _as_transformers(
            config, how, batch=batch, sequence=sequence, policy=policy(precision),
            attention=attention, device=device_of(device), checkpointing=checkpointing, train=phase == "train", layout=layout,
        )  # fmt: skip
    frozen, targets = several("frozen", frozen), several("lora_targets", lora_targets)
    if frozen:
        for name in frozen:
            known("component", name, dict.fromkeys(leaf.component for leaf in model_leaves(config)))
    if lora_rank is not None:
        positive_int("lora_rank", lora_rank)
        if not targets:
            raise ValueError("lora_rank without lora_targets adds nothing to train: name components, such as 'query'")
        for name in targets:
            known("target of adapters", name, linear_components(config))
    layout = as_layout(layout)
    if layout.count > 1:
        check_layout(config, layout, sequence=None if phase == "decode" else sequence)
        _check_use(layout, phase=phase, expert_tokens=expert_tokens)
    if non_negative_int("stage", stage) >= layout.pp:
        raise ValueError(f"stage={stage}, and the stages of {layout} are 0 to {layout.pp - 1}: give one of them")
    if base is not None:
        known("packing", base, PACKINGS)
    if positive_int("chunks", chunks) > 1 and phase != "train":
        raise ValueError(f"chunks={chunks} divides the loss, and phase={phase!r} has none: leave it out")
    # In a decoding step, each sequence has one new token.
    routing = _routing(config, batch * (1 if phase == "decode" else sequence), expert_tokens)
    return _program(
        config, batch=batch, sequence=sequence, policy=policy(precision), attention=attention,
        device=device_of(device), checkpointing=checkpointing,
        phase=phase, causal=causal, frozen=frozen, lora_rank=lora_rank, lora_targets=targets, routing=routing,
        chunks=min(chunks, batch * sequence), base=base, layout=layout, stage=int(stage), cache=cache,
        unrolled=boolean("unrolled", unrolled),
    )  # fmt: skip


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


def _check_use(layout: Layout, *, phase: str, expert_tokens: Sequence[Any] | None) -> None:
    if phase == "decode" and (layout.cp > 1 or layout.sp):
        raise ValueError(
            f"{layout}: one new token is not a sequence to divide; leave cp and sp out of a layout for decoding"
        )
    if expert_tokens is not None and (layout.ep > 1 or layout.cp > 1):
        raise ValueError(
            f"expert_tokens with {layout}: the tokens of a rank's experts come from other ranks; leave it out"
        )


#: Programs are immutable, and one question asks for the same one several times.
_program = lru_cache(maxsize=64)(decoder)


@lru_cache(maxsize=64)
def _as_transformers(config: TransformerConfig, how: Writing, **options: Any) -> Program:
    """The program of transformers' modules; ValueError if they would have another number of parameters than the configuration."""
    walked = transformers_decoder(config, how, **options)
    theirs, ours = (
        sum(leaf.count * leaf.tensor.elements for leaf in leaves) for leaves in (walked.leaves, model_leaves(config))
    )
    if theirs != ours:
        raise ValueError(
            f"the modules of transformers that are described here would have {theirs:,} parameters, but this "
            f"configuration has {ours:,}: give flavour='course'"
        )
    return walked


def whole_blocks(config: TransformerConfig, layout: Layout) -> bool:
    """Whether each rank runs whole blocks on its own data and gathers no experts, as every flavour but "course" requires."""
    return max(layout.tp, layout.pp, layout.ep, layout.cp) == 1 and not (layout.stage == 3 and config.experts)


def _check_whole(config: TransformerConfig, layout: Layout, flavour: str) -> None:
    if whole_blocks(config, layout):
        return
    cut = [f"{axis}={getattr(layout, axis)}" for axis in ("tp", "pp", "ep", "cp") if getattr(layout, axis) > 1]
    if cut:
        shared = "dp, zero1 and zero2" if config.experts else "dp, zero1, zero2 and fsdp"
        raise ValueError(
            f"{' and '.join(cut)} of the layout with flavour={shown(flavour)} is not counted, only {shared}: leave it out, or "
            "give flavour='course'"
        )
    raise ValueError(
        f"experts shared over {layout.fsdp} accelerators are not counted with flavour={shown(flavour)}: give "
        f"layout=zero2={layout.fsdp * layout.dp}, or flavour='course'"
    )


def _architecture(flavour: str) -> str:
    """The architecture that a flavour of transformers names, or "" for none."""
    kind, _, name = str(flavour).partition(":")
    if kind != "transformers":
        raise ValueError(
            f"flavour is {shown(flavour)}: give 'course', 'transformers' or 'transformers:' and a model_type"
        )
    return name


def _only_whole_steps(flavour: str, options: dict[str, object]) -> None:
    for name, given in options.items():
        if given:
            raise ValueError(
                f"{name} with flavour={shown(flavour)} is not counted: leave it out, or give flavour='course'"
            )


@lru_cache(maxsize=256)
def model_leaves(config: TransformerConfig) -> tuple[Leaf, ...]:
    """The parameters of the model; those of repeated parts are listed once."""
    return program(config, batch=1, sequence=1, attention="sdpa", phase="forward").leaves


@lru_cache(maxsize=256)
def linear_components(config: TransformerConfig) -> dict[str, bool]:
    """Components with a linear layer, which may have adapters → whether they are in the blocks."""
    found: dict[str, bool] = {}
    walked = program(config, batch=1, sequence=1, attention="sdpa", phase="forward")
    for item in walked.items:
        within = [item] if isinstance(item, Op) else [op for op, _ in operations([item])]
        for op in within:
            if op.kind == "linear":
                found |= {component: isinstance(item, Repeat) for component, _ in op.flops}
    return found


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


def _routing(
    config: TransformerConfig, tokens: int, expert_tokens: Sequence[Any] | None
) -> tuple[tuple[int, ...] | None, ...] | None:
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
