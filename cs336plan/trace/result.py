"""What tracing says of a model. Needs the standard library alone, and so does reading a result that has been kept."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from math import prod
from typing import Any

from cs336kit.predict import Breakdown
from cs336kit.predict.optimizers import STATE_TYPES, optimizer_state_bytes, optimizer_step_bytes


@dataclass(frozen=True)
class CacheLayer:
    """Bytes for one sequence: so many a token, for at most `window` tokens (None: for all), and a state of fixed size."""

    per_token: int
    window: int | None
    fixed: int

    def bytes(self, tokens: int) -> int:
        return self.fixed + self.per_token * (tokens if self.window is None else min(tokens, self.window))


@dataclass(frozen=True)
class Traced:
    """A causal language model of transformers, counted on its own module. Bytes and FLOPs are those of one device (rank)."""

    #: model_type of the text model
    architecture: str
    layers: int
    batch: int
    sequence: int
    #: "bf16", "fp16", "fp32", or "autocast" or "autocast-fp16" (weights in fp32, products in half precision)
    precision: str
    #: "eager" or "sdpa", as it was counted: some architectures have no fused attention
    attention: str
    checkpointing: bool
    #: whose rules say what an operation saves: "cpu" or "cuda"
    device: str
    #: component (embeddings, attention, mlp, experts, mixers, norms, adapters, other) → parameters, by the module's names
    components: Mapping[str, int]
    #: parameters that work on one token, None where the experts do not tell how many of them do
    active_parameters: int | None
    parameter_bytes: int
    #: shape and type of every trained parameter, in the module's order
    trained: tuple[tuple[tuple[int, ...], str], ...]
    forward_flops: int
    #: of both passes, with what checkpointing computes again
    training_flops: int
    #: held by autograd after a forward pass with the loss
    saved_bytes: int
    #: the most that is alive in both passes at once beyond parameters, in a step that starts without gradients; where they
    #: accumulate, also in its later rounds
    passes_peak_bytes: int
    #: (number of layers, their cache); None where it does not grow by so many bytes a token, or there is none
    cache: tuple[tuple[int, CacheLayer], ...] | None
    #: FLOPs of reading `batch` prompts of `sequence` tokens, and of one more token for each of them
    prefill_flops: int | None
    decode_flops: int | None
    #: whether a fallback of a kernel was counted, which keeps more than what people run; `notes` says which
    upper_bound: bool
    #: traced layer by layer, or extrapolated from three and four periods of layers
    whole: bool
    notes: tuple[str, ...] = ()
    #: what of a file with more than text is not counted: "vision_config"
    left_out: tuple[str, ...] = ()
    #: of torch, transformers and the kit
    versions: Mapping[str, str] | None = None
    #: whose rank it is, if ranks share gradients or parameters: "zero2=8", "fsdp=8"
    layout: str = "dp=1"
    #: shapes of what a rank has of each trained parameter's gradient and optimizer state; None: all of them
    held: tuple[tuple[int, ...], ...] | None = None
    #: whether rounds are counted that find the gradients of earlier ones
    accumulating: bool = False

    @property
    def parameters(self) -> Breakdown:
        """All parameters by component; a weight that two modules share counts once."""
        return Breakdown(self.components, unit="parameters")

    @property
    def trainable_parameters(self) -> int:
        return sum(prod(shape) for shape, _ in self.trained)

    @property
    def states(self) -> tuple[tuple[tuple[int, ...], str], ...]:
        """Shape and type of what a rank has of every trained parameter's gradient and optimizer state."""
        if self.held is None:
            return self.trained
        return tuple((shape, kind) for shape, (_, kind) in zip(self.held, self.trained, strict=True))

    @property
    def gradient_bytes(self) -> int:
        return sum(prod(shape) * STATE_TYPES[kind] for shape, kind in self.states)

    @property
    def cache_bytes_per_token(self) -> int | None:
        """Bytes that each further token of a long sequence adds to the cache: layers without a window only."""
        if self.cache is None:
            return None
        return sum(count * layer.per_token for count, layer in self.cache if layer.window is None)

    @property
    def state_bytes(self) -> int | None:
        """Bytes for a sequence that do not depend on its length: states and convolutions."""
        return None if self.cache is None else sum(count * layer.fixed for count, layer in self.cache)

    def cache_bytes(self, tokens: int, *, batch: int = 1) -> int:
        """Bytes of the cache of so many sequences; ValueError where it could not be counted."""
        if self.cache is None:
            raise ValueError(f"the cache of {self.architecture} was not counted: {'; '.join(self.notes)}")
        return batch * sum(count * layer.bytes(tokens) for count, layer in self.cache)

    def optimizer_state_bytes(self, optimizer: str = "adamw", **options: Any) -> Breakdown:
        """Bytes of the optimizer's state by torch's name, by the rules of `predict.optimizers`, in the parameters' types."""
        found = Breakdown({}, unit="bytes")
        for kind in dict.fromkeys(kind for _, kind in self.states):
            shapes = [shape for shape, other in self.states if other == kind]
            found = found + optimizer_state_bytes(optimizer, shapes=shapes, precision=kind, **options)
        return found

    def step_peak(self, optimizer: str = "adamw", *, implementation: str = "loop", **options: Any) -> Breakdown:
        """Peak of a step, once the optimizer has its state: parameters, state, and the passes or the optimizer's own work.

        `implementation`: "loop", "foreach" or "fused", as in `predict.optimizer_step_bytes`. `options` are those of
        `predict.optimizer_state_bytes`. Left out: what a kernel needs inside, the allocator's rounding.
        """
        temporary = 0
        for kind in dict.fromkeys(kind for _, kind in self.states):
            sizes = [prod(shape) for shape, other in self.states if other == kind]
            more = optimizer_step_bytes(optimizer, sizes=sizes, precision=kind, implementation=implementation)
            temporary = max(temporary, more) if implementation == "loop" else temporary + more
        work = max(self.passes_peak_bytes, self.gradient_bytes + temporary)
        state = self.optimizer_state_bytes(optimizer, **options).total
        parts = {"parameters": self.parameter_bytes, "optimizer state": state, "gradients and activations": work}
        return Breakdown(parts, unit="bytes")

    def as_json(self) -> dict[str, Any]:
        """All fields as JSON has them; `Traced.from_json` reads them back."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Traced":
        """The result that these fields describe; ValueError, KeyError or TypeError if they are not its fields."""
        given = {field.name: values[field.name] for field in fields(cls)}
        given["trained"] = tuple((tuple(shape), str(kind)) for shape, kind in values["trained"])
        if values["held"] is not None:
            given["held"] = tuple(tuple(shape) for shape in values["held"])
        if values["cache"] is not None:
            given["cache"] = tuple((int(count), CacheLayer(**layer)) for count, layer in values["cache"])
        for name in ("notes", "left_out"):
            given[name] = tuple(values[name])
        return cls(**given)
