"""A file that is counted by tracing: which one is, what is asked of it, and how far the count has come."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cs336kit.predict.chip import listed
from cs336kit.predict.families.fields import IRRELEVANT, NotRead
from cs336kit.predict.layouts import ALONE, Layout
from cs336kit.predict.words import folded, short

if TYPE_CHECKING:
    from cs336plan.trace import Traced

#: Where a file says how long its sequences may be.
_CONTEXTS = ("max_position_embeddings", "n_positions", "max_sequence_length", "max_seq_len", "seq_length")
#: More fields that nobody reads are counted, not named.
_NAMED = 5


@dataclass(frozen=True)
class File:
    """A config.json of Hugging Face, and why the rules do not read it: None if they do."""

    name: str
    path: Path
    values: Mapping[str, Any]
    why: NotRead | None

    @property
    def text(self) -> Mapping[str, Any]:
        """The fields of the text model, or those of the file where it has no other."""
        inner = (self.values.get(name) for name in ("text_config", "llm_config", "language_config"))
        return next((each for each in inner if isinstance(each, Mapping)), self.values)

    @property
    def context(self) -> int | None:
        """Tokens for which the model was trained, where the file says so."""
        found = (self.text.get(name) for name in _CONTEXTS)
        return next((value for value in found if type(value) is int and value > 0), None)


@dataclass(frozen=True)
class Counted:
    """What was counted of a file, and whether it had been counted before."""

    file: File
    found: "Traced"
    kept: bool
    notes: tuple[str, ...]

    @property
    def by(self) -> str:
        versions = self.found.versions or {}
        modules = f"transformers {versions.get('transformers')}'s own modules"
        return f"{modules} (fake tensors, torch {versions.get('torch')})"

    def head(self) -> Iterator[str]:
        """Lines: the model with its parameters, by whom they were counted, and what belongs to what."""
        found = self.found
        total, active = found.parameters.total, found.active_parameters
        line = f"{self.file.name}: {total:,} parameters"
        if active is not None and active < total:
            line += f", {active:,} of them active for a token"
        if found.trainable_parameters != total:
            line += f", {found.trainable_parameters:,} of them trained"
        yield from folded(line, indent="  ", first="")
        again = "; counted before, and kept" * self.kept
        rules = "CUDA's" if found.device == "cuda" else "a CPU's"
        yield from folded(f"counted on {self.by}, by {rules} rules{again}", indent="  ", first="")
        parts = ", ".join(f"{name} {short(count)}" for name, count in found.parameters.items())
        yield from folded(f"of its parameters: {parts}", indent="    ", first="  ")

    def values(self) -> dict[str, object]:
        """What --json has under "traced"."""
        found = self.found
        return {
            "by": self.by, "architecture": found.architecture, "kept": self.kept, "whole": found.whole,
            "upper_bound": found.upper_bound, "components": dict(found.parameters.items()),
            "forward_flops": found.forward_flops, "training_flops": found.training_flops,
            "saved_bytes": found.saved_bytes, "left_out": list(found.left_out),
        }  # fmt: skip


def refuse_others(given: Mapping[str, Any], allowed: set[str], options: Mapping[str, str]) -> None:
    """Refuse what was given and does not go into a traced answer, by the names of the options."""
    if others := [options.get(name, f"--{name}") for name in given if name not in allowed]:
        raise ValueError(
            f"{listed(others)} cannot be counted by tracing, which this file needs: leave "
            + ("them out" if len(others) > 1 else "it out")
        )


def rules_of(device: str, layout: Layout = ALONE) -> tuple[str, tuple[str, ...]]:
    """The device by whose rules operations can be counted here, where those of `device` are wanted; a note if it is another."""
    if device == "cpu" or find_spec("torch") is None:
        return "cpu", ()
    from cs336plan.trace import cuda

    lacking = cuda.lacking()
    if lacking is None and layout.zero_stage > 1:
        lacking = f"on CUDA, what ranks of {layout} share cannot be counted without a GPU"
    return (
        ("cuda", ()) if lacking is None else ("cpu", (f"what operations save is counted by a CPU's rules: {lacking}",))
    )


def count(file: File, **options: Any) -> Counted:
    """`cs336plan.trace.traced` for this file; ValueError in one sentence that begins with its path."""
    why = f"{file.why}. " if file.why else ""
    if lacking := [name for name in ("torch", "transformers") if find_spec(name) is None]:
        also = " and torch" * ("torch" in lacking)
        raise ValueError(
            f'{file.path}: {why}This file needs transformers{also} to be counted: pip install "cs336kit[plan]"'
        )
    from cs336plan.trace import traced

    steps: list[str] = []
    try:
        unknown = _unknown(file)
        # A name that is misspelled would be passed over, and its size would be a default.
        if file.why and set(file.why.fields) & set(unknown):
            raise ValueError(str(file.why))
        with _shown() as show:

            def progress(what: str, share: float) -> None:
                steps.append(what)
                show(f"{file.name}: {what} ({100 * share:.0f} %)")

            found = traced(file.values, progress=progress, **options)
    except ValueError as error:
        if options.get("device") == "cuda" and "cannot be traced" in str(error):
            raise ValueError(f"{file.path}: {error} This is by CUDA's rules: --device cpu counts by a CPU's") from None
        also = "" if file.why is None or str(file.why) in str(error) else f". Nor do the rules read it: {file.why}"
        raise ValueError(f"{file.path}: {error}{also}") from None
    notes = list(found.notes)
    if unknown:
        more = f" and {len(unknown) - _NAMED} more" * (len(unknown) > _NAMED)
        notes.append(f"transformers' configuration has no field {', '.join(unknown[:_NAMED])}{more}: not counted")
    if found.left_out:
        notes.append(f"the text model is counted, and {listed(list(found.left_out))} left out")
    return Counted(file, found, not steps, tuple(notes))


def _unknown(file: File) -> list[str]:
    """Fields of the text model that could matter, and that transformers' configuration of it does not have."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    kind = file.values["model_type"]
    if kind not in CONFIG_MAPPING:
        return []
    usual = CONFIG_MAPPING[kind]()
    usual = usual.get_text_config() if file.text is not file.values else usual
    aside = {"quantization_config", "auto_map"}
    empty: tuple[object, ...] = (None, False, [], {}, "")
    named = [name for name, value in file.text.items() if name not in aside and value not in empty]
    known = {*dir(usual), *usual.attribute_map}
    return [name for name in named if not IRRELEVANT.search(name) and name not in known]


@contextmanager
def _shown() -> Iterator[Any]:
    """A function that shows its text on a line of its own on a terminal, which is empty again at the end."""
    terminal = sys.stderr.isatty()

    def show(text: str) -> None:
        if terminal:
            print(f"\r\x1b[K{text[:78]}", end="", file=sys.stderr, flush=True)

    try:
        yield show
    finally:
        if terminal:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
