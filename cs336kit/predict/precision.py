"""What is kept in which element type: one policy per usual way to mix precisions."""

from dataclasses import dataclass

from cs336kit.predict._common.checks import known


@dataclass(frozen=True)
class PrecisionPolicy:
    """The element types of a training run. Autocast casts for the products alone; the others hold what they compute with.

    The scale of the loss that fp16 needs costs nothing here: `lm.LossScaler` holds a Python number (torch.amp.GradScaler
    two scalars, 8 bytes).
    """

    name: str
    #: parameters that the products use (or are cast from), and their gradients
    weights: str
    gradients: str
    #: a second, finer copy of the parameters that the optimizer updates; None where it updates the weights themselves
    master_weights: str | None
    #: optimizer state
    states: str
    #: the residual stream and the inputs of norms
    activations: str
    #: what goes into and comes out of matrix products
    products: str

    @property
    def casts(self) -> bool:
        """Whether products cast their inputs and weights, and keep the copies for the backward pass."""
        return self.weights != self.products


#: One table for every room: what `lm.precision` trains in has its types here, under the same name where it has one.
#: Source: Micikevicius et al. 2018 (mixed), torch.autocast (autocast); what each means: lesson on mixed precision.
POLICIES = {
    policy.name: policy
    for policy in (
        PrecisionPolicy("fp32", "fp32", "fp32", None, "fp32", "fp32", "fp32"),
        PrecisionPolicy("autocast", "fp32", "fp32", None, "fp32", "fp32", "bf16"),
        PrecisionPolicy("bf16", "bf16", "bf16", None, "bf16", "bf16", "bf16"),
        PrecisionPolicy("autocast-fp16", "fp32", "fp32", None, "fp32", "fp32", "fp16"),
        PrecisionPolicy("fp16", "fp16", "fp16", None, "fp16", "fp16", "fp16"),
        PrecisionPolicy("mixed", "bf16", "bf16", "fp32", "fp32", "bf16", "bf16"),
        PrecisionPolicy("mixed-fp32-gradients", "bf16", "fp32", "fp32", "fp32", "bf16", "bf16"),
    )
}


def policy(precision: "str | PrecisionPolicy") -> PrecisionPolicy:
    """The policy of a name, or a policy of your own as it is; an unknown name raises ValueError."""
    return precision if isinstance(precision, PrecisionPolicy) else known("precision", precision, POLICIES)
