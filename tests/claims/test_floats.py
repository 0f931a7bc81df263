"""Claims about number formats: fields, ranges, rounding, bytes."""

import math
import re

import ml_dtypes
import numpy
import torch
from claims.settled import Cited, figures, near, settles

from cs336kit import measure, predict

H100 = predict.accelerator("h100-sxm")
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
GPT3_MATRIX_BYTES = torch.empty(4 * 12288, 12288, device="meta").nbytes


def fields(dtype):
    """Widths of sign, exponent and fraction, read from the codes of 1, 2 and −1 in memory."""
    code = {value: measure.bits(value, dtype).code for value in (1.0, 2.0, -1.0)}
    width = (code[1.0] ^ code[-1.0]).bit_length()  # the sign stands first
    fraction = (code[2.0] - code[1.0]).bit_length() - 1  # one step of the exponent
    return 1, width - 1 - fraction, fraction


def cast(value, dtype):
    return torch.tensor(value, dtype=torch.float64).to(dtype).item()


def largest(dtype):
    """The largest finite value among all codes of a 16-bit or 8-bit dtype."""
    values = measure.all_values(dtype).astype(numpy.float64)
    return float(values[numpy.isfinite(values)].max())


def code_value(code):
    return torch.tensor([code], dtype=torch.uint8).view(E4M3).item()


@settles("fp32-bit-layout")
def test_fp32_bit_layout():
    return (1, 8, 23), fields(torch.float32)


def fp32_formula(number):
    """(-1)^sign · 1.fraction · 2^(exponent − 127) of the bits in memory."""
    bits = measure.bits(number, torch.float32)
    return (-1) ** int(bits.sign) * (1 + int(bits.fraction, 2) / 2**23) * 2.0 ** (int(bits.exponent, 2) - 127)


@settles("fp32-value-formula")
def test_fp32_value_formula():
    def holds(values):
        return all(fp32_formula(value) == value for value in values)

    normal = [-6.5, 2.0**-126, 1.0, torch.finfo(torch.float32).max]
    return True, holds(normal), holds([2.0**-127])


@settles("fp32-max")
def test_fp32_max():
    return (1 + 8388607 / 8388608) * 2.0**127, torch.finfo(torch.float32).max


@settles("fp32-exponent-top")
def test_fp32_exponent_top():
    return 127, math.frexp(torch.finfo(torch.float32).max)[1] - 1  # frexp's fraction begins at 1/2


@settles("fp16-bit-layout")
def test_fp16_bit_layout():
    return (1, 5, 10), fields(torch.float16)


@settles("fp16-max")
def test_fp16_max():
    return (1 + 1023 / 1024) * 2.0**15, largest(torch.float16)


@settles("fp16-1e8-underflow")
def test_fp16_1e8_underflow():
    return 0.0, cast(1e-8, torch.float16)


@settles("fp16-overflow")
def test_fp16_overflow():
    return (math.inf, math.inf), (cast(65520.0, torch.float16), cast(1e6, torch.float16))


@settles("fp16-half-memory")
def test_fp16_half_memory():
    return 0.5, torch.ones(1000, dtype=torch.float16).nbytes / torch.ones(1000, dtype=torch.float32).nbytes


@settles("bf16-bit-layout")
def test_bf16_bit_layout():
    return (1, 8, 7), fields(torch.bfloat16)


@settles("bf16-max")
def test_bf16_max():
    return (1 + 127 / 128) * 2.0**127, float(torch.finfo(torch.bfloat16).max)


@settles("bf16-same-range-as-fp32")
def test_bf16_same_range_as_fp32():
    fp32, bf16 = torch.finfo(torch.float32), torch.finfo(torch.bfloat16)
    below_normal = cast(2.0**-140, torch.float32), cast(2.0**-140, torch.bfloat16)
    return "same", *("same" if a == b else f"{a} and {b}" for a, b in [(fp32.tiny, bf16.tiny), below_normal])


