"""A drill waits, says right or wrong, says what kind of guess it wants, and draws what it is about."""

import pytest
import torch

from cs336kit.teach import drill
from cs336kit.teach.figures import Figure

pytestmark = pytest.mark.torch

X = torch.arange(10).view(2, 5)
Y = torch.arange(12).view(2, 3, 2)
STRIDES = "x.transpose(0, 1).stride()"
SPLIT = 'rearrange(y, "a s h -> s (a h)")'


@pytest.fixture
def drawn(monkeypatch):
    """The figures that a drill shows."""
    figures = []
    monkeypatch.setattr("IPython.display.display", figures.append)
    return figures


def same(a, b):
    return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()


@pytest.mark.parametrize("guess", [..., (..., ...), [1, ...]])
def test_three_dots_wait_and_tell_nothing(guess, drawn, capsys):
    assert drill(STRIDES, guess, x=X) is None
    assert capsys.readouterr().out == f"{STRIDES}: waiting for your guess in place of the ...\n"
    assert drawn == []


RIGHT = [
    (STRIDES, (1, 5), "(1, 5)"),
    (STRIDES, [1, 5], "(1, 5)"),
    ("x[1:, 2:].storage_offset()", 7, "7"),
    ("x[1:, 2:].storage_offset()", torch.tensor(7), "7"),
    ("x.shape", torch.Size([2, 5]), "(2, 5)"),
    ("x[1, 2:]", (7, 8, 9), "(7, 8, 9)"),
    ("x.float().mean()", 4.5, "4.5"),
    ("same(x, x.T.reshape(10))", "no", "no"),
    ("same(x, x.T)", True, "yes"),
    (f"{SPLIT}[0]", (0, 1, 6, 7), "(0, 1, 6, 7)"),
    (f"{SPLIT}[:2, :1]", ((0,), (2,)), "((0,), (2,))"),
]


@pytest.mark.parametrize("expression, guess, said", RIGHT)
def test_a_right_guess(expression, guess, said, drawn, capsys):
    drill(expression, guess, x=X, y=Y, same=same)
    assert capsys.readouterr().out == f"{expression}: right, {said}\n"


WRONG = [
    (STRIDES, (5, 1), "not (5, 1) but (1, 5)"),
    ("x[1:, 2:].storage_offset()", 2, "not 2 but 7"),
    ("x[0].expand(3, 5).stride()", (5, 1), "not (5, 1) but (0, 1)"),
    ("same(x, x.T.reshape(10))", "yes", "not yes but no"),
    ("x[1].untyped_storage().nbytes()", 40, "not 40 but 80"),
    (f"{SPLIT}[0]", (0, 1, 2, 3), "not (0, 1, 2, 3) but (0, 1, 6, 7)"),
]


@pytest.mark.parametrize("expression, guess, said", WRONG)
def test_a_wrong_guess_is_told_what_it_is(expression, guess, said, drawn, capsys):
    drill(expression, guess, x=X, y=Y, same=same)
    assert capsys.readouterr().out == f"{expression}: {said}\n"
    assert len(drawn) == 1 and isinstance(drawn[0], Figure)


OF_ANOTHER_KIND = [
    (STRIDES, 5, "2 in brackets, each a number", "5 is a number"),
    (STRIDES, (1, 5, 1), "2 in brackets, each a number", "(1, 5, 1) is 3 in brackets, each a number"),
    (STRIDES, ("yes", "no"), "2 in brackets, each a number", "('yes', 'no') is 2 in brackets, each a word"),
    (STRIDES, (), "2 in brackets, each a number", "() is 0 in brackets, each a number"),
    ("x.storage_offset()", "yes", "a number", '\'yes\' is "yes" or "no"'),
    ("x.storage_offset()", "none", "a number", "'none' is a word"),
    ("x.storage_offset()", None, "a number", "None is a NoneType"),
    ("same(x, x)", 1, '"yes" or "no"', "1 is a number"),
]


@pytest.mark.parametrize("expression, guess, wanted, given", OF_ANOTHER_KIND)
def test_a_guess_of_another_kind_is_told_which_is_wanted(expression, guess, wanted, given, drawn, capsys):
    drill(expression, guess, x=X, same=same)
    assert capsys.readouterr().out == f"{expression} asks for {wanted}, and your guess {given}.\n"
    assert drawn == []


def test_the_strip_is_that_of_the_longest_part_that_is_a_tensor(drawn):
    drill("x[1:, 2:].storage_offset()", 7, x=X)
    drill("same(x, x.T.reshape(10))", "no", x=X, same=same)
    drill("x[1].untyped_storage().nbytes()", 80, x=X)
    assert [figure.alt.partition("tensor ")[2] for figure in drawn] == [
        "with shape (1, 3), strides (5, 1) and offset 7.",
        "with shape (10,), strides (1,) and offset 0.",
        "with shape (5,), strides (1,) and offset 5.",
    ]
    assert all("strip of 10 elements" in figure.alt for figure in drawn)


def test_a_view_of_a_few_elements_that_shows_many_is_not_drawn(drawn):
    for columns in (10, 11):
        drill("x.expand(4, -1).shape", (4, columns), x=torch.arange(columns))
    assert len(drawn) == 1 and "(4, 10)" in drawn[0].alt


def test_a_pattern_draws_the_axes_before_and_after(drawn):
    drill(f"{SPLIT}.shape", (3, 4), y=Y)
    assert "y, axes a s h: [[[0, 1]," in drawn[0].alt
    assert "a s h -> s (a h), axes s (a h): [[0, 1, 6, 7]," in drawn[0].alt
    drill('einsum(q, k, "s d, t d -> t s").shape', (3, 2), q=torch.ones(2, 4), k=torch.ones(3, 4))
    assert "q, axes s d:" in drawn[1].alt and "axes t s: [[4.0, 4.0]," in drawn[1].alt


@pytest.mark.parametrize(
    "expression", ["x[0, 0].ndim", "big.ndim", "four.ndim", 'rearrange(four, "a b c d -> a b c d").ndim', "1 - 1 + 0"]
)
def test_what_has_no_picture_is_only_said(expression, drawn, capsys):
    names = {"x": X, "big": torch.zeros(5, 9), "four": torch.zeros(1, 1, 1, 1)}
    drill(expression, eval(expression, {**names, "rearrange": lambda x, _: x}), **names)
    assert ": right, " in capsys.readouterr().out and drawn == []


def test_in_plain_python_the_picture_is_its_description(capsys, monkeypatch):
    monkeypatch.setattr("IPython.core.interactiveshell.InteractiveShell.initialized", lambda: False)
    drill("x.T.stride()", (1, 5), x=X)
    first, second = capsys.readouterr().out.splitlines()
    assert first == "x.T.stride(): right, (1, 5)" and second.startswith("Figure: One strip of 10 elements is read by")
