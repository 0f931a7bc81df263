"""The kit's instruments on one module: the passes of a training step, by segment, and the passes and cache of inference.

Nothing here asks whether tensors are fake: the tests run the same on real ones.
"""

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from cs336kit import measure
from cs336plan.trace import cuda, engine
from cs336plan.trace.build import CASTS
from cs336plan.trace.kernels import MARK, mark
from cs336plan.trace.result import CacheLayer

#: Where a cache comes back and goes in again, by the names that transformers' modules give it.
_CACHES = ("past_key_values", "cache_params", "state")


@dataclass(frozen=True)
class Passes:
    """A forward and a backward pass: FLOPs, bytes saved, and the most bytes alive in each segment, beyond parameters."""

    forward_flops: int
    training_flops: int
    saved_bytes: int
    #: (what, number of the layer at whose end or beginning it starts) → bytes
    peaks: Mapping[tuple[str, int], int]
    #: the same of a later round of a step, which finds gradients and counts what is alive beside them; {}: not counted
    again: Mapping[tuple[str, int], int] = field(default_factory=dict)

    @property
    def peak_bytes(self) -> int:
        return max(self.peaks.values())

    def peak_of_rounds(self, gradients: int) -> int:
        """The most of any round; `gradients`: bytes of those that a later one finds."""
        return max([self.peak_bytes, *(gradients + size for size in self.again.values())])


def ids(batch: int, length: int, model: nn.Module | None = None) -> Tensor:
    """Tokens on the device of the model."""
    return torch.zeros(batch, length, dtype=torch.long, device=None if model is None else _device(model))


def _device(model: nn.Module) -> torch.device:
    return next((p.device for p in model.parameters()), torch.device("cpu"))


def _cast(precision: str, model: nn.Module) -> contextlib.AbstractContextManager[Any]:
    if precision not in CASTS:
        return contextlib.nullcontext()
    return torch.autocast(_device(model).type, CASTS[precision])


def passes(
    model: Any,
    layers: Sequence[nn.Module],
    *,
    batch: int,
    sequence: int,
    precision: str,
    rounds: int = 1,
    sharded: bool = False,
    ends: Callable[[], None] = lambda: None,
) -> Passes:
    """Both passes of a step that starts without gradients, with the module's own loss; of two `rounds`, the second finds some.

    `sharded`: hooks of fully_shard wait for a backward pass after each forward pass. `ends` is called after a backward pass.
    """
    tokens = ids(batch, sequence, model)

    def loss() -> Tensor:
        with _cast(precision, model):
            result: Tensor = model(input_ids=tokens, labels=tokens, use_cache=False).loss
        return result

    saved, losses = 0, list[Tensor]()

    def kept() -> Tensor:
        losses.append(loss())
        return losses[0]

    def forward() -> None:
        nonlocal saved
        saved = measure.saved_activation_bytes(kept).total

    forward_flops = measure.flops(forward).total
    if sharded:
        losses[0].backward()
        model.zero_grad(set_to_none=True)
    losses.clear()
    peaks: dict[tuple[str, int], int] = {}

    faked = cuda.on_cuda(model)

    def both() -> None:
        peaks.update(_peaks(layers, loss, faked=faked))

    training_flops = measure.flops(both).total
    ends()
    again = _peaks(layers, loss, faked=faked) if rounds > 1 else {}
    model.zero_grad(set_to_none=True)
    return Passes(forward_flops, training_flops, saved, peaks, again)


def _peaks(layers: Sequence[nn.Module], loss: Callable[[], Tensor], *, faked: bool) -> dict[tuple[str, int], int]:
    """`faked`: on fake CUDA tensors, for which torch's own engine needs a driver."""
    places, stops = [("before", 0)], dict[int, Callable[[], None]]()

    def at(what: str, layer: int) -> None:
        places.append((what, layer))
        mark()

    def watch(layer: int) -> Callable[..., None]:
        def after(module: nn.Module, inputs: Any, output: Any) -> None:
            at("forward", layer + 1)
            first = output[0] if isinstance(output, (tuple, list)) else output
            if not isinstance(first, Tensor) or not first.requires_grad:
                return
            if faked and first.grad_fn is not None:
                stops.setdefault(first.grad_fn._sequence_nr(), lambda: at("backward", layer))
            else:
                first.register_hook(lambda _: at("backward", layer))

        return after

    hooks = [layer.register_forward_hook(watch(i)) for i, layer in enumerate(layers)]

    def both() -> None:
        if layers:
            hooks.append(layers[0].register_forward_pre_hook(lambda *_: at("forward", 0) if len(places) == 1 else None))
        with cuda.Workspaces() if faked else contextlib.nullcontext():
            held = [loss()]
            at("loss", 0)
            if faked:
                engine.backward(held, stops)
            else:
                held[0].backward()

    try:
        points = measure.memory_timeline(both)
    finally:
        for hook in hooks:
            hook.remove()
    found: dict[tuple[str, int], int] = {}
    coming = iter(places)
    place = next(coming)
    for point in points:
        if point.operator == MARK:
            place = next(coming)
        found[place] = max(found.get(place, 0), point.live_bytes)
    return found


