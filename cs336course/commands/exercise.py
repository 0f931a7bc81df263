"""`cs336kit exercise`: what authors of exercises run."""

from contextlib import nullcontext

from cs336course.commands import lessons

PURPOSE = "new 07.3 writes an exercise's stub, try 07.3 says which case tells which mistakes apart"


def run(arguments: list[str]) -> int:
    """Do what is asked; returns the exit code."""
    from cs336course.exercise import main

    # `exercise try` reads the package alone, and works anywhere.
    with lessons.in_clone() if arguments[:1] == ["new"] else nullcontext():
        return int(main(arguments))
