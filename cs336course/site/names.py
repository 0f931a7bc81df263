"""The pages of the kit's public names, from its docstrings: a page for each room, ordered by module."""

import ast
import inspect
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

from cs336course.site.settings import as_rst

#: The room, as a page calls it → the package.
ROOMS = {
    name: f"cs336kit.{name}"
    for name in ("predict", "lm", "measure", "teach", "teach.figures", "teach.explorers", "teach.exercises")
} | {"cs336plan": "cs336plan"}


def rooms() -> dict[str, str]:
    """The page of each room, and what the room is for, in a line."""
    return {f"api/{name}": (inspect.getdoc(_room(name)) or "").split("\n")[0] for name in ROOMS}


def pages() -> dict[str, str]:
    """File name → reStructuredText of each room's page."""
    return {f"api/{name}.rst": page(_room(name)) for name in ROOMS}


def _room(name: str) -> ModuleType:
    return import_module(ROOMS[name])


def page(room: ModuleType) -> str:
    """The page of a room: what it is for, and the public names of each of its modules."""
    title = room.__name__.removeprefix("cs336kit.")
    parts = [_heading(title, "="), as_rst(inspect.getdoc(room) or "")]
    for module, names in by_module(room).items():
        if module != room.__name__:
            parts += [
                _heading(module.removeprefix(f"{room.__name__}."), "-"),
                as_rst(inspect.getdoc(import_module(module)) or ""),
            ]
        parts += [_entry(room, module, name) for name in names]
    return "\n\n".join(parts) + "\n"


def by_module(room: ModuleType) -> dict[str, list[str]]:
    """Module → the room's public names that it defines, in order; those of private modules count as the room's own."""
    public = {name for name in getattr(room, "__all__", dir(room)) if not name.startswith("_")}
    found: dict[str, list[str]] = {room.__name__: []}
    for module, file in _modules(room):
        names = [name for name in _defined(file) if name in public and _lives(getattr(room, name), module)]
        private = any(part.startswith("_") for part in module.split("."))
        if names:
            found.setdefault(room.__name__ if private else module, []).extend(names)
    return found


def _modules(room: ModuleType) -> Iterator[tuple[str, Path]]:
    """The modules of a room with their files, and those of lessons that it offers; a room inside it has a page of its own."""
    folder = Path(inspect.getfile(room)).parent
    inner = {name.rpartition(".")[2] for name in ROOMS.values() if name.startswith(f"{room.__name__}.")}
    offered = {str(getattr(getattr(room, name), "__module__", "")) for name in dir(room)}
    for name in sorted(name for name in offered if name.startswith("cs336kit.lessons.")):
        yield name, Path(inspect.getfile(import_module(name)))
    for file in sorted(folder.rglob("*.py")):
        parts = file.relative_to(folder).with_suffix("").parts
        if parts[0] not in inner:
            yield ".".join([room.__name__, *(part for part in parts if part != "__init__")]), file


def _defined(file: Path) -> Iterator[str]:
    """The names that a file defines at its top level."""
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.AnnAssign | ast.Assign):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                yield from (part.id for part in ast.walk(target) if isinstance(part, ast.Name))


def _lives(value: object, module: str) -> bool:
    """Whether a value is defined in that module; a constant does not know its module."""
    if inspect.isclass(value) or inspect.isfunction(value):
        return value.__module__ == module
    return not inspect.ismodule(value)


def _entry(room: ModuleType, module: str, name: str) -> str:
    value = getattr(room, name)
    if inspect.isclass(value):
        return f".. autoclass:: {room.__name__}.{name}\n   :members:"
    if inspect.isfunction(value):
        return f".. autofunction:: {room.__name__}.{name}"
    # The comment that documents a constant is where it is defined.
    return f".. autodata:: {module}.{name}\n   :no-value:"


def _heading(text: str, mark: str) -> str:
    return f"{text}\n{mark * len(text)}\n"
