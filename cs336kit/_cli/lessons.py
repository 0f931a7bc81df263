"""`cs336kit lessons`: what readers, lecturers and maintainers do with the lessons of a clone."""

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from cs336kit._cli.arguments import Parser

PURPOSE = "list the lessons of a clone, and how far you are; copy, hand out, project, publish and verify them"


@dataclass(frozen=True)
class Action:
    """The function of a module of `course` that does it, what it does, and which numbers and options it takes, in order.

    Modules are imported when they are asked for, because some need packages that the others do without.
    """

    module: str
    function: str
    purpose: str
    takes: tuple[str, ...] = ()


ACTIONS = {
    "list": Action(
        "lessons", "listing", "which there are, and how far you are (what is done without an action)", ("numbers",)
    ),
    "copy": Action("copies", "copy", "your own to work in, in my/", ("numbers",)),
    "reset": Action("reader", "reset", "forget your guesses and solved exercises", ("yes",)),
    "doctor": Action("doctor", "report", "is all installed that they need"),
    "student": Action("student", "write", "without solutions and outputs, in build/student", ("numbers", "into")),
    "assignment": Action(
        "assignment", "write", "the same with points, for nbgrader, in my/course", ("numbers", "into")
    ),
    "instructor": Action("instructor", "write", "plans, usual mistakes and an exam, in build/instructor"),
    "slides": Action("slides", "write", "to project, in build/slides", ("numbers", "into")),
    "site": Action("site", "build", "all of it as web pages, in build/site", ("into",)),
    "verify": Action("verify", "verify", "run them, and compare with what is stored", ("numbers",)),
    "refresh": Action("refresh", "store", "run them, and store what they show", ("numbers", "fresh")),
    "readme": Action("lessons", "write_readme", "the table of lessons in README.md"),
    "claims": Action("claims_page", "write", "the values that settle the ledger of claims"),
}


def run(arguments: list[str]) -> int:
    """Do what is asked; returns the exit code."""
    width = max(map(len, ACTIONS))
    told = "\n".join(f"  {name:<{width}}  {action.purpose}" for name, action in ACTIONS.items())
    parser = Parser.of("lessons", "[ACTION] [NN …] [options]", purpose=PURPOSE, examples=f"actions:\n{told}\n")
    parser.add_argument(
        "action", nargs="?", default="list", choices=ACTIONS, metavar="ACTION", help="one of those below"
    )
    parser.add_argument("numbers", nargs="*", metavar="NN", help="such as 02; none means all")
    parser.add_argument("--into", type=Path, metavar="FOLDER", help="where to write, in place of the folder below")
    parser.add_argument("--fresh", action="store_true", help="refresh: measure what depends on the machine again")
    parser.add_argument("--yes", action="store_true", help="reset: without asking")
    asked = parser.parse_args(arguments)
    action = ACTIONS[asked.action]
    if asked.numbers and "numbers" not in action.takes:
        parser.error(f"{asked.action} is about all lessons: leave the numbers out")
    for name in ("into", "fresh", "yes"):
        if getattr(asked, name) and name not in action.takes:
            with_it = ", ".join(other for other, what in ACTIONS.items() if name in what.takes)
            parser.error(f"--{name} goes with {with_it}, and not with {asked.action}: leave it out")
    function = getattr(import_module(f"cs336kit.course.{action.module}"), action.function)
    given = [getattr(asked, name) for name in action.takes if name != "into"]
    # The function knows where it writes otherwise.
    answer = function(*given, **({"into": asked.into} if asked.into else {}))
    if isinstance(answer, int):  # it has said all itself
        return answer
    for sentence in [answer] if isinstance(answer, str) else answer:
        print(sentence, flush=True)
    return 0
