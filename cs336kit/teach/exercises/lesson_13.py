"""Exercises of lesson 13: accumulation, what a run remembers, files that survive."""

import math

from cs336kit.teach.exercises.core import exercise


@exercise(
    "13.1",
    cases=[([6, 2],), ([4, 4, 4, 4],), ([8, 8, 1],), ([5],), ([3, 0, 1],), ([0, 0],)],
    mistakes={
        "[1 / len(counts) for _ in counts]": "this gives every batch the same weight, so a token in a short batch counts for "
        "more.",
        "[n / max(sum(counts), 1) / len(counts) for n in counts]": "you also divided by the number of batches.",
        "[1 / n if n else 0.0 for n in counts]": "each loss is a mean already: it was divided by its tokens before.",
        "[float(n) for n in counts]": "that gives the sum over all tokens, but the task asks for their mean.",
        "[n * len(counts) / max(sum(counts), 1) for n in counts]": "all of these are too large, by the same factor.",
        "[1.0 for _ in counts]": "losses that are means are added up here, so the step is too long.",
    },
    hints=(
        "What would each batch have to contribute so that one division by the number of all tokens gives the mean?",
        "Turn the mean of a batch back into a sum, and the sum of all sums into a mean.",
    ),
    checked="equal and unequal batches, a single one, one without any token, and none with any.",
)
def factors(counts):
    everything = sum(counts)
    return [count / everything if everything else 0.0 for count in counts]


@exercise(
    "13.2",
    mistakes={
        "('optimizer', ..., 'step', ...)": "in run 1 the learning rates are wrong, and in run 3 they are right. Which part do "
        "they depend on?",
        "(..., 'model', ..., ...)": "run 2 reads the wrong batches. The weights do not decide which batch comes next.",
        "(..., 'dropout', ..., 'data')": "run 2 reads the wrong batches, and run 4 the right ones. Which part sets that?",
        "(..., ..., ..., 'model')": "run 4 is right in evaluation mode, so its weights are right.",
        "('step', 'data', 'dropout', 'optimizer')": "dropout draws in the first step already, so a wrong stream makes the first "
        "loss wrong.",
        "(..., ..., 'model', ...)": "different weights would have given a different first loss.",
    },
    hints=(
        "The first loss is computed before anything is updated. Which of the five parts does it depend on?",
        "Which parts show in the learning rates, in the batch that is read, and in training mode only?",
    ),
    checked="the step, the data, the optimizer, dropout. Only two of the four show in the first loss.",
)
def forgotten():
    return "step", "data", "optimizer", "dropout"


class _Disk:
    """A disk that writes down what is done to it, so that a kill or a power cut can be tried at every moment."""

    def __init__(self, **files):
        self.before, self.files, self.log = dict(files), set(files), []

    def write(self, name, data):
        """Put `data` into the file `name`, made anew or written over."""
        self.files.add(name)
        self.log.append(("write", name, data))

    def flush(self, name):
        """Wait until what was written to `name` is on the disk."""
        self._needs(name)
        self.log.append(("flush", name))

    def rename(self, old, new):
        """Give the file `old` the name `new`; a file that had this name is gone."""
        self._needs(old)
        self.files.remove(old)
        self.files.add(new)
        self.log.append(("rename", old, new))

    def flush_names(self):
        """Wait until all renames are on the disk."""
        self.log.append(("flush_names",))

    def _needs(self, name):
        if name not in self.files:
            raise FileNotFoundError(f"there is no file {name!r} on the disk")


_DAMAGED, _MISSING = "damaged", "missing"


def _found(disk, done, half, renames):
    """What each name holds after `done` operations, a half-done write, and so many of the renames that are pending.

    Returns contents and whether they are flushed: name → [data, flushed].
    """
    files, pending = {name: [data, True] for name, data in disk.before.items()}, []
    for number, (action, *names) in enumerate([*disk.log[:done], *half]):
        if action == "write":
            files[_now(names[0], pending)] = [_DAMAGED if number >= done else names[1], False]
        elif action == "flush":
            files[_now(names[0], pending)][1] = True
        elif action == "rename":
            pending.append(names)
        else:
            _rename(files, pending)
            pending = []
    count = len(pending)
    _rename(files, pending[: count if renames is None else renames])
    return files, count


def _now(name, pending):
    """The name that a file has without the renames that are pending."""
    for old, new in reversed(pending):
        name = old if name == new else name
    return name


def _rename(files, pairs):
    for old, new in pairs:
        files[new] = files.pop(old)


