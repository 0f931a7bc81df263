"""Which parameters a module has, by what they belong to, and how many of them work on one token."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn

_SHORT = {torch.float64: "fp64", torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}
#: Component → what a part of the name of a parameter's module may be; the first that matches counts.
_NAMES = {
    "adapters": r"lora_[AB]",
    "norms": r".*norm.*|ln_?\d*|ln_f",
    "experts": r"experts",
    "mixers": r".*mamba.*|mixer|linear_attn|conv\w*|ssm|delta_net|gdn|short_conv",
    "attention": r".*attn.*|.*attention.*|indexer|compressor",
    "mlp": r".*mlp.*|.*feed_forward.*|ffn.*|fc\d|dense_h.*|.*moe.*|router|gate|shared_expert\w*|shared_transformer",
}


def component(name: str, model: nn.Module, head: nn.Module | None) -> str:
    """Where a parameter belongs, by its name and by the module that has it."""
    owner = model.get_submodule(name.rpartition(".")[0])
    if isinstance(owner, nn.Embedding) or owner is head:
        return "embeddings"
    parts = name.split(".")
    if "Norm" in type(owner).__name__:
        return "norms"
    if "mixer" in parts and "experts" not in parts:
        # What some call all of their blocks: their classes tell.
        mixer = type(model.get_submodule(".".join(parts[: parts.index("mixer") + 1]))).__name__
        return "attention" if "Attention" in mixer else "mlp" if mixer.endswith(("MLP", "MoE")) else "mixers"
    for kind, pattern in _NAMES.items():
        if any(re.fullmatch(pattern, part) for part in parts):
            return kind
    return "other"


def components(model: Any) -> dict[str, int]:
    """Parameters by component; one that two modules share counts once."""
    head, found = model.get_output_embeddings(), dict[str, int]()
    for name, parameter in model.named_parameters():
        kind = component(name, model, head)
        found[kind] = found.get(kind, 0) + parameter.numel()
    return found


def trained(model: nn.Module) -> tuple[tuple[tuple[int, ...], str], ...]:
    """Shape and type of every trained parameter."""
    return tuple((tuple(p.shape), _SHORT[p.dtype]) for p in model.parameters() if p.requires_grad)


def _experts(model: nn.Module) -> list[tuple[str, nn.Module, int]]:
    """Modules that hold the weights of all experts, and how many they are: the first size of each of their matrices."""
    found = []
    for name, module in model.named_modules():
        sizes = {p.shape[0] for p in module.parameters(recurse=False) if p.dim() == 3}
        if "expert" in type(module).__name__.lower() and len(sizes) == 1:
            found.append((name, module, sizes.pop()))
    return found


@contextmanager
def visited(model: nn.Module, visits: dict[str, int]) -> Iterator[None]:
    """Note how many experts work on a token, which the indices say that a module of experts is given."""

    def note(kind: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        indices = [t for t in (*args, *kwargs.values()) if isinstance(t, torch.Tensor) and not t.is_floating_point()]
        if indices:
            visits[kind] = indices[0].shape[-1]

    # By the class that it has now: while a parameter of it is adapted, it has another one.
    hooks = [
        module.register_forward_pre_hook(partial(note, type(module).__name__), with_kwargs=True)
        for _, module, _ in _experts(model)
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def active(model: nn.Module, visits: dict[str, int], parts: dict[str, int]) -> int | None:
    """Parameters that work on one token; all of them without experts, None where experts do not tell."""
    total, idle = sum(parts.values()), 0
    experts = _experts(model)
    if parts.get("experts") and not experts:
        return None
    for _, module, count in experts:
        if (chosen := visits.get(type(module).__name__)) is None:
            return None
        held = sum(p.numel() for p in module.parameters(recurse=False))
        idle += held - held // count * chosen
    return total - idle
