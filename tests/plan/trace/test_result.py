"""What follows from a result by arithmetic alone: a step's peak and the optimizer's state, where parameters have two types."""

from dataclasses import replace

from cs336plan.trace.result import Traced

#: A bf16 matrix of 200 elements and one of 100 in fp32, by hand.
TWO = Traced(
    architecture="made up", layers=1, batch=1, sequence=1, precision="bf16", attention="sdpa", checkpointing=False, device="cpu",
    components={"mlp": 300}, active_parameters=300, parameter_bytes=2 * 200 + 4 * 100,
    trained=(((20, 10), "bf16"), ((10, 10), "fp32")), forward_flops=0, training_flops=0, saved_bytes=0, passes_peak_bytes=0,
    cache=None, prefill_flops=None, decode_flops=None, upper_bound=False, whole=True,
)  # fmt: skip


def test_states_have_the_type_of_their_parameter():
    """AdamW has two moments in the parameter's type, and for each tensor a step of four bytes."""
    assert TWO.optimizer_state_bytes("adamw").total == 2 * (2 * 200 + 4 * 100) + 2 * 4


def test_in_the_optimizers_step_gradients_are_there_and_temporary_tensors():
    """torch's foreach AdamW makes a root for all parameters at once; the loop a root and a quotient, tensor after tensor."""
    gradients = 2 * 200 + 4 * 100
    assert TWO.gradient_bytes == gradients
    fused, loop, foreach = (
        TWO.step_peak("adamw", implementation=how)["gradients and activations"] for how in ("fused", "loop", "foreach")
    )
    assert (fused, loop, foreach) == (gradients, gradients + 2 * 400, gradients + 400 + 400)
    # Of both types in the other order of size: the loop has the temporary tensors of the larger one alone.
    small = replace(TWO, trained=(((5, 10), "bf16"), ((10, 10), "fp32")))
    assert small.step_peak("adamw")["gradients and activations"] == 100 + 400 + 2 * 400
    passes = replace(TWO, passes_peak_bytes=10**6).step_peak("adamw")["gradients and activations"]
    assert passes == 10**6
