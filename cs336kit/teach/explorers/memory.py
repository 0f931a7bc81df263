"""Choose a model, a batch and how it is trained, and see what fills an accelerator's memory."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from cs336kit import predict
from cs336kit.predict.checks import known
from cs336kit.predict.decoder.step import ATTENTION
from cs336kit.predict.grid import as_html, as_text
from cs336kit.predict.precision import POLICIES
from cs336kit.teach.explorers import drawing as draw
from cs336kit.teach.explorers.explorer import Explorer
from cs336kit.teach.figures.style import COLORS, Figure, readable

_GIB = 2**30
_BATCHES = tuple(2**power for power in range(11))
_SEQUENCES = tuple(2**power for power in range(7, 18))
#: The parts of both bars in one order, so that a part has one color.
PARTS = ("parameters", "master weights", "gradients", "optimizer state", "activations", "temporary tensors")
FILLS = dict(zip(PARTS, (COLORS[0], COLORS[6], COLORS[1], COLORS[2], COLORS[3], COLORS[4]), strict=True))
_LIMIT = "#222222"


def memory(
    model: str = "gpt2",
    *,
    accelerator: str = "h100-sxm",
    batch: int = 8,
    sequence: int = 1024,
    precision: str = "mixed",
    attention: str = "sdpa",
    checkpointing: bool = False,
) -> "MemoryExplorer":
    """Explore what a training step keeps, and what is alive at its peak, beside the memory of one accelerator.

    model: a name of predict.MODELS; a sequence longer than its context is cut to it. The optimizer is AdamW, which updates
    all tensors at once, as torch does on accelerators. What is kept follows CUDA's rules on NVIDIA's accelerators, and a
    CPU's on others (what CUDA's backward kernels need temporarily is computed, not measured). With a kernel everything can
    be chosen by hand. Errors: ValueError for unknown names and sizes, LookupError where the accelerator's memory is not known.
    """
    return MemoryExplorer(
        model=model, accelerator=accelerator, batch=batch, sequence=sequence, precision=precision, attention=attention,
        checkpointing=checkpointing,
    )  # fmt: skip


class MemoryExplorer(Explorer):
    """One training step on one accelerator: `kept` by bucket, `peak` by bucket, and the `moment` of the peak."""

    def __init__(self, **choices: Any):
        config = predict.MODELS[choices["model"]]
        self.device = predict.accelerator(choices["accelerator"])
        self.room = self.device.memory_bytes
        self.sequence = min(choices["sequence"], config.context)
        known("precision", choices["precision"], POLICIES)
        how = {name: choices[name] for name in ("batch", "precision", "attention", "checkpointing")}
        step = {"sequence": self.sequence, "device": self.device.rules, **how}
        self.kept = predict.training_memory(config, **step)
        self.peak = predict.step_peak(config, foreach=True, **step)
        moments = predict.peak_moments(config, foreach=True, **step)
        self.moment = max(moments, key=lambda name: moments[name])
        self.choices = {**choices, "accelerator": self.device.name}

    def offers(self) -> Mapping[str, tuple[str, Sequence | Mapping]]:
        exact = [device for device in predict.accelerators() if "memory_bytes" in device.facts]
        devices = [device.name for device in exact if device.rules == "cuda"]
        menus = {"model": list(predict.MODELS), "accelerator": devices}
        sizes = {"batch": _BATCHES, "sequence": _SEQUENCES}
        ways = {"precision": list(POLICIES), "attention": list(ATTENTION), "checkpointing": (False, True)}
        return {name: (name, options) for name, options in {**menus, **sizes, **ways}.items()}

    @property
    def verdict(self) -> str:
        """Whether it fits, in a sentence."""
        peak, room = self.peak.total / _GIB, self.room / _GIB
        fits = "fits into" if self.peak.total <= self.room else "does not fit into"
        return f"The peak ({self.moment}) is {peak:,.2f} GiB and {fits} the {room:,.2f} GiB of one {self.device.title}."

    def _head(self) -> str:
        c = self.choices
        how = [c["precision"], f"{c['attention']} attention", *["checkpointing"] * c["checkpointing"], "AdamW"]
        rules = {"cuda": "CUDA's rules", "cpu": "a CPU's rules"}[self.device.rules]
        return f"{c['model']}, batch {c['batch']:,} × {self.sequence:,} tokens, {', '.join(how)}, by {rules}"

    @property
    def _parts(self) -> list[str]:
        return [name for name in PARTS if name in {*self.kept, *self.peak}]

    def _rows(self) -> list[tuple[str, ...]]:
        bars = [self.kept, self.peak]
        rows = [(name, [bar.get(name, 0) for bar in bars]) for name in self._parts]
        rows.append(("together", [bar.total for bar in bars]))
        return [(name, *(f"{size / _GIB:,.2f}" for size in sizes)) for name, sizes in rows]

    def _lines(self) -> list[str]:
        return [self._head(), as_text([("GiB", "kept", "at the peak"), *self._rows()], "<>>"), self.verdict]

    def _repr_html_(self) -> str:
        table = as_html(("GiB", "kept", "at the peak"), self._rows(), "<>>", total=True, caption=self._head())
        return f"{self.figure().image}{table}<div>{escape(self.verdict)}</div>"

    def figure(self) -> Figure:
        """Two stacked bars, of what is kept and of what is alive at the peak, beside the accelerator's memory."""
        most = 1.08 * max(self.kept.total, self.peak.total, self.room)
        left, wide = 80, 620
        parts, words = [], []
        for name, y, bar in (("kept", 50, self.kept), ("peak", 110, self.peak)):
            parts.append(draw.text(left - 8, y + 26, name, anchor="end"))
            x = float(left)
            for part, fill in FILLS.items():
                width = wide * bar.get(part, 0) / most
                if width:
                    parts.append(draw.box(x, y, width, 42, fill))
                if width > 7.5 * len(part):
                    words.append(draw.text(x + width / 2, y + 26, part, readable(fill)))
                x += width
        limit = left + wide * self.room / most
        room = f"{self.room / _GIB:,.1f} GiB of {self.device.name}"
        parts += [
            draw.path([(limit, 34), (limit, 164)], "#ffffff", 5),
            draw.path([(limit, 34), (limit, 164)], _LIMIT, 2, "6 4"),
        ]
        parts += [*words, draw.text(limit, 26, room, anchor="end" if limit > 360 else "start")]
        for number, part in enumerate(self._parts):
            x, y = left + 210 * (number % 3), 178 + 24 * (number // 3)
            parts += [draw.box(x, y, 16, 16, FILLS[part]), draw.text(x + 24, y + 13, part, anchor="start")]
        bars = [
            f"{name} {bar.total / _GIB:,.2f} GiB" for name, bar in (("kept", self.kept), ("at the peak", self.peak))
        ]
        alt = f"Two stacked bars, {' and '.join(bars)}, beside the {self.room / _GIB:,.2f} GiB of {self.device.title}."
        return draw.drawing(720, 230, parts, alt)
