import dataclasses
import itertools

import pytest
import torch
import transformers
from reference_decoder import Decoder
from torch.utils.flop_counter import FlopCounterMode

from cs336kit import lm, measure
from cs336kit.predict import (
    MODELS,
    TransformerConfig,
    forward_flops,
    kv_cache_bytes,
    matmul_parameters,
    recomputed_flops,
    training_flops,
)

TINY = {"layers": 2, "d_model": 16, "heads": 4, "vocab": 11, "context": 8}


def counted(function):
    with FlopCounterMode(display=False) as counter:
        function()
    return counter.get_total_flops()


def on_meta(config, **options):
    with torch.device("meta"):
        return Decoder(config, **options)


def shallow(name, layers=2):
    return dataclasses.replace(MODELS[name], layers=layers)


def tokens(batch, sequence):
    return torch.zeros(batch, sequence, dtype=torch.long, device="meta")


@pytest.mark.parametrize(
    ("name", "sequence", "flops"),
    [
        ("gpt2", 1024, 291_648_307_200),
        ("gpt2-xl", 1024, 3_506_703_564_800),
        ("gpt3-175b", 2048, 734_804_261_732_352),
        ("llama-2-7b", 4096, 62_921_270_886_400),
        ("llama-3-8b", 8192, 158_140_695_838_720),
        ("llama-3-70b", 8192, 1_314_637_949_698_048),
    ],
)
def test_forward_of_published_models(name, sequence, flops):
    assert forward_flops(MODELS[name], batch=1, sequence=sequence).total == flops


@pytest.mark.parametrize("name", [name for name in MODELS if not name.startswith("mixtral")])
def test_forward_and_training_equal_the_counter(name):
    config = dataclasses.replace(shallow(name), dropout=0.0)
    model, ids = on_meta(config), tokens(2, 64)
    assert forward_flops(config, batch=2, sequence=64).total == counted(lambda: model(ids))
    assert training_flops(config, batch=2, sequence=64).total == counted(lambda: model.loss(ids).backward())


def test_every_combination_of_options_equals_the_counter():
    options = itertools.product(
        ("gelu", "swiglu"), ("learned", "rope"), ((4, 4), (2, 6), (1, 4)), (0, 3), (0.0, 0.1), (False, True), (1, 2)
    )
    # Every fifth of 192: each value of an option meets each value of every other.
    for mlp, positions, (kv_heads, head_dim), experts, dropout, checkpointing, norms in itertools.islice(
        options, 0, None, 5
    ):
        config = TransformerConfig(
            **TINY,
            kv_heads=kv_heads,
            head_dim=head_dim,
            d_ff=24,
            mlp=mlp,
            positions=positions,
            experts=experts,
            experts_per_token=2 if experts else None,
            dropout=dropout,
            norms_per_block=norms,
        )
        model, ids = on_meta(config, checkpointing=checkpointing), tokens(3, 6)
        step = counted(lambda model=model, ids=ids: model.loss(ids).backward())
        assert training_flops(config, batch=3, sequence=6, checkpointing=checkpointing).total == step, config


def test_fused_attention_has_five_matmuls_in_its_backward_pass():
    config = TransformerConfig(**TINY, positions="rope")
    explicit = training_flops(config, batch=2, sequence=8)
    fused = training_flops(config, batch=2, sequence=8, attention="sdpa")
    one_matmul = forward_flops(config, batch=2, sequence=8)["attention scores"]
    assert fused.total - explicit.total == one_matmul
    with torch.device("meta"):
        query = torch.zeros(2, 4, 8, 4, dtype=torch.bfloat16, requires_grad=True)

    def attend():
        out, lse, *_rest = torch.ops.aten._scaled_dot_product_flash_attention(query, query, query)
        zero = torch.zeros((), dtype=torch.long, device="meta")
        torch.ops.aten._scaled_dot_product_flash_attention_backward(
            out, query, query, query, out, lse, zero, zero, 8, 8, 0.0, False, zero, zero
        )

    assert fused["attention scores"] + fused["attention values"] == 2 * counted(attend)


def test_dropout_sends_fused_attention_to_the_path_with_four():
    config = TransformerConfig(**TINY, dropout=0.1)
    fused = training_flops(config, batch=2, sequence=8, attention="sdpa")
    assert fused == training_flops(config, batch=2, sequence=8)
    model, ids = Decoder(config, sdpa=True), torch.zeros(2, 8, dtype=torch.long)
    assert counted(lambda: model.loss(ids).backward()) == fused.total


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("gpt2", lambda: transformers.GPT2Config(n_layer=2)),
        ("llama-2-7b", lambda: transformers.LlamaConfig(num_hidden_layers=2)),
        (
            "qwen2.5-7b",
            lambda: transformers.Qwen2Config(
                num_hidden_layers=2,
                hidden_size=3584,
                num_attention_heads=28,
                num_key_value_heads=4,
                intermediate_size=18944,
                vocab_size=152064,
            ),
        ),
    ],
)
def test_forward_equals_the_counter_on_published_code(name, make):
    config = make()
    config._attn_implementation = "eager"
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config).eval()
    assert forward_flops(shallow(name), batch=1, sequence=32).total == counted(lambda: model(tokens(1, 32)))


def test_a_mixture_pays_for_the_experts_it_visits():
    config = MODELS["mixtral-8x7b"]
    parts = forward_flops(config, batch=1, sequence=16)
    assert parts["mlp up"] == 2 * forward_flops(MODELS["mistral-7b"], batch=1, sequence=16)["mlp up"]
    assert parts["router"] == 2 * 16 * 32 * 4096 * 8


