"""Adapters of low rank as PEFT writes them onto a module."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D


class Adapted(nn.Module):
    """A frozen layer beside x·Aᵀ·Bᵀ of rank r. As in PEFT, the adapters are in fp32 whatever the layer is in, without dropout."""

    def __init__(self, base: nn.Module, rank: int, scaling: float):
        super().__init__()
        weight = base.weight
        outputs, inputs = reversed(weight.shape) if isinstance(base, Conv1D) else weight.shape
        self.base_layer, self.scaling = base, scaling
        self.lora_A = nn.Linear(inputs, rank, bias=False, dtype=torch.float32)
        self.lora_B = nn.Linear(rank, outputs, bias=False, dtype=torch.float32)

    @property
    def weight(self) -> Tensor:
        """Some modules use a layer's weight themselves."""
        return self.base_layer.weight

    @property
    def bias(self) -> Tensor | None:
        """As for the weight."""
        return self.base_layer.bias

    def forward(self, x: Tensor) -> Tensor:
        result = self.base_layer(x)
        kind = result.dtype
        result = result + self.lora_B(self.lora_A(x.to(self.lora_A.weight.dtype))) * self.scaling
        return result.to(kind)


def adapt(model: nn.Module, rank: int, targets: Sequence[str] | str) -> None:
    """Freeze the model and put adapters beside the layers named, in place.

    PEFT's rule: a target is a layer's whole name or what its name ends with after a dot; "all-linear" is every linear layer
    but the head. ValueError if no layer has such a name.
    """
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    linear = {n: m for n, m in model.named_modules() if isinstance(m, (nn.Linear, Conv1D))}
    if targets == "all-linear":
        chosen = [name for name, module in linear.items() if module is not head]
    else:
        names = [targets] if isinstance(targets, str) else list(targets)
        chosen = [n for n in linear if any(n == target or n.endswith(f".{target}") for target in names)]
    if not chosen:
        known = ", ".join(sorted({name.rpartition(".")[2] for name in linear}))
        raise ValueError(f"no linear layer is called {targets!r}; layers that can have adapters: {known}")
    model.requires_grad_(False)
    for name in chosen:
        parent, _, own = name.rpartition(".")
        setattr(model.get_submodule(parent), own, Adapted(linear[name], rank, 1.0))