@settles("bf16-1e8-survives")
def test_bf16_1e8_survives():
    return True, cast(1e-8, torch.bfloat16) != 0


@settles("bf16-coarser-than-fp16")
def test_bf16_coarser_than_fp16():
    # The next number after 1, by numpy: no finfo says so.
    return True, bool(numpy.spacing(ml_dtypes.bfloat16(1)) > numpy.spacing(numpy.float16(1)))


@settles("bf16-2018-google")
def test_bf16_2018_google():
    return Cited(
        "https://cloud.google.com/blog/products/ai-machine-learning/bfloat16-the-secret-to-high-performance-on-cloud-tpus",
        "Google Brain designed bfloat16 for the TPU; TPU v2, announced in May 2017, computes with it.",
    )


@settles("fp8-e4m3-max")
def test_fp8_e4m3_max():
    return (1 + 6 / 8) * 2.0**8, largest(E4M3)


def kinds(dtype):
    """How many codes of an 8-bit dtype are NaN and infinite."""
    values = measure.all_values(dtype).astype(numpy.float64)
    return {"nan": int(numpy.isnan(values).sum()), "infinite": int(numpy.isinf(values).sum())}


@settles("fp8-e4m3-no-inf")
def test_fp8_e4m3_no_inf():
    found = kinds(E4M3)
    return {"has NaN": True, "infinite": 0}, {"has NaN": found["nan"] > 0, "infinite": found["infinite"]}


@settles("fp8-e4m3-480-slot")
def test_fp8_e4m3_480_slot():
    missing = (1 + 7 / 8) * 2.0**8 not in measure.all_values(E4M3).astype(numpy.float64)
    return (True, "nan"), (bool(missing), str(code_value(0b0_1111_111)))


@settles("fp8-e5m2-max")
def test_fp8_e5m2_max():
    found = kinds(E5M2)
    return (1.75 * 2.0**15, True, True), (largest(E5M2), found["infinite"] > 0, found["nan"] > 0)


@settles("fp8-standardised-2022")
def test_fp8_standardised_2022():
    return Cited(
        "https://arxiv.org/abs/2209.05433; OCP 8-bit Floating Point Specification (OFP8), revision 1.0, 2023",
        "The paper of September 2022 proposes the formats; the Open Compute Project's specification came a year later.",
    )


@settles("fp8-developed-by-nvidia")
def test_fp8_developed_by_nvidia():
    return Cited("https://arxiv.org/abs/2209.05433, author list", "The authors are of NVIDIA, Arm and Intel.")


@settles("fp8-h100-only")
def test_fp8_h100_only():
    with_fp8 = [a.title for a in predict.accelerators() if "fp8" in a.precisions]
    return 0, sum(bool(re.search(r"\bL4|L40S|RTX 4090|MI300X", title)) for title in with_fp8)  # Ada, and AMD's


@settles("fp8-fwd-e4m3-bwd-e5m2")
def test_fp8_fwd_e4m3_bwd_e5m2():
    # Gradients over three powers of ten. One scale brings the largest to 1; what is asked is which format keeps the
    # smallest at all. With a scale for each block of 32, E4M3 keeps it, too.
    gradients = [1.0, 1e-2, 1e-4]
    one_scale = "E5M2" if cast(gradients[-1], E4M3) == 0.0 != cast(gradients[-1], E5M2) else "E4M3 will do"
    blocks = predict.FORMATS["mxfp8"]
    small_block = [gradients[-1]] * 32
    kept = blocks.dequantize(blocks.quantize(small_block))[0]
    return "E5M2", one_scale, "E4M3 will do" if abs(kept / gradients[-1] - 1) < 2**-4 else "E5M2"


@settles("fp8-cruder-than-fp16")
def test_fp8_cruder_than_fp16():
    eps = [torch.finfo(dtype).eps for dtype in (torch.bfloat16, E4M3, E5M2)]
    return True, eps == sorted(eps) and eps[1] / eps[0] >= 10


