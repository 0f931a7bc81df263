"""Real architectures: what `predict` says of a published config.json beside transformers' own module on the meta device.

Four differences each: parameters, FLOPs of a forward pass and of a training step, bytes of the cache. The list is that of
predict/models_hf.json. Run: python -m benchmarks.architectures [NAME …], or with --flags, which flips every switch of every
family in a tiny model.
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
from cs336kit.command.arguments import Parser
from cs336kit.predict.checks import known
from cs336kit.predict.families import FAMILIES
from cs336kit.predict.families.fields import field_table

#: Below every published window, so that transformers' caches (window − 1 tokens) and ours agree.
BATCH, SEQUENCE = 2, 96
#: Deeper models are cut for FLOPs and cache, so that all of them together take minutes.
LAYERS = 6


class Truth(NamedTuple):
    """What transformers' module says: counted by torch, or by shapes where it says so."""

    parameters: int
    forward_flops: int
    training_flops: int
    cache_bytes: int


@cache
def architectures() -> dict[str, dict[str, Any]]:
    """Name → fields of its config.json, those that have transformers' default left out."""
    found: dict[str, dict[str, Any]] = json.loads((files("cs336kit.predict") / "models_hf.json").read_text("utf-8"))
    return found


def shortened(values: dict[str, Any], layers: int) -> dict[str, Any]:
    """The same model with at most so many layers: patterns of layers are cut."""
    name = next((n for n in ("n_layer", "n_layers", "num_layers") if n in values), "num_hidden_layers")
    full = values.get(name)
    short = {n: v[:layers] if isinstance(v, list) and len(v) == full else v for n, v in values.items()}
    if values["model_type"] == "gpt_neo":
        short["attention_types"] = [[["global", "local"], layers // 2]]
    return {**short, name: layers} if full is None or full > layers else values


#: Sizes of a model that is built and run in a moment, under the names of any family.
_TINY = {
    "hidden_size": 64, "n_embd": 64, "d_model": 64, "intermediate_size": 96, "intermediate_size_mlp": 112, "ffn_dim": 96,
    "n_inner": 96, "ffn_hidden_size": 96, "num_attention_heads": 4, "n_head": 4, "n_heads": 4, "num_heads": 4,
    "num_key_value_heads": 2, "num_kv_heads": 2, "head_dim": 16, "vocab_size": 128, "num_hidden_layers": 3, "n_layer": 3,
    "n_layers": 3, "num_layers": 4, "max_position_embeddings": 128, "n_positions": 128, "max_seq_len": 128,
    "rotary_dim": 8, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 48, "num_experts": 4,
    "num_local_experts": 4, "n_routed_experts": 4, "moe_num_experts": 4, "num_experts_per_tok": 2, "moe_k": 2,
    "moe_topk": 2, "kv_lora_rank": 32, "q_lora_rank": 24, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16,
    "v_head_dim": 12, "n_shared_experts": 1, "sliding_window": 100, "attention_chunk_size": 100, "window_size": 100,
    "first_k_dense_replace": 1, "word_embed_proj_dim": 32, "shared_intermediate_size": 40, "query_pre_attn_scalar": 16,
}  # fmt: skip


def tiny(model_type: str) -> dict[str, Any]:
    """A config.json of this family with sizes of a few dozen."""
    known, aliases = field_table()[model_type]["fields"], field_table()[model_type].get("aliases", {})
    values = {name: size for name, size in _TINY.items() if name in known and name not in aliases}
    if "kv_lora_rank" in values:  # each head has its own keys there
        values["num_key_value_heads"] = values["num_attention_heads"]
        values.pop("head_dim", None)
    if model_type == "gpt_neo":
        values["attention_types"] = [[["global", "local"], 2]]
    if model_type in ("deepseek_v3", "dots1"):
        values |= {"n_group": 1, "topk_group": 1}
    return {"model_type": model_type, "pad_token_id": None, **values}


def flipped(model_type: str) -> dict[str, dict[str, Any]]:
    """That configuration with each of its switches the other way round, and each number or list that may be None so."""
    start, found = tiny(model_type), {}
    for name, usual in field_table()[model_type]["fields"].items():
        if isinstance(usual, bool):
            found[f"{name}={not usual}"] = {**start, name: not usual}
        elif usual is not None and name in ("sliding_window", "q_lora_rank", "head_dim", "num_key_value_heads"):
            found[f"{name}=None"] = {**start, name: None}
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


def _model(values: dict[str, Any]) -> Any:
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    config = CONFIG_MAPPING[values["model_type"]](**{k: v for k, v in values.items() if k != "model_type"})
    if hasattr(config, "num_experts_per_tok") or hasattr(config, "moe_topk"):
        # One product for every token and expert that it visits, whatever their number.
        config._experts_implementation = "batched_mm"
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()


def parameters(values: dict[str, Any]) -> int:
    """Parameters of transformers' module."""
    return sum(parameter.numel() for parameter in _model(values).parameters())


def counted(values: dict[str, Any]) -> Truth:
    """The four numbers of transformers' module on the meta device."""
    import torch

    model = _model(values)
    config = model.config
    numel = sum(p.numel() for p in model.parameters())
    with torch.device("meta"):
        tokens = torch.zeros(BATCH, SEQUENCE, dtype=torch.long)
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
    counts = {name: sum(ops.values()) for name, ops in counter.get_flop_counts().items()}
    # The angles are an outer product there, made anew in each pass; here, and elsewhere, a table.
    total = counter.get_total_flops() - sum(n for name, n in counts.items() if name.endswith("rotary_emb"))
    if model.config.model_type == "llama4_text":
        # There, every expert works on every token, times 0 where it was not chosen: its visits are counted.
        experts = sum(n for name, n in counts.items() if name.endswith(".experts"))
        total -= experts - experts * model.config.num_experts_per_tok // model.config.num_local_experts
    return total, getattr(result, "past_key_values", None)


def _cache_bytes(config: Any, cache: Any) -> int:
    """Bytes of what transformers' cache holds, where it holds what has to be kept; else by shapes.

    It caches latent attention expanded, and Falcon's grouped heads repeated; GPT-1 has no cache there.
    """
    if getattr(config, "kv_lora_rank", None):
        return 4 * config.num_hidden_layers * BATCH * SEQUENCE * (config.kv_lora_rank + config.qk_rope_head_dim)
    if config.model_type == "openai-gpt" or getattr(config, "new_decoder_architecture", False):
        heads = getattr(config, "num_kv_heads", config.num_attention_heads)
        width = config.hidden_size // config.num_attention_heads
        return 4 * 2 * config.num_hidden_layers * BATCH * SEQUENCE * heads * width
    return sum(t.numel() * t.element_size() for layer in cache.layers for t in (layer.keys, layer.values))


def differences(values: dict[str, Any]) -> list[str]:
    """Each number's relative difference, "exact" where there is none, of the model cut to LAYERS layers."""
    predict.from_hf(values)
    short = shortened(values, LAYERS)
    ours, theirs = predicted(short), counted(short)
    return ["exact" if a == b else f"{a / b - 1:+.3%} ({a} for {b})" for a, b in zip(ours, theirs, strict=True)]


def main(words: list[str]) -> int:
    """Print a row for each model named, all of them for none; with --flags, the switches of each family named.

    Returns 1 where a model is neither exact nor refused by name, 2, with a sentence, for one that nobody knows.
    """
    parser = Parser(prog="python -m benchmarks.architectures", description=__doc__)
    parser.add_argument("--flags", action="store_true", help="flip each switch of the families named, or of all")
    parser.add_argument("names", metavar="NAME", nargs="*", help="a published model; with --flags, a model_type")
    options = parser.parse_args(words)
    flags, names = options.flags, options.names
    warnings.filterwarnings("ignore")
    try:
        for name in names:
            known("family" if flags else "model", name, FAMILIES if flags else architectures())
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    if flags:
        return _flags(names)
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
    return int(exact + refused < len(chosen))


def _flags(model_types: list[str]) -> int:
    """Every switch of every family: exact, or refused by name; 1 where one is neither."""
    counts = {"exact": 0, "refused": 0, "wrong": 0, "transformers": 0}
    for model_type in model_types or FAMILIES:
        for name, values in flipped(model_type).items():
            try:
                theirs = counted(values)
            except Exception as error:
                counts["transformers"] += 1  # cannot be built there either
                print(f"{model_type:20}{name:40}transformers: {type(error).__name__}: {str(error)[:80]}")
                continue
            try:
                verdict = "exact" if predicted(values) == theirs else "wrong"
            except ValueError as error:
                verdict = "refused"
                print(f"{model_type:20}{name:40}refused: {error}", flush=True)
            counts[verdict] += 1
            if verdict == "wrong":
                print(f"{model_type:20}{name:40}{predicted(values)} for {theirs}", flush=True)
    print(", ".join(f"{name} {count}" for name, count in counts.items()))
    return int(counts["wrong"] > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
