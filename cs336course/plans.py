"""Plans of the course, computed from the minutes of its lessons: ten weeks, three full days, and paths for one reader."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, combinations, pairwise
from pathlib import Path

from cs336course import pace
from cs336course.cells import Cell

#: Weeks with two sittings, and the minutes of a sitting: a lesson to its Pause with the exercises before it.
WEEKS, SITTING = 10, 50
#: Full days, and the minutes of a day without the breaks; exercises are done in the room.
DAYS, DAY = 3, 360
#: What three days leave out and why, in this order, and only as far as necessary.
LEFT_OUT = {
    "21": "read it on the way home: its stories are about all the other lessons",
    "05": "it is about writing products down, and the other lessons write theirs in plain torch",
    "03": "no other lesson of these days counts strides",
    "04": "what matters here, a device's memory and bandwidth, comes up again in 07 and 15",
    "10": "it is about whether a model learns, and not about what that costs",
    "13": "it is about surviving a crash, and adds nothing to the accounting",
    "12": "people who spend three days on this subject have seen a Transformer; 17 lists its parts",
    "02": "it prepares for 16",
    "01": "it prepares for 02 and 16; for these days it is enough that bf16 takes two bytes",
    "16": "it builds on 01 and 02",
    "08": "14 repeats what an operation keeps",
    "20": "it plans the model, while the other lessons plan the machine",
}


@dataclass(frozen=True)
class Shorter:
    """A path for less time: for whom it is, its lessons, and which of their exercises (None: all); cards to read besides."""

    name: str
    reader: str
    lessons: tuple[str, ...]
    exercises: tuple[str, ...] | None = None
    cards: tuple[str, ...] = ()


#: Paths for a reader with less time than the whole course takes, and the minutes of reading a card.
CARD = 2
PATHS = (
    Shorter(
        "The core", "you have a day",
        ("00", "06", "07", "09", "14", "15", "17", "18", "19"),
        ("00.4", "06.1", "07.2", "09.2", "14.3", "15.2", "17.5", "18.5", "19.3"),
        ("08", "11", "12"),
    ),
    Shorter("I train", "you train or fine-tune models",
            ("00", "02", "07", "09", "11", "13", "14", "15", "16", "17", "18", "20")),
    Shorter("I serve", "you run models for others", ("00", "01", "04", "06", "07", "12", "17", "19")),
)  # fmt: skip


@dataclass(frozen=True)
class Lesson:
    """The number of a lesson and its minutes; half: those before its Pause, None for a lesson without one."""

    number: str
    reading: int
    exercises: int
    half: pace.Minutes | None = None

    @property
    def both(self) -> int:
        """With its exercises."""
        return self.reading + self.exercises

    @property
    def first(self) -> pace.Minutes:
        """The minutes of what a sitting begins: the first half, or a lesson without a Pause."""
        return self.half or pace.Minutes(self.reading, self.exercises)

    @property
    def in_class(self) -> int:
        """Minutes of a sitting: the first half with its exercises, as many as there is time for."""
        return min(SITTING, self.first.both)


@dataclass(frozen=True)
class Week:
    """A week: a lesson for each sitting, whose second half is read at home, and what is read there from the beginning."""

    sittings: tuple[Lesson, ...]
    read_at_home: tuple[Lesson, ...]

    @property
    def at_home(self) -> int:
        """Minutes at home."""
        return sum(lesson.both for lesson in self.sittings + self.read_at_home) - self.in_class

    @property
    def in_class(self) -> int:
        """Minutes of its sittings."""
        return sum(lesson.in_class for lesson in self.sittings)


def lesson(path: Path, cells: Sequence[Cell]) -> Lesson:
    """The minutes of a lesson, for a plan."""
    whole, halves = pace.minutes(cells), pace.halves(cells)
    return Lesson(path.name[:2], whole.reading, whole.exercises, halves[0] if len(halves) > 1 else None)


def weeks(lessons: Sequence[Lesson]) -> list[Week]:
    """The lessons in order, one in each sitting, spread evenly over at most WEEKS weeks.

    A week with more than two lessons leaves its shortest ones to be read at home, in all as few minutes as possible. Raises
    ValueError for a lesson whose first half is longer than a sitting.
    """
    for lesson in lessons:
        if lesson.first.reading > SITTING:
            raise ValueError(
                f"lesson {lesson.number} takes {lesson.first.reading} minutes to its pause, but a sitting has only {SITTING}"
            )
    if not lessons:
        return []
    count = min(WEEKS, -(-len(lessons) // 2))
    size, left = divmod(len(lessons), count)

    def plan(larger: tuple[int, ...]) -> list[Week]:
        """The plan in which these weeks have one lesson more than the others."""
        ends = accumulate((size + (week in larger) for week in range(count)), initial=0)
        return [_week(lessons[start:end]) for start, end in pairwise(ends)]

    def at_home(plan: list[Week]) -> int:
        return sum(lesson.reading for week in plan for lesson in week.read_at_home)

    return min(map(plan, combinations(range(count), left)), key=at_home)


def _week(lessons: Sequence[Lesson]) -> Week:
    held = sorted(lessons, key=lambda lesson: lesson.reading)[-2:]
    return Week(
        tuple(lesson for lesson in lessons if lesson in held), tuple(lesson for lesson in lessons if lesson not in held)
    )


def days(
    lessons: Sequence[Lesson], left_out: Mapping[str, str] = LEFT_OUT
) -> tuple[list[list[Lesson]], dict[str, str]]:
    """The lessons of each of three days, exercises included, and which ones were left out and why.

    Raises ValueError if leaving out everything that may be left out is not enough.
    """
    order = list(left_out)
    for count in range(len(order) + 1):
        gone = order[:count]
        if (plan := _packed([lesson for lesson in lessons if lesson.number not in gone])) is not None:
            return plan, {number: left_out[number] for number in sorted(gone)}
    kept = [lesson for lesson in lessons if lesson.number not in left_out]
    numbers, takes = ", ".join(lesson.number for lesson in kept), sum(lesson.both for lesson in kept)
    raise ValueError(
        f"lessons {numbers} may not be left out and take {takes} minutes, which do not fit into {DAYS} days of {DAY}: plan "
        "more days, or name one of them in LEFT_OUT"
    )


def _packed(lessons: Sequence[Lesson]) -> list[list[Lesson]] | None:
    """The lessons in order, each day as full as possible; None if that takes too many days."""
    found: list[list[Lesson]] = []
    for lesson in lessons:
        if found and sum(each.both for each in found[-1]) + lesson.both <= DAY:
            found[-1].append(lesson)
        else:
            found.append([lesson])
    fits = len(found) <= DAYS and all(sum(each.both for each in day) <= DAY for day in found)
    return found if fits else None


def minutes(path: Shorter, lessons: Mapping[str, Sequence[Cell]]) -> pace.Minutes:
    """Minutes of a path, from the cells of the lessons by number. Raises KeyError for a lesson that is not there."""
    read = sum(pace.minutes(lessons[number]).reading for number in path.lessons) + CARD * len(path.cards)
    found = {task[1]: int(task[3]) for number in path.lessons for task in pace.exercises(lessons[number])}
    if path.exercises is None:
        return pace.Minutes(read, sum(pace.minutes(lessons[number]).exercises for number in path.lessons))
    return pace.Minutes(read, sum(found[id] for id in path.exercises))
