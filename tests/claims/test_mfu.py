"""Claims about the utilization of a chip: model FLOPs over what it promises."""

import timeit

from claims.settled import Cited, figures, settles

from cs336kit import measure, predict

H100 = predict.accelerator("h100-sxm")
WORK = predict.matmul_flops(*measure.LECTURE_PRODUCT)


def highest_mfu(tokens, *, chip, precision="bf16", width=8192):
    """The most that a layer of that width can reach on so many tokens: its time is at least that of its bytes."""
    chip, size = predict.accelerator(chip), {"fp32": 4, "bf16": 2}[precision]
    cost = predict.matmul_cost(tokens, width, width, bytes_per_element=size)
    seconds = max(cost.flops / chip.peak(precision), cost.bytes / chip.bandwidth)
    return cost.flops / seconds / chip.peak(precision)


@settles("mfu-definition")
def test_mfu_definition():
    work, seconds = 3e12, 0.25
    utilization = measure.mfu(work, seconds, dtype="bf16", accelerator_name="h100-sxm")
    return work / seconds / H100.peak("bf16"), float(utilization)


@settles("mfu-half-is-good")
def test_mfu_half_is_good():
    return Cited(
        "PaLM, arXiv 2204.02311, table 3; Llama 3, arXiv 2407.21783, table 4; Megatron-LM, arXiv 2104.04473, table 1",
        "0.46, 0.38 to 0.43 and 0.52 of the dense peak: half is good for a training run, not for one large product",
    )


@settles("mfu-fp32-arith")
def test_mfu_fp32_arith():
    speed = 8.796e12 / 0.163
    return (5.4e13, 0.80), (figures(speed, 2), figures(speed / 6.75e13, 2))


@settles("h100-fp32-67.5")
def test_h100_fp32_675():
    return 6.75e13, H100.peak("fp32")


@settles("h100-fp32-67")
def test_h100_fp32_67():
    pcie = predict.accelerator("h100-pcie")
    return 67e12, figures(H100.peak("fp32"), 2), figures(pcie.peak("fp32"), 2)


@settles("mfu-bf16-arith")
def test_mfu_bf16_arith():
    # The speed as reported, and what follows from it: the time to two digits, the MFU to three.
    speed = 2.735e14
    return (0.032, 9.895e14, 0.276), (figures(WORK / speed, 2), 1979e12 / 2, figures(speed / (1979e12 / 2), 3))


@settles("mfu-bf16-lower-than-fp32")
def test_mfu_bf16_lower_than_fp32():
    # In the times that were reported, and as a law: on 4096 tokens nothing on the datasheet keeps either from its peak.
    times = {"fp32": 0.163, "bf16": 0.03216}
    reported = {p: float(measure.mfu(WORK, s, dtype=p, accelerator_name="h100-sxm")) for p, s in times.items()}
    possible = {p: highest_mfu(4096, chip="h100-sxm", precision=p) for p in times}
    return True, *(mfu["bf16"] < mfu["fp32"] for mfu in (reported, possible))


@settles("mfu-timing-snippet")
def test_mfu_timing_snippet():
    # A clock that the call itself moves: by 1, and by 10 in the first call, which sets up.
    ticks = [0]

    def call():
        ticks[0] += 1 if ticks[0] else 10

    return 1.0, timeit.timeit(call, timer=lambda: ticks[0], number=5) / 5


@settles("mfu-dense-half-of-peak")
def test_mfu_dense_half_of_peak():
    # Half of the headline is what a dense product could reach at best; a good run has half of that.
    headline = H100.peak("bf16", sparse=True)
    return 0.5, figures(0.5 * H100.peak("bf16") / headline, 2)


@settles("h100-fp16-much-faster-than-fp32")
def test_h100_fp16_much_faster_than_fp32():
    return True, all(H100.peak(precision) > 10 * H100.peak("fp32") for precision in ("fp16", "bf16", "fp8"))


@settles("mfu-0.05-means-waiting")
def test_mfu_005_means_waiting():
    # Above the ridge a chip that waits for nothing reaches its peak, so that 0.05 says something is slow. Below it 0.05
    # may be the most that can be had.
    def something_waits(tokens):
        return highest_mfu(tokens, chip="a100-sxm-80gb") > 0.06

    return True, something_waits(4096), something_waits(8)


@settles("mfu-eq-3.5")
def test_mfu_eq_35():
    gpt2, batch, sequence, tokens_per_second = predict.MODELS["gpt2"], 16, 1024, 200_000
    total = predict.training_flops(gpt2, batch=batch, sequence=sequence).total
    batches_per_second = tokens_per_second / (batch * sequence)
    seconds = 1 / batches_per_second
    so = measure.mfu(total, seconds, dtype="bf16", accelerator_name="h100-sxm")
    return figures(total * tokens_per_second / H100.peak("bf16"), 3), figures(float(so), 3)
