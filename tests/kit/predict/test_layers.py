"""Which layers are alike: rows, patterns that repeat, and the sequence that they stand for."""

import itertools
import random

import pytest

from cs336kit.predict import Layout, TransformerConfig
from cs336kit.predict.decoder.blocks import ExpertsKind, blocks
from cs336kit.predict.decoder.layers import periods, stage_blocks, stage_kinds, stages


@pytest.mark.parametrize(
    ("kinds", "found"),
    [
        ("", []),
        ("a", [(1, [(1, "a")])]),
        ("aaaaa", [(1, [(5, "a")])]),
        ("abc", [(1, [(1, "a")]), (1, [(1, "b")]), (1, [(1, "c")])]),
        ("aaab", [(1, [(3, "a")]), (1, [(1, "b")])]),
        ("abab", [(2, [(1, "a"), (1, "b")])]),
        ("abababc", [(3, [(1, "a"), (1, "b")]), (1, [(1, "c")])]),
        ("caabaab", [(1, [(1, "c")]), (2, [(2, "a"), (1, "b")])]),
        # Two a cover less than twice aab, and a pattern that repeats later is not begun too early.
        ("aabaabaa", [(2, [(2, "a"), (1, "b")]), (1, [(2, "a")])]),
        # The longest pattern that is looked for has twelve layers.
        ("abcdefghijkl" * 2, [(2, [(1, kind) for kind in "abcdefghijkl"])]),
        ("abcdefghijklm" * 2, [(1, [(1, kind)]) for kind in "abcdefghijklm" * 2]),
    ],
)
def test_rows_and_patterns(kinds, found):
    assert periods(kinds) == found


def test_they_stand_for_the_sequence():
    r = random.Random(0)
    for _ in range(300):
        kinds = "".join(r.choice("ab") for _ in range(r.randrange(12))) * r.randrange(3)
        rows = (rows * times for times, rows in periods(kinds))
        assert "".join(kind * many for many, kind in itertools.chain.from_iterable(rows)) == kinds


def what(block):
    """Window, whether positions are rotary, whether there are experts, and how many tokens each has."""
    sparse = isinstance(block.mlp, ExpertsKind)
    return block.attention.window, block.attention.rope, sparse, block.mlp.routing if sparse else None


@pytest.mark.parametrize(
    ("given", "kinds"),
    [
        ({}, [(None, False, False)] * 2),
        ({"window": 3, "positions": "rope", "experts": 2, "experts_per_token": 1}, [(3, True, True)] * 2),
        ({"window": 3, "window_layers": (True, False)}, [(3, False, False), (None, False, False)]),
        ({"positions": "rope", "rope_layers": (False, True)}, [(None, False, False), (None, True, False)]),
        (
            {"experts": 2, "experts_per_token": 1, "sparse_layers": (False, True)},
            [(None, False, False), (None, False, True)],
        ),
    ],
)
def test_what_each_layer_is(given, kinds):
    config = TransformerConfig(layers=2, d_model=16, heads=4, vocab=32, context=8, **given)
    assert [what(block) for block in blocks(config)] == [(*kind, None) for kind in kinds]
    # Those that are alike are one.
    assert len(set(blocks(config))) == len(set(kinds))
    sizes = [(3, 5), (4, 4)]
    found = [(*kind, tokens if kind[2] else None) for kind, tokens in zip(kinds, sizes, strict=True)]
    assert [what(block) for block in blocks(config, sizes)] == found


def test_stages_that_are_alike_are_known_by_the_first_of_them():
    windows = (True,) * 4 + (False,) * 2 + (True,) * 6
    config = TransformerConfig(layers=12, d_model=16, heads=4, vocab=32, context=8, window=3, window_layers=windows)
    assert stage_kinds(config, Layout(pp=6)) == [0, 1, 2, 1, 1, 5] and stages(config, Layout(pp=6)) == [0, 1, 2, 5]
    assert stage_kinds(config, Layout(pp=3)) == [0, 1, 2] and stage_kinds(config, Layout(tp=2)) == [0]
    assert stages(config, Layout(pp=6), 4) == [4]
    # Of five stages the two in the middle have three blocks.
    assert stage_kinds(config, Layout(pp=5)) == [0, 1, 2, 3, 4]
    with pytest.raises(ValueError, match="pp=13 needs a layer for each stage, and this model has 12: give fewer"):
        stage_kinds(config, Layout(pp=13))


@pytest.mark.parametrize(
    ("layers", "pp", "sizes"),
    [
        # Llama team 2024: 126 layers so that the first and the last of 16 stages have one less than the others.
        (126, 16, [7, *[8] * 14, 7]), (126, 8, [15, *[16] * 6, 15]), (94, 4, [23, 24, 24, 23]), (61, 2, [31, 30]),
        (61, 4, [15, 16, 15, 15]), (12, 4, [3, 3, 3, 3]), (3, 3, [1, 1, 1]), (7, 1, [7]),
    ],
)  # fmt: skip
def test_stages_differ_by_one_block_at_most(layers, pp, sizes):
    blocks = [stage_blocks(layers, pp, stage) for stage in range(pp)]
    assert [len(own) for own in blocks] == sizes and [i for own in blocks for i in own] == list(range(layers))
