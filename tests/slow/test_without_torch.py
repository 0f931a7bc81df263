"""tests/fast holds where neither torch nor numpy can be imported, in the tests themselves and in what they start."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
WITHOUT = """
import sys
from importlib.machinery import PathFinder

class Without(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        missing = name in {"torch", "numpy", "matplotlib", "yaml", "einops"}
        return None if missing else super().find_spec(name, path, target)

sys.meta_path[:] = [Without if finder is PathFinder else finder for finder in sys.meta_path]
"""


def test_the_fast_tests_need_no_torch(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(WITHOUT)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}

    def python(*arguments):
        return subprocess.run(
            [sys.executable, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
        )

    assert "No module named 'torch'" in python("-c", "import torch").stderr
    # As `make fast`: without the plugins that other packages bring.
    without = [option for name in ("cacheprovider", "nbval", "jaxtyping", "anyio") for option in ("-p", f"no:{name}")]
    done = python("-m", "pytest", "-q", *without, "tests/fast")
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout and "skipped" not in done.stdout
