"""The decoder against transformers' own models: the same weights must give the same logits and gradients."""

import copy
import dataclasses
import re

import pytest
import torch

from benchmarks import architectures
from cs336kit import lm
from cs336kit.lm import convert
from cs336kit.predict.families import FAMILIES

pytestmark = pytest.mark.torch

transformers = pytest.importorskip("transformers")
transformers.logging.set_verbosity_error()

TOKENS = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": None}
GPT2 = {
    "n_layer": 3,
    "n_head": 4,
    "n_embd": 24,
    "vocab_size": 61,
    "n_positions": 20,
    "layer_norm_epsilon": 1e-4,
    **TOKENS,
}
LLAMA = {
    "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 24, "vocab_size": 61,
    "intermediate_size": 40, "max_position_embeddings": 20, "tie_word_embeddings": False, "rms_norm_eps": 1e-4,
    "rope_parameters": {"rope_type": "default", "rope_theta": 5000.0}, **TOKENS,
}  # fmt: skip
FALCON = {
    "num_hidden_layers": 3, "num_attention_heads": 4, "hidden_size": 24, "vocab_size": 61,
    "max_position_embeddings": 20, "layer_norm_epsilon": 1e-4, **TOKENS,
}  # fmt: skip
PLAIN = {name: value for name, value in LLAMA.items() if name != "rms_norm_eps"}
STABLE = PLAIN | {"layer_norm_eps": 1e-4}
WHOLE = {"rope_parameters": {"rope_type": "default", "rope_theta": 5000.0, "partial_rotary_factor": 1.0}}
HALF = {"rope_parameters": {"rope_type": "default", "rope_theta": 5000.0, "partial_rotary_factor": 0.34}}
MOE = {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None}
WINDOW = {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 0}

CASES = {
    "gpt2": ("GPT2", GPT2),
    "gpt2 narrow, untied, exact gelu": (
        "GPT2", GPT2 | {"n_inner": 30, "tie_word_embeddings": False, "activation_function": "gelu"}),
    "starcoder": ("GPTBigCode", GPT2),
    "starcoder, all heads": ("GPTBigCode", GPT2 | {"multi_query": False}),
    "llama": ("Llama", LLAMA),
    "llama, one kv head": ("Llama", LLAMA | {"num_key_value_heads": 1, "head_dim": 10, "tie_word_embeddings": True}),
    "llama with all biases": ("Llama", LLAMA | {"attention_bias": True, "mlp_bias": True}),
    "mistral": ("Mistral", LLAMA | {"sliding_window": 4}),
    "ministral": ("Ministral", LLAMA | {"sliding_window": 4, "head_dim": 6, "layer_types": ["sliding_attention"] * 3}),
    "qwen2": ("Qwen2", LLAMA | {"tie_word_embeddings": True}),
    "qwen2 with a window": ("Qwen2", LLAMA | WINDOW),
    "qwen2 with a window in the last layer": ("Qwen2", LLAMA | WINDOW | {"max_window_layers": 2}),
    "llama with biases on attention": ("Llama", LLAMA | {"attention_bias": True}),
    "qwen3": ("Qwen3", LLAMA | {"head_dim": 8}),
    "olmo2": ("Olmo2", LLAMA),
    "llama with another gate": ("Llama", LLAMA | {"hidden_act": "gelu"}),
    "phi": ("Phi", STABLE | {"hidden_act": "gelu_new"} | HALF),
    "gpt-neox": ("GPTNeoX", STABLE | HALF | {"num_key_value_heads": 4}),
    "gpt-neox in sequence": (
        "GPTNeoX", STABLE | HALF | {"num_key_value_heads": 4, "use_parallel_residual": False}),
    "stablelm in parallel": ("StableLm", STABLE | WHOLE | {"use_parallel_residual": True}),
    "stablelm, a part rotated": ("StableLm", STABLE | HALF),
    "mixtral": ("Mixtral", LLAMA | MOE),
    "phi3": ("Phi3", LLAMA | WHOLE),
    "starcoder2": ("Starcoder2", PLAIN | {"norm_epsilon": 1e-4, "sliding_window": 5}),
    "starcoder2 without biases": ("Starcoder2", PLAIN | {"norm_epsilon": 1e-4, "use_bias": False}),
    "stablelm": ("StableLm", STABLE | WHOLE | {"use_qkv_bias": True}),
    "falcon 7b": ("Falcon", FALCON),
    "falcon, all heads": ("Falcon", FALCON | {"multi_query": False, "bias": True}),
    "falcon in sequence": ("Falcon", FALCON | {"parallel_attn": False}),
    "falcon 40b": ("Falcon", FALCON | {"new_decoder_architecture": True, "num_kv_heads": 2}),
    "falcon 11b": (
        "Falcon", FALCON | {"new_decoder_architecture": True, "num_kv_heads": 2, "num_ln_in_parallel_attn": 1}),
}  # fmt: skip


