"""Claims about FLOPs: what a product costs, the runs of the large models, the peaks of accelerators."""

import operator

import torch
from claims.settled import Cited, figures, settles

from cs336kit import measure, predict

A100, H100 = predict.accelerator("a100-sxm-80gb"), predict.accelerator("h100-sxm")
#: The lecture's product, whose sizes all claims about it use.
LECTURE = (16384, 32768, 8192)


def counted_by_torch(M, K, N):
    return measure.flops(lambda: torch.empty(M, K, device="meta") @ torch.empty(K, N, device="meta")).total


def loops(x, w, start=0.0):
    """The three loops over i, k and j; the result starts at `start`."""
    result = [[start] * len(w[0]) for _ in x]
    for i in range(len(x)):
        for k in range(len(w[0])):
            for j in range(len(w)):
                result[i][k] += x[i][j] * w[j][k]
    return result


def numbers(rows, columns):
    return torch.randint(-9, 9, (rows, columns)).tolist()


@settles("matmul-2bdk")
def test_matmul_2bdk():
    B, D, K = 3, 5, 4
    return 2 * B * D * K, measure.operations(loops, numbers(B, D), numbers(D, K)).total


@settles("matmul-example-8.8e12")
def test_matmul_example():
    B, D, K = LECTURE
    return 2 * B * D * K, counted_by_torch(B, D, K)


@settles("linear-2-tokens-params")
def test_linear_2_tokens_params():
    layer, points = torch.nn.Linear(300, 70, bias=False, device="meta"), 11
    flops = measure.flops(lambda: layer(torch.empty(points, 300, device="meta"))).total
    return 2, flops // (points * layer.weight.numel()) if flops % (points * layer.weight.numel()) == 0 else flops


@settles("matmul-d-mults-d-adds")
def test_matmul_d_mults_d_adds():
    D = 7
    counted = measure.operations(loops, numbers(1, D), numbers(D, 1))
    return {"multiply": D, "add": D}, dict(counted)


@settles("matmul-naive-loop")
def test_matmul_naive_loop():
    x, w = numbers(3, 5), numbers(5, 4)
    product = (torch.tensor(x) @ torch.tensor(w)).tolist()
    return product, loops(x, w), loops(x, w, start=1)


@settles("elementwise-flops-mn")
def test_elementwise_flops_mn():
    m, n = 6, 5
    add = lambda a, b: [[p + q for p, q in zip(r, s, strict=True)] for r, s in zip(a, b, strict=True)]  # noqa: E731
    return m * n, measure.operations(add, numbers(m, n), numbers(m, n)).total


@settles("matmul-dominates")
def test_matmul_dominates():
    # A block of width 1024 on 1024 tokens; everything beside the products counted high, at 8 FLOPs for each element of
    # norms and GELU. By FLOPs all of it is under 1 % of the products, by bytes it is over half of them.
    S, D, A, F = 1024, 1024, 16, 4096
    product, each, h = predict.matmul_cost, predict.elementwise_cost, D // A
    products = [product(S, D, D)] * 4 + [product(S, D, F), product(S, F, D)]
    products += [product(S, h, S, batch=A), product(S, S, h, batch=A)]
    others = [predict.softmax_cost(A * S, S), each(S * F, flops_per_element=8), *[each(S * D, flops_per_element=8)] * 2]
    others += [each(S * D, reads=2)] * 2

    def dominates(unit):
        amount = operator.attrgetter(unit)
        return sum(map(amount, others)) < 0.01 * sum(map(amount, products))

    return True, dominates("flops"), dominates("bytes")


@settles("flop-naming")
def test_flop_naming():
    # An amount is the same however long it takes; a speed halves with twice the time.
    work = counted_by_torch(64, 64, 64)
    speeds = [
        measure.mfu(work, seconds, dtype="fp32", peak_flops_per_second=1e12).flops_per_second for seconds in (1, 2)
    ]
    return (0.5, 2 * 64**3), (speeds[1] / speeds[0], work)


@settles("gpt3-3.14e23")
def test_gpt3():
    # Table D.1 of the paper: 174,600 million parameters, 300 billion tokens.
    return 3.14e23, figures(predict.six_nd(174_600e6, tokens=300e9), 3)


@settles("gpt4-2e25")
def test_gpt4():
    return Cited(
        "https://epoch.ai/data-insights/models-over-1e25-flop",
        "Epoch's estimate from outside puts GPT-4 above 1e25 FLOPs; OpenAI published no number.",
    )


@settles("us-order-1e26")
def test_us_order():
    return Cited(
        "Executive Order 14110 of October 30, 2023, section 4.2(b); Executive Order 14148 of January 20, 2025",
        "Models above 1e26 operations were to be reported (1e23 for biological data); the second order revoked the first.",
    )


@settles("a100-312")
def test_a100_312():
    return 312e12, A100.peak("bf16"), A100.peak("fp32")


@settles("h100-1979-sparse")
def test_h100_1979_sparse():
    def sparse_and_part_without(precision):
        sparse = H100.peak(precision, sparse=True)
        return figures(sparse, 4), figures(H100.peak(precision) / sparse, 2)

    return (1979e12, 0.5), sparse_and_part_without("bf16"), sparse_and_part_without("fp8")


@settles("sparsity-2-of-4")
def test_sparsity_2_of_4():
    # What can be skipped if two of four factors are zero, against what the datasheet promises for it.
    return 4 / 2, figures(H100.peak("bf16", sparse=True) / H100.peak("bf16"), 3)


@settles("h100-faster-than-a100")
def test_h100_faster_than_a100():
    shared = [p for p in A100.precisions if p in H100.precisions]
    newer = all(H100.peak(p) > A100.peak(p) for p in shared)
    return (True, True), (newer, all(chip.peak("bf16") > chip.peak("fp32") for chip in (A100, H100)))


@settles("vec-mat-2m-1")
def test_vec_mat_2m_1():
    m, n = 7, 4

    def from_first_product(x, w):
        columns = list(zip(*w, strict=True))
        return [sum((a * b for a, b in zip(x[1:], c[1:], strict=True)), x[0] * c[0]) for c in columns]

    return (2 * m - 1) * n, measure.operations(from_first_product, *numbers(1, m), numbers(m, n)).total
