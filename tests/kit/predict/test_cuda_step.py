"""The peak of both passes on CUDA, without a GPU: the nodes of the backward pass are called one by one on fake tensors.

Torch's own engine asks the driver for a thread and a stream. What it does for memory is little, and done here by hand: a node
runs once all that use its output have run, the latest first, and goes with what it kept. Kernels' scratch memory is not seen.
"""

import dataclasses
import heapq
import itertools

import pytest
import torch

from cs336kit import measure
from cs336kit.predict import DEVICES, program
from cs336kit.predict.devices import Kernel
from cs336kit.predict.training import _walked
from tests.kit.predict.test_counted_steps import BASE, LIKE
from tests.kit.predict.test_cuda_rules import MODELS, PRECISIONS, UNSEEN, loss_on_cuda

pytestmark = [pytest.mark.torch, pytest.mark.skipif(UNSEEN is not None, reason=str(UNSEEN))]

#: Kernels that need nothing for a moment, as that is what fake tensors show.
SEEN = dataclasses.replace(
    DEVICES["cuda"],
    kernels=tuple(dataclasses.replace(kernel, backward=Kernel("", {}).backward) for kernel in DEVICES["cuda"].kernels),
    softmax_product=False,
)


def consumers(root):
    """Node → how many nodes hand it a gradient."""
    counts, seen, todo = {}, {root}, [root]
    while todo:
        for other, _ in todo.pop().next_functions:
            if other is not None:
                counts[other] = counts.get(other, 0) + 1
                if other not in seen:
                    seen.add(other)
                    todo.append(other)
    return counts


def run(node, slots):
    """What a node returns for each of its inputs, summed to its shape and cast to its type."""
    slots = [slots.pop(place, None) for place in range(len(node._input_metadata))]
    returned = node(*slots)
    returned = list(returned) if isinstance(returned, tuple) else [returned]
    slots.clear()
    for place, (other, at) in enumerate(node.next_functions):
        if other is not None and returned[place] is not None:
            wanted = other._input_metadata[at]
            if returned[place].shape != wanted.shape:
                returned[place] = returned[place].sum_to_size(wanted.shape)
            returned[place] = returned[place].to(wanted.dtype)
    return returned


def backward(held):
    """`held` is [(node of the loss, its gradient)] and is emptied, so that nobody else holds on to either."""
    node, gradient = held.pop()
    waits, order = consumers(node), itertools.count()
    given, ready = {node: {0: gradient}}, [(0, 0, node)]
    del gradient
    while ready:
        node = heapq.heappop(ready)[-1]
        slots, edges = given.pop(node), node.next_functions
        if hasattr(node, "variable"):
            node.variable.grad = slots.pop(0)
            continue
        returned = run(node, slots)
        node = None
        for place, (other, at) in enumerate(edges):
            if other is None:
                continue
            new, returned[place] = returned[place], None
            there = given.setdefault(other, {})
            there[at] = there[at] + new if at in there else new
            new = there = None
            waits[other] -= 1
            if not waits[other]:
                del waits[other]
                # A parameter takes its gradient at once.
                latest = -1e30 if hasattr(other, "variable") else -other._sequence_nr()
                heapq.heappush(ready, (latest, next(order), other))
        edges = other = None


def live_bytes(config, precision, attention):
    """The most that is alive in both passes, and what is alive at the end."""
    with loss_on_cuda(config, 3, 12, precision=precision, attention=attention) as loss:

        def both():
            value = loss()
            held = [(value.grad_fn, torch.ones_like(value))]
            del value
            with torch.no_grad():
                backward(held)

        points = measure.memory_timeline(both)
    return max(point.live_bytes for point in points), points[-1].live_bytes


def check(config, precision, attention):
    walk = _walked(program(config, batch=3, sequence=12, precision=precision, attention=attention, device=SEEN))
    # The walk's caller holds the loss and its first gradient; here nobody does.
    counted, left = live_bytes(config, precision, attention)
    loss = 4
    assert max(peak.bytes for peak in walk.ledger.peaks.values()) == counted + 2 * loss
    assert walk.ledger.live == left + loss


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
