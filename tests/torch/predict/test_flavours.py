"""What transformers' own modules keep for the backward pass. All 760 cases: `python -m benchmarks.kept [--device cuda]`."""

import pytest
import transformers

from benchmarks import kept
from cs336kit.predict import MODELS, TransformerConfig, program, saved_activation_bytes, step_peak, training_flops
from cs336kit.predict._walk import Walk

TINY = {"layers": 2, "d_model": 32, "heads": 4, "vocab": 13, "context": 16}
#: One token, one sequence, one head, a window as long as the sequence: where a copy can be a view.
EDGES = (
    kept.USUAL,
    kept.Sizes(layers=1, batch=1, sequence=7, kv_heads=1),
    kept.Sizes(batch=2, sequence=1),
    kept.Sizes(heads=1, kv_heads=1, d_model=16, batch=2, sequence=5),
)


@pytest.fixture(autouse=True)
def quiet():
    transformers.logging.set_verbosity_error()


@pytest.mark.parametrize("name", kept.FAMILIES)
def test_small_modules_of_each_architecture_to_the_byte(name):
    # Other policies at each size: 8 of 96 cases for each architecture, and all policies in three of them.
    number = list(kept.FAMILIES).index(name)
    for i, sizes in enumerate(EDGES):
        for policy in kept.POLICIES[(number + 3 * i) % 12 :: 12]:
            assert kept.predicted(name, policy, sizes) == kept.counted(name, policy, sizes), (policy, sizes)


def test_the_course_keeps_other_tensors_than_transformers():
    sizes, policy = kept.USUAL, kept.Policy("bf16", "eager", 0.0, False)
    course = kept.predicted("llama", policy, sizes, flavour="course")
    assert course != kept.predicted("llama", policy, sizes)


def test_a_flavour_changes_no_product():
    for name in ("llama-3.2-1b", "mixtral-8x7b", "falcon-7b"):
        size = {"batch": 1, "sequence": 32, "attention": "eager"}
        course, theirs = (training_flops(MODELS[name], **size, flavour=f).total for f in ("course", "transformers"))
        assert course == theirs, name


@pytest.mark.parametrize(("precision", "element"), [("fp32", 4), ("autocast", 2)])
def test_a_pass_without_autograd_leaves_its_logits_and_the_rotary_tables(precision, element):
    size = {"batch": 2, "sequence": 32, "attention": "sdpa", "phase": "forward"}
    listed = program(MODELS["llama-3.2-1b"], **size, precision=precision, flavour="transformers")
    walk = Walk(listed)
    walk.forward(listed.items)
    # A cosine and a sine in fp32 for each of 32 positions and 64 numbers of a head.
    assert walk.ledger.live == 2 * 32 * 128256 * element + 2 * 32 * 64 * 4


def test_the_peak_of_another_flavour_holds_what_is_kept():
    config = MODELS["llama-3.2-1b"]
    size = {"batch": 1, "sequence": 256, "precision": "bf16"}
    kept_bytes = saved_activation_bytes(config, **size, flavour="transformers").total
    peak = step_peak(config, **size, flavour="transformers")
    assert peak["activations"] <= kept_bytes < peak["activations"] + peak["temporary tensors"] + peak["gradients"]


@pytest.mark.parametrize(
    ("fields", "options", "sentence"),
    [
        ({}, {"flavour": "keras"}, "flavour is 'keras': give 'course', 'transformers'"),
        ({}, {"flavour": "transformers:t5"}, "'t5'"),
        ({"positions": "none"}, {"flavour": "transformers"}, "no architecture of transformers that is described"),
        ({}, {"flavour": "transformers", "lora_rank": 4}, "lora_rank with flavour='transformers' is not counted"),
        ({"sinks": True}, {"flavour": "transformers"}, "sinks=True: how transformers writes this down"),
    ],
)
def test_what_is_not_described_is_refused(fields, options, sentence):
    with pytest.raises(ValueError, match=sentence):
        saved_activation_bytes(TransformerConfig(**{**TINY, **fields}), batch=1, sequence=4, **options)
