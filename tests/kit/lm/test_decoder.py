import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from few import one_in

from cs336kit import lm, measure, predict

pytestmark = pytest.mark.torch

PAPER = predict.TransformerConfig(layers=2, d_model=16, heads=4, vocab=31, context=12)
LLAMA = predict.TransformerConfig(
    layers=2, d_model=16, heads=4, kv_heads=2, d_ff=24, vocab=31, context=12, mlp="swiglu", norm="rmsnorm",
    positions="rope", bias="none", tied_head=False,
)  # fmt: skip
CONFIGS = [
    PAPER,
    LLAMA,
    replace(LLAMA, bias="qkv", tied_head=True),
    replace(LLAMA, kv_heads=1, head_dim=6, window=3),
    replace(LLAMA, experts=4, experts_per_token=2, bias="all"),
    replace(PAPER, experts=3, experts_per_token=1, norm_bias=False, tied_head=False, positions="none"),
    replace(PAPER, positions="rope", norms_per_block=1, bias="none", kv_heads=1),
    replace(PAPER, norm="rmsnorm", norm_bias=False, mlp="swiglu", d_ff=20),
]


def tokens(config=PAPER, batch=2, length=None, seed=0):
    return torch.randint(config.vocab, (batch, length or config.context), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("config", CONFIGS)
def test_every_configuration_has_its_predicted_parameters(config):
    model = lm.DecoderOnly(config)
    assert sum(p.numel() for p in model.parameters()) == predict.parameters(config).total
    assert model(tokens(config)).shape == (2, 12, 31)


@pytest.mark.parametrize(
    "change",
    [
        {"qk_norm": "head"},
        {"kv_latent": 6, "query_latent": 8, "rotary_dim": 2},
        {"kv_latent": 6, "rotary_dim": 2, "value_dim": 3, "inner_norms": True},
    ],
)
def test_norms_inside_of_attention_have_the_biases_that_are_predicted(change):
    config = replace(PAPER, positions="rope", **change)
    model = lm.DecoderOnly(config)
    assert sum(p.numel() for p in model.parameters()) == predict.parameters(config).total


@pytest.mark.parametrize(
    "change",
    [
        {"norm_placement": "sandwich", "embedding_norm": True},
        {"norm": "rmsnorm", "norm_bias": False, "qk_norm": "width"},
        {"qk_norm": "head", "experts": 2, "experts_per_token": 1, "inner_norms": True},
        {"kv_latent": 6, "query_latent": 8, "rotary_dim": 2, "inner_norms": True},
    ],
)
def test_every_norm_has_the_epsilon_that_the_model_was_given(change):
    model = lm.DecoderOnly(replace(PAPER, positions="rope", **change), norm_eps=0.5)
    assert {module.eps for module in model.modules() if isinstance(module, lm.LayerNorm | lm.RMSNorm)} == {0.5}


@pytest.mark.parametrize("config", CONFIGS)
def test_both_attention_methods_and_checkpointing_give_the_same_gradients(config):
    x, results = tokens(config), []
    for options in ({}, {"attention": "sdpa"}, {"checkpointing": True}):
        torch.manual_seed(0)
        model = lm.DecoderOnly(config, **options).double()
        model(x).square().sum().backward()
        results.append([p.grad for p in model.parameters()])
    for other in results[1:]:
        torch.testing.assert_close(results[0], other)


def test_checkpointed_blocks_learn_behind_an_embedding_that_does_not():
    model = lm.DecoderOnly(LLAMA, checkpointing=True)
    model.embedding.requires_grad_(False)
    model(tokens()).sum().backward()
    assert all(parameter.grad is not None for parameter in model.blocks.parameters())


@pytest.mark.parametrize("config", CONFIGS)
def test_logits_do_not_depend_on_later_tokens(config):
    model, x = lm.DecoderOnly(config), tokens(config)
    changed = x.clone()
    changed[:, 7:] = (changed[:, 7:] + 1) % config.vocab
    before, after = model(x), model(changed)
    torch.testing.assert_close(before[:, :7], after[:, :7])
    assert not torch.allclose(before[:, 7:], after[:, 7:])


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("config", [PAPER, LLAMA])
def test_the_first_of_two_tokens_does_not_see_the_second(config, attention):
    model = lm.DecoderOnly(config, attention=attention)
    before, after = (model(torch.tensor([[3, second]]))[:, 0] for second in (4, 5))
    torch.testing.assert_close(before, after)


@pytest.mark.parametrize("config", CONFIGS)
def test_a_cache_changes_nothing(config):
    model, x = lm.DecoderOnly(config).double(), tokens(config)
    cache = lm.KVCache(config)
    parts = [model(x[:, start:stop], cache=cache) for start, stop in [(0, 5), (5, 6), (6, 9), (9, 10)]]
    torch.testing.assert_close(torch.cat(parts, dim=1), model(x[:, :10]))
    length = min(10, config.window or 10)
    shape = (2, config.kv_heads, length, config.head_dim)
    assert [t.shape for t in cache.tensors()] == [shape] * (2 * config.layers)


def test_the_block_is_two_residuals_from_their_own_input():
    block = lm.DecoderOnly(PAPER).blocks[0]
    x = torch.randn(2, 5, 16)
    z = x + block.attention(F.layer_norm(x, (16,)))
    torch.testing.assert_close(block(x), z + block.mlp(F.layer_norm(z, (16,))))
    torch.nn.init.zeros_(block.attention.output.weight)
    torch.nn.init.zeros_(block.mlp.down.weight)
    assert torch.equal(block(x), x)


class Line(torch.nn.Module):
    """factor · x + shift, in place of a part of a block."""

    def __init__(self, factor, shift=0):
        super().__init__()
        self.factor, self.shift = factor, shift

    def forward(self, x, **_):
        return self.factor * x + self.shift


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        # Attention is 3x and the MLP 5x, norms add 1 and 2 (those behind a branch 7 and 11), branches count twice; x is 1.
        ({}, 13 + 2 * 5 * (13 + 2)),  # 13 = 1 + 2 · 3 · (1 + 1)
        ({"norm_placement": "post"}, 9 + 2 * (5 * 9 + 2)),  # 9 = 1 + 2 · (3 + 1)
        ({"norm_placement": "residual"}, 8 + 2 * 5 * 8 + 2),  # 8 = 1 + 2 · 3 + 1
        ({"norm_placement": "sandwich"}, 27 + 2 * (5 * (27 + 2) + 11)),  # 27 = 1 + 2 · (3 · (1 + 1) + 7)
        ({"parallel": True}, 1 + 2 * 3 * (1 + 1) + 2 * 5 * (1 + 2)),
        ({"norms_per_block": 1}, 1 + 2 * 3 * (1 + 1) + 2 * 5 * (1 + 1)),
    ],
)
def test_where_norms_stand_and_what_is_scaled(change, expected):
    block = lm.DecoderOnly(replace(PAPER, layers=1, residual_scale=2.0, **change)).blocks[0]
    parts = {
        "attention": Line(3),
        "mlp": Line(5),
        "norm1": Line(1, 1),
        "norm2": Line(1, 2),
        "post1": Line(1, 7),
        "post2": Line(1, 11),
    }
    for name, part in parts.items():
        if getattr(block, name) is not None:
            setattr(block, name, part)
    assert block(torch.ones(1, 1, 16)).unique().tolist() == [expected]


