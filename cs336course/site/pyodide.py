"""Python in the page: everything that the planner and the explorers load, from the site itself."""

import argparse
import inspect
import json
import re
import shutil
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import cs336kit
from cs336course.site.in_page import EXPLORERS
from cs336kit.predict import MODELS, accelerators
from cs336kit.teach.explorers.explorer import STILL
from cs336plan.commands import plan

#: Where npm puts Pyodide in a clone, and which of its files a browser loads.
PYODIDE = Path("node_modules/pyodide")
LOADED = ("pyodide.asm.wasm", "python_stdlib.zip", "pyodide-lock.json")
SHIPPED = (*LOADED, "pyodide.mjs", "pyodide.asm.mjs")
#: Files of the three packages that need only the standard library, without an `__init__` that imports torch or matplotlib.
PACKED = (
    "cs336kit/__init__.py",
    "cs336kit/files.py",
    "cs336kit/command/*.py",
    "cs336kit/predict/**/*.*",
    "cs336kit/teach/content.py",
    "cs336kit/teach/explorers/*.py",
    "cs336kit/teach/figures/primitives.py",
    "cs336kit/teach/figures/style.py",
    "cs336kit/teach/numbers.py",
    "cs336plan/**/*.*",
    "cs336course/site/in_page.py",
)
#: Options of `cs336kit plan` that most questions need; the page folds the others.
FIRST = (
    "tokens", "batch", "sequence", "precision", "optimizer", "checkpointing", "accelerator", "count",
    "layout", "find", "largest_batch", "between_nodes",
)  # fmt: skip
#: Options that say how the answer is printed, which the page decides.
_PRINTING = ("help", "", "json", "json_keys", "check", "modules")
_PLACE = re.compile(r'(<div class="cs336kit-explorer" data-explorer="(\w+)">)(</div>)')


def ship(into: Path, root: Path = Path()) -> None:
    """Write what the pages need into a folder of pages, and the still pictures into its page of explorers, if it has one.

    root: the clone, where npm has installed Pyodide. Errors: ValueError if it has not, OSError if nothing can be
    written.
    """
    if missing := [name for name in SHIPPED if not (root / PYODIDE / name).is_file()]:
        raise ValueError(f"{root / PYODIDE / missing[0]} is missing, but Python in a page needs it: run `make site`.")
    folder = into / "_static" / "pyodide"
    folder.mkdir(parents=True, exist_ok=True)
    for name in SHIPPED:
        shutil.copy(root / PYODIDE / name, folder)
    pack(folder / "kit.zip")
    size = sum((folder / name).stat().st_size for name in (*LOADED, "kit.zip"))
    (folder / "offers.json").write_text(json.dumps({"bytes": size, **offers()}), encoding="utf-8")
    page = into / "explorers.md"
    if page.is_file():
        page.write_text(with_stills(page.read_text(encoding="utf-8")), encoding="utf-8")


def pack(path: Path) -> None:
    """The part of the kit that the pages call, as a zip."""
    top = Path(inspect.getfile(cs336kit)).parents[1]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        for file in sorted(file for pattern in PACKED for file in top.glob(pattern)):
            # Without a time, so that the same content gives the same file, whenever it is packed.
            entry = zipfile.ZipInfo(file.relative_to(top).as_posix())
            entry.compress_type = zipfile.ZIP_DEFLATED
            packed.writestr(entry, file.read_bytes())


def offers() -> dict[str, object]:
    """What a reader can choose on the planner's page: the models, and every option of `cs336kit plan`."""
    return {
        "models": list(MODELS),
        "options": list(_options(plan.parser())),
    }


def _options(parser: argparse.ArgumentParser) -> Iterator[dict[str, object]]:
    # The command accepts other spellings, too, but a page has a menu.
    menus = {"accelerator": [device.name for device in accelerators()]}
    for group in parser._action_groups:
        for action in group._group_actions:
            # A page calls a control as its option is called, whatever field of the question that sets.
            name = "".join(action.option_strings[-1:]).lstrip("-").replace("-", "_")
            if name not in _PRINTING:
                choices = menus.get(name, list(action.choices or ()))
                yield {
                    "name": name, "flag": action.option_strings[0], "group": group.title, "first": name in FIRST,
                    "help": _on_a_page((action.help or "").replace("%%", "%"), choices), "choices": choices,
                    "switch": action.nargs == 0, "default": None if action.nargs == 0 else action.default,
                }  # fmt: skip


def _on_a_page(said: str, choices: Sequence[str]) -> str:
    """The help of an option without what only a command line has, and without names that stand in its menu."""
    said = re.sub(r" \(--\w+ help [^)]*\)", "", said)
    said = re.sub(r"--([a-z-]+)", lambda flag: flag[1].replace("-", " "), said)
    names, _, rest = said.partition("; ")
    return rest if rest and choices and all(name in names for name in choices) else said


def with_stills(page: str) -> str:
    """The page with the still pictures of explorers in their places, to be seen before anything runs."""

    def filled(place: re.Match[str]) -> str:
        # On a phone the picture scrolls in its box, which must be reachable by keyboard.
        box = f'<div class="{STILL}" tabindex="0" role="group" aria-label="{place[2]}">'
        return f"{place[1]}{box}{EXPLORERS[place[2]]()._repr_html_()}</div>{place[3]}"

    return _PLACE.sub(filled, page)
