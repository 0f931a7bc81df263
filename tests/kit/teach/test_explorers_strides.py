import pytest
import torch

from cs336kit.teach import explorers

pytestmark = pytest.mark.torch


def test_positions_are_the_values_that_torch_reads():
    for shape, strides, offset in [((3, 4), (4, 1), 0), ((4, 3), (1, 4), 0), ((2, 2), (4, 2), 4), ((4,), (0,), 3)]:
        seen = explorers.strides(shape, strides=strides, offset=offset)
        values = torch.arange(12).as_strided(shape, strides, offset)
        assert torch.tensor(seen.positions).view(shape).equal(values)
        assert seen.fits


def test_contiguous_strides_are_the_default():
    assert explorers.strides((2, 5)).strides == (5, 1)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"shape": (3, 4)}, "12 elements read 12 of 12 positions; contiguous."),
        ({"shape": (4, 3), "strides": (1, 4)}, "12 elements read 12 of 12 positions; not contiguous."),
        ({"shape": (4, 3), "strides": (1, 1)}, "not contiguous, and some elements are the same memory"),
        ({"shape": (4, 4)}, "Position 15 is needed and the storage ends at 11"),
    ],
)
def test_the_verdict_says_what_kind_of_view_it_is(arguments, sentence):
    seen = explorers.strides(**arguments)
    assert sentence in seen.verdict
    assert seen.verdict in repr(seen) and seen.verdict in seen._repr_html_()


def test_text_twin():
    assert repr(explorers.strides((2, 2), strides=(3, 2), offset=1, elements=7)).splitlines() == [
        "shape (2, 2), strides (3, 2), offset 1",
        "storage  0 1 2 3 4 5 6",
        "read       ^   ^ ^   ^",
        "tensor   1 3",
        "         4 6",
        "4 elements read 4 of 7 positions; not contiguous.",
    ]


def test_the_sliders_redraw():
    *sliders, _note, picture = explorers.strides((3, 4)).widget().children
    named = {slider.description: slider for slider in sliders}
    assert list(named) == ["size 0", "size 1", "stride 0", "stride 1", "offset"]
    named["size 1"].value = 2
    assert picture.value == explorers.strides((3, 2), strides=(4, 1))._repr_html_()
    named["offset"].value = 5
    assert "torch refuses" in picture.value


@pytest.mark.parametrize(
    "bad", [{"shape": (2, 2, 2)}, {"shape": (0,)}, {"strides": (1,)}, {"offset": -1}, {"elements": 0}]
)
def test_nonsense_gets_a_sentence(bad):
    with pytest.raises(ValueError):
        explorers.strides(**bad)