def test_what_stands_before_and_behind_the_blocks():
    config = replace(
        PAPER, embedding_scale=2.0, logit_scale=2.0, logit_softcap=3.0, extra_positions=2, embedding_norm=True,
        tied_head=False, head_bias=True,
    )  # fmt: skip
    torch.manual_seed(0)
    model, x = lm.DecoderOnly(config), tokens(config, length=5)
    for name, parameter in model.named_parameters():
        torch.nn.init.normal_(parameter, std=0.0 if name.endswith(("output.weight", "down.weight")) else 0.5)
        if name.endswith(("output.bias", "down.bias")):
            torch.nn.init.zeros_(parameter)
    z = 2 * model.embedding.weight[x] + model.positions.weight[2:7]
    for norm in (model.embedding_norm, model.final_norm):
        z = F.layer_norm(z, (16,), norm.weight, norm.bias)
    logits = 2 * F.linear(z, model.head.weight, model.head.bias)
    torch.testing.assert_close(model(x), 3 * torch.tanh(logits / 3))


def test_norms_stand_around_both_branches_of_a_sandwich():
    block = lm.DecoderOnly(replace(LLAMA, norm_placement="sandwich")).blocks[0]
    for norm in (block.norm1, block.post1, block.norm2, block.post2):
        torch.nn.init.uniform_(norm.weight, 0.5, 2)
    x, y = torch.randn(2, 5, 16), torch.randn(2, 5, 16)
    before = []
    block.attention.forward = lambda x, **_: (before.append(x), y)[1]
    block.mlp.forward = lambda x: (before.append(x), -2 * y)[1]
    out = block(x)

    def normed(x, norm):
        return F.rms_norm(x, (16,), norm.weight, block.norm1.eps)

    between = x + normed(y, block.post1)
    torch.testing.assert_close(before, [normed(x, block.norm1), normed(between, block.norm2)])
    torch.testing.assert_close(out, between - normed(2 * y, block.post2))