def theirs(kind, fields):
    torch.manual_seed(0)
    model = getattr(transformers, kind + ("LMHeadModel" if kind == "GPT2" else "ForCausalLM"))(
        getattr(transformers, kind + "Config")(**copy.deepcopy(fields))  # it writes into nested ones
    )
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model.eval()


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("name", CASES)
def test_same_weights_same_logits_and_gradients(name, attention):
    their_model = theirs(*CASES[name])
    model = lm.from_transformers(their_model, attention=attention)
    tokens = torch.randint(61, (2, 20))
    expected = their_model(tokens).logits
    # Both compute in fp32, in another order.
    scale = expected.abs().max().item()
    torch.testing.assert_close(model(tokens), expected, atol=2e-5 * scale, rtol=2e-4)

    model(tokens).square().mean().backward()
    expected.square().mean().backward()
    gradients = {n: p.grad for n, p in model.named_parameters(remove_duplicate=False)}
    gradients = lm.to_transformers(gradients, model.config, family=their_model.config.model_type)
    for part, parameter in their_model.named_parameters():
        scale = parameter.grad.abs().max().item()
        torch.testing.assert_close(gradients[part], parameter.grad, atol=1e-3 * scale, rtol=1e-3)


#: What a family must say beside the sizes of `tiny` so that our decoder has all of it.
SCALED = {"attention_multiplier": 0.25}
SUM_TO_1 = {"norm_topk_prob": True}
MIXED = {"sliding_window": 5, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}
PLAIN_YARN = {**WHOLE["rope_parameters"], "llama_4_scaling_beta": 0.0, "original_max_position_embeddings": 9}
MADE_PLAIN = {
    "cwm": WHOLE, "ministral3": {"rope_parameters": PLAIN_YARN}, "opt": {"word_embed_proj_dim": 64},
    "granite": SCALED, "granitemoe": SCALED, "granitemoeshared": SCALED,
    "flex_olmo": SUM_TO_1, "olmoe": SUM_TO_1, "qwen2_moe": SUM_TO_1, "qwen3_moe": SUM_TO_1,
    "cohere2": MIXED, "exaone4": MIXED, "olmo3": MIXED,
}  # fmt: skip
#: What our decoder lacks: what no field says, and what a field of the configuration does.
REFUSED = convert._table("lacking") | {
    "apertus": "mlp='xielu'", "bloom": "positions='alibi'", "gemma": "norm_unit_offset", "gemma2": "norm_unit_offset",
    "gemma3_text": "norm_unit_offset", "gpt_oss": "mlp='swiglu_clipped'", "llama4_text": "qk_norm='plain'",
    "mpt": "positions='alibi'", "nanochat": "qk_norm='plain'", "nemotron": "norm_unit_offset",
    "vaultgemma": "norm_unit_offset",
}  # fmt: skip


