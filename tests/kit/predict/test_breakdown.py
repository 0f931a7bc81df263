import copy
import math
import pickle
from dataclasses import is_dataclass
from importlib import import_module
from pkgutil import walk_packages

import pytest

from cs336kit import predict
from cs336kit.predict import Breakdown
from cs336kit.predict.engine.operations import EndOfCache, Free, Gradient, Hold, Leaf, Mark, Op, Repeat

ADAMW = Breakdown({"weights": 4, "gradients": 4, "states": 8}, unit="bytes")


def test_reads_like_a_mapping():
    assert ADAMW["states"] == 8
    assert list(ADAMW.items()) == [("weights", 4), ("gradients", 4), ("states", 8)]
    assert ADAMW.total == 16
    assert len(ADAMW) == 3 and "weights" in ADAMW and "total" not in ADAMW
    assert ADAMW.unit == "bytes"


def test_equality_ignores_order_but_not_unit():
    assert Breakdown({"states": 8, "gradients": 4, "weights": 4}, unit="bytes") == ADAMW
    assert hash(Breakdown({"states": 8, "gradients": 4, "weights": 4}, unit="bytes")) == hash(ADAMW)
    assert Breakdown(dict(ADAMW), unit="FLOPs") != ADAMW
    assert ADAMW != 16


def test_adds_by_component_and_multiplies():
    both = ADAMW + Breakdown({"weights": 1, "activations": 5}, unit="bytes")
    assert list(both.items()) == [("weights", 5), ("gradients", 4), ("states", 8), ("activations", 5)]
    assert (ADAMW * 3).total == (3 * ADAMW).total == 48
    assert sum([ADAMW, ADAMW]) == ADAMW * 2
    assert (ADAMW * 0).total == 0


def test_refuses_different_units():
    with pytest.raises(ValueError, match="a breakdown in bytes cannot be added to one in FLOPs"):
        ADAMW + Breakdown({"matmul": 1}, unit="FLOPs")
    with pytest.raises(ValueError, match=r"unknown unit 'flops'\. Did you mean 'FLOPs'"):
        Breakdown({"matmul": 1}, unit="flops")


@pytest.mark.parametrize("value", [math.nan, math.inf, -1, True, 2.0, "2", None])
def test_refuses_values_that_are_not_counts(value):
    with pytest.raises(ValueError, match="component 'weights' must be a whole number"):
        Breakdown({"weights": value}, unit="bytes")
    with pytest.raises(ValueError, match="the factor of a Breakdown must be a whole number"):
        ADAMW * value


def test_is_frozen_and_copies():
    with pytest.raises(AttributeError, match="frozen"):
        ADAMW.unit = "FLOPs"
    with pytest.raises(AttributeError, match="frozen"):
        del ADAMW._parts
    assert pickle.loads(pickle.dumps(ADAMW)) == ADAMW == copy.deepcopy(ADAMW)


def test_an_unknown_component_lists_the_known_ones():
    with pytest.raises(KeyError, match="no component 'moments'; this breakdown has: weights, gradients, states"):
        ADAMW["moments"]


def test_a_breakdown_takes_a_mapping():
    with pytest.raises(ValueError, match="takes a mapping"):
        Breakdown([("weights", 4)], unit="bytes")


def test_text_is_an_aligned_table():
    assert repr(ADAMW * 1000).splitlines() == [
        "component   bytes    share",
        "weights     4,000   25.0 %",
        "gradients   4,000   25.0 %",
        "states      8,000   50.0 %",
        "total      16,000  100.0 %",
    ]


def test_html_escapes_and_totals():
    html = Breakdown({"a<b": 3}, unit="FLOPs")._repr_html_()
    assert "a&lt;b" in html and html.count("<tr>") == 3
    assert 'font-weight:bold;">100.0 %</td>' in html
    assert "–" in Breakdown({"nothing": 0}, unit="bytes")._repr_html_()


def dataclasses_of_predict():
    modules = [import_module(module.name) for module in walk_packages(predict.__path__, "cs336kit.predict.")]
    values = {value for module in modules for value in vars(module).values() if isinstance(value, type)}
    return {value for value in values if is_dataclass(value)}


def test_every_class_of_values_can_be_a_key_of_a_cache():
    assert [cls for cls in dataclasses_of_predict() if cls.__hash__ is None] == []


def test_values_are_frozen_but_for_the_items_of_a_program_that_is_being_written():
    items = {Op, Gradient, Free, Hold, Mark, EndOfCache, Repeat, Leaf}
    assert {cls for cls in dataclasses_of_predict() if not cls.__dataclass_params__.frozen} == items
