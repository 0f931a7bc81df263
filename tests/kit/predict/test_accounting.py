"""Parameters, FLOPs, kept bytes and caches, against real modules, torch's counter and what autograd holds."""

import contextlib
import dataclasses
import itertools

import pytest
import torch
import torch.nn.functional as F
import transformers
from few import one_in
from reference_decoder import Decoder
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from cs336kit import lm, measure, predict
from cs336kit.predict import (
    MODELS,
    TransformerConfig,
    active_parameters,
    forward_flops,
    kv_cache_bytes,
    matmul_parameters,
    paper_block_bytes,
    parameter_shapes,
    parameters,
    program,
    saved_activation_bytes,
    saved_block_bytes,
    traffic_bytes,
    training_flops,
)

pytestmark = pytest.mark.torch

TINY = {"layers": 2, "d_model": 16, "heads": 4, "vocab": 11, "context": 8}


# -- parameters


def numel(module):
    return sum(p.numel() for p in module.parameters())


def published(config):
    with torch.device("meta"):
        return transformers.AutoModelForCausalLM.from_config(config)


def gpt2_like(kind):
    return lambda c: kind(
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
    "gpt": gpt2_like(transformers.GPT2Config),
    "starcoder": gpt2_like(transformers.GPTBigCodeConfig),
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
        assert parameters(shallow).total == numel(published(make(shallow)))
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


@pytest.mark.parametrize("part", one_in(5, range(5)))
def test_every_combination_of_options_equals_a_real_module(part):
    options = itertools.product(
        ("gelu", "swiglu"),
        ("layernorm", "rmsnorm"),
        ("learned", "rope", "none"),
        ("all", "none", "qkv"),
        (True, False),
        ((4, None), (2, None), (1, 6)),
        (0, 3),
    )
    for mlp, norm, positions, bias, tied, (kv_heads, head_dim), experts in itertools.islice(options, part, None, 5):
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


# -- FLOPs and caches


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


@pytest.mark.parametrize("name", one_in(3, [name for name in MODELS if not name.startswith("mixtral")]))
def test_forward_and_training_equal_the_counter(name):
    config = dataclasses.replace(shallow(name), dropout=0.0)
    model, ids = on_meta(config), tokens(2, 64)
    assert forward_flops(config, batch=2, sequence=64).total == counted(lambda: model(ids))
    assert training_flops(config, batch=2, sequence=64).total == counted(lambda: model.loss(ids).backward())


@pytest.mark.parametrize("part", one_in(3, range(3)))
def test_every_combination_of_options_equals_the_counter(part):
    options = itertools.product(
        ("gelu", "swiglu"), ("learned", "rope"), ((4, 4), (2, 6), (1, 4)), (0, 3), (0.0, 0.1), (False, True), (1, 2)
    )
    # Every fifth of 192: each value of an option meets each value of every other.
    for mlp, positions, (kv_heads, head_dim), experts, dropout, checkpointing, norms in itertools.islice(
        options, 5 * part, None, 15
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
        # Of models so small a CPU's own operators take half the time of those in Python that the meta device has.
        model, ids = Decoder(config, checkpointing=checkpointing), torch.zeros(3, 6, dtype=torch.long)
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
    size = {"batch": 1, "sequence": 8, "checkpointing": True}
    again = training_flops(config, **size)["recomputed forward"]
    assert forward.total - again == forward["head"] + forward["mlp down"]
    dropped = training_flops(dataclasses.replace(config, dropout=0.1), **size)["recomputed forward"]
    assert forward.total - dropped == forward["head"]


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
        ({"batch": 1, "sequence": 9}, "sequence=9 is longer than context=8, and the model's {} positions end there"),
    ],
)
def test_impossible_sizes_are_refused(sizes, sentence):
    for function in (forward_flops, training_flops, kv_cache_bytes, saved_activation_bytes):
        for positions in ("learned", "rope"):
            with pytest.raises(ValueError, match=sentence.format(positions)):
                function(TransformerConfig(**TINY, positions=positions), **sizes)
    unbounded = TransformerConfig(**TINY, positions="none")
    assert forward_flops(unbounded, batch=1, sequence=9).total > 0


@pytest.mark.parametrize("name", ["checkpointing", "causal"])
def test_booleans_are_booleans(name):
    with pytest.raises(ValueError, match=f"{name} must be True or False, got 'no'"):
        training_flops(TransformerConfig(**TINY), batch=1, sequence=4, **{name: "no"})
    with pytest.raises(ValueError, match=f"{name} must be True or False, got 0"):
        saved_activation_bytes(TransformerConfig(**TINY), batch=1, sequence=4, **{name: 0})


