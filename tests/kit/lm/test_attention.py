import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from cs336kit import lm

pytestmark = pytest.mark.torch

close = torch.testing.assert_close


def qkv(B=2, A=4, K=2, queries=5, keys=5, h=8, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shapes = [(B, A, queries, h), (B, K, keys, h), (B, K, keys, h)]
    return [torch.randn(s, generator=generator, dtype=torch.float64, requires_grad=True) for s in shapes]


def slowly(query, key, value, window=None):
    """The definition, with loops: each position, each head."""
    B, A, Sq, h = query.shape
    K, Skv = key.shape[1:3]
    rows = []
    for b in range(B):
        for a in range(A):
            k, v = key[b, a * K // A], value[b, a * K // A]
            for i in range(Sq):
                last = Skv - Sq + i
                first = 0 if window is None else max(0, last - window + 1)
                scores = torch.stack([query[b, a, i] @ k[j] / math.sqrt(h) for j in range(first, last + 1)])
                rows.append(scores.softmax(dim=0) @ v[first : last + 1])
    return torch.stack(rows).view(B, A, Sq, h)


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_softmax_equals_torch_in_value_and_gradient(dim):
    x = (torch.randn(3, 5, dtype=torch.float64) * 400).requires_grad_()
    close(lm.softmax(x, dim=dim), x.softmax(dim=dim))
    ours = torch.autograd.grad(lm.softmax(x, dim=dim).square().sum(), x)[0]
    close(ours, torch.autograd.grad(x.softmax(dim=dim).square().sum(), x)[0])
    assert lm.softmax(torch.tensor([1e4, 0.0]), dim=0).tolist() == [1, 0]


@pytest.mark.parametrize("method", ["eager", "sdpa"])
@pytest.mark.parametrize("K", [1, 2, 4])
@pytest.mark.parametrize("window", [None, 1, 3, 9])
@pytest.mark.parametrize("queries", [5, 1, 3])
def test_equals_the_definition(method, K, window, queries):
    tensors = qkv(K=K, queries=queries)
    ours, expected = lm.attention(*tensors, method=method, window=window), slowly(*tensors, window=window)
    close(ours, expected)
    for a, b in zip(
        torch.autograd.grad(ours.square().sum(), tensors),
        torch.autograd.grad(expected.square().sum(), tensors),
        strict=True,
    ):
        close(a, b)


@settings(deadline=None, max_examples=30)
@given(
    K=st.integers(1, 3), group=st.integers(1, 3), queries=st.integers(1, 6), before=st.integers(0, 4),
    window=st.none() | st.integers(1, 8), seed=st.integers(0, 99),
)  # fmt: skip
def test_both_methods_agree(K, group, queries, before, window, seed):
    tensors = qkv(A=K * group, K=K, queries=queries, keys=queries + before, seed=seed)
    close(
        lm.attention(*tensors, method="eager", window=window),
        lm.attention(*tensors, method="sdpa", window=window),
    )


def test_plain_heads_equal_torch():
    tensors = qkv(K=4)
    close(lm.attention(*tensors), F.scaled_dot_product_attention(*tensors, is_causal=True))


def test_the_past_does_not_depend_on_the_future():
    query, key, value = qkv(K=4)
    lm.attention(query, key, value)[:, :, 2].sum().backward()
    assert key.grad[:, :, 3:].abs().sum() == value.grad[:, :, 3:].abs().sum() == 0
    assert value.grad[:, :, :3].abs().min() > 0


def test_mask():
    mask = lm.causal_mask(2, 4, window=2)
    assert mask.exp().tolist() == [[0, 1, 1, 0], [0, 0, 1, 1]]
    assert torch.equal(lm.causal_mask(3, 3).exp(), torch.ones(3, 3).tril())


@pytest.mark.parametrize("floats", [False, True])
@pytest.mark.parametrize(("method", "nothing"), [("eager", math.nan), ("sdpa", 0.0)])
def test_a_query_that_may_attend_to_nothing_has_no_result_and_leaves_the_others_alone(method, nothing, floats):
    tensors = qkv(K=4)
    mask = torch.ones(5, 5, dtype=torch.bool).tril()
    mask[2] = False
    if floats:
        mask = torch.zeros(5, 5, dtype=torch.float64).masked_fill(~mask, -math.inf)
    rows, usual = lm.attention(*tensors, mask=mask, method=method), slowly(*tensors)
    close(rows[:, :, 2], torch.full_like(usual[:, :, 2], nothing), equal_nan=True)
    others = [0, 1, 3, 4]
    close(rows[:, :, others], usual[:, :, others])


@pytest.mark.parametrize("method", ["eager", "sdpa"])
def test_scores_are_divided_by_the_width_of_a_key_and_not_of_a_value(method):
    query, key, value = qkv(K=4)
    close(lm.attention(query, key, value[..., :3], method=method), slowly(query, key, value)[..., :3])


def test_dropout_drops_weights():
    torch.manual_seed(0)
    tensors = qkv(K=4, queries=40, keys=40)
    tensors[2] = torch.ones_like(tensors[2])
    rows = lm.attention(*tensors, dropout=0.5)
    assert rows.mean().item() == pytest.approx(1, abs=0.1)
    assert rows.std() > 0.05
    assert close(lm.attention(*tensors), torch.ones_like(rows)) is None


def test_refuses():
    query, key, value = qkv(A=4, K=3)
    with pytest.raises(ValueError, match="4 query heads and 3 key/value heads"):
        lm.attention(query, key, value)
    with pytest.raises(ValueError, match=r"unknown attention method 'flash'. Known: eager, sdpa"):
        lm.attention(*qkv(), method="flash")
    with pytest.raises(ValueError, match="5 queries and 3 keys"):
        lm.causal_mask(5, 3)
    with pytest.raises(ValueError, match="window must be"):
        lm.causal_mask(3, 3, window=0)
    query, key, value = qkv()
    for misfits in ((key[:1], value[:1]), (key, value[:, :, :4]), (key[..., :3], value)):
        with pytest.raises(ValueError, match="leading axes must be equal, queries as wide as keys, and"):
            lm.attention(query, *misfits)
    with pytest.raises(ValueError, match="mask and window are both given"):
        lm.attention(query, key, value, mask=torch.ones(5, 5, dtype=torch.bool), window=2)


@pytest.mark.parametrize("method", ["eager", "sdpa"])
@pytest.mark.parametrize(
    "given", [{"window": 10.5}, {"window": "a"}, {"window": True}, {"softcap": 0}, {"softcap": True}, {"softcap": math.nan}]
)  # fmt: skip
def test_windows_and_caps_that_are_none_are_refused(method, given):
    (name,) = given
    with pytest.raises(ValueError, match=f"{name} must be"):
        lm.attention(*qkv(), method=method, **given)
    if name == "softcap":
        with pytest.raises(ValueError, match="softcap must be"):
            lm.MultiHeadAttention(8, 2, **given)


def test_capped_scores_by_hand():
    query, key, value = 5 * torch.randn(3, 2, 6, 4, dtype=torch.float64)
    scores = 3 * torch.tanh(query @ key.mT / 4**0.5 / 3) + torch.full((6, 6), -torch.inf).triu(1)
    torch.testing.assert_close(lm.attention(query, key, value, softcap=3.0), scores.softmax(-1) @ value)


@pytest.mark.parametrize("method", ["eager", "sdpa"])
def test_more_queries_than_keys_are_refused(method):
    query, key = torch.randn(1, 2, 5, 4), torch.randn(1, 2, 3, 4)
    with pytest.raises(ValueError, match="5 queries and 3 keys: the queries are the last of the keys"):
        lm.attention(query, key, key, method=method)