def _floats(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        if value.is_floating_point():
            yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _floats(each)
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _floats(each)


def _layer_bytes(cache: Any) -> list[tuple[int, int | None]]:
    """Bytes of each layer's part, by elements: what slides is a view of something larger; and its window, if it has one."""

    def part(held: Any) -> tuple[int, int | None]:
        window = getattr(held, "sliding_window", None)
        tensors = _floats(held if isinstance(held, (list, tuple, Tensor, Mapping)) else vars(held))
        size = sum(t.numel() * t.element_size() for t in tensors)
        return size, window - 1 if isinstance(window, int) else None

    if not hasattr(cache, "layers"):
        return [part(cache)]
    # Some hold the states of other layers beside those that have keys.
    others = [
        value for name, value in sorted(vars(cache).items()) if name != "layers" and isinstance(value, (list, tuple))
    ]
    return [part(layer) for layer in [*cache.layers, *(each for other in others for each in other)] if part(layer)[0]]


@contextlib.contextmanager
def _answering(model: Any, precision: str) -> Iterator[None]:
    training = model.training
    model.eval()
    try:
        with torch.no_grad(), _cast(precision, model):
            yield
    finally:
        model.train(training)


def _prefill(model: Any, batch: int, length: int) -> dict[str, Any]:
    """What a module returns for a prompt, as `generate` asks it: logits of the last position where it can be told so."""
    result = model(input_ids=ids(batch, length, model), use_cache=True, **_last_only(model))
    return {name: result[name] for name in _CACHES if name in result and result[name] is not None}


def _last_only(model: Any) -> dict[str, int]:
    return {"logits_to_keep": 1} if "logits_to_keep" in inspect.signature(model.forward).parameters else {}


def cache_layers(model: Any, precision: str) -> list[CacheLayer]:
    """The cache of each layer, from what the module holds after prompts of lengths on both sides of every window.

    ValueError if it grows otherwise than by a number of bytes a token up to a window.
    """

    def held(length: int) -> list[tuple[int, int | None]]:
        with _answering(model, precision):
            kept = _prefill(model, 1, length)
        return [each for cache in kept.values() for each in _layer_bytes(cache)]

    short, first = 2, held(2)
    windows = sorted({window for _, window in first if window})
    long = min([16, *windows])
    second = held(long)
    found = []
    for (a, window), (b, _) in zip(first, second, strict=True):
        per_token, rest = divmod(b - a, max(1, long - short))
        if rest:
            raise ValueError("its cache grows otherwise than by so many bytes a token")
        found.append(CacheLayer(per_token, window, a - per_token * short))
    for length in sorted({w + d for w in windows for d in (0, 2)} or {long + 8}):
        if [layer.bytes(length) for layer in found] != [size for size, _ in held(length)]:
            raise ValueError(f"its cache does not grow evenly: at {length:,} tokens it is not what shorter ones say")
    return found


def cache_bytes(model: Any, precision: str, tokens: int) -> int:
    """What the module's own cache holds of one sequence, by elements."""
    with _answering(model, precision):
        kept = _prefill(model, 1, tokens)
    return sum(size for cache in kept.values() for size, _ in _layer_bytes(cache))


def answering_flops(model: Any, *, batch: int, sequence: int, precision: str) -> tuple[int, int]:
    """FLOPs of reading a prompt, and of one more token for each sequence beside the cache of it."""
    kept: dict[str, Any] = {}

    def prefill() -> None:
        kept.update(_prefill(model, batch, sequence))

    with _answering(model, precision):
        first = measure.flops(prefill).total
        decode = measure.flops(lambda: model(input_ids=ids(batch, 1, model), use_cache=True, **kept)).total
    return first, decode
