"""What other tools call an option of the command line, and a module: for the sentences about wrong ones."""

import difflib
import re
from argparse import Action
from collections.abc import Mapping, Sequence

from cs336kit.predict.decoder.programs import linear_components
from cs336kit.predict.layouts import AXES
from cs336kit.predict.packed import EXPERTS, packing_called
from cs336kit.predict.transformer import TransformerConfig

#: Option → what other tools of the field call it, without dashes. A word may stand twice: commands have other options.
_ELSEWHERE = {
    "--count": "gpus num-gpus ngpus num-devices devices nodes num-nodes nnodes world-size nproc-per-node tensor-parallel-size tp",
    "--accelerator": "gpu gpu-type device-name hardware chip card",
    "--sequence": "seq seq-len seqlen seq-length sequence-length max-seq-len max-seq-length max-length block-size context-length",
    "--layout": "zero zero-stage deepspeed sharding strategy parallelism vpp virtual-pipeline-model-parallel-size",
    "--context": "max-model-len context-length ctx-size num-ctx n-ctx",
    "--prompt": "seq-len seqlen input-len isl prompt-len prompt-length max-model-len context-length",
    "--output": "output-len osl max-tokens max-new-tokens",
    "--batch": "batch-size bs micro-batch micro-batch-size mbs per-device-train-batch-size concurrency max-num-seqs users",
    "--global-batch": "global-batch-size gbs train-batch-size",
    "--accumulate": "gradient-accumulation gradient-accumulation-steps grad-accum accumulation",
    "--checkpointing": "checkpoint gradient-checkpointing activation-checkpointing recompute recompute-granularity ac",
    "--steps": "max-steps train-iters num-steps",
    "--precision": "dtype mixed-precision bf16 fp16",
    "--weights": "dtype quantization quant precision",
    "--cache": "kv-cache-dtype kv-cache kv-dtype cache-type",
    "--chunk": "max-num-batched-tokens chunked-prefill prefill-chunk",
    "--page": "block-size page-size",
    "--latency": "tpot slo",
    "--lora": "lora-rank lora-r rank",
    "--targets": "target-modules lora-target-modules lora-targets",
    "--price-per-hour": "price cost cost-per-hour",
    "--watts": "power tdp",
    "--between-nodes": "network internode-bandwidth inter-node-bandwidth network-bandwidth",
    "--link": "nvlink nvlink-bandwidth intranode-bandwidth intra-node-bandwidth",
    "--memory": "vram gpu-memory memory-bytes hbm",
    "--peak": "flops peak-flops tflops",
    "--allowance": "gpu-memory-utilization reserve overhead",
}
#: What other tools offer, or this one offered, and no answer here has: an option of the command that would have it, their words
#: without dashes, and what to do instead.
_NOT_MODELLED = (
    (
        "--optimizer", "offload cpu-offload offload-optimizer offload-param offload-params zero-offload offload-device",
        "moving states or activations to the host is not modelled. What would move is a line of its own in the answer: take it "
        "off the sum, or keep it small with --optimizer adamw8bit, --qlora 16 or --checkpointing",
    ), (
        "--cache", "offload cpu-offload cpu-offload-gb swap-space n-gpu-layers ngl",
        "weights or a cache on the host are not modelled: --weights int4 and --cache fp8 take less, and --count divides them",
    ), (
        "--optimizer", "dpo grpo ppo rlhf ref-model reference-model orpo kto reward-model",
        "a reference or reward model beside the trained one is not modelled. Leave its weights free: --allowance with its bytes "
        "(2 a parameter in bf16) and 2GiB, and ask for twice the --batch where pairs are compared",
    ), (
        "--cache", "draft draft-model speculative speculative-model speculative-config num-speculative-tokens eagle medusa mtp",
        "speculation is not modelled. Leave the draft's weights and cache free with --allowance; predict.speculative_speedup "
        "says how many times faster text comes with it",
    ), (
        "--optimizer", "compile torch-compile",
        "torch.compile is not modelled: the bytes are those of eager modules, of which it keeps fewer (in norms, activations): "
        "they are an upper bound. Leave the option out",
    ), (
        "--optimizer", "flavour flavor",
        "this option is gone. --modules transformers counts a model on transformers' own modules",
    ), (
        "--optimizer", "selective-checkpointing selective-ac selective-recompute",
        "selective checkpointing is not modelled: what a step needs is between the answers with and without --checkpointing",
    ),
)  # fmt: skip
#: What other tools call a word of --layout.
_OF_LAYOUT = {
    "tensor-parallel-size": "tp", "tensor-model-parallel-size": "tp", "pipeline-parallel-size": "pp",
    "pipeline-model-parallel-size": "pp", "context-parallel-size": "cp", "expert-parallel-size": "ep",
    "expert-model-parallel-size": "ep", "data-parallel-size": "dp", "sequence-parallel": "sp",
} | {axis: axis for axis in AXES}  # fmt: skip
#: PEFT's target_modules → the component; of an MLP its last word, since a mixture has several (mlp gate, shared gate, …).
_OF_PEFT = {
    "q_proj": "query", "k_proj": "key", "v_proj": "value", "o_proj": "attention output", "gate_proj": "gate", "up_proj": "up",
    "down_proj": "down", "all-linear": "all",
}  # fmt: skip

