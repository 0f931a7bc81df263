"""Every function of sizes takes numpy's integers for what they are, however large the result, and refuses what is no size."""

import inspect

import numpy
import pytest

from cs336kit import predict
from cs336kit.predict import strides as strides_module
from cs336kit.predict.allocator import allocated_bytes, reserved_bytes
from cs336kit.predict.napkin import delivered_flops, largest_model, matmul_flops, six_nd, training_days
from cs336kit.predict.signal import residual_second_moments, second_moment_spread, second_moments
from cs336kit.predict.transfers import pcie_bandwidth, pipeline_seconds, pipeline_timeline, transfer_seconds

GPT2 = predict.MODELS["gpt2"]
BIG = 2**20  # two of them multiplied do not fit into 32 bits
#: function, positional and named arguments
CALLS = [
    (predict.Cost, (BIG, BIG), {}),
    (lambda flops, bytes: predict.Cost(flops, bytes) * 4096 + predict.Cost(flops, bytes), (BIG, BIG), {}),
    (predict.matmul_cost, (BIG, BIG, BIG), {"batch": 3, "bytes_per_element": 2}),
    (predict.elementwise_cost, (BIG,), {"flops_per_element": BIG, "reads": BIG}),
    (predict.reduction_cost, (BIG, BIG), {}),
    (predict.softmax_cost, (BIG, BIG), {}),
    (matmul_flops, (BIG, BIG, BIG), {"batch": BIG}),
    (six_nd, (BIG,), {"tokens": BIG}),
    (delivered_flops, (BIG,), {"peak_flops_per_second": BIG, "days": 2}),
    (training_days, (BIG,), {"tokens": BIG, "accelerators": 3, "peak_flops_per_second": BIG, "mfu": 1}),
    (largest_model, (BIG,), {"memory_bytes": BIG, "bytes_per_parameter": 3}),
    (pcie_bandwidth, (4,), {"lanes": 16}),
    (transfer_seconds, (BIG,), {"bandwidth_bytes_per_second": 3, "latency_seconds": 1}),
    (pipeline_seconds, (BIG,), {"copy_seconds": BIG, "compute_seconds": 2, "overlap": True}),
    (pipeline_timeline, (3,), {"copy_seconds": 2**31 - 1, "compute_seconds": 2, "overlap": True}),
    (allocated_bytes, (2**31 - 1,), {}),
    (reserved_bytes, ([2**31 - 1, 2**31 - 1],), {}),
    (second_moments, (1,), {"layers": 3, "fan": BIG, "weight_std": BIG}),
    (second_moment_spread, (3,), {"width": 7}),
    (residual_second_moments, (BIG,), {"additions": 3, "branch": BIG, "scale": BIG}),
    (predict.fraction_cut, (), {"std": 1, "a": -1, "b": 2, "mean": 0}),
    (predict.truncated_std, (), {"std": 1, "a": -1, "b": 2, "mean": 0}),
    (predict.contiguous_strides, ((BIG, BIG, BIG),), {}),
    (predict.element_offset, ((BIG, 1),), {"strides": (BIG, 1), "offset": BIG}),
    (predict.expanded_strides, ((1, 3),), {"strides": (3, 1), "to": (2, 3)}),
    (predict.extent, ((BIG, BIG),), {"strides": (BIG, 1)}),
    (predict.view_strides, ((BIG, BIG),), {"strides": (BIG, 1), "to": (BIG * 2, BIG // 2)}),
    (predict.overlaps, ((BIG, BIG),), {"strides": (BIG, 1)}),
    (predict.kaplan_flops, (GPT2,), {"sequence": 1024}),
    (predict.chinchilla_flops, (GPT2,), {"batch": BIG, "sequence": 1024}),
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
    (predict.NumberFormat, ("mine",), {"exponent_bits": 6, "fraction_bits": 9, "bias": 12, "storage_bits": 32}),
    (predict.FORMATS["fp16"].decode, (1234,), {}),
    (predict.FORMATS["mxfp4"].storage_bytes, (2**31 - 1,), {}),
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


@pytest.mark.parametrize(("function", "arguments", "named"), CALLS)
def test_what_is_no_number_is_refused_in_a_sentence(function, arguments, named):
    places = [*range(len(arguments)), *named]
    for place in places:
        for bad in (None, "three", -1, object(), float("nan"), 1j):
            changed, changed_named = list(arguments), dict(named)
            (changed if isinstance(place, int) else changed_named)[place] = bad
            try:
                function(*changed, **changed_named)
            except (ValueError, LookupError) as error:
                assert len(str(error)) > 15


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


@pytest.mark.parametrize("function", [predict.kaplan_flops, predict.chinchilla_flops, predict.six_nd_estimate])
def test_a_sequence_beyond_learned_positions_is_refused(function):
    sizes = {} if function is predict.kaplan_flops else {"batch": 1}
    with pytest.raises(ValueError, match="longer than context=1024"):
        function(GPT2, sequence=1025, **sizes)


def test_strides_take_iterables_of_numbers():
    with pytest.raises(ValueError, match="index must be a tuple of whole numbers such as"):
        strides_module.element_offset(3, strides=(1,))
