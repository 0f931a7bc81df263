"""What a policy says of a model's element types, against the tensors of a real step in it."""

import contextlib
import dataclasses

import pytest
import torch

from cs336kit import lm, predict
from cs336kit.predict import POLICIES, PrecisionPolicy, TransformerConfig
from cs336kit.predict.precision import ELEMENT_BYTES, policy

pytestmark = pytest.mark.torch

TINY = TransformerConfig(layers=1, d_model=8, heads=2, vocab=7, context=4)
TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def test_bytes_of_an_element_are_those_of_torch():
    others = {"fp64": torch.float64, "tf32": torch.float32, "fp8": torch.float8_e4m3fn, "int64": torch.int64,
              "int8": torch.int8, "bool": torch.bool}  # fmt: skip
    assert {name: dtype.itemsize for name, dtype in (TYPES | others).items()} == ELEMENT_BYTES


@pytest.mark.parametrize("name", ["fp32", "bf16", "autocast", "fp16", "autocast-fp16"])
def test_the_types_of_a_real_step(name):
    kind = POLICIES[name]
    model = lm.DecoderOnly(TINY).to(TYPES[kind.weights])
    seen = {}
    model.blocks[0].norm1.register_forward_hook(lambda module, given, out: seen.update(stream=given[0].dtype))
    model.blocks[0].attention.query.register_forward_hook(lambda module, given, out: seen.update(product=out.dtype))
    optimizer = torch.optim.AdamW(model.parameters())
    with torch.autocast("cpu", TYPES[kind.products]) if kind.casts else contextlib.nullcontext():
        loss = model(torch.zeros(1, 4, dtype=torch.int64)).float().sum()
    loss.backward()
    optimizer.step()
    assert {p.dtype for p in model.parameters()} == {TYPES[kind.weights]}
    assert {p.grad.dtype for p in model.parameters()} == {TYPES[kind.gradients]}
    assert {state["exp_avg"].dtype for state in optimizer.state.values()} == {TYPES[kind.states]}
    assert seen == {"stream": TYPES[kind.activations], "product": TYPES[kind.products]}
    assert kind.casts == name.startswith("autocast") and kind.master_weights is None


def test_mixed_policies_keep_fp32_masters_of_a_bf16_model():
    for name in ("mixed", "mixed-fp32-gradients"):
        kind = POLICIES[name]
        assert (kind.weights, kind.master_weights, kind.states, kind.casts) == ("bf16", "fp32", "fp32", False)
    assert POLICIES["mixed-fp32-gradients"].gradients == "fp32"


def test_a_policy_of_your_own():
    mine = dataclasses.replace(POLICIES["fp32"], name="mine", states="bf16")
    assert policy(mine) is mine and isinstance(mine, PrecisionPolicy)
    options = {"batch": 1, "sequence": 4}
    ours, plain = (predict.step_peak(TINY, precision=precision, **options) for precision in (mine, "fp32"))
    counters = 4 * len(predict.parameter_shapes(TINY))
    assert 2 * (ours["optimizer state"] - counters) == plain["optimizer state"] - counters
    assert predict.bytes_per_parameter("adamw", precision=mine).total == 12


def test_unknown_policies_list_the_known_ones():
    with pytest.raises(
        ValueError,
        match=r"unknown precision 'fp8'.*Known: fp32, autocast, bf16, bf16-fp32-moments, autocast-fp16, fp16, mixed, mixed-fp32",
    ):
        policy("fp8")
    with pytest.raises(ValueError, match="unknown precision None"):
        policy(None)
