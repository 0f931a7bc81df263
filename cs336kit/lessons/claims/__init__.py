"""The ledger of claims that circulate about this subject: what they say, what was computed, and what is true."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

VERDICTS = ("holds", "holds-with-condition", "imprecise", "typo", "wrong", "outdated")
#: The file with what each claim says and what was computed for it; `cs336kit lessons claims` writes it.
SETTLED = "settled.json"


@dataclass(frozen=True)
class Claim:
    """One checkable statement: what it says, and the verdict with the truth beside it.

    `source` says who makes it, who else says so, and the number of an equation: readers have none of these.
    """

    id: str
    topic: str
    source: str
    claim: str
    verdict: str
    truth: str


@dataclass(frozen=True)
class Settled:
    """A claim beside the values that settled it, as texts: `said`, and in `so` what was computed.

    A second value in `so` holds when the condition of the claim is not met. Where no computation can decide, both are
    empty and `source` names what does.
    """

    claim: Claim
    said: str
    so: tuple[str, ...]
    source: str

    @property
    def computed(self) -> str:
        """What was computed, in one line."""
        return " · otherwise ".join(self.so) or f"cited: {self.source}"

    @property
    def truth(self) -> str:
        """What is true, as a sentence; empty if the ledger only says that the claim is."""
        said = self.claim.truth
        if said.rstrip(".").lower() == "as stated":
            return ""
        first = said.split(" ", 1)[0]
        begun = said[0].upper() + said[1:] if first.isalpha() and len(first) > 1 else said  # a letter is a symbol
        return begun if begun.endswith(".") else f"{begun}."


@cache
def claims(topic: str | None = None) -> tuple[Claim, ...]:
    """All claims, or those of one topic, in the order of the ledger's files (``lessons/claims/<topic>.yml``).

    Raises ValueError for an unknown topic and lists the known ones.
    """
    import yaml

    files = {
        file.name.removesuffix(".yml"): file
        for file in resources.files(__name__).iterdir()
        if file.name.endswith(".yml")
    }
    if topic is not None and topic not in files:
        raise ValueError(f"no claims on the topic {topic!r}; the ledger has {', '.join(sorted(files))}")
    chosen = sorted(files) if topic is None else [topic]
    return tuple(
        Claim(topic=name, **entry)
        for name in chosen
        for entry in yaml.safe_load(files[name].read_text(encoding="utf-8"))
    )


@cache
def settled(topic: str | None = None) -> tuple[Settled, ...]:
    """The same claims with what settled them, from the file that `cs336kit lessons claims` writes.

    Raises ValueError for an unknown topic, and if the file lacks a claim of the ledger.
    """
    values = stored()
    if missing := [claim.id for claim in claims(topic) if claim.id not in values]:
        raise ValueError(f"{SETTLED} lacks {', '.join(missing)}: run `cs336kit lessons claims` in a clone.")
    return tuple(
        Settled(claim, values[claim.id]["said"], tuple(values[claim.id]["so"]), values[claim.id].get("source", ""))
        for claim in claims(topic)
    )


@cache
def stored() -> Mapping[str, Mapping[str, Any]]:
    """The content of the file, by id: `said`, a list `so`, and a `source` where no computation can decide."""
    entries: dict[str, dict[str, Any]] = json.loads(resources.files(__name__).joinpath(SETTLED).read_text("utf-8"))
    return entries
