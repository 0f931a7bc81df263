"""What is True or False is nothing else: the word "no" would count as true."""

import inspect

import pytest

from cs336kit import measure, teach

pytestmark = pytest.mark.torch

#: Each public function with such an argument, with what else it needs.
CALLS = {
    measure.overlap_timeline: (),
    measure.program: (None, lambda: None),
    measure.transfer: (8,),
}


def switches(function):
    """The names of its arguments that are True or False unless given."""
    return [p.name for p in inspect.signature(function).parameters.values() if isinstance(p.default, bool)]


def test_every_function_with_a_switch_is_tried():
    public = [getattr(room, name) for room in (measure, teach) for name in dir(room) if not name.startswith("_")]
    assert {f for f in public if inspect.isfunction(f) and switches(f)} == {*CALLS}


@pytest.mark.parametrize("function", CALLS, ids=lambda function: function.__name__)
def test_a_switch_is_true_or_false(function):
    for name in switches(function):
        for value in ("no", 0, None):
            with pytest.raises(ValueError, match=f"^{name} must be True or False, got {value!r}"):
                function(*CALLS[function], **{name: value})
