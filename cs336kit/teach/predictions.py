"""The reader's own predictions: `reveal` compares a guess with the answer, and `calibration` draws all guesses so far.

What `reveal` shows is folded until a guess is made, by HTML's ``<details>``, which every front end of notebooks knows.
Guesses are kept in one local file (:mod:`cs336kit.journal`), and the first guess at a question is the one that counts.
"""

import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from cs336kit import journal as _journal
from cs336kit.journal import is_number
from cs336kit.teach.comparison import SOURCES
from cs336kit.teach.figures.guesses import guesses_against_answers
from cs336kit.teach.figures.style import Figure
from cs336kit.teach.folding import details
from cs336kit.teach.numbers import as_python, text
from cs336kit.teach.tables import Table, table

#: Number of the notebook cell that made a guess → the question that the guess was compared with.
_asked: dict[int, str] = {}


@dataclass(frozen=True, repr=False)
class Revealed(Table):
    """An answer with its source and, if a guess was made, how far off the guess was.

    note: what is said about the guess, in a sentence. guessed: whether a guess was made, which opens the answer.
    """

    note: str = ""
    guessed: bool = False

    def __repr__(self) -> str:
        return super().__repr__() + (f"\n{self.note}" if self.note else "")

    def _repr_html_(self) -> str:
        note = f"<p>{escape(self.note)}</p>" if self.note else ""
        answer = super()._repr_html_()
        # What is wrong with a guess is read before the answer is opened.
        return details(answer + note, "The answer", open=True) if self.guessed else note + details(answer, "The answer")


def reveal(guess: Any, *, of: str, unit: str = "", choices: Sequence[Any] = (), **answer: Any) -> Revealed:
    """Show the answer to a question and, where the reader has made a guess, by what factor it was off.

    The answer is folded, and a click opens it; it is open at once where a guess was made.

    guess: ``...`` for none; None for "show me"; else a number or a word, or a tuple with one for each part of the answer.
    of: what is asked for, in a few words; unit: any text, written after numbers.
    choices: all values that an answer or a part of it may have, where a factor would mean nothing: a guess is then right
    or wrong. A number may be written with fewer digits: 1.008 is the choice 1.0078125.
    answer: one of ``counted= measured= computed= datasheet=``, depending on its source: a number, a word, or a dict of
    part → number or word.

    A guess of a different kind, at a different question, or that is none of the words to choose from, is not compared:
    the answer stays folded, and the note says why. Raises ValueError when not exactly one answer is given, or when it is
    none of the choices.
    """
    if len(answer) != 1 or (how := next(iter(answer))) not in SOURCES:
        raise ValueError(f"reveal needs one answer, as {'= or '.join(SOURCES)}=, not {', '.join(answer) or 'none'}")
    value = answer[how]
    parts = {str(k): as_python(v) for k, v in (value.items() if isinstance(value, Mapping) else [(of, value)])}
    for shown in parts.values():
        if choices and shown not in choices:
            raise ValueError(f"the answer {shown!r} is none of the choices: {', '.join(map(repr, choices))}")
    wanted = _is_none(guess)
    guesses, note = ({}, "") if wanted else _guesses(guess, parts, choices)
    if guesses and (asked := _made_at(of)) != of:
        said = " and ".join(map(text, guesses.values()))
        guesses, note = {}, f"{said} was your guess at “{asked}”: first run the cell with your guess at this question."
    first = ""
    if guesses:
        entries = {_key(of, name, parts): _entry(g, parts[name], unit, choices) for name, g in guesses.items()}
        kept, note = _journal.note("Your guess", entries)
        earlier = kept.guesses
        if any(_same(earlier[key]["guess"], entry["guess"]) is False for key, entry in entries.items()):
            said = " and ".join(text(earlier[key]["guess"]) for key in entries)
            first = f"Your first guess, {said}, is the one that counts."
    headers = [of if len(parts) > 1 else "question", how + (f" ({unit})" if unit else "")]
    rows: list[list[Any]] = [[name, shown] for name, shown in parts.items()]
    if guesses:
        headers += ["your guess", "off by"]
        rows = [[*row, guesses[row[0]], _off(guesses[row[0]], row[1], choices)] for row in rows]
    drawn = table(headers, rows, align="<" + ">" * (len(headers) - 1))
    said = " ".join(filter(None, (note, first)))
    return Revealed(drawn.headers, drawn.rows, drawn.align, note=said, guessed=bool(guesses) or wanted)


