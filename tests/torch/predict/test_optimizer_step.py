"""Predicted temporaries of a step against the bytes alive during one."""

from functools import partial

import pytest
import torch

from cs336kit import measure, predict

SHAPES = [(30, 10), (100,), (50, 4), (7,)]
PARAMETERS = sum(torch.Size(shape).numel() for shape in SHAPES)
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
CASES = {
    "sgd": torch.optim.SGD,
    "momentum": partial(torch.optim.SGD, momentum=0.9, nesterov=True),
    "adagrad": torch.optim.Adagrad,
    "rmsprop": partial(torch.optim.RMSprop, centered=True, momentum=0.9),
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "adamax": torch.optim.Adamax,
    "nadam": torch.optim.NAdam,
    "radam": torch.optim.RAdam,
    "adadelta": torch.optim.Adadelta,
    "asgd": torch.optim.ASGD,
}


def peak(make, dtype, **options):
    parameters = [torch.nn.Parameter(torch.ones(shape, dtype=dtype)) for shape in SHAPES]
    optimizer = make(parameters, lr=1e-3, **options)
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    for _ in range(2):
        optimizer.step()
    return measure.peak_bytes(optimizer.step, device="cpu")


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("precision", DTYPES)
@pytest.mark.parametrize("name", CASES)
def test_foreach(name, precision, weight_decay):
    predicted = predict.optimizer_step_bytes(
        name, parameters=PARAMETERS, precision=precision, weight_decay=weight_decay
    )
    assert predicted == peak(CASES[name], DTYPES[precision], foreach=True, weight_decay=weight_decay)


@pytest.mark.parametrize("name", ["sgd", "momentum", "adagrad", "adam", "adamw"])
def test_fused_needs_nothing(name):
    assert predict.optimizer_step_bytes(name, parameters=9, implementation="fused") == 0
    assert peak(CASES[name], torch.float32, fused=True, weight_decay=0.1) == 0


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"optimizer": "lion", "parameters": 9}, "unknown optimizer 'lion'"),
        ({"optimizer": "adam", "parameters": 0}, "parameters must be a positive whole number"),
        ({"optimizer": "adam", "parameters": 9, "implementation": "for-loop"}, "Known: foreach, fused"),
        ({"optimizer": "adam", "parameters": 9, "precision": "fp8"}, "unknown precision 'fp8'"),
    ],
)
def test_refusals(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        predict.optimizer_step_bytes(**options)
