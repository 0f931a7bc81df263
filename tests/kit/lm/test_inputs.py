"""Bad input of `lm` meets a sentence that names it, at the call that was given it."""

import inspect
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from cs336kit import lm
from cs336kit.predict import TransformerConfig

pytestmark = pytest.mark.torch

CONFIG = TransformerConfig(layers=1, d_model=8, heads=2, vocab=11, context=6)
#: A value for every argument without a default of what takes a boolean.
GIVEN: dict[str, Any] = {
    "inputs": 4, "outputs": 4, "width": 4, "d_model": 8, "d_ff": 8, "heads": 2, "layers": 1, "kv_latent": 4,
    "rotary_dim": 4, "head_dim": 4, "experts": [nn.Identity()], "experts_per_token": 1, "config": CONFIG, "total": 1,
    "unit": "steps", "model": nn.Identity(), "optimizer": None, "batches": (), "steps": 1, "batch": 1, "sequence": 4,
    "max_lr": 0.1, "vocab": 9, "path": "never-written", "tokens": (), "self": None,
    "a": torch.ones(16, 16), "b": torch.ones(16, 16), "scale_a": None, "scale_b": None, "dtype": torch.bfloat16,
}  # fmt: skip


def booleans() -> list[tuple[str, str]]:
    """Every public function, class and method of lm with an argument that is annotated bool, and that argument."""
    found = []
    for name in dir(lm):
        owner = getattr(lm, name)
        ours = getattr(owner, "__module__", "").startswith("cs336kit.lm")
        if not ours or (inspect.isclass(owner) and issubclass(owner, Exception)):
            continue
        several = {name: owner} if callable(owner) else {}
        if inspect.isclass(owner):
            several |= {f"{name}.{own}": getattr(owner, own) for own in vars(owner) if not own.startswith("_")}
        for full, each in several.items():
            if inspect.isfunction(each) or inspect.ismethod(each) or inspect.isclass(each):
                arguments = inspect.signature(each).parameters.values()
                found += [(full, argument.name) for argument in arguments if argument.annotation is bool]
    return found


def test_there_are_booleans_to_look_at():
    assert {("Linear", "bias"), ("train", "progress"), ("TokenFile.write", "progress")} <= set(booleans())


@pytest.mark.parametrize(("name", "argument"), booleans())
@pytest.mark.parametrize("value", ["no", 1, None])
def test_what_is_no_boolean_is_refused(name, argument, value):
    called: Any = lm
    for part in name.split("."):
        called = getattr(called, part)
    required = [
        parameter.name
        for parameter in inspect.signature(called).parameters.values()
        if parameter.default is inspect.Parameter.empty and parameter.kind in (0, 1, 3)
    ]
    given = {each: [nn.Parameter(torch.ones(2))] if each == "params" else GIVEN[each] for each in required}
    with pytest.raises(ValueError, match=rf"^{argument} .*must be True or False"):
        called(**given | {argument: value})


@pytest.mark.parametrize("method", ["eager", "sdpa"])
def test_a_mask_of_zeros_and_ones_and_a_dropout_that_is_no_share_are_refused(method):
    x = torch.randn(1, 2, 3, 4)
    for mask in (torch.ones(3, 3, dtype=torch.int64), [[1]]):
        with pytest.raises(ValueError, match=r"mask must be a tensor of booleans .* got (torch.int64|list)"):
            lm.attention(x, x, x, mask=mask, method=method)
    for dropout in (True, "no", 2.0, -0.5, float("nan")):
        with pytest.raises(ValueError, match=r"dropout must be a fraction from 0 to 1"):
            lm.attention(x, x, x, dropout=dropout, method=method)
    latent = lm.LatentAttention(8, 2, kv_latent=4, rotary_dim=2, head_dim=4, method=method)
    with pytest.raises(ValueError, match="mask must be a tensor of booleans"):
        latent(torch.randn(1, 3, 8), mask=torch.ones(3, 3, dtype=torch.int64))


def test_a_query_that_may_look_nowhere_is_nan_or_zero_as_said():
    x, mask = torch.randn(2, 3, 4), torch.tensor([[True, True, True], [False, False, False], [True, False, False]])
    assert lm.attention(x, x, x, mask=mask, method="eager")[:, 1].isnan().all()
    assert (lm.attention(x, x, x, mask=mask, method="sdpa")[:, 1] == 0).all()


@pytest.mark.parametrize("name", ["schedule", "clip", "evaluate", "after_step"])
def test_a_part_of_training_that_cannot_be_called_is_refused(name):
    model = lm.Linear(2, 2)
    with pytest.raises(ValueError, match=f"{name} must be a function or None, got True"):
        lm.train(model, torch.optim.SGD(model.parameters()), [], steps=1, **{name: True})


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"batch": 2.0}, "batch must be a positive whole number"),
        ({"sequence": 10}, "sequence=10 needs 11 tokens"),
        ({"tokens": np.ones((2, 9), dtype=int)}, "one row of whole numbers"),
    ],
)
def test_batches_that_cannot_be_drawn_are_refused_before_the_first(changed, sentence):
    with pytest.raises(ValueError, match=sentence):
        lm.Batches(**{"tokens": np.arange(10), "batch": 2, "sequence": 4, "seed": 0, **changed})


@pytest.mark.parametrize("optimizer", [lm.SGD, lm.Momentum, lm.AdaGrad, lm.RMSProp, lm.Adam, lm.AdamW])
def test_a_misspelled_option_of_a_group_and_parameters_that_cannot_be_trained_are_refused(optimizer):
    weight = nn.Parameter(torch.ones(2))
    with pytest.raises(ValueError, match="weight_decya is not an option .* Did you mean 'weight_decay'"):
        optimizer([{"params": [weight], "weight_decya": 0.1}])
    assert optimizer([{"params": [weight], "name": "mine", "lr_scale": 2}]).param_groups[0]["lr_scale"] == 2
    with pytest.raises(ValueError, match="is in the group twice"):
        optimizer([weight, weight])
    with pytest.raises(ValueError, match=r"a parameter of torch.int64 can have no gradient"):
        optimizer([{"params": torch.ones(2, dtype=torch.int64)}])
    with pytest.raises(TypeError, match="set"):
        optimizer([{"params": {weight}}])
    assert len(optimizer([("a", weight)]).param_groups[0]["params"]) == 1


@pytest.mark.parametrize(
    ("tokens", "given"),
    [
        ([[1, 2]], "list"),
        (torch.ones(1, 2), "torch.float32"),
        (torch.tensor([1, 2]), r"shape \(2,\)"),
        (torch.ones(1, 2, dtype=torch.uint8), "torch.uint8"),
    ],
)
def test_what_are_no_tokens_is_refused(tokens, given):
    with pytest.raises(ValueError, match=rf"tokens must be a tensor \(B, S\) of int64 or int32, got .*{given}"):
        lm.DecoderOnly(CONFIG)(tokens)


def test_a_token_outside_the_vocabulary_is_told_which_tokens_there_are():
    for tokens in (torch.tensor([[11]]), torch.tensor([[-1]])):
        with pytest.raises(IndexError, match="it has rows 0 to 10"):
            lm.DecoderOnly(CONFIG)(tokens)