def calibration() -> Figure | str:
    """Draw the reader's first guesses against the answers, as factors; while there are none, returns a sentence.

    Raises ValueError, which names the file, when it cannot be read. `cs336kit lessons reset` forgets all guesses.
    """
    kept = _journal.read()
    numbers, middle = _journal.ratios(kept.guesses), _journal.middle(kept.guesses)
    if middle is None:
        return "No guesses yet: put one in place of the ... of a prediction, run it and the next cell."
    return guesses_against_answers(numbers, middle)


def first_guess(lesson: str, of: str) -> str:
    """The reader's first guess at the question `of` of a lesson ("00"), as text; "none kept" where there is none.

    of: as in `reveal`; for one part of an answer "question, part". Raises ValueError as `calibration` does.
    """
    guesses = _journal.read().guesses
    # Outside JupyterLab the question alone is the key.
    kept = next((guesses[key] for key in (f"{lesson} {of}", of) if key in guesses), None)
    return text(kept["guess"]) if kept else "none kept"


def _is_none(guess: Any) -> bool:
    """Whether the reader asks to be shown the answer, of all parts."""
    return guess is None or (isinstance(guess, (tuple, list)) and bool(guess) and all(part is None for part in guess))


def _guesses(guess: Any, parts: Mapping[str, Any], choices: Sequence[Any]) -> tuple[dict[str, Any], str]:
    """The guess for each part, and a note if it cannot be compared."""
    given = list(guess) if isinstance(guess, (tuple, list)) else [guess]
    if any(part is ... for part in given):
        return {}, "" if all(part is ... for part in given) else "One part of the guess is still missing."
    if len(given) != len(parts):
        has = f"Your guess has {len(given)} part{'s' * (len(given) != 1)}"
        return {}, f"{has}, but the answer has {len(parts)}: {', '.join(parts)}."
    guesses = dict(zip(parts, map(as_python, given), strict=True))
    for name, value in guesses.items():
        if isinstance(value, int) and not isinstance(value, bool) and not is_number(value):
            return {}, f"Your guess {text(value)} is not compared: it is larger than any float."
        kind = "a number" if is_number(parts[name]) else "a word"
        if is_number(value) is not is_number(parts[name]) or not isinstance(value, (int, float, str)):
            return {}, f"Your guess {value!r} is not compared: the answer is {kind}."
        if isinstance(value, str) and choices and not any(_same(value, choice) for choice in choices):
            return {}, f"Your guess {value!r} is not compared: choose from {', '.join(map(repr, choices))}."
    return guesses, ""


def _made_at(of: str) -> str:
    """The question that the notebook's last guess was compared with; `of` if there was none yet."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    cells = shell.user_ns.get("In", ()) if shell else ()
    made = [number for number, cell in enumerate(cells) if re.search(r"^guess *=", cell, re.MULTILINE)]
    return _asked.setdefault(made[-1], of) if made else of


def _same(guess: Any, answer: Any) -> bool:
    if isinstance(guess, str) and isinstance(answer, str):
        return guess.strip().casefold() == answer.strip().casefold()
    return guess == answer


def _off(guess: Any, answer: Any, choices: Sequence[Any] = ()) -> str:
    """How far a guess is from its answer: a factor where there is one."""
    if _same(_chosen(guess, choices), answer):
        return "nothing"
    if choices or isinstance(answer, (str, bool)):
        return "a different answer"
    if guess * answer <= 0:
        return text(guess - answer)
    factor = max(guess / answer, answer / guess)
    if factor < 1.005:
        return "less than 1 %"
    return f"{factor:.3g} × too {'high' if abs(guess) > abs(answer) else 'low'}"


def _chosen(guess: Any, choices: Sequence[Any]) -> Any:
    """The choice that the guess is, rounded to the digits of the guess; the guess itself if it is none or may be several."""
    if not choices or not is_number(guess):
        return guess
    digits = len(repr(float(guess)).partition(".")[2]) if isinstance(guess, float) else 0
    near = [choice for choice in choices if guess == choice] or [c for c in choices if round(c, digits) == guess]
    return near[0] if len(near) == 1 else guess


def _key(of: str, name: str, parts: Mapping[str, Any]) -> str:
    # JupyterLab tells a kernel which notebook it serves; elsewhere the question alone is the key.
    lesson = Path(os.environ.get("JPY_SESSION_NAME", "")).name[:2]
    question = of if len(parts) == 1 else f"{of}, {name}"
    return f"{lesson} {question}" if lesson.isdigit() else question


def _entry(guess: Any, answer: Any, unit: str, choices: Sequence[Any]) -> dict[str, Any]:
    # A guess that is right or wrong has no factor to draw.
    return {"guess": guess, "answer": answer, "unit": unit} | ({"choices": list(choices)} if choices else {})
