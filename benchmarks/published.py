"""What others measured and published, beside what is predicted today: `python -m benchmarks.published [WORD ...]`.

A row of published.toml has a source, what was run there, the question in the words of `Question` (plan) or `ServingQuestion`
(serve), a quantity, and its published number. The answer is computed here: a number, which has to be `within` a share of the
published one, or two bounds, between which the published one has to lie. With words, only the rows that have one of them in
their source or in what was run. Ends with 1 if a row does not hold.
"""

import sys
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf
from pathlib import Path
from typing import Any

from cs336kit.command.arguments import Parser
from cs336kit.predict import TransformerConfig, from_hf, model, training_flops
from cs336kit.predict.chip import peak_of
from cs336plan import Question, ServingQuestion, plan, serve
from cs336plan.training.find import largest_batch

TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
GIB = 2**30

#: What is read from an answer: a number, or the bounds between which the published one lies.
QUANTITIES: dict[str, Callable[[Any], float | tuple[float, float]]] = {
    "GiB at the peak": lambda a: a.memory.total / GIB,
    # Where a part of each block is checkpointed.
    "GiB, checkpointing to none": lambda a: (
        plan(replace(a.question, checkpointing=True)).memory.total / GIB,
        a.memory.total / GIB,
    ),
    # What an allocator reserves is what is alive and what it could not give back.
    "GiB reserved": lambda a: (a.memory.total / GIB, a.chip.memory_bytes / GIB),
    "sequences that fit": lambda a: (0, largest_batch(a)),
    "accelerator hours": lambda a: a.accelerator_hours,
    "tokens/s at the MFU": lambda a: a.question.tokens / a.accelerator_hours / 3600,
    # The same where the source counts no FLOPs of the pairs that the mask hides.
    "tokens/s at the FLOP/s": lambda a: peak_of(a.chip) * a.question.sequence / causal_flops(a.question),
    "tokens/s at best": lambda a: (0, a.seconds.tokens / a.question.count / a.step_bounds[0]),
    "seconds at best": lambda a: (a.step_bounds[0], inf),
    "GB/s of an all-reduce": lambda a: (0, a.wire.total / a.seconds.lower / 1e9),
    "GiB of weights": lambda a: a.weights.total / GIB,
    "GB of a checkpoint": lambda a: a.weights.total * a.question.count / 1e9,
    "bytes of cache a token": lambda a: a.cache_bytes_per_token,
    "tokens/s of a sequence": lambda a: (0, 1 / a.tokens[0][1].least),
    "tokens/s of all": lambda a: (0, 1 / a.sustained.total[0]),
    "tokens/s of each GPU": lambda a: (0, 1 / a.sustained.total[0] / a.question.count),
    "ms to the first token": lambda a: (1e3 * a.prefill.least, inf),
}
#: The same if nothing overlaps, which is no bound: a measured number may lie on either side.
IF_NOTHING_OVERLAPS: dict[str, Callable[[Any], float]] = {
    "tokens/s of a sequence": lambda a: 1 / a.tokens[0][1].most,
    "tokens/s of all": lambda a: 1 / a.sustained.total[1],
    "tokens/s of each GPU": lambda a: 1 / a.sustained.total[1] / a.question.count,
    "ms to the first token": lambda a: 1e3 * a.prefill.most,
}


def causal_flops(q: Question) -> int:
    """Return the FLOPs of a sequence, forward and backward, without the pairs that the mask hides."""
    return training_flops(q.model, batch=1, sequence=q.sequence, causal=True).total


@dataclass(frozen=True)
class Row:
    """A published number, and the question that asks for it. `model` is a name, or the fields of a configuration, Hugging Face's
    where they say a model_type.
    """

    source: str
    ran: str
    quantity: str
    published: float
    plan: dict[str, Any] = field(default_factory=dict)
    serve: dict[str, Any] = field(default_factory=dict)
    #: the largest share of the published number by which the predicted one may differ; None for bounds
    within: float | None = None
    #: what explains a difference above 10 %
    why: str = ""

    @cached_property
    def answer(self) -> Any:
        """Today's answer."""
        asked = self.plan or self.serve
        said = asked["model"]
        if isinstance(said, dict):
            config = from_hf(said) if "model_type" in said else TransformerConfig(**said)
        else:
            config = model(said)
        asked = asked | {"model": config}
        return plan(Question(**asked)) if self.plan else serve(ServingQuestion(**asked))

    @cached_property
    def predicted(self) -> tuple[float, float]:
        """The bounds of today's answer, which are the same where it is a number."""
        found = QUANTITIES[self.quantity](self.answer)
        return found if isinstance(found, tuple) else (found, found)

    @property
    def holds(self) -> bool:
        """Whether the published number is near the predicted one, or between its bounds."""
        low, high = self.predicted
        if self.within is None:
            return low <= self.published <= high
        return low == high and abs(low - self.published) <= self.within * self.published

    def __str__(self) -> str:
        low, high = self.predicted
        known = [bound for bound in dict.fromkeys((low, high)) if 0 < bound < inf]
        sign = "" if len(known) == 2 or low == high else "≤ " if low == 0 else "≥ "
        shown = sign + " … ".join(f"{bound:,.4g}" if bound < 1e4 else f"{bound:,.0f}" for bound in known)
        ratio = " … ".join(f"{bound / self.published:.3f}" for bound in known)
        verdict = "bounds" if self.within is None else f"within {100 * self.within:g} %"
        verdict += " hold" if self.holds else " DO NOT HOLD"
        asked = ", ".join(f"{name}={value!r}" for name, value in (self.plan or self.serve).items())
        asked = f"{'plan' if self.plan else 'serve'}: {asked}"
        line = f"{self.quantity:27} {self.published:>12,.10g} {shown:>16} {ratio:>15}  {verdict}"
        apart = ""
        if self.quantity in IF_NOTHING_OVERLAPS:
            value = IF_NOTHING_OVERLAPS[self.quantity](self.answer)
            apart = f"{'if nothing overlaps':40} {value:>16,.4g} {value / self.published:>15.3f}"
        return "\n    ".join(filter(None, [f"{self.source}: {self.ran}", asked, self.why, line, apart])) + "\n"


def rows(*words: str) -> list[Row]:
    """The rows of the file that have one of the words in their source or in what was run; without words, all."""
    every = [Row(**row) for row in TABLE["row"]]
    return [row for row in every if not words or any(word in f"{row.source} {row.ran}" for word in words)]


def main(words: list[str]) -> int:
    """Print published and predicted numbers, their ratio and the verdict.

    Returns 1 where a row does not hold, and 2, with a sentence, where no row has one of the words.
    """
    parser = Parser(prog="python -m benchmarks.published", description=__doc__)
    parser.add_argument("words", metavar="WORD", nargs="*", help="of a row's source, or of what was run")
    asked = rows(*(words := parser.parse_args(words).words))
    if words and not asked:
        print(
            f"no row has {' or '.join(map(repr, words))}. The sources: {', '.join(TABLE['sources'])}.", file=sys.stderr
        )
        return 2
    for row in asked:
        print(row)
    held = sum(row.holds for row in asked)
    print(f"{held} of {len(asked)} rows hold; columns: quantity, published, predicted, predicted / published, verdict")
    return int(held < len(asked))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
