"""The reader's progress: a line for each lesson of the listing, what is next, and a reset of the journal."""

import re
from collections.abc import Sequence
from pathlib import Path

from cs336course import pace, pages
from cs336course.cells import Cell
from cs336course.lessons import find, read
from cs336kit import journal as _journal


def listing(names: list[str]) -> str:
    """The lessons with these numbers (all for none) as text: title, question, and what the reader has done; then what is next.

    If the journal cannot be read, only the reader's progress is missing, and the last line says so.
    """
    lessons = [(path, read(path)) for path in find(names)]
    try:
        journal, last = _journal.read(), ""
    except ValueError as error:
        journal, last = _journal.Journal(), f"What you have done is not shown: {error}."
    lines = []
    for path, cells in lessons:
        lines += [pages.title(path), f"     {pages.promise(cells)}"]
        lines += [f"     {done}"] if (done := mark(path, cells, journal)) else []
    lines += [last or following(lessons, journal)] if last or not names else []
    return "\n".join(lines)


def mark(path: Path, cells: Sequence[Cell], journal: _journal.Journal) -> str:
    """What the reader has done in a lesson, as "3 of 5 exercises, 6 guesses, within a factor of 1.4 in the middle"; or ""."""
    ids = [found[1] for found in pace.exercises(cells)]
    solved = len({*ids} & {*journal.solved})
    # A guess made outside JupyterLab does not record its lesson.
    guesses = {key: entry for key, entry in journal.guesses.items() if key.startswith(path.name[:2] + " ")}
    parts = [f"{solved} of {len(ids)} exercises"] if solved or guesses else []
    parts += [many(len(guesses), "guess", "es")] if guesses else []
    middle = _journal.middle(guesses)
    return ", ".join(parts + ([f"within a factor of {middle:.2g} in the middle"] if middle else []))


def following(lessons: pages.Lessons, journal: _journal.Journal) -> str:
    """What is next, as a sentence: the first unsolved exercise, starting from the last lesson that was worked in."""
    begun = [place for place, (path, cells) in enumerate(lessons) if mark(path, cells, journal)]
    start = begun[-1] if begun else 0
    for path, cells in [*lessons[start:], *lessons[:start]]:
        left = [found[1] for found in pace.exercises(cells) if found[1] not in journal.solved]
        if left:
            what = f"exercise {left[0]} in {pages.title(path)}" if mark(path, cells, journal) else pages.title(path)
            return f"Next: {what}. (cs336kit lessons lab opens your copies.)"
    return "Every exercise is solved."


def reset(agreed: bool) -> str:
    """Forget all guesses and solved exercises; returns what was forgotten, in words.

    agreed: if false, ask at the terminal. Raises ValueError if there is nothing to forget, or the answer is not yes.
    """
    file, journal = _journal.path(), _journal.read()
    if journal == _journal.Journal():
        raise ValueError(f"there is nothing to forget: {file} holds no guess and no solved exercise.")
    held = f"{many(len(journal.guesses), 'guess', 'es')} and {many(len(journal.solved), 'solved exercise')}"
    if not agreed:
        try:
            answer = input(f"Forget {held}, in {file}? This cannot be undone. (yes or no) ")
        except EOFError:
            answer = ""
        if not re.fullmatch("y|yes", answer.strip().lower()):
            raise ValueError("nothing was forgotten: answer yes, or give --yes.")
    _journal.forget()
    return f"Forgotten: {held}."


def many(number: int, what: str, ending: str = "s") -> str:
    """A number of things in words, such as "1 guess" or, with the ending "es", "2 guesses"."""
    return f"{number} {what}{ending * (number != 1)}"
