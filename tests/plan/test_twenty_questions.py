"""Twenty questions of an engineer, each answered by the command and by arithmetic that is written here a second time."""

import json
import math

import pytest

from cs336kit.command import main

#: Llama 3 8B and 70B by hand: layers, width, key and value width, MLP width, vocabulary.
L8, D8, K8, F8, V = 32, 4096, 1024, 14336, 128256
L70, D70, K70, F70 = 80, 8192, 1024, 28672
BLOCK8 = 2 * D8 * D8 + 2 * D8 * K8 + 3 * D8 * F8
BLOCK70 = 2 * D70 * D70 + 2 * D70 * K70 + 3 * D70 * F70
P8 = L8 * (BLOCK8 + 2 * D8) + 2 * V * D8 + D8
P70 = L70 * (BLOCK70 + 2 * D70) + 2 * V * D70 + D70
PEAK, LINK, BANDWIDTH, H100 = 989.4e12, 450e9, 3.35e12, 81559 * 2**20
DAY = 86400


@pytest.fixture
def ask(capsys):
    def answer(line):
        assert main([*line.split(), "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    return answer


def step8(S):
    """FLOPs of a training sequence: three products for each of the forward pass, attention over all pairs."""
    return 3 * (2 * S * (L8 * BLOCK8 + D8 * V) + 4 * L8 * S * S * D8)


def test_01_how_long_does_70b_on_15t_take(ask):
    got = ask("plan 70B --tokens 15T --count 1024 --mfu 0.5")
    assert got["days"] == pytest.approx(6 * 70e9 * 15e12 / (1024 * PEAK * 0.5 * DAY))


def test_02_and_a_real_model_with_its_attention(ask):
    got = ask("plan llama-3-8b --tokens 1T --count 64 --sequence 8192")
    assert got["parameters"] == P8
    assert got["days"] == pytest.approx(step8(8192) * 1e12 / 8192 / (64 * PEAK * 0.4 * DAY))


def test_03_what_does_it_cost(ask):
    got = ask("plan 7B --tokens 1T --count 256 --price-per-hour 3 --watts 1000")
    hours = 6 * 7e9 * 1e12 / (PEAK * 0.4) / 3600
    assert got["cost"] == pytest.approx(3 * hours) and got["energy_kwh"] == pytest.approx(hours)


def test_04_how_many_steps_of_which_batch(ask):
    got = ask("plan llama-3-8b --tokens 1T --count 64 --batch 2 --sequence 8192 --accumulate 4")
    assert got["global_batch"] == 2 * 4 * 64 and got["steps"] == math.ceil(1e12 / (512 * 8192))


def test_05_which_batch_do_tokens_and_steps_imply(ask):
    assert ask("plan 70B --tokens 15T --steps 1M")["implied_global_batch"] == 15_000_000


def test_06_how_large_a_model_do_eight_cards_hold(ask):
    got = ask("plan 1B --count 8 --allowance 10%")
    assert got["largest_model"] == 8 * (H100 - H100 // 10) // 20


def test_07_what_do_states_take_when_sharded(ask):
    got = ask("plan llama-3-70b --count 64 --checkpointing --sequence 2048")["memory_bytes"]
    assert got["parameters"] == pytest.approx(2 * P70 / 64, rel=1e-3)
    assert got["optimizer state"] == pytest.approx(8 * P70 / 64, rel=1e-3)
    assert got["master weights"] == pytest.approx(4 * P70 / 64, rel=1e-3)


def test_08_what_does_checkpointing_cost(ask):
    got = ask("plan llama-3-8b --checkpointing --sequence 8192")["recomputed_fraction"]
    S = 8192
    # Every block runs again but for its last product, down.
    again = 2 * S * L8 * (BLOCK8 - D8 * F8) + 4 * L8 * S * S * D8
    assert got == pytest.approx(again / step8(S))


def test_09_what_does_a_chunked_loss_cost(ask):
    got = ask("plan llama-3-8b --chunks 8 --sequence 4096")["recomputed_fraction"]
    assert got == pytest.approx(2 * 4096 * D8 * V / step8(4096))


def test_10_how_many_parameters_does_lora_train(ask):
    got = ask("plan llama-3-8b --lora 16 --sequence 1024")
    assert got["trainable_parameters"] == L8 * 16 * ((D8 + D8) + (D8 + K8))
    assert got["memory_bytes"]["parameters"] == 2 * (P8 + got["trainable_parameters"])


def test_11_what_is_left_of_the_base_in_four_bits(ask):
    got = ask("plan llama-3-8b --qlora 16 --sequence 1024")
    packed = L8 * BLOCK8 * (4 + 8 / 64 + 32 / (64 * 256)) / 8
    rest = 2 * (P8 - L8 * BLOCK8 + got["trainable_parameters"])
    assert got["memory_bytes"]["parameters"] == packed + rest


def test_12_what_does_eight_bit_adam_save(ask):
    got = ask("plan gpt2 --optimizer adamw8bit --sequence 128")["memory_bytes"]["optimizer state"]
    large = {50257 * 768: 1, 1024 * 768: 1, 768 * 768: 4 * 12, 768 * 3072: 2 * 12}
    biases = 12 * (4 * 768 + 3072 + 768 + 4 * 768) + 2 * 768
    by_hand = sum(n * 2 * (size + 4 * math.ceil(size / 256)) for size, n in large.items()) + 8 * biases
    assert got == by_hand


def test_13_does_a_chip_that_is_not_listed_hold_it(ask):
    got = ask("plan 7B --memory 128GB --peak 400TFLOPs --tokens 1T --allowance 0")
    assert got["total_bytes"] == 20 * 7 * 10**9 and not got["fits"]
    fused = ask("plan 7B --memory 128GB --peak 400TFLOPs --tokens 1T --allowance 0 --fused")
    assert fused["total_bytes"] == 16 * 7 * 10**9 and fused["fits"]
    assert not ask("plan 7B --memory 111GB --allowance 0")["fits"]


def test_14_what_travels_when_parameters_are_shared(ask):
    got = ask("plan llama-3-8b --layout fsdp=8 --sequence 1024")
    # Weights are gathered and gradients scattered, by a ring of eight: ZeRO 3 sends between two and three times the model.
    sent = sum(got["wire_bytes"].values())
    assert 2 * 2 * P8 * 7 / 8 < sent <= 3 * 2 * P8 * 7 / 8 * 1.001
    assert got["step_seconds"]["inside"] == pytest.approx(sent / LINK)


def test_15_what_does_each_of_eight_ranks_hold(ask):
    got = ask("plan llama-3-8b --layout tp=8 --sequence 1024 --precision bf16")["memory_bytes"]
    assert got["parameters"] == 2 * (L8 * (BLOCK8 // 8 + 2 * D8) + 2 * V * D8 // 8 + D8)


def test_16_how_long_does_a_pipeline_wait(ask):
    got = ask("plan llama-3-8b --layout pp=4,microbatches=12 --sequence 1024")
    # A quarter of the layers, with two products of half of the pairs forward and five backward; the last stage has the head, too,
    # and waits while the first microbatch is with the other three.
    stage = L8 // 4 * (6 * 1024 * BLOCK8 + 7 * 1024**2 * D8)
    last = stage + 6 * 1024 * V * D8
    assert (
        got["step_seconds"]["bubble"] == pytest.approx(3 * stage / (3 * stage + 12 * last))
        and got["global_batch"] == 12
    )


def test_17_how_fast_is_a_token_at_best(ask):
    got = ask("serve llama-3-8b --prompt 1000 --output 24")["tokens"][0]
    read = 2 * (P8 - V * D8) + 2 * D8 + 2 * L8 * K8 * 2 * (1024 + 1)
    assert got["least"] == pytest.approx(read / BANDWIDTH) and got["bound"] == "memory"


def test_18_how_many_users_at_once(ask):
    got = ask("serve llama-3-8b --prompt 1000 --output 24 --allowance 10%")
    each = 2 * L8 * K8 * 2 * 1024 + 6 * V
    left = H100 - H100 // 10 - 2 * P8 - got["working_bytes"]
    assert got["largest_batch"] == left // each


def test_19_how_long_does_the_first_token_take(ask):
    got = ask("serve llama-3-8b --prompt 4096 --output 100")["prefill_seconds"]
    flops = 2 * 4096 * L8 * BLOCK8 + 2 * D8 * V + 2 * L8 * 4096**2 * D8
    assert got["least"] == pytest.approx(flops / PEAK) and got["most"] > got["least"]


def test_20_how_many_tokens_for_a_model(ask):
    got = ask("optimal --model 10B")
    assert {law["name"]: law["tokens"] for law in got["laws"]}["chinchilla-1"] == pytest.approx(205.1e9)
    # By hand from the refit: D = (βB/(αA))^(1/β) · N^(α/β).
    by_hand = (0.3658 * 2085.43 / (0.3478 * 482.01)) ** (1 / 0.3658) * 1e10 ** (0.3478 / 0.3658)
    assert {law["name"]: law["tokens"] for law in got["laws"]}["besiroglu"] == pytest.approx(by_hand)
