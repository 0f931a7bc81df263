"""Adapters of low rank as PEFT writes them onto a module.

Compared with peft 0.21.2 on transformers 5.23, by a step that runs: `python -m benchmarks.adapters`.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from transformers import conversion_mapping
from transformers.pytorch_utils import Conv1D

#: Mixtures whose experts have been layers, by the kind that transformers' table of conversions gives them: what such a layer
#: was called → the end of the name of the parameter that holds it now. Source: PEFT, utils/transformers_weight_conversion.py.
_MIXTURES: dict[str, dict[str, str]] = {
    "mixtral": {"gate": "gate.weight", "w1": "gate_up_proj", "w3": "gate_up_proj", "w2": "down_proj"},
    "qwen2_moe": {
        "gate": "gate.weight", "gate_proj": "gate_up_proj", "up_proj": "gate_up_proj", "down_proj": "down_proj",
    },
}  # fmt: skip
#: Architectures whose kernel takes the weight of out_proj itself: PEFT refuses an adapter there.
_MAMBA = {"falcon_h1", "mamba", "mamba2", "falcon_mamba", "nemotron_h"}


class _Pair(nn.Module):
    """A base with its two factors. As in PEFT, these are in fp32 whatever the base is in, without dropout."""

    def __init__(self, base: nn.Module, inputs: int, rank: int, outputs: int, scaling: float):
        super().__init__()
        self.base_layer, self.scaling = base, scaling
        self.lora_A = nn.Linear(inputs, rank, bias=False, dtype=torch.float32, device=_device(base))
        self.lora_B = nn.Linear(rank, outputs, bias=False, dtype=torch.float32, device=_device(base))

    @property
    def weight(self) -> Tensor:
        """Some modules use a layer's weight themselves."""
        return self.base_layer.weight

    @property
    def bias(self) -> Tensor | None:
        """As for the weight."""
        return self.base_layer.bias


def _device(module: nn.Module) -> torch.device:
    return next(module.parameters()).device


class Adapted(_Pair):
    """A frozen layer beside x·Aᵀ·Bᵀ of this rank."""

    def __init__(self, base: nn.Module, rank: int, scaling: float):
        weight = base.weight
        outputs, inputs = reversed(weight.shape) if isinstance(base, Conv1D) else weight.shape
        super().__init__(base, inputs, rank, outputs, scaling)

    def forward(self, x: Tensor) -> Tensor:
        result = self.base_layer(x)
        kind = result.dtype
        # As in PEFT, the copy that is made here lives until the layer has its result.
        x = x.to(self.lora_A.weight.dtype)
        result = result + self.lora_B(self.lora_A(x)) * self.scaling
        return result.to(kind)


class _Added(nn.Module):
    """A parameter beside a product of two matrices for each expert, or beside a whole update."""

    def __init__(self, *made: Tensor, scaling: float):
        super().__init__()
        self.made, self.scaling = made, scaling

    def forward(self, weight: Tensor) -> Tensor:
        if len(self.made) == 1:
            return weight + self.made[0]
        with torch.autocast(weight.device.type, enabled=False):
            return torch.baddbmm(weight, *self.made, alpha=self.scaling)


class AdaptedParameter(_Pair):
    """A module with a frozen parameter beside its update, a matrix (outputs, inputs) or one for each expert, made anew each time.

    Each expert has factors of this rank. PEFT nests one such module for each parameter of the same module.
    """

    def __init__(self, base: nn.Module, name: str, rank: int, scaling: float):
        inner = base
        while isinstance(inner, AdaptedParameter):
            inner = inner.base_layer
        shape: Sequence[int] = getattr(inner, name).shape
        experts = shape[0] if len(shape) == 3 else 1
        swapped = len(shape) == 3 and bool(getattr(inner, "is_transposed", False))
        outputs, inputs = reversed(shape[-2:]) if swapped else shape[-2:]
        super().__init__(base, inputs, rank * experts, outputs, scaling)
        self.parameter_name, self.experts, self.swapped = name, experts, swapped
        self._inner = [inner]  # in a list, so that it is no module of this one

    def _update(self, kind: torch.dtype) -> _Added:
        a, b = self.lora_A.weight, self.lora_B.weight
        if self.experts == 1:
            return _Added((b @ a * self.scaling).to(kind), scaling=1.0)
        a = a.reshape(self.experts, -1, a.shape[-1])
        b = b.reshape(b.shape[0], -1, self.experts).permute(2, 0, 1)
        left, right = (a.transpose(-2, -1), b.transpose(-2, -1)) if self.swapped else (b, a)
        return _Added(left.to(kind), right.to(kind), scaling=self.scaling)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        inner, name = self._inner[0], self.parameter_name
        weight = getattr(inner, name)
        parametrize.register_parametrization(inner, name, self._update(weight.dtype))
        inner.parametrizations[name].original.requires_grad_(weight.requires_grad)
        with ExitStack() as stack:
            stack.callback(parametrize.remove_parametrizations, inner, name, leave_parametrized=False)
            stack.enter_context(parametrize.cached())
            return self.base_layer(*args, **kwargs)


