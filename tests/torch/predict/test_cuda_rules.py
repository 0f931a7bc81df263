"""What autograd keeps on CUDA, without a GPU: a CUDA build of torch runs the forward pass on fake tensors.

With a GPU the same cases run on real ones. `make cuda-rules` makes an environment with such a build.
"""

import contextlib
import dataclasses
import itertools

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from cs336kit import lm, measure
from cs336kit.predict import POLICIES, TransformerConfig, program, saved_activation_bytes, saved_block_bytes
from cs336kit.predict._states import state_requests, temporary_requests
from cs336kit.predict._transformers import WRITINGS

pytestmark = pytest.mark.skipif(
    torch.version.cuda is None,
    reason="torch is a CPU build here, on which CUDA tensors cannot even be faked: make cuda-rules brings a CUDA build",
)
FAKE = not torch.cuda.is_available()
TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
aten = torch.ops.aten


class WithoutDriver(TorchFunctionMode):
    """Torch asks the driver which attention kernel to take, and the data how many tokens an expert gets: say both.

    Which kernel takes what: aten/src/ATen/native/transformers/cuda/sdp_utils.cpp, can_use_flash_attention and
    can_use_mem_efficient_attention; what is done before: ATen/native/transformers/attention.cpp.
    """

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if function is F.scaled_dot_product_attention:
            enabled, kind = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
            torch.set_autocast_enabled("cuda", False)  # as inside of torch's own function, once the inputs are cast
            try:
                if enabled:
                    args = [t.to(kind) for t in args]
                return self.attention(*args, **kwargs)
            finally:
                torch.set_autocast_enabled("cuda", enabled)
        if function is torch.Tensor.nonzero and kwargs.get("as_tuple"):
            (chosen,) = args
            visits = torch.zeros(chosen.numel() // self.experts, dtype=torch.long, device=chosen.device)
            return visits, visits
        if function is torch.Tensor.__bool__:
            return True  # what transformers asks the data: is this one sequence per row?
        return function(*args, **kwargs)

    experts = 1

    @staticmethod
    def attention(q, k, v, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
        h = q.shape[-1]
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            attn_mask = torch.where(attn_mask, 0.0, torch.full((), -torch.inf, dtype=q.dtype, device=q.device))
        scale = h**-0.5 if scale is None else scale
        half, alike = q.dtype != torch.float32, k.shape[1] == q.shape[1]
        if half and (alike or enable_gqa) and attn_mask is None and h <= 256:
            q, k, v = (F.pad(t, (0, -h % 8)) if h % 8 else t for t in (q, k, v))
            return aten._scaled_dot_product_flash_attention(q, k, v, dropout_p, is_causal, scale=scale)[0][..., :h]
        if alike and h % (8 if half else 4) == 0:
            if attn_mask is not None:
                S = attn_mask.shape[-1]
                attn_mask = F.pad(attn_mask, (0, 8 - S % 8))[..., :S] if S % 8 else attn_mask
                attn_mask = attn_mask.expand(*q.shape[:3], S)
            given = q, k, v, attn_mask, True, dropout_p, is_causal
            return aten._scaled_dot_product_efficient_attention(*given, scale=scale)[0]
        rest = {"scale": scale, "enable_gqa": enable_gqa}
        return aten._scaled_dot_product_attention_math(q, k, v, attn_mask, dropout_p, is_causal, **rest)[0]


@contextlib.contextmanager
def autocast(dtype):
    """torch.autocast("cuda"), which switches itself off where there is no driver."""
    torch.set_autocast_enabled("cuda", True)
    torch.set_autocast_dtype("cuda", dtype)
    torch.autocast_increment_nesting()
    try:
        yield
    finally:
        torch.autocast_decrement_nesting()
        torch.clear_autocast_cache()
        torch.set_autocast_enabled("cuda", False)


@contextlib.contextmanager
def cuda(experts):
    """Fake tensors and torch's choices made for it, or a GPU with the kernels that every generation has."""
    if FAKE:
        driver = WithoutDriver()
        driver.experts = max(1, experts)
        with FakeTensorMode(), driver:
            yield
    else:
        with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]):
            yield


