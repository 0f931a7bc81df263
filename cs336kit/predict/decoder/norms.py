"""The norms of a model as a program."""

from cs336kit.predict.engine.builder import Builder
from cs336kit.predict.engine.operations import Tensor
from cs336kit.predict.transformer import TransformerConfig


def norm(
    b: Builder, place: str, x: Tensor, c: TransformerConfig, *, name: str, component: str = "norms", kept_as: str = ""
) -> Tensor:
    """One of the model's norms over the last axis."""
    scale = x.shape[-1:] if c.norm_scale else ()
    return b.norm(
        place, x, kind=c.norm, component=component, scale=scale, shift=c.norm_bias, name=name, kept_as=kept_as or place
    )
