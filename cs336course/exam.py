"""The exam: a question for each lesson, with numbers of its own, and an answer whose numbers are computed, not typed."""

import ast
import math
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cs336course import directions
from cs336course.arithmetic import FACTORS, equations
from cs336course.prose import Pool, literals, numbers, said
from cs336course.shares import shares
from cs336kit import predict

FILE = Path(__file__).with_name("exam.toml")
_POWER = re.compile(r"(\d)e([+-])0*(\d+)")
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True)
class Question:
    """A question, the template of its answer, with placeholders for numbers, and these numbers by name."""

    asked: str
    template: str
    values: dict[str, float]

    @property
    def answer(self) -> str:
        """The answer with its numbers, formatted as in the lessons."""
        text = _POWER.sub(_as_power, self.template.format(**self.values))
        return re.sub(r"(\d)%", r"\1 %", re.sub(r"(?<![\w-])-(?=\d)", "−", text))


def _as_power(found: re.Match[str]) -> str:
    return f"{found[1]} · 10{(found[2].strip('+') + found[3]).translate(_RAISED)}"


def questions(file: Path = FILE) -> dict[str, Question]:
    """The question of each lesson, by its number ``"00"``."""
    return {number: _question(entry) for number, entry in tomllib.loads(file.read_text(encoding="utf-8")).items()}


def _question(entry: dict[str, Any]) -> Question:
    values: dict[str, float] = {}
    for name, expression in entry["values"].items():
        values[name] = eval(expression, {"math": math, "predict": predict, **values})
    return Question(entry["question"].strip(), entry["answer"].strip(), values)


def untied(entry: dict[str, Any]) -> list[str]:
    """The numbers of a question that its values do not begin with, and that its `given` does not list with a reason.

    Each is listed with its unit, as in `given."96 GB" = "compared with a shard"`.
    """
    known = [(value, "") for value in _question(entry).values.values()]
    for expression in entry["values"].values():
        known += literals(ast.parse(expression))
    pool, given = Pool(known), [*entry.get("given", {})]
    found = [(n, f"{n.digits} {n.word}" if n.word in FACTORS else n.digits) for n in numbers(said(entry["question"]))]
    loose = [text for n, text in found if n not in pool and n._replace(word="") not in pool and not n.raised]
    unneeded = [f"{text} is given and not needed" for text in given if text not in loose]
    return [f"{text} is in the question, and not in its values" for text in loose if text not in given] + unneeded


def false(entry: dict[str, Any]) -> list[str]:
    """What an answer says of its numbers in words or in an equation and is not so, and its shares that stand in no list.

    A share is listed as it begins, with what computes it from the values, as in `shares."a quarter" = "copy8 / copy"`.
    """
    question = _question(entry)
    answer, listed = " ".join(question.answer.split()), dict(entry.get("shares", {}))
    found = [f"{words!r} is the other way round" for words in directions.wrong(answer)]
    found += [f"{answer[begin:end]!r} is not so" for begin, end, true in equations(answer) if not true]
    needed = set()
    for share in shares(answer):
        rest = answer[share.start :]
        key = max((text for text in listed if rest.startswith(text)), key=len, default=None)
        if key is None:
            found.append(f"{rest[:40]!r} is not listed: say in shares what computes it")
        elif not share.holds(worth := eval(listed[key], {"math": math, "predict": predict, **question.values})):
            found.append(f"{key!r} is {worth:.3g}")
        needed.add(key)
    return found + [f"{key!r} is listed and not needed" for key in listed if key not in needed]
