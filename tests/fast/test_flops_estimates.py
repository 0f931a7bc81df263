import dataclasses

from cs336kit.predict import (
    MODELS,
    chinchilla_flops,
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


def test_kaplan_flops_are_the_causal_count_plus_the_embedding_row():
    config = MODELS["gpt2-xl"]
    ours = forward_flops(config, batch=1, sequence=1024, causal=True).total
    assert 1024 * (kaplan_flops(config, sequence=1024).total - 4 * config.d_model) == ours


def test_chinchilla_adds_one_hot_embeddings_and_softmax():
    config = dataclasses.replace(MODELS["gpt2"], context=2048)
    rows = chinchilla_flops(config, batch=2, sequence=2048)
    ours = forward_flops(config, batch=2, sequence=2048).total
    assert rows.total - rows["embeddings"] - rows["attention: softmax"] == ours
    assert rows["attention: softmax"] == 12 * 3 * 12 * 2 * 2048**2


def test_six_nd_misses_the_square_of_the_sequence():
    config = MODELS["llama-2-7b"]
    errors = []
    for sequence in (128, 1024, 4096):
        exact = training_flops(config, batch=1, sequence=sequence).total
        errors.append(1 - six_nd_estimate(config, batch=1, sequence=sequence) / exact)
    assert errors == sorted(errors) and errors[-1] > 0.1
    assert six_nd_estimate(config, batch=1, sequence=1, embeddings=False) == 6 * (6_738_415_616 - 2 * 32000 * 4096)