@pytest.mark.parametrize("model_type", FAMILIES)
def test_every_model_type_is_converted_both_ways_or_refused_by_name(model_type):
    values = {**architectures.tiny(model_type), **copy.deepcopy(MADE_PLAIN.get(model_type, {}))}
    config = transformers.AutoConfig.for_model(**values)
    their_model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    torch.manual_seed(0)
    for parameter in their_model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    if model_type in REFUSED:
        with pytest.raises(ValueError, match=f"a {model_type} cannot be .*{re.escape(REFUSED[model_type])}"):
            lm.from_transformers(their_model)
        return
    model = lm.from_transformers(their_model)
    tokens = torch.randint(128, (2, 12))
    with torch.no_grad():
        torch.testing.assert_close(model(tokens), their_model(tokens).logits, atol=1e-5, rtol=1e-5)
    back, state = lm.to_transformers(model.state_dict(), model.config, family=model_type), their_model.state_dict()
    assert back.keys() == state.keys()
    assert all(torch.equal(back[part], state[part]) for part in state)


@pytest.mark.parametrize(
    ("model_type", "change"),
    [
        ("cohere2", {"layer_types": ["full_attention"] * 3}),
        ("cohere2", {"layer_types": ["full_attention", "sliding_attention", "full_attention"]}),
        ("smollm3", {"use_sliding_window": True, "sliding_window": 5, "no_rope_layers": [1, 0, 1]}),
        ("smollm3", {"use_sliding_window": True, "sliding_window": 5, "layer_types": ["sliding_attention"] * 3}),
    ],
)
def test_which_layers_turn_and_which_have_a_window(model_type, change):
    values = {**architectures.tiny(model_type), "sliding_window": 5, **change}
    config = transformers.AutoConfig.for_model(**values)
    their_model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    torch.manual_seed(0)
    for parameter in their_model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    tokens = torch.randint(128, (2, 12))
    with torch.no_grad():
        expected = their_model(tokens).logits
        torch.testing.assert_close(lm.from_transformers(their_model)(tokens), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("model_type", convert._table())
def test_a_field_that_is_left_out_counts_as_transformers_takes_it(model_type):
    kind = convert._merged(model_type)
    usual = transformers.AutoConfig.for_model(model_type)
    for name, value in kind["must"].items():
        assert getattr(usual, name, value) == kind["usual"].get(name, value)
    assert kind["usual"].keys() <= kind["must"].keys()


def test_weights_that_do_not_sum_to_1_are_refused_also_where_nothing_is_said():
    config = transformers.AutoConfig.for_model(**architectures.tiny("qwen3_moe")).to_dict()
    without = {name: value for name, value in config.items() if name != "norm_topk_prob"}
    with pytest.raises(ValueError, match="qwen3_moe with norm_topk_prob=False cannot be built here"):
        lm.from_transformers({}, without)


def test_latents_whose_norms_have_another_eps_are_refused():
    config = transformers.AutoConfig.for_model(**architectures.tiny("youtu"), rms_norm_eps=1e-3).to_dict()
    with pytest.raises(ValueError, match="youtu with rms_norm_eps=0.001 cannot be built here: .* rms_norm_eps=1e-06"):
        lm.from_transformers({}, config)


@pytest.mark.parametrize("tied", [True, False])
def test_a_model_without_values_becomes_one_without_values(tied):
    with torch.device("meta"):
        their_model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**LLAMA | {"tie_word_embeddings": tied}))
    model = lm.from_transformers(their_model)
    assert model.embedding.weight.is_meta and (model.head.weight is model.embedding.weight) == tied


def test_an_architecture_whose_names_are_not_known_is_refused_for_that(monkeypatch):
    monkeypatch.delitem(convert._table(), "arcee")
    config = transformers.AutoConfig.for_model(**architectures.tiny("arcee")).to_dict()
    with pytest.raises(ValueError, match="a arcee cannot be converted yet: the names .* are not known here"):
        lm.from_transformers({}, config)


def test_a_refused_activation_of_gpt_1_is_named():
    config = transformers.OpenAIGPTConfig(n_layer=1, n_embd=24, n_head=4, vocab_size=61, afn="relu")
    with pytest.raises(ValueError, match="openai-gpt with afn='relu' cannot be built here"):
        lm.from_transformers(transformers.OpenAIGPTLMHeadModel(config))


