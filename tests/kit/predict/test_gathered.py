"""What a rank holds for a moment where parameters are divided, from the sizes of its groups of parameters.

D width, F of an MLP, V vocabulary, S longest sequence. The peaks of real ranks: tests/kit/predict/test_layouts.py.
"""

from dataclasses import replace

import pytest

from cs336kit.predict import TransformerConfig, communication, peak_moments, program, step_peak
from cs336kit.predict.engine.gathered import Beside, Gathered
from cs336kit.predict.engine.operations import blocks

D, F, V, S = 4, 6, 5, 2
GPT = TransformerConfig(layers=3, d_model=D, heads=2, d_ff=F, vocab=V, context=S, bias="none", norm_bias=False)
#: Elements of two ranks, whose rows of an odd table are padded: the table, the positions, the final norm.
OUTSIDE = (V + 1) * D + S * D + D
#: Of a block: four matrices of attention, two of the MLP, two norms.
BLOCK = 4 * D * D + 2 * D * F + 2 * D
#: Of a block with two experts, and a router.
SPARSE = 4 * D * D + 2 * 2 * D * F + 2 * D + 2 * D


def gathered(config, rounded=lambda size: size, precision="autocast"):
    written = program(config, batch=1, sequence=S, precision=precision, layout="fsdp=2")
    return Gathered(written, rounded), [block for block, _ in blocks(written.items)]


def test_each_part_of_a_step_of_equal_blocks():
    # Under autocast parameters are gathered in two bytes, and their gradients reduced in four.
    rules, (block,) = gathered(GPT)
    outside, one, whole = 2 * OUTSIDE, 2 * BLOCK, 4 * BLOCK
    assert (*rules.start,) == (outside + outside, 0) and (*Beside(),) == (0, 0)
    assert rules.start == Beside(outside + outside) and rules.loss == Beside(outside)
    assert rules.entering(block, 0) == Beside(outside + outside + one + one)
    assert rules.entering(block, 1) == Beside(outside + one + one + one)
    assert rules.forward(block) == Beside(outside + one + one) and rules.behind(block) == Beside(outside + one)
    assert rules.head == Beside(outside + one)
    # The last block comes first, with no gradients before it; the first one has no next block on its way.
    assert [rules.backward(block, run) for run in range(3)] == [
        Beside(outside + one + one, 0), Beside(outside + one + one, whole), Beside(outside + one, whole),
    ]  # fmt: skip
    assert [rules.entering_backward(block, run) for run in range(3)] == [
        Beside(outside + one + one, 0), Beside(outside + one + one, whole), Beside(outside + one + one, whole),
    ]  # fmt: skip
    assert [rules.reducing(block, run) for run in range(3)] == [
        Beside(outside + one, whole), Beside(outside + one, whole), Beside(outside, whole),
    ]  # fmt: skip
    assert rules.embedding == Beside(outside, whole) and rules.end == Beside(0, 4 * OUTSIDE)


@pytest.mark.parametrize(("precision", "size"), [("bf16", 2), ("mixed", 2), ("mixed-fp32-gradients", 4), ("fp32", 4)])
def test_gradients_are_reduced_in_their_own_type(precision, size):
    rules, (block,) = gathered(GPT, precision=precision)
    assert rules.reducing(block, 0).reduced == size * BLOCK and rules.end == Beside(0, size * OUTSIDE)


def test_the_rule_of_a_moment_is_asked_for_by_its_name():
    rules, (block,) = gathered(GPT)
    for run in range(3):
        assert rules.at("all-gather", block, run) == rules.entering_backward(block, run)
        assert rules.at("reduce-scatter", block, run) == rules.reducing(block, run)
        assert (
            rules.at("mlp backward", block, run) == rules.backward(block, run) == rules.at("recomputation", block, run)
        )


def test_the_neighbors_of_unlike_blocks():
    rules, (dense, sparse) = gathered(replace(GPT, experts=2, experts_per_token=1, sparse_layers=(False, True, True)))
    outside, small, large = 2 * OUTSIDE, 2 * BLOCK, 2 * SPARSE
    assert rules.entering(dense, 0) == Beside(outside + outside + small + small)
    assert rules.entering(sparse, 0) == Beside(outside + small + large + large) and rules.head == Beside(
        outside + large
    )
    assert rules.behind(sparse) == Beside(outside + large)
    assert [rules.backward(sparse, run) for run in range(2)] == [
        Beside(outside + large + large, 0), Beside(outside + large + small, 2 * large),
    ]  # fmt: skip
    assert rules.backward(dense, 0) == Beside(outside + small, 2 * large)
    assert rules.embedding == Beside(outside, 2 * small)


