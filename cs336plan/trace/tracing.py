"""`traced`: any causal language model that transformers can build from a config.json, counted without running it."""

import logging as standard_logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import cs336kit
from cs336kit.predict.checks import boolean, one_of, positive_int
from cs336kit.predict.layouts import Layout, as_layout
from cs336plan.trace import store
from cs336plan.trace.result import Traced

PRECISIONS = ("bf16", "fp32", "autocast", "fp16", "autocast-fp16")
ATTENTIONS = ("eager", "sdpa")
DEVICES = ("cpu", "cuda")


def traced(
    config: Mapping[str, Any] | str | Path,
    *,
    batch: int = 1,
    sequence: int = 1024,
    precision: str = "bf16",
    attention: str = "sdpa",
    checkpointing: bool = False,
    device: str = "cpu",
    lora_rank: int | None = None,
    lora_targets: Sequence[str] | str = ("q_proj", "v_proj"),
    layout: Layout | str | None = None,
    accumulating: bool = False,
    kernels: bool = True,
    answering: bool = True,
    whole: bool | None = None,
    progress: Callable[[str, float], None] = lambda what, share: None,
    keep: Path | bool | None = True,
) -> Traced:
    """Count transformers' own module of this config.json on fake tensors: nothing runs, nothing is loaded.

    - `config`: the fields of a config.json, its path, or the folder that it is in. Of a file with more than text, the text
      model is counted and the rest named in `left_out`. A quantized file is counted in `precision`.
    - `precision`: "bf16" or "fp16" (all of it), "fp32", "autocast" (weights in fp32, products in bf16) or "autocast-fp16".
    - `attention`: "sdpa" (fused) or "eager"; an architecture without fused attention is counted eager, and the result says so.
    - `checkpointing`: gradient checkpointing as the module does it, not reentrant.
    - `device`: whose rules say what an operation saves, "cpu" or "cuda", which needs PyTorch's CUDA build and no GPU; what
      is left out there, `cs336plan.trace.cuda` says.
    - `lora_rank`: everything is frozen, and adapters of this rank in fp32 stand beside the linear layers whose names end with
      one of `lora_targets` ("all-linear": beside each but the head), by PEFT's rule, which puts them beside experts as well.
    - `layout`: "zero2=8" or "fsdp=8" count one of ranks that share gradients, or parameters, too, see `cs336plan.trace.sharding`,
      by a CPU's rules. Replicas (dp, unless fsdp and `accumulating`) and shards of the optimizer's state (zero1) change
      nothing here; all else is refused.
    - `accumulating`: the peak is also that of rounds of a step that find gradients (gradient accumulation).
    - `kernels`: fake kernels in place of fallbacks (mamba-ssm, causal-conv1d, fla), see `cs336plan.trace.kernels`. Where
      there is none for a fallback, or with False, the fallback is counted and the result is an upper bound.
    - `answering`: also the cache, and the FLOPs of reading prompts and of a token after them.
    - `whole`: True traces every layer, False extrapolates wherever layers repeat; None traces whole what takes
      `count.WHOLE_SECONDS` or less. Both give the same numbers.
    - `progress(what, share)` is called before each step; what it raises ends the count, and nothing is left behind.
    - `keep`: the folder in which results are kept by configuration, options, versions and code; True: `store.folder()`.

    FLOPs are those that `measure.flops` counts (matrix products; causal attention in full); saved bytes and peaks are exact
    bytes of storages. Errors: ValueError, in one sentence, for a file that cannot be read or that transformers refuses, for code
    of the file's own, which is never executed, for sizes beyond what memory can address, for a forward pass that reads values,
    for adapters that fit no layer, and where torch or transformers is missing.
    """
    positive_int("batch", batch), positive_int("sequence", sequence)
    one_of("precision", precision, PRECISIONS)
    one_of("attention", attention, ATTENTIONS), one_of("device", device, DEVICES)
    boolean("checkpointing", checkpointing), boolean("kernels", kernels), boolean("answering", answering)
    boolean("accumulating", accumulating)
    shared = _shared(as_layout(layout), accumulating)
    if lora_rank is not None:
        positive_int("lora_rank", lora_rank)
    try:
        import torch
        import transformers

        from cs336plan.trace import build, cuda, sharding
        from cs336plan.trace.count import Count
    except ImportError as error:
        raise ValueError(
            f"to count this architecture, torch and transformers are needed, and {error.name} is missing: "
            "pip install torch transformers"
        ) from None
    if device == "cuda" and (why := cuda.lacking()):
        raise ValueError(why)
    if device == "cuda" and shared.zero_stage:
        raise ValueError(
            f"fully_shard asks a driver for streams, so that {shared} is counted by a CPU's rules: device='cpu'"
        )
    versions = {"torch": torch.__version__, "transformers": transformers.__version__, "cs336kit": cs336kit.__version__}
    read = build.read(config)
    options = {
        "batch": batch, "sequence": sequence, "precision": precision, "attention": attention, "checkpointing": checkpointing,
        "device": device,
    }  # fmt: skip
    targets = lora_targets if isinstance(lora_targets, str) else list(lora_targets)
    lora = None if lora_rank is None else (lora_rank, targets)
    question = {
        **options, "values": read.values, "lora": lora, "kernels": kernels, "answering": answering, "whole": whole,
        "layout": str(shared), "accumulating": accumulating,
    }  # fmt: skip
    where = store.folder() if keep is True else keep or None
    name = store.key({**question, "notes": read.notes, "left out": read.left_out, "versions": versions})
    if (known := store.load(where, name)) is not None:
        return known
    with _quiet(), ExitStack() as stack:
        mesh = stack.enter_context(sharding.mesh_of(shared))
        stack.enter_context(build.fake())
        stack.enter_context(cuda.rules() if device == "cuda" else nullcontext())
        counted = Count(
            read.values, options, lora=lora, fused=kernels, shared=shared, mesh=mesh, rounds=1 + accumulating, progress=progress,
            stack=stack,
        )  # fmt: skip
        found = counted.result(read, versions, answering=answering, whole=whole)
    store.save(where, name, found)
    return found


def _shared(layout: Layout, accumulating: bool) -> Layout:
    """Of a layout, what a rank's passes depend on; ValueError for one that tracing does not count.

    Replicas of shards matter where gradients accumulate: torch then keeps what it has all-reduced beside the sum. Two are enough.
    """
    if any(getattr(layout, name) > 1 for name in ("tp", "pp", "ep", "cp")):
        raise ValueError(
            "tracing counts replicas (dp) and what they share of a whole model (zero1, zero2, fsdp), and does not divide the "
            f"layers of a foreign module: leave tp, pp, ep and cp out of {layout}"
        )
    replicas = 2 if accumulating and layout.dp > 1 and layout.zero_stage == 3 else 1
    return Layout(dp=replicas, zero2=layout.zero2, fsdp=layout.fsdp)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what transformers says about missing packages, of which the result itself tells."""
    from transformers.utils import logging

    before, torchs = logging.get_verbosity(), standard_logging.getLogger("torch._subclasses.fake_tensor")
    logging.set_verbosity_error()
    loud = torchs.disabled
    torchs.disabled = True  # it prints what it raises
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(before)
        torchs.disabled = loud