@pytest.mark.parametrize("name", CASES)
def test_there_and_back(name):
    their_model = theirs(*CASES[name])
    state = their_model.state_dict()
    model = lm.from_transformers(state, their_model.config.to_dict())
    back = lm.to_transformers(model.state_dict(), model.config, family=their_model.config.model_type)
    assert back.keys() == state.keys()
    assert all(torch.equal(back[part], state[part]) for part in state)
    their_model.load_state_dict(back)


def test_the_family_follows_from_the_shape():
    for name in ("gpt2", "llama", "mixtral"):
        their_model = theirs(*CASES[name])
        model = lm.from_transformers(their_model)
        assert type(model) is (lm.DecoderOnly if name == "gpt2" else lm.Llama)
        assert lm.to_transformers(model.state_dict(), model.config).keys() == their_model.state_dict().keys()
    with pytest.raises(ValueError, match="name the family, one of arcee, bitnet, codegen, cohere"):
        lm.to_transformers({}, lm.from_transformers(theirs(*CASES["falcon 7b"])).config)
    normed = dataclasses.replace(lm.from_transformers(theirs(*CASES["llama"])).config, qk_norm="head")
    with pytest.raises(ValueError, match="name the family"):
        lm.to_transformers({}, normed)


def test_weights_alone_are_refused():
    their_model = theirs(*CASES["llama"])
    config = lm.from_transformers(their_model).config
    for given in (None, config):
        with pytest.raises(ValueError, match="the configuration of transformers is missing"):
            lm.from_transformers(their_model.state_dict(), given)


def test_a_tied_checkpoint_may_leave_the_head_out_and_gpt2_its_biases_and_prefix():
    their_model = theirs(*CASES["gpt2"])
    with torch.no_grad():
        for name, parameter in their_model.named_parameters():
            if name.endswith("bias"):
                parameter.zero_()
    state = {n.removeprefix("transformer."): p for n, p in their_model.state_dict().items()}
    state = {n: p for n, p in state.items() if n != "lm_head.weight" and not n.endswith("bias")}
    model = lm.from_transformers(state, their_model.config)
    assert (model.config.bias, model.config.norm_bias) == ("none", False)
    tokens = torch.randint(61, (2, 20))
    torch.testing.assert_close(model(tokens), their_model(tokens).logits, atol=1e-4, rtol=1e-4)


def test_a_missing_and_an_unknown_weight_are_named():
    their_model = theirs(*CASES["gpt2"])
    state = their_model.state_dict()
    with pytest.raises(ValueError, match=r"the weight transformer\.h\.1\.attn\.q_norm\.weight has no place"):
        lm.from_transformers({**state, "transformer.h.1.attn.q_norm.weight": torch.ones(6)}, their_model.config)
    del state["transformer.h.1.attn.c_attn.weight"]
    with pytest.raises(
        ValueError, match=r"weights of blocks\.1\.attention\.key\.weight, .*query\.weight.* are missing"
    ):
        lm.from_transformers(state, their_model.config)


SMALL = LLAMA | {"pad_token_id": 0}


