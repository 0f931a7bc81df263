"""`cs336kit lessons`: what readers, lecturers and maintainers do with the lessons of a clone.

It works in the clone that contains the current folder, as if it had been started at its top.
"""

import os
import sys
from argparse import Namespace
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from pathlib import Path
from pkgutil import resolve_name

from cs336course import clone
from cs336kit.command.arguments import Parser

PURPOSE = "list the lessons of a clone and your progress; copy, hand out, project, publish and verify them"


#: Action → its function in this package, what it is for, and which numbers and options it takes, in order. A module is imported
#: only when it is needed, because some need packages that the others do not.
ACTIONS: dict[str, tuple[str, ...]] = {
    "list": ("reader:listing", "list the lessons and your progress (this is the default)", "numbers"),
    "copy": ("copies:copy", "make your own copies to work in, in my/", "numbers"),
    "lab": ("lab:lab", "do that, and open the first in JupyterLab (what follows -- is for it)", "numbers", "options"),
    "reset": ("reader:reset", "forget your guesses and solved exercises", "yes"),
    "doctor": ("doctor:report", "check that everything the lessons need is installed"),
    "student": ("student:write", "write lessons without solutions and outputs, in build/student", "numbers", "into"),
    "assignment": ("assignment:write", "write the same with points, for nbgrader, in my/course", "numbers", "into"),
    "instructor": ("instructor:write", "write plans, usual mistakes and an exam, in build/instructor"),
    "slides": ("slides:write", "write slides to project, in build/slides", "numbers", "into"),
    "site": ("site:build", "build web pages of everything, in build/site", "into"),
    "verify": (
        "verify:verify",
        "run the lessons, and compare their outputs and what they say",
        "numbers",
    ),
    "refresh": ("refresh:store", "run the lessons, and store their outputs", "numbers", "fresh"),
    "readme": ("readme:write", "write the table of lessons in README.md"),
    "titles": ("titles:edit", "show the titles of slides to edit, or store them", "numbers", "from"),
    "links": ("address:write", "write links to Colab, Binder and the pages of OWNER/NAME on GitHub", "numbers"),
    "claims": ("claims_page:write", "compute and store the values that settle the claims"),
}
#: These are about the reader and the installed packages: they do without a clone.
ANYWHERE = ("reset", "doctor")


def run(arguments: list[str]) -> int:
    """Do what is asked; returns the exit code."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    arguments, options = arguments[:end], arguments[end + 1 :]
    width = max(map(len, ACTIONS))
    told = "\n".join(f"  {name:<{width}}  {purpose}" for name, (_, purpose, *_) in ACTIONS.items())
    parser = Parser.of("lessons", "[ACTION] [NN …] [options]", purpose=PURPOSE, examples=f"actions:\n{told}\n")
    add = parser.add_argument
    add("action", nargs="?", default="list", choices=ACTIONS, metavar="ACTION", help="one of the actions below")
    add("numbers", nargs="*", metavar="NN", help="numbers of lessons, such as 02; none means all")
    add("--into", type=Path, metavar="FOLDER", help="write here instead of the folder named below")
    add("--from", type=Path, metavar="FILE", help="titles: store what this file says, in the form that is shown")
    add("--fresh", action="store_true", help="refresh: also measure again what depends on the machine")
    add("--yes", action="store_true", help="reset: do not ask")
    asked = parser.parse_args(arguments)
    asked.options = options
    _, _, *takes = ACTIONS[asked.action]
    if asked.numbers and "numbers" not in takes:
        parser.error(f"{asked.action} is for all lessons: leave the numbers out")
    written = {name: f"--{name}" for name in ("into", "from", "fresh", "yes")} | {"options": "what follows --"}
    for name, option in written.items():
        if getattr(asked, name) and name not in takes:
            with_it = ", ".join(other for other, what in ACTIONS.items() if name in what[2:])
            parser.error(f"{option} is for {with_it}, and not for {asked.action}: leave it out")
    here = Path.cwd()
    with in_clone(needed=asked.action not in ANYWHERE):
        if Path.cwd() != here:
            # Paths that were given still mean what they meant here; a bare name is that of a lesson, owner/name no path.
            for name in ("into", "from"):
                setattr(asked, name, getattr(asked, name) and here / getattr(asked, name))
            paths = {
                name: str(here / name) for name in asked.numbers if os.path.dirname(name) and (here / name).exists()
            }
            asked.numbers = [paths.get(name, name) for name in asked.numbers]
        return _act(*ACTIONS[asked.action], asked=asked)


def _act(place: str, _: str, *takes: str, asked: Namespace) -> int:
    """Call an action's function and print what it answers."""
    function = resolve_name(f"cs336course.{place}")
    given = [getattr(asked, name) for name in takes if name != "into"]
    # Without --into, the function has its own default.
    answer = function(*given, **({"into": asked.into} if asked.into else {}))
    if isinstance(answer, int):  # an exit code: it has printed everything itself
        return answer
    for sentence in [answer] if isinstance(answer, str) else answer:
        print(sentence, flush=True)
    return 0


@contextmanager
def in_clone(needed: bool = True) -> Iterator[None]:
    """Work at the top of the clone around the current folder; if that is another folder, say on stderr which.

    ValueError where there is none, or, if none is needed, stay.
    """
    here = Path.cwd()
    top = clone.around(here)
    if top is None and needed:
        raise ValueError(clone.missing())
    if top not in (None, here):
        print(f"In {top}:", file=sys.stderr, flush=True)
    with chdir(top or here):
        yield
