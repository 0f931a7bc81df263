"""The norms of a model as a program."""

from cs336kit.predict.decoder.blocks import Norm
from cs336kit.predict.engine.builder import Builder
from cs336kit.predict.engine.operations import Tensor


def norm(
    b: Builder, place: str, x: Tensor, like: Norm, *, name: str, component: str = "norms", kept_as: str = ""
) -> Tensor:
    """One of the model's norms over the last axis."""
    scale = x.shape[-1:] if like.scale else ()
    return b.norm(
        place,
        x,
        kind=like.kind,
        component=component,
        scale=scale,
        shift=like.shift,
        name=name,
        kept_as=kept_as or place,
    )
