"""Every function of sizes takes numpy's integers for what they are, however large the result, and refuses what is no size."""

import dataclasses
import inspect
import json
from functools import partial

import numpy
import pytest
import torch

import cs336plan
from cs336kit import predict
from cs336kit.predict.allocator import allocated_bytes, reserved_bytes
from cs336kit.predict.decoder.step import StepOptions
from cs336kit.predict.napkin import delivered_flops, largest_model, matmul_flops, six_nd, training_days
from cs336kit.predict.transfers import pcie_bandwidth, pipeline_seconds

pytestmark = pytest.mark.torch

GPT2 = predict.MODELS["gpt2"]
SIZES = {"layers": 2, "d_model": 64, "heads": 4, "vocab": 96, "context": 32}
BIG = 2**20  # two of them multiplied do not fit into 32 bits
#: function, positional and named arguments
CALLS = [
    (predict.Cost, (BIG, BIG), {}),
    (lambda flops, bytes: predict.Cost(flops, bytes) * 4096 + predict.Cost(flops, bytes), (BIG, BIG), {}),
    (predict.matmul_cost, (BIG, BIG, BIG), {"batch": 3, "bytes_per_element": 2}),
    (predict.elementwise_cost, (BIG,), {"flops_per_element": BIG, "reads": BIG}),
    (predict.softmax_cost, (BIG, BIG), {}),
    (matmul_flops, (BIG, BIG, BIG), {"batch": BIG}),
    (six_nd, (BIG,), {"tokens": BIG}),
    (delivered_flops, (BIG,), {"peak_flops_per_second": BIG, "days": 2}),
    (training_days, (BIG,), {"tokens": BIG, "accelerators": 3, "peak_flops_per_second": BIG, "mfu": 1}),
    (largest_model, (BIG,), {"memory_bytes": BIG, "bytes_per_parameter": 3}),
    (pcie_bandwidth, (4,), {"lanes": 16}),
    (pipeline_seconds, (BIG,), {"copy_seconds": BIG, "compute_seconds": 2, "overlap": True}),
    (allocated_bytes, (2**31 - 1,), {}),
    (reserved_bytes, ([2**31 - 1, 2**31 - 1],), {}),
    (predict.fraction_cut, (), {"std": 1, "a": -1, "b": 2, "mean": 0}),
    (predict.truncated_std, (), {"std": 1, "a": -1, "b": 2, "mean": 0}),
    (predict.contiguous_strides, ((BIG, BIG, BIG),), {}),
    (predict.extent, ((BIG, BIG),), {"strides": (BIG, 1), "offset": BIG}),
    (predict.view_strides, ((BIG, BIG),), {"strides": (BIG, 1), "to": (BIG * 2, BIG // 2)}),
    (predict.overlaps, ((BIG, BIG),), {"strides": (BIG, 1)}),
    (predict.kaplan_flops, (GPT2,), {"sequence": 1024}),
    (predict.six_nd_estimate, (GPT2,), {"batch": BIG, "sequence": 1024}),
    (predict.forward_flops, (GPT2,), {"batch": BIG, "sequence": 1024}),
    (predict.training_flops, (GPT2,), {"batch": BIG, "sequence": 1024}),
    (predict.saved_activation_bytes, (GPT2,), {"batch": BIG, "sequence": 1024}),
    (predict.kv_cache_bytes, (GPT2,), {"batch": BIG, "sequence": 1024}),
    (predict.traffic_bytes, (GPT2,), {"batch": BIG, "sequence": 1024}),
    (predict.step_peak, (GPT2,), {"batch": BIG, "sequence": 1024, "shards": 3}),
    (predict.largest_batch, (GPT2,), {"sequence": 1024, "memory_bytes": 2**31 - 1}),
    (predict.einsum_flops, ("i j, j k -> i k",), {"i": BIG, "j": BIG, "k": BIG}),
    (predict.einsum_flops, ("i j, j k -> i k", (BIG, BIG), (BIG, BIG)), {}),
    (predict.NumberFormat, ("mine",), {"exponent_bits": 6, "fraction_bits": 9, "storage_bits": 32}),
    (predict.ring_bytes, ("all-reduce", 2**31 - 1), {"ranks": 8}),
    (predict.speculative_tokens, (), {"acceptance": 0.5, "guesses": 3}),
    (predict.speculative_speedup, (), {"acceptance": 0.5, "guesses": 3, "cost_ratio": 1}),
    (predict.optimizer_state_bytes, ("adamw",), {"shapes": ((BIG, BIG),), "precision": "bf16"}),
    (predict.optimizer_state_bytes, ("adamw8bit",), {"shapes": ((BIG, BIG),)}),
    (predict.optimizer_state_bytes, ("adamw",), {"parameters": BIG, "tensors": 3}),
    (predict.optimizer_step_bytes, ("adamw",), {"parameters": BIG}),
    (predict.optimizer_step_bytes, ("adamw",), {"sizes": (BIG, BIG), "implementation": "loop"}),
    (predict.packed_bytes, (BIG, "nf4"), {}),
    (predict.bytes_per_parameter, ("adamw",), {"precision": "mixed"}),
    (predict.compute_optimal, (), {"flops": BIG}),
    (predict.roofline, (predict.Cost(3, 2),), {"peak_flops_per_second": BIG, "bandwidth_bytes_per_second": BIG}),
    (predict.accelerator, ("h100-sxm",), {}),
    (predict.accelerator("h100-sxm").peak, ("bf16",), {"sparse": False, "engine": "tensor"}),
    (predict.accelerator("h100-sxm").cell, ("bf16",), {"sparse": False, "engine": "tensor"}),
    (predict.model, ("gpt2",), {}),
    (predict.from_hf, ({"model_type": "gpt2"},), {}),
    (predict.Layout, (), {"fsdp": 8, "tp": 2}),
    (predict.FORMATS["fp16"].decode, (1234,), {}),
]


def as_numpy(value):
    if type(value) is int:
        return numpy.int32(value)
    return type(value)(map(as_numpy, value)) if isinstance(value, (tuple, list)) else value


@pytest.mark.parametrize(("function", "arguments", "named"), CALLS)
def test_integers_of_numpy_give_the_same_exact_result(function, arguments, named):
    expected = function(*arguments, **named)
    found = function(*map(as_numpy, arguments), **{name: as_numpy(value) for name, value in named.items()})
    assert found == expected and repr(found) == repr(expected)


SERVED = cs336plan.ServingQuestion(GPT2, prompt=100, output=20)


@pytest.mark.parametrize(
    ("answer", "question", "fields"),
    [
        (cs336plan.plan, cs336plan.Question(GPT2), {"steps": 500_000, "batch": 8, "accumulate": 64, "sequence": 1024}),
        (
            cs336plan.plan,
            cs336plan.Question(GPT2),
            {"count": 2, "batch": 4, "global_batch": 16, "chunks": 2, "node": 4},
        ),
        (
            cs336plan.plan,
            cs336plan.Question(GPT2),
            {"lora_rank": 8, "tokens": 10**9, "mfu": 0.5, "price_per_hour": 2.5},
        ),
        (
            cs336plan.plan,
            cs336plan.Question(GPT2),
            {"steps": 1000, "watts": 700, "memory_bytes": 2**30, "allowance": 0.125},
        ),
        (cs336plan.plan, cs336plan.Question(GPT2, count=16), {"between_nodes": 2.0**35, "allowance": 2**30}),
        (
            cs336plan.plan,
            cs336plan.Question(GPT2, tokens=10**9),
            {"model": 10**9, "count": 3, "peak_flops_per_second": 2.0**46},
        ),
        (cs336plan.serve, SERVED, {"count": 2, "batch": 3, "page": 8, "node": 2, "prompt": 100, "output": 10}),
        (cs336plan.serve, SERVED, {"latency": 0.0625, "price_per_hour": 2.5, "allowance": 0.125}),
        (cs336plan.serve, SERVED, {"memory_bytes": 2**30, "bandwidth": 2.0**40, "peak_flops_per_second": 2.0**46}),
    ],
)
def test_questions_of_numpy_have_the_same_plain_answer(answer, question, fields):
    """The tokens of an int32 would overflow, and JSON writes no number of numpy."""
    theirs = {name: numpy.float32(value) if type(value) is float else as_numpy(value) for name, value in fields.items()}
    found, plain = (answer(dataclasses.replace(question, **given)).as_dict() for given in (theirs, fields))
    assert json.dumps(found) == json.dumps(plain)


class Endless:
    """What shows itself at length."""

    def __repr__(self):
        return "z" * 9000


BAD = [None, "three", -1, object(), float("nan"), 1j, 5, (1,), ["x"], [None], {}, 10**400, -(10**5000)]
BAD += [Endless(), "z" * 9000, ["z" * 9000], torch.rand(200)]


def is_a_short_sentence(text):
    return 15 < len(text) < 1000 and text.count("z") < 300 and "\n" not in text and "math domain" not in text


@pytest.mark.parametrize(("function", "arguments", "named"), CALLS)
def test_what_cannot_be_is_refused_in_a_short_sentence(function, arguments, named):
    places = [*range(len(arguments)), *named]
    for place in places:
        for bad in BAD:
            changed, changed_named = list(arguments), dict(named)
            (changed if isinstance(place, int) else changed_named)[place] = bad
            try:
                function(*changed, **changed_named)
            except (ValueError, LookupError) as error:
                assert is_a_short_sentence(str(error))


#: What the kit makes or calls itself.
OWN = (cs336plan.Plan, predict.Program, predict.Device.kernel, predict.Layout.sharing)


def with_booleans():
    """Everything public that takes a boolean: (name, function, arguments that it can be called with, its booleans)."""
    calls = {getattr(function, "__name__", ""): (function, *given) for function, *given in CALLS}
    calls |= {
        "TransformerConfig": (predict.TransformerConfig, (), SIZES),
        "Question": (lambda **given: cs336plan.plan(cs336plan.Question(**given)), (), {"model": GPT2}),
        "Device": (predict.Device, ("mine", None), {}),
        "find_layouts": (predict.find_layouts, (GPT2,), {"count": 2, "accelerator": "h100-sxm", "sequence": 8}),
    }
    found = {}
    for name in predict.__all__:
        value = getattr(predict, name)
        for each in (value, *(vars(value).values() if inspect.isclass(value) else ())):
            if not callable(each) or each in OWN or each.__name__.startswith("_"):
                continue
            given = inspect.signature(each).parameters.values()
            words = [p.name for p in given if "bool" in str(p.annotation) and "tuple" not in str(p.annotation)]
            if words and each.__name__ not in calls:  # a function of a model
                calls[each.__name__] = (each, (GPT2,), {"batch": 1, "sequence": 8})
            if words:
                found[each.__name__] = (*calls[each.__name__], words)
    return found


@pytest.mark.parametrize("name", with_booleans())
def test_a_boolean_is_true_or_false(name):
    function, arguments, named, words = with_booleans()[name]
    function(*arguments, **named)
    for word in words:
        for bad in ("no", 2):
            if bad == 2 and word in ("momentum", "weight_decay"):  # torch takes a number there
                continue
            with pytest.raises(ValueError, match=rf"\b{word}\b"):
                function(*arguments, **named | {word: bad})


LONG = 10**12


@pytest.mark.parametrize(
    "call",
    [
        lambda: predict.speculative_tokens(acceptance=0.5, guesses=LONG),
        lambda: predict.speculative_speedup(acceptance=0.5, guesses=LONG, cost_ratio=0.1),
        lambda: cs336plan.plan(cs336plan.Question(GPT2, batch=LONG + 1)),
        lambda: predict.find_layouts(
            predict.model("bloom"), count=8, accelerator="h100-sxm", sequence=LONG, between_nodes=1
        ),
    ],
)
def test_what_would_never_end_is_refused_with_its_limit(call):
    with pytest.raises(ValueError, match=r"must be at most 10\*\*\d+, got 1\d+\."):
        call()


def test_a_large_batch_is_planned():
    answer = cs336plan.plan(cs336plan.Question(GPT2, batch=963_761_198_400))  # it has 6720 divisors
    size = next(one.changes["batch"] for one in answer.advice if one.changes.get("accumulate", 1) > 1)
    assert 963_761_198_400 % size == 0


@pytest.mark.parametrize("optimizer", sorted(predict.OPTIMIZERS))
def test_every_optimizer_has_bytes_for_each_parameter_or_a_reason(optimizer):
    shapes = [(512, 512), (1024, 512)]
    elements = sum(rows * columns for rows, columns in shapes)
    state = predict.optimizer_state_bytes(optimizer, shapes=shapes)
    scalars = sum(state.get(name, 0) for name in predict.OPTIMIZERS[optimizer].scalars)
    try:
        each = predict.bytes_per_parameter(optimizer)["optimizer state"]
    except ValueError as error:
        assert "optimizer_state_bytes" in str(error)
        assert optimizer in ("adafactor", "muon", "adamw8bit", "lion8bit")
    else:
        assert each * elements == state.total - scalars


def test_what_leaves_the_range_of_floats_says_so():
    for call in (
        lambda: predict.fraction_cut(std=1, a=0, b=10**400),
        lambda: training_days(1e200, tokens=1e200, accelerators=1, peak_flops_per_second=1, mfu=1),
    ):
        with pytest.raises(ValueError, match="no float can hold"):
            call()
    for a, b in ((8, 9), (0, 1e-300), (50, 51)):
        with pytest.raises(ValueError, match="too narrow or too far"):
            predict.truncated_std(std=1, a=a, b=b)


def test_a_breakdown_is_its_total_as_an_int_and_a_star_brings_public_names_only():
    flops = predict.training_flops(GPT2, batch=1, sequence=8)
    assert int(flops) == flops.total
    brought: dict[str, object] = {}
    exec("from cs336kit.predict import *", brought)
    assert set(predict.__all__) == {*brought} - {"__builtins__"} and len({*predict.__all__}) == len(predict.__all__)


def of_a_model():
    """Every public function whose first argument is a configuration."""
    functions = [value for name in dir(predict) if inspect.isfunction(value := getattr(predict, name))]
    return [f for f in functions if next(iter(inspect.signature(f).parameters), "") == "config"]


#: What a keyword without a default takes, if not a number.
OTHERS = {"layout": "dp=2", "device": "h100-sxm", "accelerator": "h100-sxm"}


@pytest.mark.parametrize("function", [f for f in of_a_model() if f is not predict.from_hf])
def test_a_wrong_configuration_is_refused(function):
    keywords = [p for p in inspect.signature(function).parameters.values() if p.kind is p.KEYWORD_ONLY]
    sizes = {p.name: OTHERS.get(p.name, 8) for p in keywords if p.default is p.empty}
    for config in ("gpt2", None, 7, {"layers": 2}, 10**400):
        with pytest.raises(ValueError, match="config must be a TransformerConfig"):
            function(config, **sizes)


def plan(**fields):
    return str(cs336plan.plan(cs336plan.Question(**fields)))


def serve(**fields):
    return str(cs336plan.serve(cs336plan.ServingQuestion(**fields)))


#: What a pass of a model can be asked with.
OPTIONS = ("batch", "sequence", *sorted(StepOptions.__optional_keys__))


def asked():
    """(function, what it needs, each of its keywords): those of a model with the options of a program, and whole questions."""
    config = predict.TransformerConfig(**SIZES)
    for number, function in enumerate(of_a_model()):
        given = inspect.signature(function).parameters.values()
        own = {p.name: p for p in given if p.kind is p.KEYWORD_ONLY}
        needed = {name: OTHERS.get(name, 8) for name, p in own.items() if p.default is p.empty}
        handed_on = OPTIONS if any(p.kind is p.VAR_KEYWORD for p in given) else ()
        for name in dict.fromkeys([*own, *handed_on]):
            # What is handed on is checked in one place.
            marks = () if name in own or number % 5 == 0 else pytest.mark.proof
            yield pytest.param(partial(function, config), needed, name, id=f"{function.__name__}-{name}", marks=marks)
    for function, made, needed in (
        (predict.TransformerConfig, predict.TransformerConfig, SIZES),
        (plan, cs336plan.Question, {"model": config}),
        (plan, cs336plan.Question, {"model": 7e9, "tokens": 1e12}),
        (serve, cs336plan.ServingQuestion, {"model": config, "prompt": 8, "output": 8}),
        (predict.FORMATS["fp16"].round, None, {"x": 1.0}),
        (predict.FORMATS["fp16"].spacing, None, {"x": 1.0}),
        (predict.FORMATS["mxfp4"].quantize, None, {"values": [1.0]}),
    ):
        for name in inspect.signature(made or function).parameters:
            yield pytest.param(function, needed, name, id=f"{function.__name__}-{name}")


@pytest.mark.parametrize(("function", "needed", "name"), asked())
def test_options_that_cannot_be_are_refused_in_a_short_sentence(function, needed, name):
    for bad in BAD:
        try:
            function(**needed | {name: bad})
        except (ValueError, LookupError) as error:
            assert is_a_short_sentence(str(error))
        except TypeError as error:  # a keyword that the function does not take
            assert "keyword argument" in str(error) or "has no option" in str(error)


@pytest.mark.parametrize("function", [predict.kaplan_flops, predict.six_nd_estimate])
def test_a_sequence_beyond_learned_positions_is_refused(function):
    sizes = {} if function is predict.kaplan_flops else {"batch": 1}
    with pytest.raises(ValueError, match="longer than context=1024"):
        function(GPT2, sequence=1025, **sizes)


def test_strides_take_iterables_of_numbers():
    with pytest.raises(ValueError, match="strides must be a tuple of whole numbers such as"):
        predict.extent((1,), strides=3)
