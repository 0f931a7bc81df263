"""Choose a topic, a verdict or a word, and see what is claimed, what was computed, and which verdict follows."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from cs336kit.lessons.claims import VERDICTS, Settled, settled
from cs336kit.predict.checks import one_of
from cs336kit.predict.grid import as_text
from cs336kit.teach.explorers.explorer import Explorer

#: The claims of the lesson, in the order in which it tells them.
STORIES = (
    "act-gpt3-params-162tib",
    "napkin-8h100-two-weeks",
    "napkin-flops-per-day-expression",
    "h100-1979-sparse",
    "kaplan-mask",
    "init-trunc-abs-bounds",
    "tf-layernorm-axis",
    "inf-falcon-kv-4gib",
)
#: The topics of the ledger by part of the course.
PARTS = {
    "numbers and tensors": ("floats", "tensors", "storage", "devices", "einops", "randomness"),
    "work and time": ("napkin", "flops", "mfu", "hardware", "autograd", "gradient-flops"),
    "training": ("init", "optimizers", "model", "transformer", "data", "training", "checkpoint"),
    "memory": ("memory", "activations", "mixed-precision"),
    "many machines and users": ("parallelism", "collectives", "inference", "scaling"),
}
EIGHT, ALL = "the eight of the lesson", "all"
#: At most this many rows are shown; the others are counted, and a narrower choice shows them.
ROWS = 40
#: Names of topics in words, where the ledger's are short for them.
NAMES = {
    "autograd": "automatic differentiation", "collectives": "collective operations", "einops": "einops and einsum",
    "floats": "number formats", "flops": "FLOPs", "gradient-flops": "FLOPs of gradients", "init": "initialization",
    "memory": "memory of training", "mfu": "model FLOPs utilization", "model": "a first model", "napkin": "napkin math",
    "scaling": "scaling laws",
}  # fmt: skip


def claims(*, topic: str = EIGHT, verdict: str = ALL, text: str = "") -> "ClaimsExplorer":
    """Explore the ledger: each claim with the value that it names, the value that was computed, and the verdict.

    topic: one of the ledger's, "all", or "the eight of the lesson"; verdict: one of six, or "all"; text: what the statement
    or the truth contains, in either case. With a kernel all three can be chosen by hand. Errors: ValueError for unknown names.
    """
    return ClaimsExplorer(topic=topic, verdict=verdict, text=text)


class ClaimsExplorer(Explorer):
    """The claims that fit the three choices, as `found`."""

    def __init__(self, **choices: Any):
        for name in ("topic", "verdict"):
            one_of(name, choices[name], self.offers()[name][1])
        self.choices = {**choices, "text": choices["text"].strip()}
        self.found = [one for one in settled() if self._fits(one)]
        if choices["topic"] == EIGHT:
            self.found.sort(key=lambda one: STORIES.index(one.claim.id))

    def _fits(self, one: Settled) -> bool:
        topic, verdict, text = (self.choices[name] for name in ("topic", "verdict", "text"))
        there = one.claim.id in STORIES if topic == EIGHT else topic in (ALL, one.claim.topic)
        return (
            there and verdict in (ALL, one.claim.verdict) and text.lower() in f"{one.claim.claim} {one.truth}".lower()
        )

    def offers(self) -> Mapping[str, tuple[str, Sequence | Mapping]]:
        menus = {"topic": ("topic", [EIGHT, ALL, *_topics()]), "verdict": ("verdict", [ALL, *VERDICTS])}
        return {**menus, "text": ("contains", ())}

    @property
    def sentence(self) -> str:
        """How many claims are found, and how many of them hold."""
        hold = sum(one.claim.verdict == "holds" for one in self.found)
        more = len(self.found) - ROWS
        unseen = f" {more:,} more are not shown: choose a topic, a verdict or a word." if more > 0 else ""
        return f"{len(self.found):,} of {len(settled()):,} claims, {hold:,} of them hold as they are said.{unseen}"

    def _head(self) -> str:
        topic, verdict, text = (self.choices[name] for name in ("topic", "verdict", "text"))
        return f"topic: {topic} · verdict: {verdict}" + (f" · contains “{text}”" if text else "")

    def _lines(self) -> list[str]:
        rows = [row(one) for one in self.found[:ROWS]]
        lines = [f"{said}\n    {verdict}: {_values(value, so)}" for said, value, so, verdict, _ in rows]
        return [self._head(), *lines, self.sentence]

    def _repr_html_(self) -> str:
        return f"<div>{escape(self._head())}</div>\n{_list(self.found[:ROWS])}\n<div>{escape(self.sentence)}</div>"


class Ledger:
    """Every claim by topic, in folded lists: the claim, the verdict, the values, and what is true."""

    def __repr__(self) -> str:
        # Only the names: the rows are in the HTML and in the explorer, and as text they would fill pages.
        return as_text([("topic", "claims", "hold as said"), *(_counts(topic) for topic in _topics())], "<>>")

    def _repr_html_(self) -> str:
        return "\n".join(map(self._part, _topics()))

    def _part(self, topic: str) -> str:
        _, number, hold = _counts(topic)
        name = NAMES.get(topic, topic.replace("-", " "))
        head = f"<summary>{escape(name)}: {number} claims, {hold} hold as said</summary>"
        return f'<details data-topic="{topic}">{head}\n{_list(settled(topic))}</details>'


def every_claim() -> Ledger:
    """All claims of the ledger in folded lists, one for each topic."""
    return Ledger()


def row(one: Settled) -> tuple[str, str, str, str, str]:
    """A claim for a reader: what is said, its value, what was computed, the verdict, what is true."""
    so = "; otherwise ".join(map(_in_words, one.so)) or one.computed
    return one.claim.claim, _in_words(one.said), so, one.claim.verdict, one.truth


def claim_counts() -> dict[str, dict[str, int]]:
    """Part of the course → verdict → number of claims."""
    found = {
        part: Counter(one.claim.verdict for topic in topics for one in settled(topic)) for part, topics in PARTS.items()
    }
    return {part: {verdict: number[verdict] for verdict in VERDICTS} for part, number in found.items()}


def _counts(topic: str) -> tuple[str, str, str]:
    verdicts = [one.claim.verdict for one in settled(topic)]
    return topic, str(len(verdicts)), str(verdicts.count("holds"))


def _topics() -> Sequence[str]:
    return list(dict.fromkeys(one.claim.topic for one in settled()))


def _list(those: Iterable[Settled]) -> str:
    return "\n".join(["<ul>", *map(_item, those), "</ul>"])


def _item(one: Settled) -> str:
    statement, said, computed, verdict, true = map(escape, row(one))
    more = f" {true}" if true else ""
    return f"<li>{statement}<br><b>{verdict}</b>: {_values(said, computed)}.{more}</li>"


def _values(said: str, computed: str) -> str:
    if not said:
        return computed
    same = computed == said or computed.startswith(f"{said}; otherwise ")
    return f"said and computed {computed}" if same else f"said {said}; computed {computed}"


def _in_words(value: str) -> str:
    """A value that is or ends with one list, with its members in a row: "1, 2 and 3", or "8 times 7"."""
    before, _, inside = value.partition("[")
    members, depth = [""], 1
    for place, sign in enumerate(inside):
        depth += (sign == "[") - (sign == "]")
        if not depth and place < len(inside) - 1:
            return value  # more than one list
        if depth == 1 and inside[place : place + 2] == ", ":
            members.append("")
        elif depth:
            members[-1] += sign
    *first, last = map(str.strip, members)
    if len(first) > 1 and {*first} == {last}:
        return f"{before}{len(members)} times {last}"
    return before + " and ".join(filter(None, [", ".join(first), last]))
