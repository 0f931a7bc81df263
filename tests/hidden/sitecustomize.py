"""Where this folder is on Python's path, as in `make fast`, torch, numpy and what needs them cannot be imported."""

import sys
from importlib.machinery import ModuleSpec, PathFinder
from typing import Any

HIDDEN = {"torch", "numpy", "matplotlib", "yaml", "einops"}


class Without(PathFinder):
    """Finds what Python finds, but for what is hidden."""

    @classmethod
    def find_spec(cls, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        return None if fullname in HIDDEN else super().find_spec(fullname, path, target)


sys.meta_path[:] = [Without if finder is PathFinder else finder for finder in sys.meta_path]