@pytest.mark.parametrize(
    ("kind", "fields", "sentence"),
    [
        ("Qwen3Moe", SMALL, "qwen3_moe with norm_topk_prob=False cannot be built here"),
        ("Gemma", SMALL, "a gemma cannot be converted: norm_unit_offset=True cannot be built here"),
        ("Granite", SMALL, "a granite cannot be converted: attention_scale=1.0 cannot be built here"),
        (
            "Llama",
            LLAMA | {"rope_parameters": {"rope_type": "linear", "rope_theta": 5000.0, "factor": 2.0}},
            "plain rotary positions",
        ),
        ("GPT2", GPT2 | {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx=True"),
        ("GPT2", GPT2 | {"scale_attn_weights": False}, "scale_attn_weights=False"),
        ("Falcon", FALCON | {"alibi": True}, "positions='alibi' cannot be built here"),
    ],
)
def test_what_our_decoder_lacks_is_refused_by_name(kind, fields, sentence):
    with pytest.raises(ValueError, match=sentence):
        lm.from_transformers(theirs(kind, fields))


def test_a_falcon_that_does_not_say_how_many_norms_it_has_has_two_if_its_heads_are_grouped():
    for name, norms in (("falcon 40b", 2), ("falcon 7b", 1)):
        their_model = theirs(*CASES[name])
        fields = their_model.config.to_dict() | {"num_ln_in_parallel_attn": None}
        assert lm.from_transformers(their_model.state_dict(), fields).config.norms_per_block == norms


def test_layers_of_a_kind_that_is_not_known_are_refused_and_a_window_that_is_not_used_is_none():
    their_model = theirs(*CASES["qwen2 with a window"])
    fields, state = their_model.config.to_dict(), their_model.state_dict()
    with pytest.raises(ValueError, match="window_kind='chunked' cannot be built here"):
        lm.from_transformers(state, fields | {"layer_types": ["chunked_attention"] * 3})
    with pytest.raises(
        ValueError, match=r"layer_types=\['linear.* of this qwen2 cannot be counted: give full_attention"
    ):
        lm.from_transformers(state, fields | {"layer_types": ["linear_attention"] * 3})
    from_switch = lm.from_transformers(state, fields | {"layer_types": None}).config
    assert from_switch == lm.from_transformers(their_model).config
    unused = fields | {"layer_types": None, "use_sliding_window": False}
    assert lm.from_transformers(state, unused).config.window is None


def test_a_field_that_is_not_understood_is_refused():
    their_model = theirs(*CASES["llama"])
    fields = their_model.config.to_dict() | {"logits_scaling": 4.0}
    with pytest.raises(ValueError, match=r"logits_scaling=4.0 of this llama is not understood"):
        lm.from_transformers(their_model.state_dict(), fields)


def test_a_configuration_without_its_defaults_and_a_head_that_is_not_tied_are_refused():
    their_model = theirs(*CASES["llama"])
    for field in ("rope_parameters", "rms_norm_eps"):
        fields = {name: value for name, value in their_model.config.to_dict().items() if name != field}
        with pytest.raises(ValueError, match="the configuration of llama lacks .*: give model.config"):
            lm.from_transformers(their_model.state_dict(), fields)
    without = {name: value for name, value in their_model.config.to_dict().items() if name != "vocab_size"}
    with pytest.raises(ValueError, match=r"embedding.weight has the shape \(61, 24\) in the weights and \(32000, 24\)"):
        lm.from_transformers(their_model.state_dict(), without)
    neox = theirs(*CASES["gpt-neox"])
    with pytest.raises(
        ValueError, match="4 query heads and 2 key/value heads of width 6 do not fit a weight of 72 rows"
    ):
        lm.from_transformers(neox.state_dict(), neox.config.to_dict() | {"num_key_value_heads": 2})
    fields = their_model.config.to_dict() | {"tie_word_embeddings": True}
    with pytest.raises(ValueError, match="head and embedding differ in the weights"):
        lm.from_transformers(their_model.state_dict(), fields)
    state = {name: tensor for name, tensor in their_model.state_dict().items() if name != "lm_head.weight"}
    with pytest.raises(ValueError, match=r"the weights of head\.weight are missing"):
        lm.from_transformers(state, their_model.config)


def test_kinds_of_layers_that_turn_alike_have_one_base_and_others_are_refused():
    kind = {"rope_theta": 5e5, "rope_type": "default"}
    for parameters in ({"full": kind}, {"full": kind, "sliding": dict(kind)}):
        assert convert._rope_base({"rope_parameters": parameters}, ValueError) == 5e5
    apart = {"full": kind, "sliding": kind | {"rope_theta": 1e4}}
    with pytest.raises(ValueError, match="plain rotary positions"):
        convert._rope_base({"rope_theta": 1e4, "rope_parameters": apart}, ValueError)