@settles("default-dtype-fp32")
def test_default_dtype_fp32():
    return "torch.float32", str(torch.tensor(1.0).dtype)


@settles("avogadro-precision")
def test_avogadro_precision():
    # The largest error of any number that is written with these four digits.
    step = 0.001e23
    numbers = numpy.linspace(6.0e23, 6.1e23, 10_001)
    worst = numpy.abs(numpy.round(numbers / step) * step - numbers).max()
    return 0.001e23, figures(float(worst), 3)


@settles("matrix-4x8-128-bytes")
def test_matrix_4x8_128_bytes():
    nbytes = torch.zeros(4, 8).nbytes
    return (1024, 128), (8 * nbytes, nbytes)


@settles("gpt3-ff-matrix-2306mb")
def test_gpt3_ff_matrix_2306mb():
    # 2.25 GB is 2.25 GiB, and then 2306 MB can only be MiB.
    return {"MiB": 2306.0, "GiB": 2.25}, {"MiB": GPT3_MATRIX_BYTES / 2**20, "GiB": GPT3_MATRIX_BYTES / 2**30}


@settles("gpt3-ff-matrix-2304mib")
def test_gpt3_ff_matrix_2304mib():
    return 2304 * 1024 * 1024, GPT3_MATRIX_BYTES


@settles("gpt3-ff-matrix-2.3gb")
def test_gpt3_ff_matrix_23gb():
    return 2.3, round(GPT3_MATRIX_BYTES / 1e9, 1)


def updated(dtype, update, steps=1000):
    """1 after so many updates in the dtype, each rounded to nearest."""
    weight = torch.ones((), dtype=dtype)
    for _ in range(steps):
        weight += update
    return weight.item()


@settles("fp32-needed-for-states")
def test_fp32_needed_for_states():
    # Kept in bf16, a thousand small updates vanish, unless rounding is stochastic: the mean of 1000 weights then has a
    # standard error of eps·sqrt(1000·p·(1 − p))/sqrt(1000) < 0.003, with p = 0.001/eps; 0.02 is six of them.
    nearest = updated(torch.bfloat16, 0.001)
    weights = numpy.ones(1000)
    for step in range(1000):
        weights = measure.rounded(weights + 0.001, predict.FORMATS["bf16"], mode="stochastic", seed=step)
    lost = ["lost" if abs(total - 2) > 0.5 else "kept" for total in (nearest, float(weights.mean()))]
    return "lost", *lost


@settles("accumulate-in-high-precision")
def test_accumulate_in_high_precision():
    terms = numpy.full(10**5, 0.1)
    kinds = (ml_dtypes.bfloat16, numpy.float16, numpy.float32)
    errors = [abs(float(numpy.add.accumulate(terms.astype(t), dtype=t)[-1]) / 1e4 - 1) for t in kinds]
    return (True, True, False), tuple(error > 0.5 for error in errors)


@settles("fp64-unused-in-dl")
def test_fp64_unused_in_dl():
    return ("float64", "float32"), (numpy.array(1.0).dtype.name, str(torch.tensor(1.0).dtype).removeprefix("torch."))


@settles("fp8-faster-than-bf16")
def test_fp8_faster_than_bf16():
    # A large product is limited by FLOP/s. With one row, which is limited by bytes, the gain is that of the bytes; an
    # addition has no fp8 unit: it converts, and the peak of its ordinary cores does not change.
    gain = H100.peak("fp8") / H100.peak("bf16")
    vector = {p for p, engine, _ in H100.peaks if engine == "vector"}
    return "faster", "faster" if near(gain, 2, relative=0.001) == 2 else "no", "faster" if "fp8" in vector else "no"


@settles("bf16-less-over-underflow")
def test_bf16_less_over_underflow():
    survive = {
        dtype: sum(0 < cast(10.0**e, dtype) < math.inf for e in range(-30, 31))
        for dtype in (torch.bfloat16, torch.float16)
    }
    return True, survive[torch.bfloat16] > survive[torch.float16]
