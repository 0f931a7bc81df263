"""How the messages of lesson 04 begin."""

from cs336kit.teach.exercises.core import Mistake


def wrong(answer, why):
    """A mistake whose message begins with the case."""
    return Mistake(answer, "For {case} " + why)