def test_tokens_of_experts_have_to_add_up():
    config = TransformerConfig(**TINY, experts=3, experts_per_token=2)
    options = {"batch": 1, "sequence": 4}
    equal = saved_activation_bytes(config, **options)
    assert saved_activation_bytes(config, expert_tokens=[3, 3, 2], **options) == equal
    assert saved_activation_bytes(config, expert_tokens=[[3, 3, 2], [0, 4, 4]], **options).total == equal.total
    for wrong in ([3, 3, 3], [4, 4], [[3, 3, 2]], [[3, 3, 2], [8, 0]], []):
        with pytest.raises(ValueError, match="expert_tokens"):
            saved_activation_bytes(config, expert_tokens=wrong, **options)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"phase": "sleep"}, "unknown phase 'sleep'.*train, forward, prefill, decode"),
        ({"frozen": ["body"]}, "unknown component 'body'"),
        ({"lora_rank": 2, "lora_targets": "w_q"}, "unknown target of adapters 'w_q'"),
        ({"lora_rank": 1.5}, "lora_rank must be"),
    ],
)
def test_impossible_programs_are_refused(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        program(TransformerConfig(**TINY), batch=1, sequence=4, **options)


def test_traffic_reads_each_weight_once_however_many_tokens_there_are():
    config = TransformerConfig(**TINY, bias="none")
    for batch, sequence in ((1, 1), (3, 8)):
        parts = traffic_bytes(config, batch=batch, sequence=sequence, phase="prefill", attention="sdpa")
        rows = batch * sequence
        assert parts["head"] == 4 * (11 * 16 + rows * (16 + 11))
        assert parts["mlp"] == 2 * 4 * (2 * 16 * 64 + rows * (16 + 64 + 2 * 64 + 64 + 16 + 3 * 16))


@pytest.mark.parametrize("experts", [2, 4])
def test_experts_read_the_rows_of_their_tokens_and_not_all_of_them(experts):
    """24 tokens visit two experts each: 48 rows of 16 numbers and 48 weights, however many experts share them."""
    config = TransformerConfig(**TINY, experts=experts, experts_per_token=2)
    walked = program(config, batch=3, sequence=8, phase="forward", attention="sdpa")
    chosen = sum(count * op.forward_bytes for op, count in walked.operations() if op.kind == "index")
    assert chosen == 2 * (2 * 4) * 48 * (16 + 1)


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


# -- kept bytes

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
PRECISIONS = ("fp32", "bf16", "autocast")
POLICIES = list(itertools.product(PRECISIONS, ("eager", "sdpa"), (False, True)))
LLAMA = {"mlp": "swiglu", "norm": "rmsnorm", "positions": "rope", "bias": "none", "tied_head": False}


def held(config, batch, sequence, *, precision="fp32", attention="eager", checkpointing=False):
    """The truth: a real forward pass with its loss. The model is made in its dtype, as fake models cannot change it."""
    kind = predict.POLICIES[precision]
    model = lm.DecoderOnly(config, attention=attention, checkpointing=checkpointing, dtype=DTYPES[kind.weights])
    tokens = torch.randint(config.vocab, (batch, sequence))

    def loss():
        policy = torch.autocast("cpu", DTYPES[kind.products]) if kind.casts else contextlib.nullcontext()
        with policy:
            return F.cross_entropy(model(tokens).flatten(0, 1).float(), tokens.flatten())

    return measure.saved_activation_bytes(loss)


def check_kept(config, batch, sequence, precision, attention, checkpointing):
    policy = {"precision": precision, "attention": attention, "checkpointing": checkpointing}
    expected = held(config, batch, sequence, **policy).total
    assert saved_activation_bytes(config, batch=batch, sequence=sequence, **policy).total == expected, (config, policy)


def tiny(**changes):
    sizes = {"layers": 2, "d_model": 16, "heads": 4, "d_ff": 20, "vocab": 13, "context": 8}
    return TransformerConfig(**{**sizes, **changes})


#: Each configuration meets four policies, one of them in `make test` and three in `make proof`.
quarters = pytest.mark.parametrize("quarter", one_in(4, range(4)))


@quarters
def test_every_combination_of_block_and_policy_to_the_byte(quarter):
    # 2 · 2 · 2 · 3 · 2 · 4 = 192 cases. More: test_walk.py.
    choices = itertools.product(
        ("gelu", "swiglu"), ("layernorm", "rmsnorm"), ("learned", "rope"), (4, 2, 1), (0.0, 0.1)
    )
    for i, (mlp, norm, positions, kv_heads, dropout) in enumerate(choices):
        config = tiny(mlp=mlp, norm=norm, positions=positions, kv_heads=kv_heads, dropout=dropout)
        check_kept(config, 2, 6, *POLICIES[i % 3 :: 3][(i + i // 12 + quarter) % 4])


@quarters
def test_windows_parallel_blocks_biases_wide_heads_and_experts_to_the_byte(quarter):
    # 3 · 2 · 3 · 2 · 4 = 144 cases
    choices = itertools.product((None, 4, 6), (1, 2), ("all", "none", "qkv"), (0.0, 0.1))
    for i, (window, norms, bias, dropout) in enumerate(choices):
        config = tiny(window=window, norms_per_block=norms, bias=bias, dropout=dropout, head_dim=6, kv_heads=2)
        check_kept(config, 2, 6, *POLICIES[i % 3 :: 3][(i + i // 12 + quarter) % 4])
    # 2 · 2 · 2 · 12 = 96 cases
    for i, (mlp, norms, dropout) in enumerate(itertools.product(("gelu", "swiglu"), (1, 2), (0.0, 0.1))):
        config = tiny(mlp=mlp, norms_per_block=norms, dropout=dropout, experts=3, experts_per_token=2)
        for policy in POLICIES[(i + i // 2 + quarter) % 4 :: 4]:
            check_kept(config, 2, 6, *policy)


@quarters
def test_fp16_keeps_as_bf16_does_to_the_byte(quarter):
    # 2 · 2 · 2 · 8 = 64 cases
    policies = list(itertools.product(("fp16", "autocast-fp16"), ("eager", "sdpa"), (False, True)))
    choices = itertools.product(({}, LLAMA), ({}, {"experts": 3, "experts_per_token": 2}), (0.0, 0.1))
    for i, (more, experts, dropout) in enumerate(choices):
        for policy in policies[(i + i // 2 + quarter) % 4 :: 4]:
            check_kept(tiny(**more, **experts, dropout=dropout), 2, 6, *policy)


@quarters
def test_sizes_at_the_edge_to_the_byte(quarter):
    # 2 · 2 · 3 · 3 · 4 = 144 cases, among them one sequence, one token, one head, one layer
    for i, (layers, heads, batch, sequence) in enumerate(itertools.product((1, 3), (1, 4), (1, 2, 5), (1, 2, 7))):
        config = tiny(layers=layers, heads=heads, **LLAMA) if batch != 2 else tiny(layers=layers, heads=heads)
        check_kept(config, batch, sequence, *POLICIES[i % 3 :: 3][(i + i // 12 + quarter) % 4])


@pytest.mark.parametrize(
    ("name", "sequence", "precision", "attention", "checkpointing"),
    [
        pytest.param("llama-3-8b", 8192, "autocast", "sdpa", False, marks=pytest.mark.proof),
        pytest.param("llama-3-8b", 8192, "bf16", "eager", False, marks=pytest.mark.proof),
        ("llama-3-70b", 8192, "bf16", "sdpa", True),
        ("llama-3-70b", 8192, "autocast", "sdpa", False),
        ("gpt3-175b", 2048, "autocast", "eager", False),
        ("gpt3-175b", 2048, "fp32", "sdpa", True),
        ("mistral-7b", 8192, "bf16", "sdpa", False),
    ],
)
def test_published_models_against_fake_tensors(name, sequence, precision, attention, checkpointing):
    config = MODELS[name]
    policy = {"precision": precision, "attention": attention, "checkpointing": checkpointing}

    def real(layers):
        with FakeTensorMode():
            return held(dataclasses.replace(config, layers=layers), 1, sequence, **policy).total

    if config.layers <= 32:
        expected = real(config.layers)
    else:
        # Layers are alike, as the whole models of 32 show: of 80 and 96 the first three are enough.
        one, two, three = map(real, (1, 2, 3))
        assert three - two == two - one
        expected = one + (config.layers - 1) * (two - one)
    assert saved_activation_bytes(config, batch=1, sequence=sequence, **policy).total == expected


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("sizes", [(2, 6, 16, 4, 64), (3, 8, 24, 2, 40), (1, 8, 8, 1, 8)])
def test_the_paper_block_in_closed_form(sizes, dropout):
    B, S, D, A, F_ = sizes
    d = int(dropout > 0)
    config = tiny(d_model=D, heads=A, d_ff=F_, dropout=dropout)
    wide, stats = B * S * (D * (8 + 2 * d) + 2 * F_), 16 * B * S
    pairs = A * B * S**2 * (1 + 2 * d)
    assert saved_block_bytes(config, batch=B, sequence=S).total == 4 * wide + 4 * pairs + stats
    assert saved_block_bytes(config, batch=B, sequence=S, precision="bf16").total == 2 * wide + 2 * pairs + stats // 2
    casts = B * S * (D * (8 + 2 * (3 + 5) + 4 * d) + 4 * F_) + 2 * pairs + stats + 2 * (4 * D * D + 2 * D * F_)
    assert saved_block_bytes(config, batch=B, sequence=S, precision="autocast").total == casts


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
def test_the_llama_block_in_closed_form(kv_heads):
    B, S, D, A, F_ = 2, 6, 16, 4, 20
    config = tiny(kv_heads=kv_heads, **LLAMA)
    h = D // A
    kv = 2 * kv_heads * h
    rest = 8 * B * S + 4 * B * A * S
    weights = 2 * (2 * D * A * h + 2 * D * kv_heads * h + 3 * D * F_)

    def block(precision):
        return saved_block_bytes(config, batch=B, sequence=S, precision=precision, attention="sdpa").total

    assert block("fp32") == 4 * B * S * (8 * D + kv) + 16 * B * S * F_ + rest
    assert block("autocast") == B * S * (30 * D + 2 * kv) + 8 * B * S * F_ + rest + weights
    assert block("bf16") == B * S * (24 * D + 2 * kv) + 8 * B * S * F_ + rest


def test_checkpointing_keeps_the_input_of_each_block():
    config = tiny(layers=3)
    parts = saved_activation_bytes(config, batch=2, sequence=6, checkpointing=True)
    assert parts["block inputs"] == 3 * 4 * 2 * 6 * 16
    plain = saved_activation_bytes(config, batch=2, sequence=6)
    outside = ("final norm", "head's input", "cross-entropy")
    assert all(parts[name] == plain[name] for name in outside)
    assert (
        plain.total - sum(plain[name] for name in outside) == 3 * saved_block_bytes(config, batch=2, sequence=6).total
    )


def test_the_paper_of_2022_and_what_torch_keeps_with_its_one_byte_mask():
    config = MODELS["gpt3-175b"]
    B, S, D, A = 1, 2048, 12288, 96
    assert paper_block_bytes(config, batch=B, sequence=S).total == 34 * B * S * D + 5 * A * B * S**2
    assert (
        paper_block_bytes(config, batch=B, sequence=S, bytes_per_element=4).total == 66 * B * S * D + 9 * A * B * S**2
    )
    small = tiny(dropout=0.1)
    for precision, p in (("fp32", 4), ("bf16", 2)):
        ours = saved_block_bytes(small, batch=2, sequence=6, precision=precision)
        masks = sum(ours[name] for name in ours if name.endswith("mask"))
        one_byte = ours.total - masks + masks // p
        assert one_byte == paper_block_bytes(small, batch=2, sequence=6, bytes_per_element=p).total + 4 * p * 2 * 6


def test_a_fresh_layer_adds_a_block():
    config = tiny(dropout=0.1)
    for precision, attention in itertools.product(PRECISIONS, ("eager", "sdpa")):
        policy = {"precision": precision, "attention": attention}
        deeper = dataclasses.replace(config, layers=3)
        difference = (
            saved_activation_bytes(deeper, batch=2, sequence=6, **policy).total
            - saved_activation_bytes(config, batch=2, sequence=6, **policy).total
        )
        assert difference == saved_block_bytes(config, batch=2, sequence=6, **policy).total


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            {"precision": "fp8"},
            "unknown precision 'fp8'.*fp32, autocast, bf16, bf16-fp32-moments, autocast-fp16, fp16, mixed",
        ),
        ({"attention": "flash"}, "unknown attention 'flash'"),
        ({"checkpointing": "no"}, "checkpointing must be"),
    ],
)
def test_kept_bytes_of_what_cannot_be_are_refused(arguments, sentence):
    with pytest.raises(ValueError, match=sentence):
        saved_activation_bytes(tiny(), **{"batch": 1, "sequence": 4, **arguments})
