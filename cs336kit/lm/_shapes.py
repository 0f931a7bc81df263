"""Shapes in annotations, such as Float[Tensor, "batch sequence d_model"]; plain tensors where jaxtyping is not installed.

Nothing is computed from them, and a machine that only measures may have only torch and numpy.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxtyping import Float as Float
    from jaxtyping import Int as Int
    from jaxtyping import Shaped as Shaped
else:
    try:
        from jaxtyping import Float, Int, Shaped
    except ModuleNotFoundError:

        class Float:
            def __class_getitem__(cls, parts: tuple[Any, str]) -> Any:
                return parts[0]

        Int = Shaped = Float
