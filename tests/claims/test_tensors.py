"""Claims about tensors: constructors, element-wise operations, triu, products."""

import torch
from claims.settled import near, settles

from cs336kit import measure


@settles("tensor-constructors")
def test_tensor_constructors():
    made = [
        torch.tensor([[1.0, 2, 3], [4, 5, 6]]),
        *(make(4, 8) for make in (torch.zeros, torch.ones, torch.randn, torch.empty)),
    ]
    return [(2, 3)] + [(4, 8)] * 4, [tuple(t.shape) for t in made]


@settles("tensor-empty-uninit")
def test_tensor_empty_uninit():
    ran = [point.operator for point in measure.memory_timeline(lambda: torch.empty(4, 8))]
    return ["aten.empty.memory_format"], ran[:-1]  # the allocation alone; the last point is the end


@settles("trunc-normal-pm2")
def test_trunc_normal_pm2():
    # Without the bounds 4.6 % of the samples lie outside: with 100,000 none of them by chance is impossible.
    weights = torch.nn.init.trunc_normal_(torch.empty(100_000), mean=0.0, std=1.0, a=-2.0, b=2.0)
    return True, bool(weights.abs().max() <= 2)


@settles("tensor-numel-itemsize")
def test_tensor_numel_itemsize():
    x = torch.zeros(4, 8)
    return (32, 4), (x.numel(), x.element_size())


@settles("tensor-memory-formula")
def test_tensor_memory_formula():
    def by_formula(t):
        return t.numel() * t.element_size() == measure.storage_bytes(t)

    return True, by_formula(torch.zeros(4, 8)), by_formula(torch.ones(1).expand(1000))


@settles("elementwise-creates-new")
def test_elementwise_creates_new():
    x = torch.ones(1000)
    new, in_place = (measure.peak_bytes(lambda f=f: f(1), device="cpu") > 0 for f in (x.add, x.add_))
    return True, new, in_place


@settles("elementwise-pow-sqrt-rsqrt")
def test_elementwise_pow_sqrt_rsqrt():
    x = torch.tensor([1, 4, 9])
    by_hand = [[n * n for n in (1, 4, 9)], [1, 2, 3], [1, 1 / 2, 1 / 3], *[[2 * n for n in (1, 4, 9)]] * 3]
    by_torch = [x.pow(2), x.sqrt(), x.rsqrt(), x + x, x * 2, x / 0.5]
    # Seven digits are what fp32 holds.
    return by_hand, near([t.tolist() for t in by_torch], by_hand, relative=1e-7)


@settles("elementwise-div-2")
def test_elementwise_div_2():
    return [0.5, 2.0, 4.5], (torch.tensor([1, 4, 9]) / 2).tolist()


@settles("torch-equal-int-float")
def test_torch_equal_int_float():
    # As a test that shall notice another dtype, too, it does not serve.
    result, expected = torch.tensor([1, 4, 9]) / 0.5, torch.tensor([2, 8, 18])
    same_dtype = result.dtype == expected.dtype
    return True, torch.equal(result, expected), torch.equal(result, expected) and same_dtype


@settles("triu-new-tensor")
def test_triu_new_tensor():
    x = torch.ones(3, 3)
    upper = x.triu()
    return (True, 9 * 4), (not measure.same_storage(x, upper), measure.storage_bytes(upper))


@settles("triu-values")
def test_triu_values():
    return [[1, 1, 1], [0, 1, 1], [0, 0, 1]], torch.ones(3, 3).triu().int().tolist()


@settles("triu-causal-mask")
def test_triu_causal_mask():
    # Causal: what arrives at position t comes from positions up to t.
    mask = torch.ones(4, 4).triu().nonzero().tolist()
    rows_are_sources = all(source <= target for source, target in mask)
    rows_are_queries = all(source <= target for target, source in mask)
    return True, rows_are_sources, rows_are_queries


@settles("matmul-shape-2d")
def test_matmul_shape_2d():
    return (16, 2), tuple((torch.ones(16, 32) @ torch.ones(32, 2)).shape)


@settles("matmul-shape-batched")
def test_matmul_shape_batched():
    x, w = torch.randint(-9, 9, (4, 8, 16, 32)), torch.randint(-9, 9, (32, 2))
    one_by_one = torch.stack([torch.stack([x[i, j] @ w for j in range(8)]) for i in range(4)])
    return ((4, 8, 16, 2), True), (tuple((x @ w).shape), torch.equal(x @ w, one_by_one))
