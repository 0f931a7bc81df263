import json
import math
import re

import pytest

from cs336kit.command import main
from cs336kit.predict import MODELS, TransformerConfig, active_parameters, compute_optimal, parameters, scaling_laws
from cs336kit.predict.scaling import OPTIMAL_KEYS, Law, Optimal, Optimum

BY_NAME = {law.name: law for law in scaling_laws()}


def law(answer, name):
    return next(one for one in answer.laws if one.law.name == name)


def test_every_law_has_a_source_and_its_spread():
    for each in scaling_laws():
        assert "arXiv:" in each.source and each.title
        assert each.low is None or each.low <= each.high
    assert [each.name for each in scaling_laws() if each.low is None] == ["kaplan"]


@pytest.mark.parametrize("name", ["chinchilla-1", "chinchilla-2", "chinchilla-3"])
def test_rows_of_the_tables_are_six_n_d_and_are_met(name):
    for size, flops, tokens in BY_NAME[name].numbers["rows"]:
        # The tokens are printed with two digits or three.
        assert 6 * size * tokens == pytest.approx(flops, rel=0.06)
        one = law(compute_optimal(flops=flops), name)
        assert (one.parameters, one.tokens) == (pytest.approx(size), pytest.approx(tokens)) and not one.extrapolated
        assert law(compute_optimal(parameters=size), name).flops == pytest.approx(flops)
        assert law(compute_optimal(tokens=tokens), name).parameters == pytest.approx(size)
    assert law(compute_optimal(flops=1e18), name).extrapolated and law(compute_optimal(flops=1e30), name).extrapolated


def test_the_refit_is_where_the_loss_is_smallest():
    numbers = {name: BY_NAME["besiroglu"].numbers[name]["value"] for name in ("E", "A", "B", "alpha", "beta")}
    one = law(compute_optimal(flops=1e24), "besiroglu")

    def loss(size):
        tokens = 1e24 / 6 / size
        return numbers["E"] + numbers["A"] / size ** numbers["alpha"] + numbers["B"] / tokens ** numbers["beta"]

    sizes = [math.exp(math.log(1e9) + i * math.log(1e4) / 20_000) for i in range(20_001)]
    assert one.parameters == pytest.approx(min(sizes, key=loss), rel=2e-3)
    assert 6 * one.parameters * one.tokens == pytest.approx(1e24)
    for what in ("parameters", "tokens"):
        back = law(compute_optimal(**{what: getattr(one, what)}), "besiroglu")
        assert back.flops == pytest.approx(1e24)
    assert BY_NAME["besiroglu"].exponent == pytest.approx(
        numbers["beta"] / (numbers["alpha"] + numbers["beta"]), abs=1e-3
    )


def test_kaplan_grows_models_faster_than_tokens():
    one = law(compute_optimal(flops=8.64e19), "kaplan")
    assert (one.parameters, one.tokens) == (1.3e9, 2e10)
    ten = law(compute_optimal(flops=8.64e20), "kaplan")
    assert ten.parameters / one.parameters == pytest.approx(10**0.73)


def test_a_model_is_its_parameters_and_for_kaplan_those_without_tables():
    config = MODELS["gpt2"]
    answer = compute_optimal(parameters=config)
    assert law(answer, "chinchilla-1").parameters == pytest.approx(parameters(config).total)
    assert law(answer, "kaplan").parameters == pytest.approx(parameters(config).total - (50257 + 1024) * 768)
    # One table, and nothing beside it: a matrix has 4 · 4 or 4 · 16 weights.
    few = TransformerConfig(
        layers=1,
        d_model=4,
        heads=1,
        vocab=9,
        context=8,
        positions="rope",
        bias="none",
        norm_scale=False,
        norm_bias=False,
    )
    assert law(compute_optimal(parameters=few), "kaplan").parameters == pytest.approx(4 * 4 * 4 + 2 * 4 * 16)


@pytest.mark.parametrize("given", [{}, {"flops": 1e20, "tokens": 1e9}])
def test_one_number_is_given(given):
    with pytest.raises(ValueError, match="give one of flops, parameters and tokens"):
        compute_optimal(**given)


def test_never_one_number_without_its_spread(capsys):
    for arguments in (["--flops", "1e24"], ["--model", "llama-3-8b"], ["--tokens", "15T"], ["--model", "70B"]):
        assert main(["optimal", *arguments]) == 0
        out = capsys.readouterr().out
        assert "all laws: " in out and " to " in out and all(len(line) <= 80 for line in out.splitlines())
        assert main(["optimal", *arguments, "--json"]) == 0
        values = json.loads(capsys.readouterr().out)
        assert (
            values["schema"] == 1 and list(values) == [*OPTIMAL_KEYS, "notes"] and len(values["laws"]) == len(BY_NAME)
        )
        for what, (low, high) in values["range"].items():
            assert low == min(one[what] for one in values["laws"]) and high == max(one[what] for one in values["laws"])


