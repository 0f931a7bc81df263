"""What autograd keeps on CUDA, without a GPU: a CUDA build of torch runs the forward pass on fake tensors.

With a GPU the same cases run on real ones. `make cuda-rules` makes an environment with such a build.
"""

import contextlib
import dataclasses
import itertools

import pytest
import torch
import torch.nn.functional as F

from benchmarks.fake_cuda import UNSEEN, autocast, cuda
from cs336kit import lm, measure
from cs336kit.predict import POLICIES, TransformerConfig, program, saved_activation_bytes, saved_block_bytes
from cs336kit.predict.engine.states import state_requests, temporary_requests
from tests.kit.predict.test_counted_steps import BASE, LIKE

pytestmark = [pytest.mark.torch, pytest.mark.skipif(UNSEEN is not None, reason=str(UNSEEN))]
TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


@contextlib.contextmanager
def loss_on_cuda(config, batch, sequence, *, precision="fp32", attention="eager", checkpointing=False):
    """A forward pass with its loss on CUDA, as a function."""
    kind = POLICIES[precision]
    torch.set_default_dtype(TYPES.get(kind.weights, torch.float32))
    try:
        with cuda(config.experts):
            model = lm.DecoderOnly(config, attention=attention, checkpointing=checkpointing, device="cuda")
            tokens = torch.zeros(batch, sequence, dtype=torch.long, device="cuda")

            def loss():
                with autocast(TYPES[kind.products]) if kind.casts else contextlib.nullcontext():
                    return F.cross_entropy(model(tokens).flatten(0, 1).float(), tokens.flatten())

            yield loss
    finally:
        torch.set_default_dtype(torch.float32)


def held(config, batch, sequence, **policy):
    """The truth: what the hooks of saved tensors see."""
    with loss_on_cuda(config, batch, sequence, **policy) as loss:
        return measure.saved_activation_bytes(loss)


def check(config, batch, sequence, **policy):
    counted = held(config, batch, sequence, **policy).total
    predicted = saved_activation_bytes(config, batch=batch, sequence=sequence, device="cuda", **policy)
    assert predicted.total == counted, (config, policy, predicted)


SIZES = {"layers": 2, "d_model": 32, "heads": 4, "vocab": 13, "context": 40, "d_ff": 24}
LLAMA = {"mlp": "swiglu", "norm": "rmsnorm", "positions": "rope", "bias": "none", "tied_head": False, "kv_heads": 2}
MODELS = {
    "gpt2": TransformerConfig(**SIZES),
    "llama": TransformerConfig(**SIZES, **LLAMA),
    "llama with all heads": TransformerConfig(**{**SIZES, **LLAMA, "kv_heads": 4}),
    "mixtral": TransformerConfig(**SIZES, **LLAMA, experts=3, experts_per_token=2),
}
PRECISIONS = ("fp32", "bf16", "autocast", "fp16", "autocast-fp16")
#: Attention, checkpointing, dropout: two places whose sum is 7 have no value in common.
SWITCHES = tuple(itertools.product(("eager", "sdpa"), (False, True), (0.0, 0.1)))


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", MODELS)
def test_models_of_the_course_under_every_precision_to_the_byte(name, precision):
    # Each pair of values of two switches once; the other half of the eight cases with the next precision.
    odd = (list(MODELS).index(name) + PRECISIONS.index(precision)) % 2
    for place, (attention, checkpointing, dropout) in enumerate(SWITCHES):
        if place.bit_count() % 2 == odd:
            config = dataclasses.replace(MODELS[name], dropout=dropout)
            check(config, 3, 12, precision=precision, attention=attention, checkpointing=checkpointing)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_windows_odd_heads_and_single_tokens_to_the_byte(precision):
    choices = itertools.product(("eager", "sdpa"), (0.0, 0.1), (4, 2, 1), (None, 5), (8, 6, 3), (1, 9, 33))
    # Sixteen of 216: each value of a choice meets each value of every other.
    for attention, dropout, kv_heads, window, width, sequence in itertools.islice(choices, 0, None, 14):
        config = TransformerConfig(**SIZES, kv_heads=kv_heads, head_dim=width, window=window, dropout=dropout)
        check(config, 2, sequence, precision=precision, attention=attention)


@pytest.mark.parametrize(("number", "name"), enumerate(LIKE), ids=list(LIKE))
def test_blocks_like_those_of_real_architectures_to_the_byte(number, name):
    config = dataclasses.replace(BASE, **LIKE[name])
    for precision, attention in (
        (PRECISIONS[number % 5], ("eager", "sdpa")[number // 5 % 2]),
        ("autocast", ("sdpa", "eager")[number % 2]),
    ):
        check(config, 3, 12, precision=precision, attention=attention)


def test_a_block_is_what_two_layers_have_more_than_one():
    one, two = (dataclasses.replace(MODELS["llama"], layers=n) for n in (1, 2))
    policy = {"precision": "autocast", "attention": "sdpa"}
    more = held(two, 2, 8, **policy).total - held(one, 2, 8, **policy).total
    assert saved_block_bytes(one, batch=2, sequence=8, device="cuda", **policy).total == more


FOREACH = ("adamw", "adam", "nadam", "momentum", "adagrad", "rmsprop")


@pytest.mark.parametrize(
    ("name", "implementation"), [*((name, "foreach") for name in FOREACH), ("adamw", "fused"), ("adam", "fused")]
)
def test_what_an_optimizer_keeps_on_the_device_and_makes_for_a_moment(name, implementation):
    kinds = {kind.lower(): getattr(torch.optim, kind) for kind in ("AdamW", "Adam", "NAdam", "Adagrad", "RMSprop")}
    written = program(MODELS["gpt2"], batch=1, sequence=1, device="cuda")
    with cuda():
        model = lm.DecoderOnly(MODELS["gpt2"], device="cuda")
        options = {"momentum": 0.9} if name == "momentum" else {}
        optimizer = kinds.get(name, torch.optim.SGD)(model.parameters(), lr=0.1, **{implementation: True}, **options)
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        points = measure.memory_timeline(optimizer.step)
    kept = [t for state in optimizer.state.values() for t in state.values() if torch.is_tensor(t)]
    on_device = [t.nbytes for t in kept if t.device.type == "cuda"]
    assert sorted(on_device) == sorted(state_requests(written, name, implementation))
    assert max(point.live_bytes for point in points) == sum(temporary_requests(written, name, implementation))
