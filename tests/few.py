"""Of many draws of one property `make test` takes a few, and `make proof` all others."""

from collections.abc import Iterable
from typing import Any

import pytest


def one_in(number: int, values: Iterable[Any]) -> list[Any]:
    """The values of one parameter of a test: the first of each `number` as it is, the others with the mark of `make proof`."""
    return [
        value if n % number == 0 else pytest.param(value, marks=pytest.mark.proof) for n, value in enumerate(values)
    ]
