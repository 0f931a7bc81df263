"""Choose a model, a chip and how many texts it continues at once, and see how long a token takes and what limits it."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from cs336kit import predict
from cs336kit.predict.accounting import CACHE_TYPES
from cs336kit.predict.checks import positive_int
from cs336kit.predict.chip import allowance, peak_of
from cs336kit.predict.decoding.load import WEIGHT_TYPES, Load, chip_of, settled_load
from cs336kit.predict.decoding.memory import served_bytes
from cs336kit.predict.packed import EXPERTS
from cs336kit.teach.explorers import drawing as draw
from cs336kit.teach.explorers.explorer import Explorer
from cs336kit.teach.explorers.roofline import GRID, duration
from cs336kit.teach.figures.primitives import FAINT, QUIET
from cs336kit.teach.figures.style import COLORS, Figure
from cs336kit.teach.numbers import si

_BATCHES = tuple(2**power for power in range(13))
_TOKENS = tuple(2**power for power in range(4, 18))
#: What a step needs → (color, dashes), and below it the two bounds of its time.
NEEDS = {"weights": (COLORS[0], "7 3"), "caches": (COLORS[2], "2 3"), "FLOPs": (COLORS[4], "9 3 2 3")}
LEAST, MOST, POINT = COLORS[6], FAINT, COLORS[1]


def decoding(
    model: str = "llama-3-8b",
    *,
    accelerator: str = "h100-sxm",
    batch: int = 8,
    cached: int = 2048,
    weights: str = "bf16",
    cache: str = "bf16",
) -> "DecodingExplorer":
    """Explore how long a token takes when `batch` texts of `cached` tokens are continued at once, on one accelerator.

    model: a name of predict.MODELS; `cached` is cut to leave room for one more token in its context. weights and cache:
    as in `predict.decode_bounds`. The bounds are those of `predict.decode_bounds`. With a kernel everything
    can be chosen by hand. Errors: ValueError for unknown names and impossible sizes.
    """
    return DecodingExplorer(
        model=model, accelerator=accelerator, batch=batch, cached=cached, weights=weights, cache=cache
    )


class DecodingExplorer(Explorer):
    """One step of decoding: its `bounds`, the seconds of what it `needs`, the `critical` and the `largest` batch."""

    def __init__(self, **choices: Any):
        config = predict.MODELS[choices["model"]]
        self.cached = min(positive_int("cached", choices["cached"]), config.context - 1)
        how = {name: choices[name] for name in ("accelerator", "weights", "cache")}
        step = {**how, "cached": self.cached}
        batches = sorted({*_BATCHES, positive_int("batch", choices["batch"])})
        self.curve = {batch: predict.decode_bounds(config, batch=batch, **step) for batch in batches}
        self.bounds = self.curve[choices["batch"]]
        self.critical = predict.critical_batch(config, **step)
        load = settled_load(Load(config, prompt=self.cached, output=1, **how))
        self.chip, _ = chip_of(load)
        free, _ = allowance(None, device=self.chip, count=1)
        self.largest = served_bytes(load).fitting(self.chip.memory_bytes - free.total)
        self.choices = {**choices, "accelerator": self.chip.name}

    def read(self, batch: int) -> dict[str, int]:
        """Bytes that a step of this many texts reads, of weights and of caches."""
        bounds = self.curve[batch]
        return {"weights": bounds.bytes - bounds.cache_bytes, "caches": bounds.cache_bytes}

    def needs(self, batch: int) -> dict[str, float]:
        """Seconds that each would take alone, at the datasheet's rates."""
        bounds, rates = self.curve[batch], {"bytes": self.chip.bandwidth, "FLOPs": peak_of(self.chip) or math.inf}
        reading = {name: size / rates["bytes"] for name, size in self.read(batch).items()}
        return {**reading, "FLOPs": bounds.flops / rates["FLOPs"]}

    def offers(self) -> Mapping[str, tuple[str, Sequence | Mapping]]:
        devices = [device.name for device in predict.accelerators() if _can_decode(device)]
        menus = {"model": list(predict.MODELS), "accelerator": devices}
        sizes = {"batch": _BATCHES, "cached": _TOKENS}
        packed_whole = [name for name in WEIGHT_TYPES if not name.endswith(EXPERTS)]  # not every model has experts
        types = {"weights": packed_whole, "cache": list(CACHE_TYPES)}
        labels = {"batch": "texts at once", "cached": "tokens of each"}
        return {name: (labels.get(name, name), options) for name, options in {**menus, **sizes, **types}.items()}

    def _lines(self) -> list[str]:
        c, batch, least = self.choices, self.choices["batch"], self.bounds.least
        types = f"weights in {c['weights']}, cache in {c['cache']}"
        needs, read = self.needs(batch), self.read(batch)
        rates = f"at best {1 / least:,.4g} tokens per second for each text, {batch / least:,.4g} in all"
        reading = " and ".join(f"{si(size, 'B')} of {name} ({duration(needs[name])})" for name, size in read.items())
        computing = f"computing {si(self.bounds.flops, 'FLOPs')} ({duration(needs['FLOPs'])})"
        largest = max(read, key=lambda name: read[name])
        memory = self.bounds.bound == "memory"
        bound = (
            f"longer than {computing}: the {largest} bound it" if memory else f"less than {computing}, which bounds it"
        )
        critical = (
            f"from {_texts(self.critical)} on, computing takes longer than reading"
            if self.critical
            else f"reading takes longer than computing for any number of texts of {self.cached:,} tokens"
        )
        fit = f"the memory holds {_texts(self.largest)}" if self.largest else "the memory does not hold a single text"
        too_many = f", so {batch:,} do not fit" if 0 < self.largest < batch else ""
        return [
            f"{c['model']} on {self.chip.title}, {_texts(batch)} of {self.cached:,} tokens, {types}",
            f"a token takes {duration(least)} at best, {duration(self.bounds.most)} if nothing overlaps: {rates}",
            f"reading {reading} takes {bound}",
            critical,
            f"{fit}{too_many}",
        ]

    def figure(self) -> Figure:
        """Seconds for a token against texts at once: both bounds, and what each need would take alone."""
        curves = {name: [(b, self.needs(b)[name]) for b in self.curve] for name in NEEDS}
        least, most = ([(b, getattr(one, name)) for b, one in self.curve.items()] for name in ("least", "most"))
        bottom = 10 ** math.floor(math.log10(least[0][1]) - 0.5)
        top = 10 ** math.ceil(math.log10(most[-1][1]))
        x = draw.logarithmic(1, max(self.curve), 90, 690)
        y = draw.logarithmic(bottom, top, 300, 20)
        parts = []
        for batch in _BATCHES[::2]:
            parts += [draw.path([(x(batch), 20), (x(batch), 300)], GRID), draw.text(x(batch), 318, f"{batch:,}")]
        for power in range(round(math.log10(bottom)), round(math.log10(top)) + 1):
            parts += [draw.path([(90, y(10.0**power)), (690, y(10.0**power))], GRID)]
            parts += [draw.text(84, y(10.0**power) + 4, duration(10.0**power), anchor="end")]
        batch, here = self.choices["batch"], y(self.bounds.least)
        if 0 < self.largest < max(self.curve):
            end = x(self.largest)
            side = "end" if end > 390 else "start"
            parts += [draw.path([(end, 20), (end, 300)], FAINT, 1.5, "3 3")]
            parts += [
                draw.text(
                    end + (-8 if side == "end" else 8), 34, f"{self.largest:,} fit", QUIET, anchor=side, over=True
                )
            ]
        for name, (color, dashes) in NEEDS.items():
            inside = [(x(b), y(value)) for b, value in curves[name] if value >= bottom]
            parts += [draw.path(inside, color, 1.8, dashes)]
        parts += [draw.path([(x(b), y(value)) for b, value in most], MOST, 2)]
        parts += [draw.path([(x(b), y(value)) for b, value in least], LEAST, 3)]
        parts += [draw.path([(x(batch), here), (x(batch), 300)], POINT, 1.5, "5 3"), draw.dot(x(batch), here, POINT)]
        parts += [draw.text(390, 340, "texts at once"), draw.text(20, 160, "a token takes", turn=True)]
        legend = {
            "at best": (LEAST, "", 3),
            "nothing overlaps": (MOST, "", 2),
            **{n: (*look, 1.8) for n, look in NEEDS.items()},
        }
        for number, (name, (color, dashes, width)) in enumerate(legend.items()):
            left = 90 + (0, 110, 280, 390, 490)[number]
            parts += [draw.path([(left, 361), (left + 34, 361)], color, width, dashes)]
            parts += [draw.text(left + 42, 365, name, anchor="start")]
        alt = (
            f"The time of a token over 1 to {max(self.curve):,} texts at once, at best {duration(least[0][1])} to "
            f"{duration(least[-1][1])}; marked is {_texts(batch)}, {duration(self.bounds.least)} at best and "
            f"{duration(self.bounds.most)} if nothing overlaps."
        )
        return draw.drawing(720, 380, parts, alt)


def _texts(count: int) -> str:
    return f"{count:,} text{'s' * (count > 1)}"


def _can_decode(device: predict.Accelerator) -> bool:
    """Whether the table has all that decoding needs: the memory's size and bandwidth, and a peak in a two-byte type."""
    sized = {"memory_bytes", "memory_label_bytes"} & {*device.facts}
    return bool(sized) and "bandwidth" in device.facts and bool({"bf16", "fp16"} & {*device.precisions})
