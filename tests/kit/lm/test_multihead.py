import pytest
import torch

from cs336kit import lm
from cs336kit.lm.attention import LayerCache
from cs336kit.lm.latent import LatentAttention
from cs336kit.lm.mlp import MLP

pytestmark = pytest.mark.torch

close = torch.testing.assert_close


@pytest.mark.parametrize("method", ["eager", "sdpa"])
@pytest.mark.parametrize("bias", ["all", "none"])
def test_equals_torch_in_value_and_gradient(method, bias):
    D, A, S = 12, 3, 6
    ours = lm.MultiHeadAttention(D, A, bias=bias, method=method)
    theirs = torch.nn.MultiheadAttention(D, A, bias=bias == "all", batch_first=True)
    parts = [ours.query, ours.key, ours.value]
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat([part.weight for part in parts]))
        theirs.out_proj.weight.copy_(ours.output.weight)
        if bias == "all":
            for part in [*parts, ours.output]:
                part.bias.normal_()
            theirs.in_proj_bias.copy_(torch.cat([part.bias for part in parts]))
            theirs.out_proj.bias.copy_(ours.output.bias)
    x = torch.randn(2, S, D)
    mask = torch.ones(S, S, dtype=torch.bool).triu(1)
    expected = theirs(x, x, x, attn_mask=mask, need_weights=False)[0]
    close(ours(x), expected)
    ours(x).square().sum().backward()
    expected.square().sum().backward()
    close(torch.cat([part.weight.grad for part in parts]), theirs.in_proj_weight.grad, atol=1e-4, rtol=1e-4)
    close(ours.output.weight.grad, theirs.out_proj.weight.grad, atol=1e-4, rtol=1e-4)


