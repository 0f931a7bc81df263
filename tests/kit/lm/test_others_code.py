"""The pieces under somebody else's test suite: weights come as tensors of other names, shapes have any leading axes.

Each test is an adapter as such a suite wants it (weights and inputs in, a result out), against torch as the truth.
"""

import io

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from cs336kit import lm, predict

pytestmark = pytest.mark.torch

close = torch.testing.assert_close
D, A, FF, V, S, L, BASE = 16, 4, 40, 31, 12, 3, 10_000.0


def draw(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) / shape[-1] ** 0.5


def layer(module, **weights):
    module.load_state_dict(weights)
    return module


def turned(x, positions, base=BASE):
    """Rotary positions of neighbors as complex numbers: the definition."""
    pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)).double().contiguous())
    frequencies = base ** (-torch.arange(0, x.shape[-1], 2).double() / x.shape[-1])
    angles = positions[..., None] * frequencies
    return torch.view_as_real(pairs * torch.polar(torch.ones_like(angles), angles)).flatten(-2).to(x.dtype)


def weights_of_a_block(seed):
    names = {"attn.q": (D, D), "attn.k": (D, D), "attn.v": (D, D), "attn.out": (D, D), "ln1": (D,), "ln2": (D,)}
    names |= {"ffn.w1": (FF, D), "ffn.w2": (D, FF), "ffn.w3": (FF, D)}
    return {name: draw(*shape, seed=seed + i) for i, (name, shape) in enumerate(names.items())}


def true_attention(x, w, rope):
    heads = [F.linear(x, w[name]).unflatten(-1, (A, -1)).transpose(-3, -2) for name in ("attn.q", "attn.k", "attn.v")]
    if rope:
        heads[:2] = [turned(head, torch.arange(x.shape[-2])) for head in heads[:2]]
    z = F.scaled_dot_product_attention(*heads, is_causal=True)
    return F.linear(z.transpose(-3, -2).flatten(-2), w["attn.out"])


def true_block(x, w):
    x = x + true_attention(F.rms_norm(x, (D,), w["ln1"], 1e-5), w, rope=True)
    y = F.rms_norm(x, (D,), w["ln2"], 1e-5)
    return x + F.linear(F.silu(F.linear(y, w["ffn.w1"])) * F.linear(y, w["ffn.w3"]), w["ffn.w2"])


def ours(w, prefix=""):
    names = {"attn.q": "attention.query", "attn.k": "attention.key", "attn.v": "attention.value", "ln1": "norm1"}
    names |= {"attn.out": "attention.output", "ln2": "norm2", "ffn.w1": "mlp.gate", "ffn.w2": "mlp.down"}
    names |= {"ffn.w3": "mlp.up"}
    return {f"{prefix}{names[name]}.weight": tensor for name, tensor in w.items()}


def test_linear_embedding_norm_and_mlp():
    x, tokens = draw(2, 3, 5, D), torch.randint(V, (2, 3, 5))
    w, table, scale = draw(FF, D, seed=1), draw(V, D, seed=2), draw(D, seed=3)
    close(layer(lm.Linear(D, FF, bias=False), weight=w)(x), F.linear(x, w))
    close(layer(lm.Embedding(V, D), weight=table)(tokens), table[tokens])
    close(layer(lm.RMSNorm(D, eps=1e-3), weight=scale)(x), F.rms_norm(x, (D,), scale, 1e-3))
    gate, up, down = draw(FF, D, seed=4), draw(FF, D, seed=5), draw(D, FF, seed=6)
    module = layer(lm.SwiGLU(D, FF), **{"gate.weight": gate, "up.weight": up, "down.weight": down})
    close(module(x), F.linear(F.silu(F.linear(x, gate)) * F.linear(x, up), down))
    close(lm.silu(x), F.silu(x))
    close(lm.softmax(x + 100, dim=1), x.softmax(dim=1))
    close(lm.cross_entropy(x[0, 0] * 1000, tokens[0, 0] % D), F.cross_entropy(x[0, 0] * 1000, tokens[0, 0] % D))


@pytest.mark.parametrize("method", ["eager", "sdpa"])
@pytest.mark.parametrize("axes", [(), (5,), (2, 5), (2, 3, 5)])
@pytest.mark.parametrize("kind", ["none", "bool", "float", "of every element"])
def test_attention_with_masks_leading_axes_and_wide_values(axes, kind, method):
    query, key, value = draw(*axes, 7, 8), draw(*axes, 9, 8, seed=1), draw(*axes, 9, 6, seed=2)
    mask = None
    if kind != "none":
        mask = draw(*(axes if kind == "of every element" else ()), 7, 9, seed=3)
        mask = mask if kind == "float" else (mask > -0.5) | torch.eye(7, 9, dtype=torch.bool)
    else:
        query = draw(*axes, 9, 8)
    expected = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=mask is None)
    assert expected.shape == (*axes, query.shape[-2], 6)
    close(lm.attention(query, key, value, mask=mask, method=method), expected)


@pytest.mark.parametrize("method", ["eager", "sdpa"])
def test_grouped_heads_with_values_of_their_own_width_stay_in_their_batch(method):
    query, key, value = draw(2, 6, 12, 16), draw(2, 3, 12, 16, seed=1), draw(2, 3, 12, 8, seed=2)
    wide = [tensor.repeat_interleave(2, dim=1) for tensor in (key, value)]
    expected = F.scaled_dot_product_attention(query, *wide, is_causal=True)
    close(lm.attention(query, key, value, method=method), expected)
    mask = torch.ones(12, 12, dtype=torch.bool)
    expected = F.scaled_dot_product_attention(query, *wide)
    close(lm.attention(query, key, value, mask=mask, method=method), expected)