def held(config, batch, sequence, *, precision="fp32", attention="eager", checkpointing=False):
    """The truth: a forward pass with its loss on CUDA, by what the hooks of saved tensors see."""
    kind = POLICIES[precision]
    torch.set_default_dtype(TYPES.get(kind.weights, torch.float32))
    try:
        with cuda(config.experts):
            model = lm.DecoderOnly(config, attention=attention, checkpointing=checkpointing, device="cuda")
            tokens = torch.zeros(batch, sequence, dtype=torch.long, device="cuda")

            def loss():
                with autocast(TYPES[kind.products]) if kind.casts else contextlib.nullcontext():
                    return F.cross_entropy(model(tokens).flatten(0, 1).float(), tokens.flatten())

            return measure.saved_activation_bytes(loss)
    finally:
        torch.set_default_dtype(torch.float32)


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


@pytest.mark.parametrize("name", MODELS)
def test_models_of_the_course_under_every_policy_to_the_byte(name):
    # 5 · 2 · 2 · 2 = 40 cases each
    cases = itertools.product(PRECISIONS, ("eager", "sdpa"), (False, True), (0.0, 0.1))
    for precision, attention, checkpointing, dropout in cases:
        config = dataclasses.replace(MODELS[name], dropout=dropout)
        check(config, 3, 12, precision=precision, attention=attention, checkpointing=checkpointing)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_windows_odd_heads_and_single_tokens_to_the_byte(precision):
    choices = itertools.product(("eager", "sdpa"), (0.0, 0.1), (4, 2, 1), (None, 5), (8, 6, 3), (1, 9, 33))
    # Every fifth of 216: each value of a choice meets each value of every other.
    for attention, dropout, kv_heads, window, width, sequence in itertools.islice(choices, 0, None, 5):
        config = TransformerConfig(**SIZES, kv_heads=kv_heads, head_dim=width, window=window, dropout=dropout)
        check(config, 2, sequence, precision=precision, attention=attention)


def test_a_block_is_what_two_layers_have_more_than_one():
    one, two = (dataclasses.replace(MODELS["llama"], layers=n) for n in (1, 2))
    policy = {"precision": "autocast", "attention": "sdpa"}
    more = held(two, 2, 8, **policy).total - held(one, 2, 8, **policy).total
    assert saved_block_bytes(one, batch=2, sequence=8, device="cuda", **policy).total == more


@pytest.mark.parametrize("name", WRITINGS)
def test_models_of_transformers_under_every_policy_to_the_byte(name, monkeypatch):
    pytest.importorskip("transformers", reason="transformers is not installed beside this build of torch")
    from benchmarks import kept

    # It takes fake tensors for a sign that somebody exports the model, and makes masks that it makes for nobody else.
    monkeypatch.setattr("transformers.masking_utils.is_tracing", lambda *tensors: False)
    # On a device of compute capability 8.0 or more; in fp32 and fp16, whose grouped product asks the driver, fake tensors
    # take the fallback, which keeps the same.
    half = ("transformers.integrations.moe._can_use_grouped_mm", lambda x, *rest: x.dtype == torch.bfloat16)
    monkeypatch.setattr(*half)
    sizes = kept.Sizes(head_dim=16)
    for policy in kept.POLICIES:
        kind = POLICIES[policy.precision]
        with cuda(0):
            with torch.device("cuda"):
                model, tokens = (
                    kept.model_of(name, policy, sizes),
                    torch.zeros(sizes.batch, sizes.sequence, dtype=torch.long),
                )

            def loss(model=model, tokens=tokens, kind=kind):
                with autocast(TYPES[kind.products]) if kind.casts else contextlib.nullcontext():
                    return model(input_ids=tokens, labels=tokens, use_cache=False).loss

            counted = measure.saved_activation_bytes(loss).total
        assert kept.predicted(name, policy, sizes, device="cuda") == counted, policy


FOREACH = ("adamw", "adam", "nadam", "momentum", "adagrad", "rmsprop")


@pytest.mark.parametrize(
    ("name", "implementation"), [*((name, "foreach") for name in FOREACH), ("adamw", "fused"), ("adam", "fused")]
)
def test_what_an_optimizer_keeps_on_the_device_and_makes_for_a_moment(name, implementation):
    kinds = {kind.lower(): getattr(torch.optim, kind) for kind in ("AdamW", "Adam", "NAdam", "Adagrad", "RMSprop")}
    written = program(MODELS["gpt2"], batch=1, sequence=1, device="cuda")
    with cuda(0):
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
