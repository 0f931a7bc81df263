"""`cs336kit lessons`: what readers, lecturers and maintainers do with the lessons of a clone."""

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from cs336kit._cli.arguments import Parser

PURPOSE = "list the lessons of a clone and your progress; copy, hand out, project, publish and verify them"


@dataclass(frozen=True)
class Action:
    """An action: the module of `course` and its function, what it does, and which numbers and options it takes, in order.

    Modules are imported only when needed, because some need packages that the others do not.
    """

    module: str
    function: str
    purpose: str
    takes: tuple[str, ...] = ()


ACTIONS = {
    "list": Action("lessons", "listing", "list the lessons and your progress (this is the default)", ("numbers",)),
    "copy": Action("copies", "copy", "make your own copies to work in, in my/", ("numbers",)),
    "reset": Action("reader", "reset", "forget your guesses and solved exercises", ("yes",)),
    "doctor": Action("doctor", "report", "check that everything the lessons need is installed"),
    "student": Action(
        "student", "write", "write lessons without solutions and outputs, in build/student", ("numbers", "into")
    ),
    "assignment": Action(
        "assignment", "write", "write the same with points, for nbgrader, in my/course", ("numbers", "into")
    ),
    "instructor": Action("instructor", "write", "write plans, usual mistakes and an exam, in build/instructor"),
    "slides": Action("slides", "write", "write slides to project, in build/slides", ("numbers", "into")),
    "site": Action("site", "build", "build web pages of everything, in build/site", ("into",)),
    "verify": Action(
        "verify", "verify", "run the lessons, and compare their outputs with the stored ones", ("numbers",)
    ),
    "refresh": Action("refresh", "store", "run the lessons, and store their outputs", ("numbers", "fresh")),
    "readme": Action("lessons", "write_readme", "write the table of lessons in README.md"),
    "claims": Action("claims_page", "write", "compute and store the values that settle the claims"),
}


def run(arguments: list[str]) -> int:
    """Do what is asked; returns the exit code."""
    width = max(map(len, ACTIONS))
    told = "\n".join(f"  {name:<{width}}  {action.purpose}" for name, action in ACTIONS.items())
    parser = Parser.of("lessons", "[ACTION] [NN …] [options]", purpose=PURPOSE, examples=f"actions:\n{told}\n")
    parser.add_argument(
        "action", nargs="?", default="list", choices=ACTIONS, metavar="ACTION", help="one of the actions below"
    )
    parser.add_argument("numbers", nargs="*", metavar="NN", help="numbers of lessons, such as 02; none means all")
    parser.add_argument("--into", type=Path, metavar="FOLDER", help="write here instead of the folder named below")
    parser.add_argument("--fresh", action="store_true", help="refresh: also measure again what depends on the machine")
    parser.add_argument("--yes", action="store_true", help="reset: do not ask")
    asked = parser.parse_args(arguments)
    action = ACTIONS[asked.action]
    if asked.numbers and "numbers" not in action.takes:
        parser.error(f"{asked.action} is for all lessons: leave the numbers out")
    for name in ("into", "fresh", "yes"):
        if getattr(asked, name) and name not in action.takes:
            with_it = ", ".join(other for other, what in ACTIONS.items() if name in what.takes)
            parser.error(f"--{name} is for {with_it}, and not for {asked.action}: leave it out")
    function = getattr(import_module(f"cs336kit.course.{action.module}"), action.function)
    given = [getattr(asked, name) for name in action.takes if name != "into"]
    # Without --into, the function has its own default.
    answer = function(*given, **({"into": asked.into} if asked.into else {}))
    if isinstance(answer, int):  # an exit code: it has printed everything itself
        return answer
    for sentence in [answer] if isinstance(answer, str) else answer:
        print(sentence, flush=True)
    return 0