@pytest.mark.parametrize("axes", [(), (2,), (2, 3)])
@pytest.mark.parametrize("rope", [False, True])
def test_multi_head_attention_with_and_without_rope(rope, axes):
    w, x = {n: t for n, t in weights_of_a_block(0).items() if n.startswith("attn")}, draw(*axes, S, D, seed=9)
    module = lm.MultiHeadAttention(D, A, bias="none", rope_pairs="neighbours")
    module.load_state_dict({name.removeprefix("attention."): t for name, t in ours(w).items()})
    positions = torch.arange(S)
    angles = tuple(table[positions] for table in lm.rope_tables(100, D // A, base=BASE)) if rope else None
    close(module(x, angles=angles), true_attention(x, w, rope))


def test_rope_at_positions_of_the_callers_own():
    x, positions = draw(2, 5, 8), torch.tensor([[0, 3, 4, 9, 1], [7, 7, 2, 0, 5]])
    cosine, sine = lm.rope_tables(10, 8)
    close(lm.rope(x, cosine[positions], sine[positions], pairs="neighbours"), turned(x, positions))


def test_a_block_from_sizes_alone():
    w, x = weights_of_a_block(0), draw(2, S, D, seed=9)
    choices = {"norm": "rmsnorm", "mlp": "swiglu", "bias": "none", "rope_pairs": "neighbours"}
    block = lm.Block.from_sizes(D, A, FF, **choices)
    block.load_state_dict(ours(w))
    close(block(x, lm.rope_tables(S, D // A)), true_block(x, w))
    assert lm.Block.from_sizes(D, A)(x).shape == x.shape
    with pytest.raises(TypeError, match="color"):
        lm.Block.from_sizes(D, A, color="red")


def test_a_language_model_from_a_state_dict_of_weights():
    blocks = [weights_of_a_block(10 * (i + 1)) for i in range(L)]
    table, scale, head = draw(V, D, seed=5), draw(D, seed=6), draw(V, D, seed=7)
    config = predict.TransformerConfig(
        layers=L, d_model=D, heads=A, d_ff=FF, vocab=V, context=S, norm="rmsnorm", positions="rope", mlp="swiglu",
        bias="none", tied_head=False,
    )  # fmt: skip
    state = {"embedding.weight": table, "final_norm.weight": scale, "head.weight": head}
    for number, w in enumerate(blocks):
        state |= ours(w, f"blocks.{number}.")
    model = lm.DecoderOnly(config, rope_pairs="neighbours", rope_base=BASE)
    model.load_state_dict(state)
    for length in (S, S // 2):
        tokens = torch.randint(V, (2, length))
        x = table[tokens]
        for w in blocks:
            x = true_block(x, w)
        close(model(tokens), F.linear(F.rms_norm(x, (D,), scale, 1e-5), head))


def test_adamw_schedule_and_clipping():
    ours, theirs = (torch.nn.Linear(5, 4) for _ in range(2))
    theirs.load_state_dict(ours.state_dict())
    options = {"lr": 1e-2, "weight_decay": 0.01, "betas": (0.9, 0.999), "eps": 1e-8}
    optimizers = lm.AdamW(ours.parameters(), **options), torch.optim.AdamW(theirs.parameters(), **options)
    for step in range(20):
        for model, optimizer in zip((ours, theirs), optimizers, strict=True):
            optimizer.zero_grad()
            model(draw(3, 5, seed=step)).square().sum().backward()
            optimizer.step()
    close(ours.weight, theirs.weight)
    rates = [lm.cosine_schedule(t, max_lr=1.0, min_lr=0.1, warmup_steps=7, total_steps=21) for t in range(25)]
    assert rates[3] == pytest.approx(3 / 7) and rates[7] == 1.0 and rates[21:] == [0.1] * 4
    gradients = [p.grad.clone() for p in theirs.parameters()]
    norm = torch.nn.utils.clip_grad_norm_(theirs.parameters(), 1e-2)
    for parameter, gradient in zip(ours.parameters(), gradients, strict=True):
        parameter.grad = gradient
    close(lm.clip_gradients(ours.parameters(), max_norm=1e-2), norm)
    close(ours.weight.grad, theirs.weight.grad)


def test_batches_of_an_array_and_a_checkpoint_to_a_path_or_a_file(tmp_path):
    generator = torch.Generator().manual_seed(torch.seed())
    x, y = lm.get_batch(np.arange(100), batch=32, sequence=7, generator=generator, device="cpu")
    assert x.shape == y.shape == (32, 7) and torch.equal(x + 1, y) and x.min() >= 0 and y.max() < 100
    model, buffer = torch.nn.Linear(4, 2), io.BytesIO()
    optimizer = torch.optim.AdamW(model.parameters())
    model(draw(3, 4)).sum().backward()
    optimizer.step()
    for target in (tmp_path / "c.pt", str(tmp_path / "d.pt"), buffer):
        lm.save_checkpoint(target, model=model, optimizer=optimizer, step=11)
    buffer.seek(0)
    for source in (tmp_path / "c.pt", str(tmp_path / "d.pt"), buffer):
        again = torch.nn.Linear(4, 2)
        restored = torch.optim.AdamW(again.parameters())
        assert lm.load_checkpoint(source, model=again, optimizer=restored)["step"] == 11
        close(again.state_dict(), model.state_dict())
        close(restored.state_dict()["state"], optimizer.state_dict()["state"])