#: Option → its value → what other tools call it, in small letters and without _ - and blanks.
_VALUES_ELSEWHERE = {
    "--weights": {
        "int4": "awq awqint4 gptq gptqint4 w4a16 autoround 4bit q4 4",
        "int8": "w8a8 w8a16 llmint8 8bit q8 gptqint8 smoothquant 8",
        "nf4": "bitsandbytes bnb bnb4bit bnbnf4 qlora loadin4bit",
        "fp8": "fp8e4m3 fp8e4m3fn e4m3 float8 fp8tensor fp8pertensor fp8static modeloptfp8",
        "fp8-channel": "fp8dynamic fp8row fp8perchannel fp8rowwise fbgemmfp8 ptpcfp8",
        "fp8-block": "fp8128x128 fp8blockwise fp8perblock finegrainedfp8 deepseekfp8", "nvfp4": "fp4 w4a4 modeloptfp4 modelopt",
        "mxfp4": "mx ocpmxfp4 mxfp4e2m1", "bf16": "auto bfloat16 none", "fp16": "float16 half", "fp32": "float32 float",
        "int4-g32": "q40 gguf q4km q4ks q4k", "int8-g32": "q80",
    },
    "--cache": {"fp8": "fp8e4m3 fp8e5m2 e4m3 e5m2 float8 fp8perhead", "bf16": "auto bfloat16", "fp16": "float16 half"},
    "--optimizer": {
        "adamw8bit": "adamw8bit adam8bit pagedadamw8bit pagedadam8bit 8bitadamw adamwbnb8bit bnbadamw8bit",
        "adamw": "adamwtorch adamwtorchfused adamwhf adamwanyprecision pagedadamw pagedadamw32bit adamw32bit adamwapexfused",
        "sgd": "sgdtorch",
    },
    "--precision": {"bf16": "bfloat16 purebf16", "fp32": "float32 full", "mixed": "amp autocast bf16mixed"},
}  # fmt: skip


def other_value(option: str, value: str, choices: Sequence[str]) -> str:
    """The sentence about a value that another tool has for a choice of this option, or nothing."""
    folded = re.sub(r"[_\-\s.]", "", value.lower())
    named = _VALUES_ELSEWHERE.get(option, {})
    meant = [own for own, names in named.items() if own in choices or packing_called(own)]
    found = next((own for own in meant if folded in named[own].split() or folded == re.sub(r"[_\-]", "", own)), None)
    if found is None:
        return ""
    gguf = re.fullmatch(r"gguf|i?q\d\w*", folded) and option == "--weights"
    said = "is not modelled, and nearest to it is" if gguf else "is called"
    return f"{value!r} {said} {found} here: write {option} {found}"


def is_sized(option: str, value: str) -> bool:
    """Whether the value is a packing by its sizes, such as int4-g64, which no list of choices has."""
    return option == "--weights" and packing_called(value.removesuffix(EXPERTS)) is not None


def components(targets: Sequence[str], model: object) -> tuple[str, ...]:
    """Where adapters stand, with PEFT's names of modules as the components of this model that they are."""
    named = linear_components(model) if targets and isinstance(model, TransformerConfig) else ()
    found: list[str] = []
    for target in targets:
        meant = _OF_PEFT.get(target, target)
        last = {"gate_proj", "up_proj", "down_proj"} & {target}
        alike = [name for name in named if name == meant or (last and name.endswith(f" {meant}"))]
        found += alike or ["all" if meant == "all" else target]
    return tuple(found)


def not_known(words: Sequence[str], place: int, options: Mapping[str, Action]) -> str:
    """The sentence about a word of the command line that stands for nothing, with the option that may be meant."""
    name, _, value = words[place].partition("=")
    if not name.startswith("-"):
        flag = options.get(words[place - 1]) if place else None
        if flag is None or flag.nargs != 0:
            return f"{name!r} belongs to no option: --help lists them"
        return f"{words[place - 1]} takes no value, and {name!r} stands behind it: {flag.help}"
    word = name.lstrip("-").lower().replace("_", "-")
    if says := [says for option, known, says in _NOT_MODELLED if option in options and word in known.split()]:
        return f"{name}: {says[0]}"
    meant = _meant(word, value or "".join(words[place + 1 : place + 2]), options)
    return f"there is no option {name}{f'. Did you mean {meant}?' if meant else ':'} --help lists all"


def _meant(word: str, value: str, options: Mapping[str, Action]) -> str:
    """The option that a command has for a word, with its value where the value belongs to the answer; or nothing."""
    if word == "model" and "--accelerator" in options:
        return "the model's name alone, without an option"
    if (axis := _OF_LAYOUT.get(word)) and "--layout" in options:
        usual = {"sp": "true", "schedule": "gpipe"}.get(axis, "8")
        return f"--layout {axis}={value if value.isdecimal() else usual}"
    listed = [option for option, names in _ELSEWHERE.items() if word in names.split() and option in options]
    known = [option[2:] for option in options if option.startswith("--")]
    near = difflib.get_close_matches(word, known, n=1, cutoff=0.75)
    return "".join(listed[:1] or [f"--{option}" for option in near])
