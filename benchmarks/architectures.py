"""Real architectures: what `predict` says of a published config.json beside transformers' own module on the meta device.

Four differences each: parameters, FLOPs of a forward pass and of a training step, bytes of the cache. The list stands in
architectures.json. Run: python -m benchmarks.architectures [NAME …]
"""

import json
import sys
import time
import warnings
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple
from unittest import mock

from cs336kit import predict

#: Below every published window, so that transformers' caches (window − 1 tokens) and ours agree.
BATCH, SEQUENCE = 2, 96


class Truth(NamedTuple):
    """What transformers' module says: counted by torch, or by shapes where it says so."""

    parameters: int
    forward_flops: int
    training_flops: int
    cache_bytes: int


@cache
def architectures() -> dict[str, dict[str, Any]]:
    """Name → fields of its config.json, those that have transformers' default left out."""
    found: dict[str, dict[str, Any]] = json.loads((files("benchmarks") / "architectures.json").read_text("utf-8"))
    return found


def predicted(values: dict[str, Any]) -> Truth:
    """The four numbers by the list of operations."""
    config = predict.from_hf(values)
    size = {"batch": BATCH, "sequence": SEQUENCE}
    return Truth(
        predict.parameters(config).total,
        predict.forward_flops(config, **size).total,
        predict.training_flops(config, **size).total,
        predict.kv_cache_bytes(config, **size, precision="fp32"),
    )


def counted(values: dict[str, Any]) -> Truth:
    """The four numbers of transformers' module on the meta device."""
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    config = CONFIG_MAPPING[values["model_type"]](**{k: v for k, v in values.items() if k != "model_type"})
    if hasattr(config, "num_experts_per_tok") or hasattr(config, "moe_topk"):
        # One product for every token and expert that it visits, whatever their number.
        config._experts_implementation = "batched_mm"
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
        tokens = torch.zeros(BATCH, SEQUENCE, dtype=torch.long)
    numel = sum(p.numel() for p in model.parameters())
    with torch.device("meta"):
        forward, cache = _flops(model, tokens, backward=False)
        model.train()
        _no_dropout(model)
        training, _ = _flops(model, tokens, backward=True)
    return Truth(numel, forward, training, _cache_bytes(config, cache))


def _no_dropout(model: Any) -> None:
    for module in model.modules():
        if type(module).__name__ == "Dropout":
            module.p = 0.0
        for name in ("attention_dropout", "dropout", "attn_dropout"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)


def _flops(model: Any, tokens: Any, *, backward: bool) -> tuple[int, Any]:
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    counter = FlopCounterMode(display=False, depth=None)
    # Whether several texts are packed into a row is asked of the data, of which there is none.
    unpacked = mock.patch("transformers.masking_utils.find_packed_sequence_indices", lambda *args, **options: None)
    with counter, unpacked, torch.set_grad_enabled(backward):
        result = model(tokens, use_cache=not backward)
        if backward:
            result.logits.sum().backward()
    # The angles are an outer product there, made anew in each pass; here, and elsewhere, a table.
    angles = sum(
        sum(ops.values())
        for name, ops in counter.get_flop_counts().items()
        if name.rpartition(".")[2].startswith("rotary_emb")
    )
    return counter.get_total_flops() - angles, getattr(result, "past_key_values", None)


def _cache_bytes(config: Any, cache: Any) -> int:
    """Bytes of what transformers' cache holds; of latent attention, which it caches expanded, those of latent and rotary part."""
    if getattr(config, "kv_lora_rank", None):
        return 4 * config.num_hidden_layers * BATCH * SEQUENCE * (config.kv_lora_rank + config.qk_rope_head_dim)
    return sum(t.numel() * t.element_size() for layer in cache.layers for t in (layer.keys, layer.values))


def differences(values: dict[str, Any]) -> list[str]:
    """Each number's relative difference, "exact" where there is none."""
    ours, theirs = predicted(values), counted(values)
    return ["exact" if a == b else f"{a / b - 1:+.3%} ({a} for {b})" for a, b in zip(ours, theirs, strict=True)]


def main(names: list[str]) -> int:
    warnings.filterwarnings("ignore")
    exact, refused, start = 0, 0, time.perf_counter()
    chosen = {name: values for name, values in architectures().items() if not names or name in names}
    print(f"{'model':34}{'parameters':>16}{'forward FLOPs':>16}{'training FLOPs':>16}{'cache':>16}")
    for name, values in chosen.items():
        try:
            found = differences(values)
        except ValueError as error:
            print(f"{name:34} refused: {error}")
            refused += 1
            continue
        except Exception as error:
            print(f"{name:34} transformers: {type(error).__name__}: {str(error)[:150]}")
            continue
        exact += found == ["exact"] * 4
        print(f"{name:34}" + "".join(f"{difference:>16}" for difference in found), flush=True)
    seconds = time.perf_counter() - start
    print(f"{exact} of {len(chosen)} exact in all four, {refused} refused by name; {seconds:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
