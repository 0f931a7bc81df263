"""Types of elements and their bytes, and which tensors have which: one policy for each usual way to mix precisions."""

from dataclasses import dataclass

from cs336kit.predict.checks import known

#: Bytes of one element.
ELEMENT_BYTES = {"fp64": 8, "fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2, "fp8": 1, "int64": 8, "int8": 1, "bool": 1}


@dataclass(frozen=True)
class PrecisionPolicy:
    """The element types of a training run. Autocast casts for matrix products only; other policies store what they compute with.

    The loss scale that fp16 needs costs nothing here: `lm.LossScaler` holds a Python number (torch.amp.GradScaler
    two scalars, 8 bytes).
    """

    name: str
    #: parameters that matrix products use (or are cast from), and their gradients
    weights: str
    gradients: str
    #: a second, finer copy of the parameters that the optimizer updates; None where it updates the weights themselves
    master_weights: str | None
    #: optimizer state
    states: str
    #: the residual stream and the inputs of norms
    activations: str
    #: inputs and outputs of matrix products
    products: str

    @property
    def casts(self) -> bool:
        """Whether matrix products cast their inputs and weights, and save the copies for the backward pass."""
        return self.weights != self.products


#: One table for the whole kit: `lm.precision` trains in these types, under the same name where it has one.
#: Source: Micikevicius et al. 2018 (mixed), torch.autocast (autocast); what each means: lesson on mixed precision.
POLICIES = {
    policy.name: policy
    for policy in (
        PrecisionPolicy("fp32", "fp32", "fp32", None, "fp32", "fp32", "fp32"),
        PrecisionPolicy("autocast", "fp32", "fp32", None, "fp32", "fp32", "bf16"),
        PrecisionPolicy("bf16", "bf16", "bf16", None, "bf16", "bf16", "bf16"),
        PrecisionPolicy("bf16-fp32-moments", "bf16", "bf16", None, "fp32", "bf16", "bf16"),
        PrecisionPolicy("autocast-fp16", "fp32", "fp32", None, "fp32", "fp32", "fp16"),
        PrecisionPolicy("fp16", "fp16", "fp16", None, "fp16", "fp16", "fp16"),
        PrecisionPolicy("mixed", "bf16", "bf16", "fp32", "fp32", "bf16", "bf16"),
        PrecisionPolicy("mixed-fp32-gradients", "bf16", "fp32", "fp32", "fp32", "bf16", "bf16"),
    )
}


def policy(precision: "str | PrecisionPolicy") -> PrecisionPolicy:
    """The policy called `precision`; a policy of your own is returned as it is, and an unknown name raises ValueError."""
    return precision if isinstance(precision, PrecisionPolicy) else known("precision", precision, POLICIES)
