"""`cs336kit lessons`: what readers, lecturers and maintainers do with the lessons of a clone."""

import argparse
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from cs336kit._cli.arguments import Parser

PURPOSE = "list the lessons of a clone, and how far you are; copy, hand out, project, publish and verify them"


def _said(sentences: Iterable[str]) -> int:
    for sentence in sentences:
        print(sentence, flush=True)
    return 0


def _list(asked: argparse.Namespace) -> int:
    from cs336kit.course import lessons

    return _said([lessons.listing(asked.numbers)])


def _copy(asked: argparse.Namespace) -> int:
    from cs336kit.course import copies

    return _said(copies.copy(asked.numbers))


def _reset(asked: argparse.Namespace) -> int:
    from cs336kit.course import reader

    return _said([reader.reset(asked.yes)])


def _doctor(asked: argparse.Namespace) -> int:
    from cs336kit.course import doctor

    return doctor.report()


def _student(asked: argparse.Namespace) -> int:
    from cs336kit.course import student

    return _said(student.write(asked.numbers, into=asked.into or student.FOLDER))


def _assignment(asked: argparse.Namespace) -> int:
    from cs336kit.course import assignment

    return _said(assignment.write(asked.numbers, into=asked.into or assignment.FOLDER))


def _instructor(asked: argparse.Namespace) -> int:
    from cs336kit.course import instructor

    return _said([instructor.write()])


def _slides(asked: argparse.Namespace) -> int:
    from cs336kit.course import slides

    return _said([slides.write(asked.numbers, asked.into or slides.BUILD)])


def _site(asked: argparse.Namespace) -> int:
    from cs336kit.course import site

    return _said([site.build(asked.into or site.INTO)])


def _verify(asked: argparse.Namespace) -> int:
    from cs336kit.course.verify import verify

    return verify(asked.numbers)


def _refresh(asked: argparse.Namespace) -> int:
    from cs336kit.course.refresh import store

    return store(asked.numbers, asked.fresh)


def _readme(asked: argparse.Namespace) -> int:
    from cs336kit.course import lessons

    return _said([lessons.write_readme()])


def _claims(asked: argparse.Namespace) -> int:
    from cs336kit.course import claims_page

    return _said([claims_page.write()])


@dataclass(frozen=True)
class Action:
    """What it does, and which numbers and options it takes."""

    run: Callable[[argparse.Namespace], int]
    purpose: str
    takes: tuple[str, ...] = ()


ACTIONS = {
    "list": Action(_list, "which there are, and how far you are (what is done without an action)", ("numbers",)),
    "copy": Action(_copy, "your own to work in, in my/", ("numbers",)),
    "reset": Action(_reset, "forget your guesses and solved exercises", ("yes",)),
    "doctor": Action(_doctor, "is all installed that they need"),
    "student": Action(_student, "without solutions and outputs, in build/student", ("numbers", "into")),
    "assignment": Action(_assignment, "the same with points, for nbgrader, in my/course", ("numbers", "into")),
    "instructor": Action(_instructor, "plans, usual mistakes and an exam, in build/instructor"),
    "slides": Action(_slides, "to project, in build/slides", ("numbers", "into")),
    "site": Action(_site, "all of it as web pages, in build/site", ("into",)),
    "verify": Action(_verify, "run them, and compare with what is stored", ("numbers",)),
    "refresh": Action(_refresh, "run them, and store what they show", ("numbers", "fresh")),
    "readme": Action(_readme, "the table of lessons in README.md"),
    "claims": Action(_claims, "the values that settle the ledger of claims"),
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
    return action.run(asked)
