"""From a step to its program, from which every other number is computed."""

from functools import lru_cache
from typing import Unpack

from cs336kit.predict._transformers.decoder import decoder as transformers_decoder
from cs336kit.predict._transformers.writings import Writing, writing
from cs336kit.predict.checks import known, shown
from cs336kit.predict.decoder.model import decoder
from cs336kit.predict.decoder.step import Step, StepOptions
from cs336kit.predict.engine.operations import Leaf, Op, Program, Repeat, operations
from cs336kit.predict.layouts import Layout, as_layout
from cs336kit.predict.transformer import TransformerConfig


def program(
    config: TransformerConfig, *, batch: int, sequence: int, flavour: str = "course", **options: Unpack[StepOptions]
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

    Errors: ValueError for impossible sizes and unknown names of values, TypeError for an unknown option.
    """
    if flavour == "course":
        return program_of(Step.of(config, batch=batch, sequence=sequence, **options))
    _only_whole_steps(flavour, options)
    how = writing(config, _architecture(flavour))
    _check_whole(config, as_layout(options.get("layout")), flavour)
    return _as_transformers(Step.of(config, batch=batch, sequence=sequence, **options), how)


def program_of(step: Step) -> Program:
    """The program of a step; ValueError for names of components that the model does not have."""
    if step.frozen or step.lora_rank is not None:
        _check_components(step)
    return _program(step)


def _check_components(step: Step) -> None:
    for name in step.frozen:
        known("component", name, dict.fromkeys(leaf.component for leaf in model_leaves(step.config)))
    for name in step.lora_targets if step.lora_rank is not None else ():
        known("target of adapters", name, linear_components(step.config))


#: Programs are immutable, and one question asks for the same one several times.
_program = lru_cache(maxsize=64)(decoder)


def forget() -> None:
    """Drop all programs that are remembered."""
    for remembered in (_program, _as_transformers, model_leaves, linear_components):
        remembered.cache_clear()


@lru_cache(maxsize=64)
def _as_transformers(step: Step, how: Writing) -> Program:
    """The program of transformers' modules; ValueError if they would have another number of parameters than the configuration."""
    walked = transformers_decoder(
        step.config, how, batch=step.batch, sequence=step.sequence, policy=step.policy, attention=step.attention,
        device=step.device, checkpointing=step.checkpointing, train=step.trains, layout=step.layout,
    )  # fmt: skip
    theirs, ours = (
        sum(leaf.count * leaf.tensor.elements for leaf in leaves)
        for leaves in (walked.leaves, model_leaves(step.config))
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


def _only_whole_steps(flavour: str, options: StepOptions) -> None:
    others = {name: options.get(name) for name in ("causal", "frozen", "lora_rank", "expert_tokens", "base", "stage")} | {
        "chunks": options.get("chunks", 1) != 1, "phase": options.get("phase", "train") not in ("train", "forward"),
        "cache": options.get("cache", "growing") != "growing", "unrolled": options.get("unrolled"),
        "attention='flash_attention'": options.get("attention") == "flash_attention",
    }  # fmt: skip
    for name, given in others.items():
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
