"""Adapters by PEFT's rule. `make proof` compares with PEFT where it is installed; all cases: `python -m benchmarks.adapters`."""

import pytest
import torch
import transformers

from benchmarks import adapters
from benchmarks import traced as rows
from cs336plan.trace import anatomy, build
from cs336plan.trace.lora import AdaptedParameter, adapt

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def quiet():
    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)


@pytest.mark.proof
@pytest.mark.skipif(adapters.LACKING is not None, reason=str(adapters.LACKING))
@pytest.mark.parametrize("name", adapters.FAMILIES)
def test_a_step_under_peft_counts_as_it_is_traced(name):
    number = [*adapters.FAMILIES].index(name)
    for place in range(4):  # each family with four of twenty policies, its neighbor with others
        row = adapters.row_of(name, adapters.POLICIES[(3 * number + 7 * place) % len(adapters.POLICIES)])
        assert row.traced == row.ran, row.policy


def model_of(name):
    return build.model_of(build.configuration(rows.small(name)), precision="bf16", attention="sdpa")[0]


def test_experts_that_are_parameters_have_factors_of_their_own():
    with build.fake():
        model = model_of("mixtral")
        adapt(model, 3, "all-linear")
    D, F, E = 64, 96, 4
    # Queries, keys, values and output in four heads, two of them for keys; a router; two matrices in one have twice the rank.
    attention = 3 * ((D + 64) + 2 * (D + 32) + (64 + D))
    experts = E * (6 * (D + 2 * F) + 3 * (F + D))
    assert sum(p.numel() for p in model.parameters() if p.requires_grad) == 2 * (attention + 3 * (D + E) + experts)
    assert {kind for _, kind in anatomy.trained(model)} == {"fp32"}
    assert anatomy.components(model)["adapters"] == 2 * (attention + 3 * (D + E) + experts)


def test_adapters_of_experts_add_their_product_and_leave_the_module_as_it_was():
    module = torch.nn.Module()
    module.weight = torch.nn.Parameter(torch.randn(2, 5, 4))
    module.forward = lambda x: torch.einsum("eoi,ei->eo", module.weight, x)
    model = torch.nn.Sequential(module)
    wrapped = AdaptedParameter(module, "weight", 3, 1.0)
    model[0] = wrapped
    x, before = torch.randn(2, 4), module.weight.detach().clone()
    a, b = wrapped.lora_A.weight.view(2, 3, 4), wrapped.lora_B.weight.view(5, 3, 2)
    expected = torch.einsum("eoi,ei->eo", before + torch.einsum("ore,eri->eoi", b, a), x)
    assert torch.allclose(model(x), expected, atol=1e-6)
    assert torch.equal(module.weight, before) and type(module) is torch.nn.Module


@pytest.mark.parametrize("name, targets, sentence", [
    ("mixtral", ["w1", "q_proj"], r"w1, w3 are one parameter \(gate_up_proj\) here.* name w3, too"),
    ("nemotron_h", "all-linear", "PEFT refuses adapters beside out_proj of nemotron_h: name other layers"),
])  # fmt: skip
def test_what_peft_refuses_is_refused(name, targets, sentence):
    with build.fake():
        model = model_of(name)
        with pytest.raises(ValueError, match=sentence):
            adapt(model, 3, targets)
