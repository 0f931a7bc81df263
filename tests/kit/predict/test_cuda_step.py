"""The peak of both passes on CUDA, without a GPU: `cs336plan.trace.engine` runs the backward pass on fake tensors.

Torch's own engine asks the driver for a thread and a stream. What kernels have for a moment is not seen.
"""

import dataclasses

import pytest

from cs336kit import measure
from cs336kit.predict import DEVICES, program
from cs336kit.predict.devices import Kernel
from cs336kit.predict.training import _walked
from cs336plan.trace import engine
from tests.kit.predict.test_counted_steps import BASE, LIKE
from tests.kit.predict.test_cuda_rules import MODELS, PRECISIONS, UNSEEN, loss_on_cuda

pytestmark = [pytest.mark.torch, pytest.mark.skipif(UNSEEN is not None, reason=str(UNSEEN))]

#: Kernels that need nothing for a moment, as that is what fake tensors show.
SEEN = dataclasses.replace(
    DEVICES["cuda"],
    kernels=tuple(dataclasses.replace(kernel, backward=Kernel("", {}).backward) for kernel in DEVICES["cuda"].kernels),
    softmax_product=False,
)


def live_bytes(config, precision, attention):
    """The most that is alive in both passes, and what is alive at the end."""
    with loss_on_cuda(config, 3, 12, precision=precision, attention=attention) as loss:
        points = measure.memory_timeline(lambda: engine.backward([loss()], {}))
    return max(point.live_bytes for point in points), points[-1].live_bytes


def check(config, precision, attention):
    walk = _walked(program(config, batch=3, sequence=12, precision=precision, attention=attention, device=SEEN))
    # The walk's caller holds the loss to the end; here nobody does.
    counted, left = live_bytes(config, precision, attention)
    assert max(peak.bytes for peak in walk.ledger.peaks.values()) == counted
    assert walk.ledger.live == left + 4


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_the_peak_of_both_passes_to_the_byte(name, precision, attention):
    for dropout in (0.0, 0.1):
        check(dataclasses.replace(MODELS[name], dropout=dropout), precision, attention)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("precision", ["bf16", "autocast", "autocast-fp16"])
@pytest.mark.parametrize("name", ["Persimmon", "OPT-350m", "Gemma 2", "BitNet", "DeepSeek V2 Lite with dropout"])
def test_the_peak_of_blocks_like_those_of_real_architectures(name, precision, attention):
    check(dataclasses.replace(BASE, **LIKE[name]), precision, attention)
