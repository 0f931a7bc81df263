"""Who holds which storage during a walk, what is alive, and the maximum at each moment."""

from typing import NamedTuple

from cs336kit.predict.engine.gathered import Beside, Gathered
from cs336kit.predict.engine.operations import Repeat, Storage


class Alive(NamedTuple):
    """Bytes alive at a moment, beyond parameters and optimizer state; among them gradients of parameters, saved tensors, and
    gathered parameters.
    """

    bytes: int
    gradients: int
    kept: int
    place: str
    gathered: int = 0


class Start(NamedTuple):
    """What was alive before the first run of something that is repeated, and the peaks so far."""

    live: int
    gradients: int
    kept: int
    peaks: dict[str, Alive]


class Ledger:
    """Bytes alive, and among them gradients of parameters and tensors saved for backward; `peaks`: the most at each moment.

    `before`: bytes of gradients that exist from the start. `round_to`: every storage takes a multiple of this many bytes, as
    an allocator rounds them.
    """

    def __init__(self, *, before: int = 0, round_to: int = 1):
        self.live = self.gradients = before
        self.round_to, self.kept = round_to, 0
        self.peaks: dict[str, Alive] = {}
        #: holders of a storage: variables, gradients in flight, operations that save it
        self.holds: dict[Storage, int] = {}
        self.keeping: dict[Storage, int] = {}
        #: what is alive in addition by the rules of gathered parameters
        self.beside = Beside()
        self._together = 0

    def size(self, storage: Storage) -> int:
        """Bytes that a storage takes."""
        return self.rounded(storage.bytes)

    def rounded(self, size: int) -> int:
        return size + -size % self.round_to

    def hold(self, storage: Storage) -> None:
        """Add a holder."""
        held = self.holds.get(storage, 0)
        if not held:
            self.live += self.size(storage)
        self.holds[storage] = held + 1

    def drop(self, storage: Storage) -> None:
        """Remove a holder; the last one frees the storage."""
        held = self.holds[storage] - 1
        if held:
            self.holds[storage] = held
        else:
            del self.holds[storage]
            self.live -= self.size(storage)

    def drop_runs(self, storage: Storage, count: int) -> None:
        """Drop a storage together with those of the other runs, `count` in all."""
        if self.holds[storage] == 1:
            self.live -= (count - 1) * self.size(storage)
        self.drop(storage)

    def keep(self, storage: Storage) -> None:
        """An operation saves it for its backward pass."""
        self.hold(storage)
        kept = self.keeping.get(storage, 0)
        if not kept:
            self.kept += self.size(storage)
        self.keeping[storage] = kept + 1

    def release(self, storage: Storage) -> None:
        """One of the operations that saved it no longer needs it."""
        kept = self.keeping[storage] = self.keeping[storage] - 1
        if not kept:
            self.kept -= self.size(storage)
        self.drop(storage)

    def see(self, moment: str, place: str, extra: tuple[int, ...] = ()) -> None:
        """Update the maximum of this moment; `extra`: tensors that are alive only now."""
        live = self.live + self._together
        if extra:
            live += sum(map(self.rounded, extra))
        highest = self.peaks.get(moment)
        if highest is None or live > highest[0]:
            self.peaks[moment] = Alive(live, self.gradients, self.kept, place, self.beside.gathered)

    def replace(self, old: Storage, size: int, moment: str, place: str) -> Storage:
        """A gradient of `size` bytes, which is alive together with the one that it is made from, until that is dropped."""
        new = Storage("gradient", size)
        self.hold(new)
        self.see(moment, place)
        self.drop(old)
        return new

    def stand(self, beside: Beside, moment: str | None = None) -> None:
        """From here on, these additional bytes are alive; with a moment, its maximum is updated at once."""
        self.beside, self._together = beside, sum(beside)
        if moment is not None:
            self.see(moment, moment)

    def first_run(self) -> Start:
        """From here on, the first run of something that is repeated is observed by itself."""
        start = Start(self.live, self.gradients, self.kept, self.peaks)
        self.peaks = {}
        return start

    def other_runs(self, start: Start, block: Repeat, gathers: Gathered | None) -> int:
        """Add the runs after the first, each starting where the one before ended. Returns the difference that each run makes.

        Between the first run and the last, the live bytes change evenly, so one of these two holds the peak. What is alive
        in addition in a backward pass (`gathers`) differs in these two, so their neighbors may hold it.
        """
        rest, outside = block.count - 1, start.peaks
        each = self.live - start.live, self.gradients - start.gradients, self.kept - start.kept
        live, gradients, kept = (rest * change for change in each)
        self.live += live
        self.gradients += gradients
        self.kept += kept
        inside, self.peaks = self.peaks, outside
        for moment, peak in inside.items():
            highest_run, more = 0, 0
            for later in sorted({1, rest - 1, rest}) if gathers is not None else (rest,):
                if 0 < later <= rest:
                    change = later * each[0]
                    if gathers is not None:
                        change += sum(gathers.at(moment, block, later)) - sum(gathers.at(moment, block, 0))
                    if change > more:
                        highest_run, more = later, change
            if highest_run:
                peak = Alive(
                    peak.bytes + more, peak.gradients + highest_run * each[1], peak.kept + highest_run * each[2], peak.place,
                    peak.gathered if gathers is None else gathers.at(moment, block, highest_run).gathered,
                )  # fmt: skip
            highest = outside.get(moment)
            if highest is None or peak.bytes > highest.bytes:
                outside[moment] = peak
        return each[0]