def test_a_mixture_of_experts_is_said_to_be_no_dense_model(capsys):
    assert main(["optimal", "--model", "mixtral-8x7b"]) == 0
    out = capsys.readouterr().out
    assert all(len(line) <= 80 for line in out.splitlines())
    active, together = active_parameters(MODELS["mixtral-8x7b"]).total, parameters(MODELS["mixtral-8x7b"]).total
    assert f"the laws are for dense models, and here all {together:,} parameters of a" in " ".join(out.split())
    assert f"of which a token meets {active:,}: --model {active} asks" in " ".join(out.split())
    assert main(["optimal", "--model", "llama-3-8b"]) == 0
    assert "note: " not in capsys.readouterr().out
    assert main(["optimal", "--model", "deepseek-v3", "--json"]) == 0
    left_out, dense = json.loads(capsys.readouterr().out)["notes"]
    assert (left_out,) == MODELS["deepseek-v3"].notes and dense.startswith("the laws are for dense models")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "give one of --flops, --model and --tokens"),
        (["--flops", "1e24", "--tokens", "1T"], "got --flops and --tokens"),
        (["--model", "lama-3-8b"], "Did you mean 'llama-3-8b'"),
        (["--flops", "0"], "flops must be"),
        (["--tokens", "1e200"], "tokens must be from 1 to 1e+18, got 1e+200"),
        (["--model", "1e200"], "parameters must be from 1 to 1e+18, got 1e+200"),
    ],
)
def test_bad_input_is_a_sentence(capsys, arguments, sentence):
    assert main(["optimal", *arguments]) == 2
    assert sentence in capsys.readouterr().err


def test_laws_as_a_table_with_their_ranges():
    def optimum(name, low, high, *numbers, extrapolated=False):
        return Optimum(Law(name, name.title(), "a paper", "power", 0.5, low, high, {}), *numbers, extrapolated)

    laws = (
        optimum("new", 0.4, 0.6, 2e9, 40e9, 4.8e20, extrapolated=True),
        optimum("kaplan", None, None, 4e9, 20e9, 4.8e20),
    )
    answer = Optimal("flops", 4.8e20, laws)
    assert str(answer) == (
        """\
compute-optimal for 4.8e+20 FLOPs
law     parameters  tokens  D / N     FLOPs  N grows as C to the
new*            2B     40B     20  4.80e+20  0.5 (0.4 to 0.6)
kaplan          4B     20B      5  4.80e+20  0.5 (no spread given)
all laws: 2B to 4B parameters, 20B to 40B tokens
those since 2022: 2B to 2B parameters, 40B to 40B tokens
* beyond the sizes that the law's table lists: continued with its last slope
6·N·D FLOPs of all parameters; kaplan counts those without embeddings
sources:
  new: New; a paper
  kaplan: Kaplan; a paper"""
    )
    inside = str(Optimal("tokens", 40e9, (laws[1], optimum("other", 0.4, 0.6, 2e9, 40e9, 4.8e20))))
    assert "* beyond" not in inside and "all laws: 2B to 4B parameters, 4.8e+20 to 4.8e+20 FLOPs" in inside


def test_only_tables_end():
    for one in compute_optimal(flops=1e30).laws:
        assert one.extrapolated == (one.law.kind == "table")


def test_between_two_rows_a_line_of_logarithms():
    (low, low_flops, low_tokens), (high, high_flops, high_tokens) = BY_NAME["chinchilla-1"].numbers["rows"][1:3]
    middle = law(compute_optimal(parameters=math.sqrt(low * high)), "chinchilla-1")
    assert middle.flops == pytest.approx(math.sqrt(low_flops * high_flops))
    assert middle.tokens == pytest.approx(math.sqrt(low_tokens * high_tokens))
    # Beyond the table with the slope of its last segment, before it with that of the first.
    (_, last_flops, _), (size, end_flops, _) = BY_NAME["chinchilla-1"].numbers["rows"][-2:]
    beyond = law(compute_optimal(parameters=10 * size), "chinchilla-1").flops
    assert math.log10(beyond / end_flops) == pytest.approx(math.log10(end_flops / last_flops))


@pytest.mark.parametrize(
    ("what", "value"),
    [
        ("parameters", 1e200),
        ("tokens", 1e-300),
        ("flops", 5e-324),
        ("tokens", 1e200),
        ("flops", 1e41),
        ("tokens", 10**19),
    ],
)
def test_numbers_beyond_all_laws_are_a_sentence(what, value):
    most = "1e+40" if what == "flops" else "1e+18"
    with pytest.raises(ValueError, match=re.escape(f"{what} must be from 1 to {most}, got {value:g}: the laws say")):
        compute_optimal(**{what: value})


@pytest.mark.parametrize(("what", "most"), [("parameters", 1e18), ("tokens", 1e18), ("flops", 1e40)])
def test_the_ends_of_what_is_asked_have_an_answer(what, most):
    laws = [one for value in (1, most) for one in compute_optimal(**{what: value}).laws]
    assert all(0 < number < math.inf for one in laws for number in (one.parameters, one.tokens, one.flops))


def test_nothing_given_is_a_sentence():
    with pytest.raises(ValueError, match="got none"):
        compute_optimal()
    with pytest.raises(ValueError, match="got flops, tokens"):
        compute_optimal(flops=1, tokens=1)
