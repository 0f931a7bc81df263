import dataclasses

import pytest

from cs336kit.predict import (
    MODELS,
    TransformerConfig,
    forward_flops,
    kaplan_flops,
    kaplan_parameters,
    parameters,
    six_nd_estimate,
    training_flops,
)


def test_kaplan_non_embedding_parameters_are_twelve_l_d_squared():
    config = MODELS["gpt2"]
    rows = kaplan_parameters(config)
    assert rows.total - rows["embed"] == 12 * 12 * 768**2
    biases_and_norms = 12 * 13 * 768 + 2 * 768
    assert parameters(config).total - rows.total == biases_and_norms
    one = dataclasses.replace(config, context=1)
    assert kaplan_parameters(one)["embed"] == (50257 + 1) * 768 and parameters(one)["position embedding"] == 768


def test_kaplan_flops_are_the_causal_count_plus_the_embedding_row():
    config = MODELS["gpt2-xl"]
    ours = forward_flops(config, batch=1, sequence=1024, causal=True).total
    assert 1024 * (kaplan_flops(config, sequence=1024).total - 4 * config.d_model) == ours


def test_six_nd_misses_the_square_of_the_sequence():
    config = MODELS["llama-2-7b"]
    errors = []
    for sequence in (128, 1024, 4096):
        exact = training_flops(config, batch=1, sequence=sequence).total
        errors.append(1 - six_nd_estimate(config, batch=1, sequence=sequence) / exact)
    assert errors == sorted(errors) and errors[-1] > 0.1
    assert six_nd_estimate(config, batch=1, sequence=1, embeddings=False) == 6 * (6_738_415_616 - 2 * 32000 * 4096)


#: No two sizes alike, and heads that are narrower together than the stream.
ODD = TransformerConfig(layers=3, d_model=16, heads=2, head_dim=5, d_ff=24, vocab=40, context=32)


def test_each_row_is_that_of_the_papers():
    """Kaplan et al. 2020, table 1, with n_layer 3, d_model 16, d_attn 10, d_ff 24."""
    L, D, A, F, V, S, N = 3, 16, 10, 24, 40, 7, 14
    assert dict(kaplan_parameters(ODD)) == {
        "embed": (V + 32) * D, "attention: QKV": L * D * 3 * A, "attention: mask": 0, "attention: project": L * A * D,
        "feedforward": L * 2 * D * F, "de-embed": 0,
    }  # fmt: skip
    assert dict(kaplan_flops(ODD, sequence=S)) == {
        "embed": 4 * D, "attention: QKV": 2 * L * D * 3 * A, "attention: mask": 2 * L * S * A,
        "attention: project": 2 * L * A * D, "feedforward": 2 * L * 2 * D * F, "de-embed": 2 * D * V,
    }  # fmt: skip
    blocks = L * (D * 3 * A + 3 * A + A * D + D + 2 * D * F + F + D + 4 * D) + 2 * D
    assert six_nd_estimate(ODD, batch=2, sequence=S, embeddings=False) == 6 * N * blocks
    assert six_nd_estimate(ODD, batch=2, sequence=S) == 6 * N * (blocks + (V + 32) * D)


def test_an_estimate_ends_where_positions_do():
    one = dataclasses.replace(ODD, context=1)
    assert kaplan_parameters(one)["embed"] == 41 * 16 and kaplan_flops(one, sequence=1)["attention: mask"] == 2 * 3 * 10
    assert kaplan_flops(ODD, sequence=32).total > 0
    with pytest.raises(ValueError, match="sequence=33 is longer than context=32"):
        kaplan_flops(ODD, sequence=33)
    with pytest.raises(ValueError, match="sequence=33 is longer than context=32"):
        kaplan_flops(dataclasses.replace(ODD, positions="rope", head_dim=4), sequence=33)
