"""Claims about accelerators: bandwidths, links, and the intensity of operations against the ridge."""

from claims.settled import figures, near, settles

from cs336kit import predict

V100, A100_40, A100_80 = (predict.accelerator(name) for name in ("v100-sxm2-32gb", "a100-sxm-40gb", "a100-sxm-80gb"))
GIB, TIB = 2**30, 2**40


def ridge(chip):
    """FLOPs per byte at which compute takes as long as memory, from the datasheet's fp16 peak."""
    return chip.peak("fp16") / chip.bandwidth


def layer(tokens, width, bytes_per_element=2):
    """FLOPs per byte of a width × width layer, its operands read and its result written once."""
    flops = 2 * tokens * width * width
    elements = tokens * width + width * width + tokens * width
    return flops / (bytes_per_element * elements)


@settles("hw-a100-40-math")
def test_a100_40_math():
    return (312e12, 1.6, 195), (A100_40.peak("bf16"), figures(A100_40.bandwidth / TIB, 2), round(ridge(A100_40)))


@settles("hw-a100-80-math")
def test_a100_80_math():
    return (2.0, 156), (figures(A100_80.bandwidth / TIB, 2), round(ridge(A100_80)))


@settles("hw-v100-math")
def test_v100_math():
    said = {"peak": 130e12, "TiB/s": 1.1, "ridge": 118, "GiB/s": 16.0}
    so = {
        "peak": V100.peak("fp16"),
        "TiB/s": V100.bandwidth / TIB,
        "ridge": round(ridge(V100)),
        "GiB/s": V100.link / GIB,
    }
    return said, so


@settles("hw-a100-300-comms")
def test_a100_300_comms():
    return 300, round(A100_80.link / GIB)


@settles("hw-compute-bound-rule")
def test_compute_bound_rule():
    # Two products, one on each side of the ridge: what bounds them, and the time of each as the larger of two.
    costs = [predict.matmul_cost(tokens, 8192, 8192) for tokens in (8, 4096)]
    times = [(c.flops / A100_80.peak("bf16"), c.bytes / A100_80.bandwidth) for c in costs]
    found = [predict.roofline(c, accelerator=A100_80) for c in costs]
    return [(c.intensity > ridge(A100_80), max(t)) for c, t in zip(costs, times, strict=True)], [
        (at.bound == "compute", at.seconds) for at in found
    ]


@settles("hw-d1-intensity")
def test_d1_intensity():
    p, tokens, width = 2, 153, 8192
    return 1 / p * tokens * width / (2 * tokens + width), predict.matmul_cost(
        tokens, width, width, bytes_per_element=p
    ).intensity


@settles("hw-matmul-always-compute-bound")
def test_matmul_always_compute_bound():
    return True, layer(4096, 8192) > ridge(A100_80), layer(1, 8192) > ridge(A100_80)


@settles("hw-elementwise-memory-bound")
def test_elementwise_memory_bound():
    # GELU at C = 8 FLOPs an element, in two bytes.
    C, p = 8, 2
    return C / p, predict.elementwise_cost(1000, flops_per_element=C, bytes_per_element=p).intensity


@settles("hw-training-intensity-bs")
def test_training_intensity_bs():
    # One decoding step multiplies the weights by a row of each of B sequences, and each row by the sequence's own cache,
    # of 4096 keys here. About: to a tenth.
    B = 200
    weights, cache = layer(B, 2**20), predict.matmul_cost(1, 128, 4096, batch=B).intensity
    return B, *(near(intensity, B, relative=0.1) for intensity in (weights, cache))
