"""Exercises of lesson 13: accumulation, what a run remembers, files that survive."""

import copy
import math

from cs336kit.teach.exercises.core import exercise


@exercise(
    "13.1",
    tolerance=1e-6,  # fp32 is fine
    cases=[([6, 2],), ([4, 4, 4, 4],), ([8, 8, 1],), ([5],), ([3, 0, 1],), ([0, 0],)],
    mistakes={
        "[1 / len(counts) for _ in counts]": "this gives every batch the same weight, so a token in a short batch counts for "
        "more.",
        "[n / max(sum(counts), 1) / len(counts) for n in counts]": "you also divided by the number of batches.",
        "[1 / n if n else 0.0 for n in counts]": "each loss is a mean already: it was divided by its tokens before.",
        "[1 / max(sum(counts), 1) for _ in counts]": "that is one factor for all batches. Each loss is a mean already, so a "
        "batch with more tokens needs a larger one.",
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
    """A disk that notes what a kill or a power cut would leave behind at every moment."""

    def __init__(self, **files):
        self.before = files
        # Name → [data, whether they are flushed]: last as it is, and before that as a power cut may leave it, which loses
        # some of the last renames.
        self.views = [{name: [data, True] for name, data in files.items()}]
        self.moments = []
        self._note()

    def write(self, name, data):
        """Put `data` into the file `name`, made anew or written over."""
        file = self.views[-1].get(name, [])
        for view in self.views:
            view.setdefault(name, file)
        for content in ("half of it", data):
            file[:] = content, False
            self._note()

    def flush(self, name):
        """Wait until what was written to `name` is on the disk."""
        self._file(name)[1] = True
        self._note()

    def rename(self, old, new):
        """Give the file `old` the name `new`; a file that had this name is gone."""
        others = {name: file for name, file in self.views[-1].items() if name != old}
        self.views.append({**others, new: self._file(old)})
        self._note()

    def flush_names(self):
        """Wait until all renames are on the disk."""
        self.views = self.views[-1:]
        self._note()

    def _file(self, name):
        if name not in self.views[-1]:
            raise FileNotFoundError(f"there is no file {name!r} on the disk")
        return self.views[-1][name]

    def _note(self):
        self.moments.append(copy.deepcopy(self.views))


def _survives(_, args):
    """What a kill and a power cut may leave behind at the worst moment, and whether the new data are there to stay."""
    disk, name, new = args
    old = disk.before.get(name)
    moments = [[view.get(name) for view in views] for views in disk.moments]

    def state(file, power):
        if file is None:
            return "whole" if old is None else "missing"
        data, flushed = file
        return "whole" if data in (old, new) and (flushed or not power) else "damaged"

    *_, last = moments
    # The worst is also the first in the alphabet: damaged, missing, whole.
    return {
        "after a kill": min(state(files[-1], power=False) for files in moments),
        "after a power cut": min(state(file, power=True) for files in moments for file in files),
        "the new data are there": last[-1] is not None and last[-1][0] == new,
        "they stay": all(file == [new, True] for file in last),
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
            case "away" if name in disk.views[-1]:
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
