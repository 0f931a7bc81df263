"""`traced`: any causal language model that transformers can build from a config.json, counted without running it."""

import logging as standard_logging
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cs336kit
from cs336kit.predict.checks import boolean, one_of, positive_int
from cs336kit.predict.layouts import Layout, as_layout
from cs336plan.trace import store
from cs336plan.trace.result import Traced

if TYPE_CHECKING:
    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh

    from cs336plan.trace.counting import Passes
    from cs336plan.trace.periods import Pattern

PRECISIONS = ("bf16", "fp32", "autocast", "fp16", "autocast-fp16")
ATTENTIONS = ("eager", "sdpa")
DEVICES = ("cpu", "cuda")
#: What is expected to take no longer is traced whole.
WHOLE_SECONDS = 15.0

#: Called with what is done now, and the share of the steps that are done.
Progress = Callable[[str, float], None]


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
    progress: Progress = lambda what, share: None,
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
      `WHOLE_SECONDS` or less. Both give the same numbers.
    - `progress(what, share)` is called before each step; what it raises ends the count, and nothing is left behind.
    - `keep`: the folder in which results are kept by configuration, options, versions and code; True: `store.folder()`.

    FLOPs are those that `measure.flops` counts (matrix products; causal attention in full); saved bytes and peaks are exact
    bytes of storages. Errors: ValueError, in one sentence, for a file that cannot be read or that
    transformers refuses, for code of the file's own, which is never executed, for sizes beyond what memory can address, for a
    forward pass that reads values, for adapters that fit no layer, and where torch or transformers is missing.
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

        from cs336plan.trace import build, cuda
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
    lora = (
        None
        if lora_rank is None
        else (lora_rank, lora_targets if isinstance(lora_targets, str) else list(lora_targets))
    )
    question = {
        **options,
        "values": read.values,
        "lora": lora,
        "kernels": kernels,
        "answering": answering,
        "whole": whole,
        "layout": str(shared),
        "accumulating": accumulating,
    }
    where = store.folder() if keep is True else keep or None
    name = store.key({**question, "notes": read.notes, "left out": read.left_out, "versions": versions})
    if (known := store.load(where, name)) is not None:
        return known
    with _quiet(), ExitStack() as stack:
        mesh = None
        if shared.zero_stage:
            from cs336plan.trace import sharding

            mesh = stack.enter_context(sharding.mesh_of(shared))
        stack.enter_context(build.fake())
        stack.enter_context(cuda.rules() if device == "cuda" else nullcontext())
        counted = _Count(read.values, options, lora, stack, kernels, progress, shared, mesh, 1 + accumulating)
        found = counted.result(read, versions, answering=answering, whole=whole)
    store.save(where, name, found)
    return found


def _shared(layout: Layout, accumulating: bool) -> Layout:
    """Of a layout, what a rank's passes depend on; ValueError for one that tracing does not count.

    Replicas of shards matter where gradients accumulate: torch then keeps what it has all-reduced beside the sum. Two are enough.
    """
    if any(getattr(layout, name) > 1 for name in ("tp", "pp", "ep", "cp")):
        raise ValueError(f"tracing counts replicas (dp) and what they share (zero1, zero2, fsdp), and not {layout}")
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


