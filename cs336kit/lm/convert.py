"""State dicts between this course's decoder and the models of Hugging Face's transformers, both ways."""

import re
from collections.abc import Mapping

import torch
from torch import Tensor

from cs336kit.predict import TransformerConfig

#: Our names → GPT-2's, for a part with a weight and perhaps a bias; `#` stands for the number of the layer.
GPT2 = {
    "embedding": "transformer.wte",
    "positions": "transformer.wpe",
    "blocks.#.norm1": "transformer.h.#.ln_1",
    "blocks.#.attention.output": "transformer.h.#.attn.c_proj",
    "blocks.#.norm2": "transformer.h.#.ln_2",
    "blocks.#.mlp.up": "transformer.h.#.mlp.c_fc",
    "blocks.#.mlp.down": "transformer.h.#.mlp.c_proj",
    "final_norm": "transformer.ln_f",
    "head": "lm_head",
}
#: GPT-2 keeps query, key and value in one matrix, and these matrices as (inputs, outputs).
GPT2_FUSED = "transformer.h.#.attn.c_attn"
GPT2_TRANSPOSED = re.compile(r"\.(c_attn|c_proj|c_fc)\.weight$")

#: Our names → those of Llama, Mistral, Qwen2 and Mixtral.
LLAMA = {
    "embedding": "model.embed_tokens",
    "blocks.#.norm1": "model.layers.#.input_layernorm",
    "blocks.#.attention.query": "model.layers.#.self_attn.q_proj",
    "blocks.#.attention.key": "model.layers.#.self_attn.k_proj",
    "blocks.#.attention.value": "model.layers.#.self_attn.v_proj",
    "blocks.#.attention.output": "model.layers.#.self_attn.o_proj",
    "blocks.#.norm2": "model.layers.#.post_attention_layernorm",
    "blocks.#.mlp.gate": "model.layers.#.mlp.gate_proj",
    "blocks.#.mlp.up": "model.layers.#.mlp.up_proj",
    "blocks.#.mlp.down": "model.layers.#.mlp.down_proj",
    "blocks.#.mlp.router": "model.layers.#.mlp.gate",
    "final_norm": "model.norm",
    "head": "lm_head",
}
#: Mixtral keeps all experts of a layer in two tensors: gate and up (experts, 2F, D), and down (experts, D, F).
MIXTRAL_IN = "model.layers.{}.mlp.experts.gate_up_proj"
MIXTRAL_OUT = "model.layers.{}.mlp.experts.down_proj"


def to_transformers(state: Mapping[str, Tensor], config: TransformerConfig) -> dict[str, Tensor]:
    """Our `state_dict` under the names and layouts of transformers: GPT2LMHeadModel or LlamaForCausalLM's relatives.

    Learned positions mean GPT-2, rotary ones Llama (Mistral, Qwen2; with experts Mixtral, as transformers 5 names them).
    Values are copied where the layout differs and shared where it does not. Another architecture raises ValueError.
    """
    names = _family(config)
    theirs = {}
    for name, tensor in state.items():
        part, kind = name.rsplit(".", 1)
        layer = re.search(r"blocks\.(\d+)", part)
        generic = re.sub(r"blocks\.\d+", "blocks.#", part)
        if generic in names:
            theirs[_numbered(names[generic], layer) + "." + kind] = tensor
    for layer in range(config.layers):
        if names is GPT2:
            for kind in ("weight", "bias"):
                parts = [state[f"blocks.{layer}.attention.{p}.{kind}"] for p in ("query", "key", "value")]
                theirs[GPT2_FUSED.replace("#", str(layer)) + "." + kind] = torch.cat(parts)
        elif config.experts:
            experts = [f"blocks.{layer}.mlp.experts.{e}." for e in range(config.experts)]
            both = [torch.cat([state[e + "gate.weight"], state[e + "up.weight"]]) for e in experts]
            theirs[MIXTRAL_IN.format(layer)] = torch.stack(both)
            theirs[MIXTRAL_OUT.format(layer)] = torch.stack([state[e + "down.weight"] for e in experts])
    return {name: _oriented(name, tensor, names) for name, tensor in theirs.items()}


def from_transformers(state: Mapping[str, Tensor], config: TransformerConfig) -> dict[str, Tensor]:
    """The inverse of `to_transformers`: what `load_state_dict` of a DecoderOnly or Llama of this config takes.

    GPT-2's gelu is the tanh approximation and its norms' eps 1e-5; Llama's eps and `rope_base` stand in its config:
    give them to the model, they are not in the state dict. A tensor that is missing raises KeyError with its name.
    """
    names = _family(config)
    theirs = {name: _oriented(name, tensor, names) for name, tensor in state.items()}
    ours = {}
    for our_name, their_name in names.items():
        for layer in range(config.layers) if "#" in our_name else (None,):
            ours_part, their_part = (n.replace("#", str(layer)) for n in (our_name, their_name))
            for kind in ("weight", "bias"):
                if f"{their_part}.{kind}" in theirs:
                    ours[f"{ours_part}.{kind}"] = theirs[f"{their_part}.{kind}"]
    for layer in range(config.layers):
        if names is GPT2:
            for kind in ("weight", "bias"):
                fused = theirs[GPT2_FUSED.replace("#", str(layer)) + "." + kind]
                for part, tensor in zip(("query", "key", "value"), fused.chunk(3), strict=True):
                    ours[f"blocks.{layer}.attention.{part}.{kind}"] = tensor
        elif config.experts:
            for e, (both, down) in enumerate(
                zip(theirs[MIXTRAL_IN.format(layer)], theirs[MIXTRAL_OUT.format(layer)], strict=True)
            ):
                gate, up = both.chunk(2)
                expert = f"blocks.{layer}.mlp.experts.{e}."
                ours |= {expert + "gate.weight": gate, expert + "up.weight": up, expert + "down.weight": down}
    # Checkpoints of tied models leave the head out.
    if "head.weight" not in ours:
        ours["head.weight"] = ours["embedding.weight"]
    return ours


def _family(config: TransformerConfig) -> Mapping[str, str]:
    if config.norms_per_block == 2:
        gpt2 = ("learned", "layernorm", "gelu", "all", 0, config.heads)
        if (config.positions, config.norm, config.mlp, config.bias, config.experts, config.kv_heads) == gpt2:
            return GPT2
        if (config.positions, config.norm, config.mlp) == ("rope", "rmsnorm", "swiglu") and config.bias != "all":
            return LLAMA
    raise ValueError(
        "only GPT-2's architecture (learned positions, LayerNorm, GELU, all biases) and Llama's (rotary positions, "
        f"RMSNorm, SwiGLU, no biases or those of qkv) can be converted, got {config!r}."
    )


def _numbered(name: str, layer: re.Match | None) -> str:
    return name if layer is None else name.replace("#", layer.group(1))


def _oriented(name: str, tensor: Tensor, names: Mapping[str, str]) -> Tensor:
    return tensor.T.contiguous() if names is GPT2 and GPT2_TRANSPOSED.search(name) else tensor