def test_a_soft_cap_bends_the_logits_and_leaves_small_ones():
    torch.manual_seed(0)
    model = lm.DecoderOnly(LLAMA).double()
    raw = model(tokens(LLAMA)).detach()
    for cap in (0.1, 1e6):
        model.config = replace(LLAMA, logit_softcap=cap)
        capped = model(tokens(LLAMA)).detach()
        assert min(0.9 * cap, 1) < capped.abs().max() <= cap
    torch.testing.assert_close(capped, raw)


def test_a_tied_head_is_one_parameter():
    tied, free = lm.DecoderOnly(PAPER), lm.DecoderOnly(replace(PAPER, tied_head=False))
    assert tied.head.weight is tied.embedding.weight
    assert len(list(free.parameters())) == len(list(tied.parameters())) + 1


def test_a_new_model_knows_nothing():
    torch.manual_seed(0)
    x = tokens(length=12, batch=50)
    loss = lm.cross_entropy(lm.DecoderOnly(PAPER)(x), x)
    assert loss.item() == pytest.approx(torch.tensor(31.0).log().item(), abs=0.1)


WIDE = {"d_model": 128, "head_dim": 32, "d_ff": 512}


def spread(model, part):
    named = model.named_parameters(remove_duplicate=False)
    values = torch.cat([p.flatten() for n, p in named if part in n and n.endswith("weight")])
    return values.std().item(), values.abs().max().item()


@pytest.mark.parametrize("config", [replace(PAPER, **WIDE), replace(LLAMA, **WIDE | {"d_ff": 160})])
def test_the_initial_spread(config):
    torch.manual_seed(0)
    default, gpt2 = lm.DecoderOnly(config), lm.DecoderOnly(config, initial="gpt2")
    for part in ("embedding", "query", "up", "head"):
        deviation, largest = spread(gpt2, part)
        assert deviation == pytest.approx(0.02, rel=0.05) and largest > 0.06  # not cut off at three deviations
    for part in ("output", "down"):
        assert spread(gpt2, part)[0] == pytest.approx(0.02 / 2, rel=0.05)
        inputs = 128 if part == "output" else config.d_ff
        # The cut at three deviations makes the deviation 1.3 % smaller.
        assert spread(default, part)[0] == pytest.approx(0.987 / (inputs * 4) ** 0.5, rel=0.02)
    assert spread(default, "query")[0] == pytest.approx(0.987 / 128**0.5, rel=0.02)
    with pytest.raises(ValueError, match="unknown initial spread 'small'. Known: fan_in, gpt2"):
        lm.DecoderOnly(config, initial="small")


@pytest.mark.parametrize("config", CONFIGS)
def test_device_and_dtype_reach_every_tensor(config):
    model = lm.DecoderOnly(config, device="cpu", dtype=torch.float64)
    assert {t.dtype for t in [*model.parameters(), *model.buffers()]} == {torch.float64}
    again = lm.DecoderOnly(config).bfloat16()
    small = lm.DecoderOnly(config, dtype=torch.bfloat16)
    assert [(n, t.dtype) for n, t in small.named_buffers()] == [(n, t.dtype) for n, t in again.named_buffers()]
    assert all(torch.equal(a, b) for a, b in zip(small.buffers(), again.buffers(), strict=True))
    assert {t.device.type for t in lm.DecoderOnly(config, device="meta").state_dict().values()} == {"meta"}


