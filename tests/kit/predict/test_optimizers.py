"""State of torch.optim after two real steps, and temporary tensors of a step: 0 bytes off."""

from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cs336kit import measure, predict
from cs336plan.training.question import FUSED

pytestmark = pytest.mark.torch

SHAPES = [(), (7,), (5, 3), (16, 16), (2, 3, 4), (1, 9), (4, 1)]
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp64": torch.float64}
CASES = [
    ("sgd", torch.optim.SGD, {}),
    ("sgd", torch.optim.SGD, {"momentum": 0.9}),
    ("momentum", partial(torch.optim.SGD, momentum=0.9), {}),
    ("Adagrad", torch.optim.Adagrad, {}),
    ("RMSprop", torch.optim.RMSprop, {}),
    ("rmsprop", torch.optim.RMSprop, {"centered": True}),
    ("rmsprop", torch.optim.RMSprop, {"momentum": 0.9}),
    ("rmsprop", torch.optim.RMSprop, {"momentum": 0.9, "centered": True}),
    ("Adam", torch.optim.Adam, {}),
    ("adam", torch.optim.Adam, {"amsgrad": True}),
    ("AdamW", torch.optim.AdamW, {}),
    ("adamw", torch.optim.AdamW, {"amsgrad": True}),
    ("adamax", torch.optim.Adamax, {}),
    ("nadam", torch.optim.NAdam, {}),
    ("radam", torch.optim.RAdam, {}),
    ("adadelta", torch.optim.Adadelta, {}),
    ("asgd", torch.optim.ASGD, {}),
    ("rprop", torch.optim.Rprop, {}),
    ("adafactor", torch.optim.Adafactor, {}),
]


def two_steps(make, shapes, dtype, **options):
    parameters = [torch.nn.Parameter(torch.ones(shape, dtype=dtype)) for shape in shapes]
    optimizer = make(parameters, **options)
    for _ in range(2):
        for parameter in parameters:
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
    return optimizer


@pytest.mark.parametrize("precision", DTYPES)
@pytest.mark.parametrize(("name", "make", "options"), CASES)
def test_zero_bytes_off(name, make, options, precision):
    measured = measure.state_bytes(two_steps(make, SHAPES, DTYPES[precision], **options))
    assert predict.optimizer_state_bytes(name, shapes=SHAPES, precision=precision, **options) == measured


@pytest.mark.parametrize("precision", DTYPES)
def test_muon(precision):
    shapes = [(5, 3), (16, 16), (1, 9)]
    measured = measure.state_bytes(two_steps(torch.optim.Muon, shapes, DTYPES[precision]))
    assert predict.optimizer_state_bytes("muon", shapes=shapes, precision=precision) == measured


def test_sparse_adam():
    table = torch.nn.Embedding(10, 4, sparse=True)
    optimizer = torch.optim.SparseAdam(table.parameters())
    for _ in range(2):
        optimizer.zero_grad()
        table(torch.tensor([1, 2])).sum().backward()
        optimizer.step()
    assert predict.optimizer_state_bytes("sparseadam", shapes=[(10, 4)]) == measure.state_bytes(optimizer)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.lists(st.integers(1, 5), max_size=4).map(tuple), min_size=1, max_size=4))
def test_adafactor_for_any_shapes(shapes):
    measured = measure.state_bytes(two_steps(torch.optim.Adafactor, shapes, torch.float32))
    assert predict.optimizer_state_bytes("adafactor", shapes=shapes) == measured


def test_momentum_of_an_optimizer_that_always_keeps_it_costs_nothing_more():
    for name in ("momentum", "Muon"):
        plain, given = (predict.optimizer_state_bytes(name, shapes=[(5, 3)], momentum=m) for m in (False, 0.9))
        assert dict(plain) == dict(given) == {"momentum_buffer": 4 * 15}
        with pytest.raises(
            ValueError, match=f"{name} keeps no state for amsgrad=True; options that cost state here: none"
        ):
            predict.optimizer_state_bytes(name, shapes=[(5, 3)], amsgrad=True)


