"""How the messages of lesson 01 begin."""

from cs336kit.teach.exercises.core import Mistake


def wrong(answer, why):
    """A mistake whose message begins with the case and what was returned."""
    return Mistake(answer, "For {case} you returned {given}" + why)