def test_what_is_no_configuration_is_refused():
    with pytest.raises(ValueError, match=r"config must be a TransformerConfig, got 'gpt2'; predict.MODELS"):
        lm.DecoderOnly("gpt2")
    with pytest.raises(ValueError, match="checkpointing must be True or False, got 'no'"):
        lm.DecoderOnly(PAPER, checkpointing="no")
    for eps in (-1.0, True, math.nan):
        with pytest.raises(ValueError, match="eps must be a finite number of at least 0"):
            lm.DecoderOnly(PAPER, norm_eps=eps)
    for mlp in ("gelu", "swiglu"):
        with pytest.raises(ValueError, match="unknown formula of the gelu 'foo'. Known: none, tanh"):
            lm.DecoderOnly(replace(PAPER, mlp=mlp, d_ff=8), approximate="foo")


@pytest.mark.parametrize("change", [{}, {"bias": ("up",)}, {"inner_norms": True}, {"mlp": "geglu"}])
def test_the_formula_of_the_gelu_is_that_of_every_mlp(change):
    config = replace(PAPER, mlp="gelu", dropout=0.0)
    config = replace(config, **change)
    model, named = lm.DecoderOnly(config, approximate="tanh"), lm.DecoderOnly(replace(config, mlp=f"{config.mlp}_tanh"))
    named.load_state_dict(model.state_dict())
    assert torch.equal(model(tokens()), named(tokens()))
    exact = lm.DecoderOnly(config)
    exact.load_state_dict(model.state_dict())
    assert not torch.equal(model(tokens()), exact(tokens()))


def test_dropout_only_in_training():
    model = lm.DecoderOnly(replace(PAPER, dropout=0.3))
    assert not torch.equal(model(tokens()), model(tokens()))
    model.eval()
    assert torch.equal(model(tokens()), model(tokens()))


def test_more_positions_than_the_context_are_refused():
    with pytest.raises(ValueError, match="13 positions are more than the model's context of 12"):
        lm.DecoderOnly(PAPER)(tokens(length=13))
    cache, model = lm.KVCache(PAPER), lm.DecoderOnly(PAPER)
    model(tokens(), cache=cache)
    with pytest.raises(ValueError, match="13 positions"):
        model(tokens(length=1), cache=cache)


@pytest.mark.parametrize("d", [0, 1])
def test_the_paper_block_keeps_what_the_formula_says(d):
    B, S, D, A, E, L = 2, 12, 16, 4, 4, 2
    model, x = lm.DecoderOnly(replace(PAPER, dropout=0.1 * d), attention="eager"), tokens()
    block = 4 * B * S * D * (8 + 2 * E + 2 * d) + 4 * A * B * S * S * (1 + 2 * d) + 16 * B * S
    final_norm, head = 4 * B * S * D + 8 * B * S, 4 * B * S * D
    assert measure.saved_activation_bytes(lambda: model(x)).total == L * block + final_norm + head
    checkpointed = lm.DecoderOnly(replace(PAPER, dropout=0.1 * d), checkpointing=True)
    kept = measure.saved_activation_bytes(lambda: checkpointed(x)).total
    assert kept == L * 4 * B * S * D + final_norm + head


def test_in_eval_mode_without_gradients_nothing_is_recomputed():
    model = lm.DecoderOnly(PAPER, checkpointing=True)
    with torch.no_grad():
        assert not model(tokens()).requires_grad


@pytest.mark.parametrize("config", [PAPER, LLAMA])
def test_it_learns_a_sequence_by_heart(config):
    torch.manual_seed(0)
    model, x = lm.DecoderOnly(config), tokens(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(60):
        loss = lm.cross_entropy(model(x[:, :-1]), x[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        lm.clip_gradients(model.parameters(), max_norm=1.0)
        optimizer.step()
    assert loss < 0.3


@pytest.mark.parametrize("config", one_in(2, [LLAMA, PAPER]))
def test_it_compiles_as_one_graph(config):
    model, x = lm.DecoderOnly(config, attention="sdpa"), tokens(config)
    compiled = torch.compile(lambda ids: lm.cross_entropy(model(ids), ids), backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), lm.cross_entropy(model(x), x))
    torch._dynamo.reset()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device, and there is none")
@pytest.mark.parametrize("config", CONFIGS)
def test_cuda_gives_the_same_logits_and_text(config):
    model, x = lm.DecoderOnly(config).double(), tokens(config)
    expected, text = model(x), lm.generate(model, x[:, :4], new_tokens=6)
    model.cuda()
    for attention in ("eager", "sdpa"):
        for block in model.blocks:
            block.attention.method = attention
        torch.testing.assert_close(model(x.cuda()).cpu(), expected)
        assert torch.equal(lm.generate(model, x[:, :4].cuda(), new_tokens=6).cpu(), text)
