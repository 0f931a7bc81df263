import dataclasses
import itertools

import pytest
import torch
import transformers
from reference_decoder import Decoder

from cs336kit.predict import (
    MODELS,
    TransformerConfig,
    active_parameters,
    matmul_parameters,
    parameter_shapes,
    parameters,
)


def numel(module):
    return sum(p.numel() for p in module.parameters())


def on_meta(config):
    with torch.device("meta"):
        return transformers.AutoModelForCausalLM.from_config(config)


def gpt2(c):
    return transformers.GPT2Config(
        n_layer=c.layers, n_embd=c.d_model, n_head=c.heads, n_inner=c.d_ff, vocab_size=c.vocab, n_positions=c.context
    )


def starcoder(c):
    return transformers.GPTBigCodeConfig(
        n_layer=c.layers, n_embd=c.d_model, n_head=c.heads, n_inner=c.d_ff, vocab_size=c.vocab, n_positions=c.context
    )


def llama_like(kind, **more):
    return lambda c: kind(
        num_hidden_layers=c.layers,
        hidden_size=c.d_model,
        num_attention_heads=c.heads,
        num_key_value_heads=c.kv_heads,
        head_dim=c.head_dim,
        intermediate_size=c.d_ff,
        vocab_size=c.vocab,
        tie_word_embeddings=c.tied_head,
        **more,
    )


def mixtral(c):
    return llama_like(transformers.MixtralConfig, num_local_experts=c.experts, num_experts_per_tok=c.experts_per_token)(
        c
    )


def falcon(c):
    return transformers.FalconConfig(
        num_hidden_layers=c.layers,
        hidden_size=c.d_model,
        num_attention_heads=c.heads,
        num_kv_heads=c.kv_heads,
        vocab_size=c.vocab,
        new_decoder_architecture=c.norms_per_block == 2,
        multi_query=True,
    )


def pythia(c):
    return transformers.GPTNeoXConfig(
        num_hidden_layers=c.layers,
        hidden_size=c.d_model,
        num_attention_heads=c.heads,
        intermediate_size=c.d_ff,
        vocab_size=c.vocab,
        tie_word_embeddings=False,
    )


def mpt(c):
    return transformers.MptConfig(n_layers=c.layers, d_model=c.d_model, n_heads=c.heads, vocab_size=c.vocab)


FAMILIES = {
    "gpt": gpt2,
    "starcoder": starcoder,
    "mistral": llama_like(transformers.MistralConfig),
    "mixtral": mixtral,
    "qwen": llama_like(transformers.Qwen2Config),
    "gemma": llama_like(transformers.GemmaConfig),
    "falcon": falcon,
    "pythia": pythia,
    "mpt": mpt,
}


@pytest.mark.parametrize("name", [name for name in MODELS if name != "palm-540b"])
def test_every_named_model_equals_the_published_module(name):
    config = MODELS[name]
    family = next((make for start, make in FAMILIES.items() if name.startswith(start)), None)
    make = family or llama_like(transformers.LlamaConfig)
    # Layers are alike: building two of them and scaling is the same count in a fraction of the time.
    for layers in (1, 2):
        shallow = dataclasses.replace(config, layers=layers)
        assert parameters(shallow).total == numel(on_meta(make(shallow)))
    one, two = (parameters(dataclasses.replace(config, layers=n)).total for n in (1, 2))
    assert parameters(config).total == one + (config.layers - 1) * (two - one)


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("gpt2", 124_439_808),
        ("gpt2-xl", 1_557_611_200),
        ("gpt3-175b", 174_604_259_328),
        ("llama-2-7b", 6_738_415_616),
        ("llama-3-8b", 8_030_261_248),
        ("llama-3-70b", 70_553_706_496),
        ("mixtral-8x7b", 46_702_792_704),
        ("palm-540b", 540_356_474_880),
    ],
)
def test_published_totals(name, count):
    assert parameters(MODELS[name]).total == count


def test_every_combination_of_options_equals_a_real_module():
    options = itertools.product(
        ("gelu", "swiglu"),
        ("layernorm", "rmsnorm"),
        ("learned", "rope", "none"),
        ("all", "none", "qkv"),
        (True, False),
        ((4, None), (2, None), (1, 6)),
        (0, 3),
    )
    for mlp, norm, positions, bias, tied, (kv_heads, head_dim), experts in options:
        config = TransformerConfig(
            layers=2,
            d_model=16,
            heads=4,
            kv_heads=kv_heads,
            head_dim=head_dim,
            d_ff=24,
            vocab=11,
            context=7,
            mlp=mlp,
            norm=norm,
            norm_bias=norm == "layernorm" and bias == "all",
            positions=positions,
            bias=bias,
            tied_head=tied,
            experts=experts,
            experts_per_token=2 if experts else None,
        )
        with torch.device("meta"):
            model = Decoder(config)
        assert parameters(config).total == numel(model), config
        assert sorted(parameter_shapes(config)) == sorted(tuple(p.shape) for p in model.parameters()), config


def test_components_of_a_real_module_one_by_one():
    config = dataclasses.replace(MODELS["qwen2.5-7b"], layers=2)
    with torch.device("meta"):
        model = Decoder(config)
    parts = parameters(config)
    block = model.blocks[0]
    assert parts["token embedding"] == numel(model.tokens)
    assert parts["query"] == 2 * numel(block.attention.query)
    assert parts["key"] == parts["value"] == 2 * numel(block.attention.key)
    assert parts["attention output"] == 2 * numel(block.attention.output)
    assert parts["mlp gate"] == parts["mlp up"] == parts["mlp down"] == 2 * numel(block.mlp.up)
    assert parts["norms"] == 4 * numel(model.norm) and parts["final norm"] == numel(model.norm)
    assert parts["head"] == numel(model.head)


def test_mixtral_is_active_with_thirteen_billion():
    assert active_parameters(MODELS["mixtral-8x7b"]).total == 12_879_925_248
    assert active_parameters(MODELS["gpt2"]) == parameters(MODELS["gpt2"])


def test_matmul_parameters_are_the_matrices_that_multiply():
    config = dataclasses.replace(MODELS["llama-3.2-1b"], layers=2)
    with torch.device("meta"):
        model = Decoder(config)
    linear = [m for m in model.modules() if isinstance(m, torch.nn.Linear)]
    assert matmul_parameters(config) == sum(m.weight.numel() for m in linear)


def test_the_name_of_a_model_is_not_its_configuration():
    with pytest.raises(ValueError, match="must be a TransformerConfig, got 'gpt2'; MODELS holds"):
        parameters("gpt2")