def test_the_block_before_is_the_one_behind_in_order():
    config = replace(GPT, experts=2, experts_per_token=1, sparse_layers=(False, True, False))
    rules, (first, sparse, last) = gathered(config)
    outside, small, large = 2 * OUTSIDE, 2 * BLOCK, 2 * SPARSE
    assert rules.backward(first, 0) == Beside(outside + small, 2 * large)
    assert rules.backward(sparse, 0) == Beside(outside + large + small, 2 * small)
    assert rules.backward(last, 0) == Beside(outside + small + large, 0)


def test_of_blocks_that_take_turns_each_has_neighbors_of_its_own():
    config = replace(GPT, layers=4, experts=2, experts_per_token=1, sparse_layers=(False, True))
    rules, blocks = gathered(config)
    outside, small, large = 2 * OUTSIDE, 2 * BLOCK, 2 * SPARSE
    first, second, third, last = (rules.backward(block, 0) for block in blocks)
    # Own tensors, the buffer of the one before, and whole gradients of the one behind.
    assert first == Beside(outside + small, 2 * large) and last == Beside(outside + large + small)
    assert second == Beside(outside + large + small, 2 * small) and third == Beside(outside + small + large, 2 * large)


def test_tensors_are_rounded_one_by_one_and_buffers_as_a_whole():
    def rounded(size):
        return -(-size // 512) * 512

    rules, (block,) = gathered(GPT, rounded)
    # Each of three and of eight tensors takes 512 bytes, and each buffer as well.
    assert rules.start == Beside(3 * 512 + 512) and rules.forward(block) == Beside(3 * 512 + 8 * 512 + 512)
    assert rules.end == Beside(0, rounded(4 * OUTSIDE)) and rules.embedding == Beside(3 * 512, rounded(4 * BLOCK))


WIDE = TransformerConfig(layers=4, d_model=256, heads=2, d_ff=512, vocab=8, context=2, bias="none", norm_bias=False)


@pytest.mark.parametrize("layers", [2, 4])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_where_parameters_are_all_that_is_large_the_peaks_are_those_of_the_groups(checkpointing, layers):
    # Two tokens: what is kept of them and what operations need for a moment is less than a tenth of a block.
    options = {"batch": 1, "sequence": 2, "layout": "fsdp=64", "checkpointing": checkpointing, "optimizer": "sgd"}
    config = replace(WIDE, layers=layers)
    moments = peak_moments(config, **options)
    block, share, outside = 4 * (4 * 256**2 + 2 * 256 * 512 + 2 * 256), 1 / 64, 4 * (64 + 2 + 1) * 256
    shares = (layers - 1) * share * block
    parts = {
        # While a block runs backward: its tensors, the next one's buffer, whole gradients of this and of the one before.
        "all-gather": 3 * block + shares,
        "reduce-scatter": 3 * block + shares,
        # Of two blocks the last has none before it, and the first no next one.
        "attention backward": (4 if layers > 2 else 3) * block + shares,
        "forward": 2 * block,
        "head backward": block,
        "loss": 0,
    }
    assert {name: round((moments[name] - outside) / block, 0) for name in parts} == {
        name: round(size / block, 0) for name, size in parts.items()
    }
    assert step_peak(config, **options)["gathered parameters"] > (2 if layers > 2 else 1) * block


@pytest.mark.parametrize(
    ("base", "matrix"), [("int8", 256**2), ("nf4", 256**2 // 2 + 256**2 // 64 + 4 * 4), (None, 2 * 256**2)]
)
def test_packed_matrices_are_gathered_as_they_lie(base, matrix):
    config = replace(WIDE, d_ff=256)
    options = {"precision": "bf16", "layout": "fsdp=2", "lora_rank": 8, "base": base}
    written = program(config, batch=1, sequence=2, **options)
    rules, (first, *_) = Gathered(written, lambda size: size), [block for block, _ in blocks(written.items)]
    # Of a block four matrices of attention and two of the MLP; two norms, and adapters beside queries and values.
    block = 6 * matrix + 2 * (2 * 256 + 2 * 2 * 8 * 256)
    outside = 2 * (8 + 2 + 1) * 256
    assert rules.start == Beside(2 * outside) and rules.forward(first) == Beside(outside + 2 * block)
    # Adapters alone have gradients.
    assert rules.reducing(first, 0).reduced == 2 * 2 * 2 * 8 * 256 and rules.end == Beside(0, 0)
    # A rank of two sends its half; blocks are gathered once more in the backward pass.
    sent = communication(config, batch=1, sequence=2, **options)["data all-gather, inside a node"]
    assert sent == 2 * 4 * block // 2 + outside // 2