def _worst(disk, name, new, *, power, moments):
    """The worst that `name` may hold at these moments: "whole", "damaged" or "missing"."""
    old, seen = disk.before.get(name), set()
    for done in moments:
        following = disk.log[done : done + 1]
        for half in [[], following] if following and following[0][0] == "write" else [[]]:
            _, pending = _found(disk, done, half, None)
            for renames in range(pending + 1) if power else [None]:
                data, flushed = _found(disk, done, half, renames)[0].get(name, [None, True])
                damaged = data == _DAMAGED or (power and not flushed)
                missing = data is None and old is not None
                whole = "whole" if data in (old, new) else _DAMAGED
                seen.add(_DAMAGED if damaged else _MISSING if missing else whole)
    return next(word for word in (_DAMAGED, _MISSING, "whole") if word in seen)


def _survives(_, args):
    """What a kill and a power cut may leave behind, and whether the new data are there to stay."""
    disk, name, data = args
    end = len(disk.log)
    found, pending = _found(disk, end, [], None)
    stays = all(_found(disk, end, [], n)[0].get(name) == [data, True] for n in range(pending + 1))
    return {
        "after a kill": _worst(disk, name, data, power=False, moments=range(end + 1)),
        "after a power cut": _worst(disk, name, data, power=True, moments=range(end + 1)),
        "the new data are there": found.get(name, [None])[0] == data,
        "they stay": stays,
    }


def _in_steps(steps, disk, name, data):
    """A wrong save: "w" writes beside, "W" over the old file; f and F flush them; r renames, n flushes the names."""
    beside = name + ".new"
    for step in steps.split():
        match step:
            case "w" | "W":
                disk.write(beside if step == "w" else name, data)
            case "f" | "F":
                disk.flush(beside if step == "f" else name)
            case "r":
                disk.rename(beside, name)
            case "away" if name in disk.files:
                disk.rename(name, name + ".old")
            case "n":
                disk.flush_names()


@exercise(
    "13.3",
    cases=lambda: {
        "an old checkpoint": (_Disk(run="old"), "run", "new"),
        "no checkpoint yet": (_Disk(), "run", "new"),
        "another file beside it": (_Disk(best="best", latest="old"), "latest", "new"),
    },
    mistakes={
        "_in_steps('W F n', disk, name, data)": "a kill in the middle of the write leaves half a file, and the old one is gone. "
        "Write to a new file beside it first.",
        "_in_steps('w r n', disk, name, data)": "you never flushed the data, so a power cut leaves the right name with damaged "
        "data.",
        "_in_steps('w r F n', disk, name, data)": "the new name may reach the disk before the data do. Flush the data before you "
        "rename.",
        "_in_steps('w f r', disk, name, data)": "after a power cut the old file may be back, since the rename itself was not "
        "flushed.",
        "_in_steps('w f away r n', disk, name, data)": "between your two renames there is no file of this name at all. A rename "
        "replaces what has the new name.",
        "_in_steps('w f', disk, name, data)": "the new data are in a file beside the old one and never get its name.",
    },
    hints=(
        "Go through your operations one by one and stop after each. What is in the file of this name now, and what is really on "
        "the disk?",
        "The old file must not be touched before the new one is complete and on the disk. And a new name is one more thing that "
        "has to get onto the disk.",
    ),
    checked="a kill and a power cut at every moment, with an old checkpoint and without one.",
    observe=_survives,
)
def save(disk, name, data):
    disk.write(name + ".new", data)
    disk.flush(name + ".new")
    disk.rename(name + ".new", name)
    disk.flush_names()


@exercise(
    "13.4",
    cases=[(30, 86_400), (60, 6 * 3600), (5, 3600), (120, 30 * 86_400)],
    tolerance=0.05,  # whoever counts the save itself as part of an interval is right, too
    mistakes={
        "math.sqrt(save_seconds * crash_seconds)": "a crash does not cost the whole interval. When does one come, on average?",
        "save_seconds * crash_seconds": "this is seconds times seconds, which is not a time.",
        "math.sqrt(crash_seconds / (2 * save_seconds))": "a save that takes longer should come less often.",
        "crash_seconds / 2": "your answer does not depend on how long a save takes.",
        "math.sqrt(save_seconds * crash_seconds / 2)": "the half is on the wrong side: it belongs to the cost of a crash.",
        "2 * math.sqrt(save_seconds * crash_seconds)": "that is right if a crash costs a quarter of the interval.",
    },
    hints=(
        "Let T be the interval. Write down which part of the time goes into saving, and which part is lost by crashes.",
        "One part falls as T grows, and the other one rises. Their sum is smallest where a small change of T gains nothing.",
    ),
    checked="saves of 5 to 120 seconds, and crashes every hour to every month.",
)
def best_interval(save_seconds, crash_seconds):
    return math.sqrt(2 * save_seconds * crash_seconds)