def _kind(model: nn.Module) -> str:
    return str(getattr(getattr(model, "config", None), "model_type", ""))


def _mixture(model: nn.Module) -> dict[str, str]:
    known = getattr(conversion_mapping, "_MODEL_TO_CONVERSION_PATTERN", {}) | {"mixtral": "mixtral"}
    return _MIXTURES.get(known.get(_kind(model), ""), {})


def _converted(model: nn.Module, targets: set[str], rank: int) -> tuple[set[str], dict[str, int]]:
    """Names that stay names of layers, and those that are parameters now, with their rank: where two became one, twice."""
    mapping = _mixture(model)
    moved = {target: mapping[target.rpartition(".")[2]] for target in targets if target.rpartition(".")[2] in mapping}
    parameters: dict[str, int] = {}
    for name in sorted(set(moved.values())):
        named = {target.rpartition(".")[2] for target, other in moved.items() if other == name}
        whole = {old for old, new in mapping.items() if new == name}
        if named != whole:
            raise ValueError(
                f"{', '.join(sorted(whole))} are one parameter ({name}) here, and PEFT puts adapters beside all of it: "
                f"name {', '.join(sorted(whole - named))}, too"
            )
        parameters[name] = rank * len(whole)
    return targets - set(moved), parameters


def adapt(model: nn.Module, rank: int, targets: Sequence[str] | str) -> None:
    """Freeze the model and put adapters beside the layers named, in place.

    PEFT's rule: a target is a layer's whole name or what its name ends with after a dot; "all-linear" is every linear layer
    but the head. Where experts were layers once and are parameters now (Mixtral, and what transformers converts like
    Qwen2-MoE), the old names and "all-linear" mean these parameters and the router. Unlike PEFT's, a single other text is a
    name and no pattern. ValueError if no layer has such a name, and for out_proj beside a state space, which PEFT refuses.
    """
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    linear = {n: m for n, m in model.named_modules() if isinstance(m, (nn.Linear, Conv1D))}
    if targets == "all-linear":
        names, parameters = {name for name, module in linear.items() if module is not head}, dict[str, int]()
        mapping = _mixture(model)
        if mapping:
            leaves = {name.rpartition(".")[2] for name in names} | set(mapping)
            names, parameters = _converted(model, leaves, rank)
    else:
        names, parameters = _converted(model, {targets} if isinstance(targets, str) else set(targets), rank)
    chosen = [n for n in linear if any(n == target or n.endswith(f".{target}") for target in names)]
    held = [
        (module, own, more)
        for module, part in model.named_modules()
        for own, _ in part.named_parameters(recurse=False)
        for name, more in parameters.items()
        if f"{module}.{own}".endswith(f".{name}")
    ]
    if not chosen and not held:
        known = ", ".join(sorted({name.rpartition(".")[2] for name in linear}))
        raise ValueError(f"no linear layer is called {targets!r}; layers that can have adapters: {known}")
    if _kind(model) in _MAMBA and any(name.rpartition(".")[2] == "out_proj" for name in chosen):
        raise ValueError(f"PEFT refuses adapters beside out_proj of {_kind(model)}: name other layers as targets")
    model.requires_grad_(False)
    for name in chosen:
        _replace(model, name, Adapted(linear[name], rank, 1.0))
    for name, own, more in held:
        _replace(model, name, AdaptedParameter(model.get_submodule(name), own, more, 1.0))


def _replace(model: nn.Module, name: str, by: nn.Module) -> None:
    parent, _, own = name.rpartition(".")
    setattr(model.get_submodule(parent), own, by)