def test_grouped_heads_equal_full_heads_with_repeated_matrices():
    D, A, K, h = 8, 4, 2, 6
    grouped = lm.MultiHeadAttention(D, A, kv_heads=K, head_dim=h, bias="none")
    full = lm.MultiHeadAttention(D, A, head_dim=h, bias="none")
    state = grouped.state_dict()
    for name in ("key.weight", "value.weight"):
        state[name] = state[name].view(K, h, D).repeat_interleave(A // K, dim=0).reshape(A * h, D)
    full.load_state_dict(state)
    x = torch.randn(2, 5, D)
    close(grouped(x), full(x))


@pytest.mark.parametrize(
    ("bias", "per_bias"), [("none", 0), ("qkv", 4 * 6 + 2 * 2 * 6), ("all", 4 * 6 + 2 * 2 * 6 + 8)]
)
def test_parameters(bias, per_bias):
    module = lm.MultiHeadAttention(8, 4, kv_heads=2, head_dim=6, bias=bias)
    assert sum(p.numel() for p in module.parameters()) == 2 * 8 * 6 * (4 + 2) + per_bias


@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("method", ["eager", "sdpa"])
def test_a_cache_changes_nothing(window, method):
    module = lm.MultiHeadAttention(8, 4, kv_heads=2, window=window, method=method)
    x, cache = torch.randn(2, 9, 8), LayerCache(window=window)
    angles = lm.rope_tables(9, 2)
    parts, seen = [], 0
    for size in (4, 1, 3, 1):
        rows = slice(seen, seen + size)
        parts.append(module(x[:, rows], angles=tuple(table[rows] for table in angles), cache=cache))
        seen += size
    close(torch.cat(parts, dim=1), module(x, angles=angles))
    assert cache.keys.shape == cache.values.shape == (2, 2, window or 9, 2)
    assert cache.keys.untyped_storage().nbytes() == 4 * cache.keys.numel()


@pytest.mark.parametrize("K", [3, 1])
@pytest.mark.parametrize("kind", ["head", "width"])
@torch.no_grad()
def test_norms_of_queries_and_keys_by_hand(kind, K):
    D, A, h, S = 12, 3, 4, 5
    layer, x = lm.MultiHeadAttention(D, A, kv_heads=K, bias="none", qk_norm=kind), torch.randn(2, S, D)
    layer.query_norm.weight.normal_()
    layer.key_norm.weight.normal_()
    layer.inner_norm = torch.nn.LayerNorm(D)

    def heads(z, norm):
        z = torch.nn.functional.rms_norm(
            z if kind == "width" else z.view(2, S, -1, h), norm.weight.shape, norm.weight, 1e-5
        )
        return z.view(2, S, -1, h).transpose(1, 2)

    query, key = heads(layer.query(x), layer.query_norm), heads(layer.key(x), layer.key_norm)
    z = lm.attention(query, key, layer.value(x).view(2, S, K, h).transpose(1, 2))
    close(layer(x), layer.output(layer.inner_norm(z.transpose(1, 2).reshape(2, S, D))))


@pytest.mark.parametrize("given", [True, "rmsnorm", lambda x: x])
@pytest.mark.parametrize(
    "build",
    [
        lambda norm: lm.MultiHeadAttention(8, 2, inner_norm=norm),
        lambda norm: lm.LatentAttention(8, 2, head_dim=4, kv_latent=4, rotary_dim=2, value_dim=4, inner_norm=norm),
        lambda norm: MLP(8, 16, kind="gelu", inner_norm=norm),
    ],
    ids=["attention", "latent", "mlp"],
)
def test_an_inner_norm_is_a_module(build, given):
    assert build(None).inner_norm is None
    with pytest.raises(ValueError, match="inner_norm is .* give a module, such as RMSNorm"):
        build(given)


def test_dropout_only_in_training():
    module = lm.MultiHeadAttention(8, 2, dropout=0.5)
    x = torch.randn(1, 4, 8)
    assert (module(x) == 0).any()
    module.eval()
    assert torch.equal(module(x), module(x))


def test_refuses():
    with pytest.raises(ValueError, match="kv_heads=3 does not divide heads=4"):
        lm.MultiHeadAttention(8, 4, kv_heads=3)
    with pytest.raises(ValueError, match="heads=3 does not divide d_model=8"):
        lm.MultiHeadAttention(8, 3)
    with pytest.raises(ValueError, match=r"unknown bias 'some'. .*Known: all, qkv, none"):
        lm.MultiHeadAttention(8, 4, bias="some")
    for name in ("kv_heads", "head_dim", "window"):
        with pytest.raises(ValueError, match=f"{name} must be a positive whole number"):
            lm.MultiHeadAttention(8, 4, **{name: 0})
    with pytest.raises(ValueError, match="dropout must be"):
        lm.MultiHeadAttention(8, 4, dropout=1.5)


@pytest.mark.parametrize("latent", [False, True])
def test_each_row_of_a_batch_may_have_angles_of_its_own(latent):
    torch.manual_seed(0)
    if latent:
        module = LatentAttention(12, 2, kv_latent=5, rotary_dim=4, head_dim=6)
    else:
        module = lm.MultiHeadAttention(12, 2, head_dim=6)
    x, steps = torch.randn(3, 5, 12), torch.arange(5) * torch.tensor([[1], [2], [3]])
    cosine, sine = lm.rope_tables(16, 4)
    rows = [module(x[i : i + 1], angles=(cosine[steps[i]], sine[steps[i]])) for i in range(3)]
    torch.testing.assert_close(module(x, angles=(cosine[steps], sine[steps])), torch.cat(rows))


def test_a_bias_of_nothing_is_refused():
    for make in (
        lambda bias: lm.MultiHeadAttention(8, 2, bias=bias),
        lambda bias: LatentAttention(8, 2, kv_latent=3, rotary_dim=2, head_dim=4, bias=bias),
    ):
        with pytest.raises(ValueError, match="unknown projection with a bias 'q'. Known: query, key, value, output"):
            make(("q", "k"))
        assert sum(name.endswith("bias") for name, _ in make("all").named_parameters()) in (4, 2)
        assert not [name for name, _ in make("none").named_parameters() if name.endswith("bias")]