def test_counts_in_place_of_shapes():
    elements = sum(torch.Size(shape).numel() for shape in SHAPES)
    by_count = predict.optimizer_state_bytes("adamw", parameters=elements, tensors=len(SHAPES))
    assert by_count == predict.optimizer_state_bytes("adamw", shapes=SHAPES)
    assert by_count.total == 2 * 4 * elements + 4 * len(SHAPES)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            {"optimizer": "lions", "shapes": SHAPES},
            "unknown optimizer 'lions'. Did you mean 'lion'.* Known: sgd, momentum",
        ),
        ({"optimizer": None, "shapes": SHAPES}, "unknown optimizer None"),
        ({"optimizer": "adam", "shapes": SHAPES, "precision": "int8"}, "unknown precision 'int8'"),
        ({"optimizer": "adamw", "shapes": SHAPES, "momentum": 0.9}, "keeps no state for momentum=0.9"),
        ({"optimizer": "sgd", "shapes": SHAPES, "amsgrad": True}, "options that cost state here: momentum"),
        ({"optimizer": "adam"}, "the size of the model is missing"),
        ({"optimizer": "adam", "parameters": 10}, "both parameters"),
        ({"optimizer": "adam", "parameters": True, "tensors": 1}, "parameters must be a positive whole number"),
        ({"optimizer": "adam", "shapes": SHAPES, "tensors": 3}, "leave those two out"),
        ({"optimizer": "adam", "shapes": [(2, -1)]}, "a dimension must be"),
        ({"optimizer": "adam", "shapes": 7}, "one tuple for each parameter tensor"),
        ({"optimizer": "adam", "shapes": [3, 4]}, "such as .* got 3"),
        ({"optimizer": "muon", "shapes": [(3,)]}, "muon takes matrices only"),
        ({"optimizer": "adafactor", "parameters": 9, "tensors": 1}, "keeps state by shape"),
    ],
)
def test_refusals(arguments, sentence):
    with pytest.raises(ValueError, match=sentence):
        predict.optimizer_state_bytes(**arguments)


STEP_SHAPES = [(30, 10), (100,), (50, 4), (7,)]
PARAMETERS = sum(torch.Size(shape).numel() for shape in STEP_SHAPES)
STEP_CASES = {
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


def peak(make, dtype, shapes=STEP_SHAPES, **options):
    parameters = [torch.nn.Parameter(torch.ones(shape, dtype=dtype)) for shape in shapes]
    optimizer = make(parameters, lr=1e-3, **options)
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    for _ in range(2):
        optimizer.step()
    return measure.peak_bytes(optimizer.step, device="cpu")


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("name", STEP_CASES)
def test_foreach(name, precision, weight_decay):
    predicted = predict.optimizer_step_bytes(
        name, parameters=PARAMETERS, precision=precision, weight_decay=weight_decay
    )
    assert predicted == peak(STEP_CASES[name], DTYPES[precision], foreach=True, weight_decay=weight_decay)


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("name", [name for name in STEP_CASES if name not in ("momentum", "asgd")])
def test_loop(name, order):
    sizes = [torch.Size(shape).numel() for shape in STEP_SHAPES[::order]]
    measured = peak(STEP_CASES[name], torch.float32, STEP_SHAPES[::order], foreach=False)
    assert predict.optimizer_step_bytes(name, sizes=sizes, implementation="loop") == measured


def test_momentum_without_nesterov_and_8_bit_optimizers_need_nothing():
    assert peak(partial(torch.optim.SGD, momentum=0.9), torch.float32, foreach=False) == 0
    # Their kernels read and write 8 bits, and make no tensor between.
    for name in ("momentum", "adamw8bit", "lion8bit"):
        assert predict.optimizer_step_bytes(name, sizes=[9, 7], implementation="loop") == 0
    for name in ("adamw8bit", "lion8bit"):
        for decay in (0.0, 0.1):
            assert predict.optimizer_step_bytes(name, parameters=9, weight_decay=decay) == 0


@pytest.mark.parametrize(("elements", "size"), [(4095, 4 * 4095), (4096, 4096 + 4 * 16), (4097, 4097 + 4 * 17)])
def test_a_state_is_of_8_bits_from_4096_elements_on(elements, size):
    """Dettmers et al. 2021: below, it stays in fp32; above, every 256 elements share one fp32."""
    state = predict.optimizer_state_bytes("adamw8bit", shapes=[(elements,)])
    assert {*state.values()} == {size} and len(state) == 2


def test_of_no_tensors_a_loop_makes_nothing():
    assert predict.optimizer_step_bytes("adam", sizes=[], implementation="loop") == 0


@pytest.mark.parametrize("name", FUSED)
def test_fused_needs_nothing(name):
    assert predict.optimizer_step_bytes(name, parameters=9, implementation="fused") == 0
    assert peak(STEP_CASES[name], torch.float32, fused=True, weight_decay=0.1) == 0


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"optimizer": "lions", "parameters": 9}, "unknown optimizer 'lions'"),
        ({"optimizer": "lion", "parameters": 9}, "unknown optimizer with a known foreach implementation 'lion'"),
        ({"optimizer": "adam", "implementation": "loop"}, "give sizes"),
        ({"optimizer": "lion", "sizes": [9], "implementation": "loop"}, "its temporary tensors are not known"),
        ({"optimizer": "adam", "parameters": 0}, "parameters must be a positive whole number"),
        ({"optimizer": "adam", "parameters": 9, "implementation": "for-loop"}, "Known: foreach, fused"),
        ({"optimizer": "adam", "parameters": 9, "precision": "fp8"}, "unknown precision 'fp8'"),
    ],
)
def test_refusals_of_a_step(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        predict.optimizer_step_bytes(**options)