def test_without_attention_a_token_costs_two_flops_per_weight():
    for config in MODELS.values():
        parts = forward_flops(config, batch=1, sequence=10)
        linear = parts.total - parts["attention scores"] - parts["attention values"]
        assert linear == 2 * 10 * matmul_parameters(config)


def test_causal_counts_half_and_a_window_counts_its_band():
    config = TransformerConfig(**TINY, positions="none")
    full = forward_flops(config, batch=1, sequence=8)
    half = forward_flops(config, batch=1, sequence=8, causal=True)
    assert 2 * half["attention scores"] == full["attention scores"] and half["head"] == full["head"]
    narrow = dataclasses.replace(config, window=4)
    assert forward_flops(narrow, batch=1, sequence=8) == full
    band = forward_flops(narrow, batch=1, sequence=8, causal=True)["attention scores"]
    assert band == 2 * 2 * 16 * (8 * 4 - 4 * 4 // 2)
    assert forward_flops(dataclasses.replace(config, window=8), batch=1, sequence=8, causal=True) == half


def test_recomputation_stops_before_the_last_linear():
    config = TransformerConfig(**TINY)
    forward = forward_flops(config, batch=1, sequence=8)
    again = recomputed_flops(config, batch=1, sequence=8)
    assert forward.total - again.total == forward["head"] + forward["mlp down"]
    dropped = recomputed_flops(dataclasses.replace(config, dropout=0.1), batch=1, sequence=8)
    assert forward.total - dropped.total == forward["head"]


@pytest.mark.parametrize(
    ("name", "sequence", "size"),
    [
        ("gpt2", 1024, 37_748_736),
        ("gpt2-xl", 1024, 314_572_800),
        ("gpt3-175b", 2048, 9_663_676_416),
        ("llama-2-7b", 4096, 2_147_483_648),
        ("llama-3-8b", 8192, 1_073_741_824),
        ("llama-3-70b", 8192, 2_684_354_560),
        ("mistral-7b", 8192, 536_870_912),
    ],
)
def test_kv_cache(name, sequence, size):
    assert kv_cache_bytes(MODELS[name], batch=1, sequence=sequence, precision="bf16") == size
    assert kv_cache_bytes(MODELS[name], batch=3, sequence=sequence, precision="fp32") == 6 * size


def test_kv_cache_equals_the_tensors_of_a_real_cache():
    config = transformers.LlamaConfig(
        num_hidden_layers=2, hidden_size=32, num_attention_heads=4, num_key_value_heads=2, intermediate_size=16
    )
    model = transformers.LlamaForCausalLM(config)
    cache = model(torch.zeros(3, 7, dtype=torch.long)).past_key_values
    held = sum(t.numel() * t.element_size() for layer in cache.layers for t in (layer.keys, layer.values))
    ours = TransformerConfig(
        layers=2, d_model=32, heads=4, kv_heads=2, d_ff=16, vocab=32000, context=64, mlp="swiglu", positions="rope"
    )
    assert kv_cache_bytes(ours, batch=3, sequence=7, precision="fp32") == held


@pytest.mark.parametrize(
    ("sizes", "sentence"),
    [
        ({"batch": 0, "sequence": 4}, "batch must be"),
        ({"batch": 1, "sequence": 2.5}, "sequence must be"),
        ({"batch": 1, "sequence": 9}, "sequence=9 is longer than context=8"),
    ],
)
def test_impossible_sizes_are_refused(sizes, sentence):
    for function in (forward_flops, training_flops, recomputed_flops, kv_cache_bytes):
        with pytest.raises(ValueError, match=sentence):
            function(TransformerConfig(**TINY), **sizes)


def test_unknown_names_are_refused():
    config = TransformerConfig(**TINY)
    with pytest.raises(ValueError, match=r"unknown attention 'flash'.*eager, sdpa"):
        training_flops(config, batch=1, sequence=4, attention="flash")
    with pytest.raises(ValueError, match="precision of a cache"):
        kv_cache_bytes(config, batch=1, sequence=4, precision="fp7")
    with pytest.raises(ValueError, match="MODELS holds"):
        forward_flops("gpt2", batch=1, sequence=4)


ODD = {
    "a head wider than D / A, one key head": {"kv_heads": 1, "head_dim": 10, "bias": "qkv", "norm_bias": False},
    "parallel, window": {"norms_per_block": 1, "window": 3, "tied_head": False, "mlp": "swiglu", "d_ff": 7},
    "grouped experts": {"kv_heads": 2, "experts": 3, "experts_per_token": 2, "norm": "rmsnorm", "positions": "rope"},
}


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_odd_architectures_equal_the_counter_on_a_cpu(odd, dropout, attention, checkpointing):
    config = TransformerConfig(**TINY, **ODD[odd], dropout=dropout)
    model = lm.DecoderOnly(config, attention=attention, checkpointing=checkpointing)
    ids = torch.randint(config.vocab, (2, 8))
    assert measure.flops(lambda: model(ids)).total == forward_flops(config, batch=2, sequence=8).total
    step = measure.flops(lambda: model(ids).sum().backward()).total
    options = {"attention": attention, "checkpointing": checkpointing}
    assert step == training_flops(config, batch=2, sequence=8, **options).total


@pytest.mark.parametrize("window", [None, 1, 3])
def test_fused_causal_attention_loses_no_half(window):
    config = TransformerConfig(layers=1, d_model=3, heads=1, vocab=5, context=5, window=window)
    forward = forward_flops(config, batch=1, sequence=5, causal=True)["attention scores"]
    step = training_flops(config, batch=1, sequence=5, causal=True, attention="sdpa")
    assert forward % 2 == 1
    assert step["attention scores"] + step["attention values"] == 7 * forward
