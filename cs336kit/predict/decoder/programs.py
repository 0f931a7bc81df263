"""From a step to its program, from which every other number is computed."""

from functools import lru_cache
from typing import Unpack

from cs336kit.predict.checks import known
from cs336kit.predict.decoder.model import decoder
from cs336kit.predict.decoder.step import Step, StepOptions
from cs336kit.predict.engine.operations import Leaf, Op, Program, Repeat, operations
from cs336kit.predict.transformer import TransformerConfig


def program(config: TransformerConfig, *, batch: int, sequence: int, **options: Unpack[StepOptions]) -> Program:
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

    Errors: ValueError for impossible sizes and unknown names of values, TypeError for an unknown option.
    """
    return program_of(Step.of(config, batch=batch, sequence=sequence, **options))


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
    for remembered in (_program, model_leaves, linear_components):
        remembered.cache_clear()


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