class _Count:
    """One module on fake tensors, and what has been found out about it."""

    def __init__(
        self,
        values: dict[str, Any],
        options: dict[str, Any],
        lora: Any,
        stack: ExitStack,
        fused: bool,
        progress: Progress,
        shared: Layout,
        mesh: "DeviceMesh | None",
        rounds: int,
    ):
        from cs336plan.trace import build
        from cs336plan.trace.kernels import kernels
        from cs336plan.trace.lora import adapt
        from cs336plan.trace.periods import pattern

        self.options, self.progress = options, progress
        #: what ranks share; those with whom this one shares parameters; micro-batches of a step, 2 for any number of them
        self.shared, self.mesh, self.rounds = shared, mesh, rounds
        progress("building the module", 0.0)
        self.config = build.configuration(values)
        how = {name: options[name] for name in ("precision", "attention", "checkpointing", "device")}
        with _explained(self.config.model_type):
            self.model, self.attention = build.model_of(self.config, **how)
        if lora is not None:
            adapt(self.model, *lora)
        self.layers = build.layers_of(self.model, self.config)
        if shared.zero_stage and self.layers is None:
            raise ValueError(
                f"tracing finds no list of the layers of {self.config.model_type}, one by one of which ranks share {shared}: "
                "give dp or zero1"
            )
        told = [build.signature(each, i, self.config) for i, each in enumerate(self.layers or ())]
        self.pattern: Pattern | None = pattern(told)
        # A cache and what answers need is affine from the first period on.
        self.short: Pattern | None = pattern(told, 1, 2)
        self.written = stack.enter_context(kernels(self.model, fused=fused))
        self.visits: dict[str, int] = {}
        self.notes: list[str] = []

    def result(self, read: Any, versions: dict[str, str], *, answering: bool, whole: bool | None) -> Traced:
        from cs336plan.trace.anatomy import active, components, trained

        passes = self._passes(whole)
        cache, prefill, decode = self._answers() if answering else (None, None, None)
        parts = components(self.model)
        upper = sorted(self.written)
        if upper:
            self.notes.append(
                f"an upper bound: {', '.join(upper)} {'is' if len(upper) == 1 else 'are'} counted as written out in torch, "
                "which saves more than the kernel that people run"
            )
        count = getattr(self.config, "num_hidden_layers", 0)
        held, parameter_bytes, gradients = self._states()
        return Traced(
            architecture=self.config.model_type, layers=count, **{**self.options, "attention": self.attention},
            components=parts, active_parameters=active(self.model, self.visits, parts),
            parameter_bytes=parameter_bytes, trained=trained(self.model),
            forward_flops=passes.forward_flops, training_flops=passes.training_flops, saved_bytes=passes.saved_bytes,
            passes_peak_bytes=passes.peak_of_rounds(gradients), cache=cache, prefill_flops=prefill, decode_flops=decode,
            upper_bound=bool(upper), whole=self.pattern is None, notes=(*read.notes, *self.notes), left_out=read.left_out,
            versions=versions, layout=str(self.shared), held=held, accumulating=self.rounds > 1,
        )  # fmt: skip

    def _states(self) -> tuple[tuple[tuple[int, ...], ...] | None, int, int]:
        """Shapes of a rank's part of each trained parameter, None for all of it; bytes of its parameters and of its gradients."""
        parameters = list(self.model.parameters())
        whole = sum(p.numel() * p.element_size() for p in parameters)
        if not self.shared.zero_stage:
            return None, whole, sum(p.numel() * p.element_size() for p in parameters if p.requires_grad)
        from cs336plan.trace.sharding import held

        shapes = [(p, held(p.shape, self.shared)) for p in parameters]
        sizes = [(p, p.element_size() * prod(shape)) for p, shape in shapes]
        mine = sum(size for _, size in sizes) if self.shared.zero_stage == 3 else whole
        trained = tuple(shape for p, shape in shapes if p.requires_grad)
        return trained, mine, sum(size for p, size in sizes if p.requires_grad)

    @contextmanager
    def _with(self, found: "Pattern | None", periods: int) -> Iterator["Sequence[nn.Module]"]:
        """The model with so many periods of its layers; without a pattern, with all of them."""
        from cs336plan.trace.build import only

        if found is None or self.layers is None:
            yield list(self.layers or ())
        else:
            with only(self.model, self.config, self.layers, found.chosen(periods)) as chosen:
                yield chosen

    def _passes_of(self, periods: int) -> "Passes":
        from cs336plan.trace.anatomy import visited
        from cs336plan.trace.counting import passes

        size = {name: self.options[name] for name in ("batch", "sequence", "precision")}
        with (
            self._with(self.pattern, periods) as layers,
            visited(self.model, self.visits),
            _explained(self.config.model_type),
        ):
            if not self.shared.zero_stage:
                return passes(self.model, layers, rounds=self.rounds, **size)
            from cs336plan.trace import sharding

            return sharding.passes(self.model, layers, self.shared, self.mesh, rounds=self.rounds, **size)

    def _passes(self, whole: bool | None) -> "Passes":
        from cs336plan.trace.periods import FEW, MORE, extrapolated

        if whole:
            self.pattern = self.short = None
        if self.pattern is not None and self.layers is not None:
            started = time.monotonic()
            self.progress(f"{FEW} periods of {self.pattern.length} layers", 0.1)
            try:
                few = self._passes_of(FEW)
                seconds = (time.monotonic() - started) * len(self.layers) / len(self.pattern.chosen(FEW))
                if whole is False or seconds > WHOLE_SECONDS:
                    self.progress(f"{MORE} periods of {self.pattern.length} layers", 0.35)
                    return extrapolated(few, self._passes_of(MORE), self.pattern)
            except ValueError:
                self.short = None  # some modules name layers by number, and run with all of them only
            self.pattern = None
        self.progress("all layers", 0.4)
        return self._passes_of(0)

    def _answers(self) -> tuple[Any, int | None, int | None]:
        """The cache, and the FLOPs of a prompt and of a token after it; None with a note for what could not be counted."""
        from cs336plan.trace import counting
        from cs336plan.trace.periods import caches, line

        size = {name: self.options[name] for name in ("batch", "sequence", "precision")}

        def held(periods: int) -> list[Any]:
            with self._with(self.short, periods), _explained(self.config.model_type):
                return counting.cache_layers(self.model, size["precision"])

        def flops(periods: int) -> tuple[int, int]:
            with self._with(self.short, periods), _explained(self.config.model_type):
                return counting.answering_flops(self.model, **size)

        def either(what: Callable[[], Any], none: Any, sentence: str) -> Any:
            """With few periods, or where the module needs all its layers, with all."""
            for _ in range(2):
                try:
                    return what()
                except ValueError as error:
                    if self.short is None:
                        self.notes.append(f"{sentence}: {error}")
                        return none
                    self.short = None
            return none

        before = set(self.written)
        self.progress("the cache", 0.7)
        cache = either(lambda: caches(held, self.short), None, "the cache is not counted")
        self.progress("a prompt and a token", 0.85)
        prefill, decode = either(lambda: line(flops, self.short), (None, None), "inference is not counted")
        # What is saved for training says nothing of fallbacks that run without autograd.
        self.written.intersection_update(before)
        return cache, prefill, decode


@contextmanager
def _explained(architecture: str) -> Iterator[None]:
    """What can go wrong in a module's forward pass, as a sentence."""
    from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException

    try:
        yield
    except (DataDependentOutputException, DynamicOutputShapeException) as error:
        raise ValueError(
            f"the forward pass of {architecture} reads values ({error.func}), and there are none without running it"
        ) from None
    except ValueError as error:
        raise ValueError(" ".join(str(error).split())[:400]) from None
    except (MemoryError, OverflowError):
        raise ValueError("these sizes exceed what memory can address, even without a value in it") from None
    except Exception as error:
        said = " ".join(str(error).split()) or type(error).__name__
        if "overflow" in said:
            raise ValueError("these sizes exceed what memory can address, even without a value in it") from None
        raise ValueError(f"the module of {architecture} cannot be traced: {said[:300]}") from None
