"""`python -m benchmarks.walked`: how much of our code one plan enters, as functions, files and frames.

Functions have a name of their own (no comprehensions, no lambdas, no bodies of modules); frames are those of our packages
that call each other at the deepest moment. `--list` prints each file with its functions.
"""

import contextlib
import io
import json
import pkgutil
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from types import CodeType, FrameType

import cs336kit.command
import cs336kit.predict
import cs336plan
from cs336kit.command import main as command
from cs336kit.command.arguments import Parser

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = tuple(f"{ROOT / name}/" for name in ("cs336kit", "cs336plan", "cs336course"))
#: A small Llama, as its config.json has it.
LLAMA = {
    "model_type": "llama", "hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8,
    "intermediate_size": 8192, "vocab_size": 128256, "max_position_embeddings": 8192, "rope_theta": 500000.0,
    "rms_norm_eps": 1e-5, "tie_word_embeddings": True, "hidden_act": "silu", "torch_dtype": "bfloat16",
}  # fmt: skip


class Walk:
    """What `sys.setprofile` sees of our packages: the code that is entered, and how deep it stands at most."""

    def __init__(self) -> None:
        self.entered: set[CodeType] = set()
        self.frames = self.deepest = 0

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        if event not in ("call", "return") or not frame.f_code.co_filename.startswith(PACKAGES):
            return
        self.frames += 1 if event == "call" else -1
        self.deepest = max(self.deepest, self.frames)
        self.entered.add(frame.f_code)

    def functions(self) -> dict[str, list[str]]:
        """File → its functions that were entered."""
        files = defaultdict(list)
        for code in self.entered:
            if not code.co_name.startswith("<"):
                files[str(Path(code.co_filename).relative_to(ROOT))].append(code.co_qualname)
        return {name: sorted(files[name]) for name in sorted(files)}


def walked(arguments: Iterable[str]) -> Walk:
    """The walk of one command: the first of this process, so that nothing is remembered, with its modules imported before it."""
    given, walk = list(arguments), Walk()
    for package in (cs336kit.predict, cs336kit.command, cs336plan):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.startswith("cs336plan.trace"):  # which needs torch, and no rule enters it
                import_module(module.name)
    with contextlib.redirect_stdout(io.StringIO()):
        sys.setprofile(walk)
        try:
            command(given)
        finally:
            sys.setprofile(None)
    return walk


def main(listed: bool) -> int:
    """Print functions · files · frames of `plan config.json`."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_text(json.dumps(LLAMA), encoding="utf-8")
        walk = walked(["plan", str(path), "--count", "8", "--tokens", "1T"])
    files = walk.functions()
    if listed:
        print("\n".join(f"{name}: {', '.join(names)}" for name, names in files.items()))
    print(f"{sum(map(len, files.values()))} functions · {len(files)} files · {walk.deepest} frames")
    return 0


if __name__ == "__main__":
    arguments = Parser(description=__doc__)
    arguments.add_argument("--list", action="store_true", help="print the functions of each file")
    sys.exit(main(arguments.parse_args().list))
