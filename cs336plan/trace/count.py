"""One module on fake tensors: its passes, its cache and what it holds, with few of its layers where they repeat."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from math import prod
from typing import Any

from torch import nn
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
from torch.distributed.device_mesh import DeviceMesh

from cs336kit.predict.layouts import Layout
from cs336plan.trace import anatomy, build, counting, sharding
from cs336plan.trace.kernels import kernels
from cs336plan.trace.lora import adapt
from cs336plan.trace.periods import FEW, MORE, Pattern, caches, extrapolated, line, pattern
from cs336plan.trace.result import Traced

#: What is expected to take no longer is traced whole.
WHOLE_SECONDS = 15.0

#: Called with what is done now, and the share of the steps that are done.
Progress = Callable[[str, float], None]


class Count:
    """One module, and what has been found out about it. It is made among fake tensors, beside the ranks of `mesh`, if any."""

    def __init__(
        self, values: dict[str, Any], options: dict[str, Any], *, lora: tuple[int, Any] | None, fused: bool, shared: Layout,
        mesh: DeviceMesh | None, rounds: int, progress: Progress, stack: ExitStack,
    ):  # fmt: skip
        """`shared`: what ranks share; `rounds`: micro-batches of a step, 2 for any number of them; `stack`: ends fake kernels."""
        self.options, self.progress = options, progress
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

    def result(self, read: build.Read, versions: dict[str, str], *, answering: bool, whole: bool | None) -> Traced:
        passes = self._passes(whole)
        cache, prefill, decode = self._answers() if answering else (None, None, None)
        parts = anatomy.components(self.model)
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
            components=parts, active_parameters=anatomy.active(self.model, self.visits, parts),
            parameter_bytes=parameter_bytes, trained=anatomy.trained(self.model),
            forward_flops=passes.forward_flops, training_flops=passes.training_flops, saved_bytes=passes.saved_bytes,
            passes_peak_bytes=passes.peak_of_rounds(gradients), cache=cache, prefill_flops=prefill, decode_flops=decode,
            upper_bound=bool(upper), whole=self.pattern is None, notes=(*read.notes, *self.notes), left_out=read.left_out,
            versions=versions, layout=str(self.shared), held=held, accumulating=self.rounds > 1,
        )  # fmt: skip

    def _states(self) -> tuple[tuple[tuple[int, ...], ...] | None, int, int]:
        """Shapes of a rank's part of each trained parameter, None for all of it; bytes of its parameters and of its gradients."""
        parts = [(p, sharding.held(p.shape, self.shared)) for p in self.model.parameters()]
        mine = [(p, p.element_size() * prod(shape)) for p, shape in parts]
        parameters = sum(size if self.shared.zero_stage == 3 else p.nbytes for p, size in mine)
        trained = tuple(shape for p, shape in parts if p.requires_grad) if self.shared.zero_stage else None
        return trained, parameters, sum(size for p, size in mine if p.requires_grad)

    @contextmanager
    def _with(self, found: Pattern | None, periods: int) -> Iterator[Sequence[nn.Module]]:
        """The model with so many periods of its layers; without a pattern, with all of them."""
        if found is None or self.layers is None:
            yield list(self.layers or ())
        else:
            with build.only(self.model, self.config, self.layers, found.chosen(periods)) as chosen:
                yield chosen

    def _passes_of(self, periods: int) -> counting.Passes:
        size = {name: self.options[name] for name in ("batch", "sequence", "precision")}
        with (
            self._with(self.pattern, periods) as layers,
            anatomy.visited(self.model, self.visits),
            _explained(self.config.model_type),
        ):
            return sharding.passes(self.model, layers, self.shared, self.mesh, rounds=self.rounds, **size)

    def _passes(self, whole: bool | None) -> counting.Passes:
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
