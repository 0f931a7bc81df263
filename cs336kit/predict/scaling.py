"""How to divide a budget of training FLOPs into parameters and tokens, by published laws, each with its spread."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from math import exp, log
from typing import Any

from cs336kit.predict.accounting import parameters as count_parameters
from cs336kit.predict.accounting import without_embeddings
from cs336kit.predict.checks import positive_number
from cs336kit.predict.data import data
from cs336kit.predict.grid import as_text
from cs336kit.predict.transformer import TransformerConfig
from cs336kit.predict.words import folded, short

#: Raised whenever a key of the JSON output changes its meaning or is removed.
OPTIMAL_SCHEMA = 1
#: Every key of `cs336kit optimal --json` in order, with its meaning.
OPTIMAL_KEYS = {
    "schema": "1; raised when a key changes its meaning or goes",
    "command": '"optimal"',
    "given": "{flops or parameters or tokens: the number asked about}",
    "laws": "list of {name, title, parameters, tokens, flops, exponent, low, high, extrapolated, source}",
    "range": "{parameters, tokens, flops}: the smallest and the largest over all laws",
}


#: The smallest and the largest number that the laws are asked about: anything beyond is a typing error.
_RANGE = {"flops": (1, 1e40), "parameters": (1, 1e18), "tokens": (1, 1e18)}
_WORDS = {"parameters": "parameters", "tokens": "tokens", "flops": "FLOPs"}


@dataclass(frozen=True)
class Law:
    """A published law: its exponent of N in C with the spread given by its authors, and how N and D follow from C."""

    name: str
    title: str
    source: str
    kind: str
    exponent: float
    #: None if the authors give none
    low: float | None
    high: float | None
    numbers: dict[str, Any]

    @property
    def without_embeddings(self) -> bool:
        """Whether its parameters leave the embedding tables out."""
        return self.name == "kaplan"


@dataclass(frozen=True)
class Optimum:
    """The answer of one law: parameters and tokens for FLOPs."""

    law: Law
    parameters: float
    tokens: float
    flops: float
    #: whether the answer is beyond the sizes in the law's table
    extrapolated: bool


@dataclass(frozen=True)
class Optimal:
    """The answers of all laws for a budget, a number of parameters, or a number of tokens."""

    #: "flops", "parameters" or "tokens"; `value` says how many
    given: str
    value: float
    laws: tuple[Optimum, ...]

    def range(self, what: str) -> tuple[float, float]:
        """The smallest and the largest value of "parameters", "tokens" or "flops" over all laws."""
        values = [getattr(law, what) for law in self.laws]
        return min(values), max(values)

    def as_dict(self) -> dict[str, object]:
        """Plain values for JSON, under the names of OPTIMAL_KEYS."""
        laws = [
            {
                "name": one.law.name, "title": one.law.title, "parameters": one.parameters, "tokens": one.tokens,
                "flops": one.flops, "exponent": one.law.exponent, "low": one.law.low, "high": one.law.high,
                "extrapolated": one.extrapolated, "source": one.law.source,
            }
            for one in self.laws
        ]  # fmt: skip
        ranges = {what: list(self.range(what)) for what in ("parameters", "tokens", "flops")}
        values = (OPTIMAL_SCHEMA, "optimal", {self.given: self.value}, laws, ranges)
        return dict(zip(OPTIMAL_KEYS, values, strict=True))

    def __str__(self) -> str:
        """The laws as a table, and their range."""
        rows = [("law", "parameters", "tokens", "D / N", "FLOPs", "N grows as C to the")]
        for one in self.laws:
            spread = f" ({one.law.low:g} to {one.law.high:g})" if one.law.low is not None else " (no spread given)"
            rows.append(
                (
                    one.law.name + "*" * one.extrapolated, short(one.parameters), short(one.tokens),
                    f"{one.tokens / one.parameters:,.3g}", f"{one.flops:.2e}", f"{one.law.exponent:g}{spread}",
                )
            )  # fmt: skip
        lines = [f"compute-optimal for {short(self.value)} {_WORDS[self.given]}", as_text(rows, "<>>>><", gap=2)]
        lines.append(f"all laws: {self._ranges()}")
        newer = replace(self, laws=tuple(one for one in self.laws if not one.law.without_embeddings))
        lines.append(f"those since 2022: {newer._ranges()}")
        if any(one.extrapolated for one in self.laws):
            lines.append("* beyond the sizes that the law's table lists: continued with its last slope")
        lines.append("6·N·D FLOPs of all parameters; kaplan counts those without embeddings")
        lines.append("sources:")
        for one in self.laws:
            lines += folded(f"{one.law.name}: {one.law.title}; {one.law.source}", indent="    ", first="  ")
        return "\n".join(lines)

    def _ranges(self) -> str:
        others = ((words, *self.range(what)) for what, words in _WORDS.items() if what != self.given)
        return ", ".join(f"{short(least)} to {short(most)} {words}" for words, least, most in others)


@cache
def scaling_laws() -> tuple[Law, ...]:
    """Every law of the table, the oldest one last."""
    laws = []
    for name, entry in data("scaling_laws.toml").items():
        exponent = entry.pop("exponent")
        title, source, kind = (entry.pop(key) for key in ("title", "source", "kind"))
        laws.append(Law(name, title, source, kind, exponent["value"], exponent.get("low"), exponent.get("high"), entry))
    return tuple(laws)


def compute_optimal(
    *,
    flops: float | None = None,
    parameters: float | TransformerConfig | None = None,
    tokens: float | None = None,
) -> Optimal:
    """The best parameters and tokens for a budget of FLOPs, for a model, or for a number of tokens; give one of them.

    The answer has each law with its spread, and the range of all of them: at large budgets, they differ by a factor of two and
    more. Convention: C = 6·N·D. Left out: what serving the model will cost, repeated data, the quality of the data.
    Errors: ValueError for none or several of them, and beyond 1 to 10¹⁸ parameters or tokens and 1 to 10⁴⁰ FLOPs.
    """
    given = {"flops": flops, "parameters": parameters, "tokens": tokens}
    asked = [name for name, value in given.items() if value is not None]
    if len(asked) != 1:
        raise ValueError(
            f"give one of flops, parameters and tokens, and the laws say the others; got {', '.join(asked) or 'none'}"
        )
    what = asked[0]
    config = parameters if isinstance(parameters, TransformerConfig) else None
    value = float(count_parameters(config).total) if config else float(positive_number(what, given[what]))
    least, most = _RANGE[what]
    if not least <= value <= most:
        raise ValueError(f"{what} must be from {least} to {most:g}, got {value:g}: the laws say nothing beyond")
    rows = []
    for law in scaling_laws():
        number = float(without_embeddings(config)) if config and law.without_embeddings else value
        rows.append(_BY_KIND[law.kind](law, what, number))
    return Optimal(what, value, tuple(rows))


def _from_table(law: Law, what: str, value: float) -> Optimum:
    """Linear interpolation between the rows of the table, on logarithmic axes."""
    columns = {"parameters": 0, "flops": 1, "tokens": 2}
    rows: Sequence[Sequence[float]] = law.numbers["rows"]
    given = [row[columns[what]] for row in rows]
    found = {name: _line(given, [row[i] for row in rows], value) for name, i in columns.items()}
    return Optimum(law, **{**found, what: value}, extrapolated=not given[0] <= value <= given[-1])


def _line(x: Sequence[float], y: Sequence[float], at: float) -> float:
    """y at a value of x, from the segment of the table around it, or from the nearest one."""
    segments = list(zip(pairwise(x), pairwise(y), strict=True))
    (x0, x1), (y0, y1) = next((s for s in segments if at <= s[0][1]), segments[-1])
    return exp(log(y0) + log(at / x0) * log(y1 / y0) / log(x1 / x0))


def _from_powers(law: Law, what: str, value: float) -> Optimum:
    """N = N₁·(C / unit)ᵃ and D = D₁·(C / unit)ᵇ."""
    n = law.numbers
    scale = {"flops": n["unit"], "parameters": n["parameters_at_one"], "tokens": n["tokens_at_one"]}
    power = {"flops": 1.0, "parameters": law.exponent, "tokens": n["tokens_exponent"]}
    budget = (value / scale[what]) ** (1 / power[what])
    return Optimum(law, **{name: scale[name] * budget ** power[name] for name in scale}, extrapolated=False)


def balance(A: float, B: float, alpha: float, beta: float) -> float:
    """ln G of Hoffmann et al. 2022, equation 4: the best N is G·(C / 6) to the power β / (α + β)."""
    return log(alpha * A / (beta * B)) / (alpha + beta)


def _from_loss(law: Law, what: str, value: float) -> Optimum:
    """The smallest E + A·N⁻ᵅ + B·D⁻ᵝ where 6·N·D = C. Source: Hoffmann et al. 2022, equation 4."""
    A, B, alpha, beta = (law.numbers[name]["value"] for name in ("A", "B", "alpha", "beta"))
    G = exp(balance(A, B, alpha, beta))
    if what == "parameters":
        product = (value / G) ** ((alpha + beta) / beta)
    elif what == "tokens":
        product = (value * G) ** ((alpha + beta) / alpha)
    else:
        product = value / 6
    parameters = G * product ** (beta / (alpha + beta))
    return Optimum(law, parameters, product / parameters, 6 * product, extrapolated=False)


#: Kind of a law in the table → how its optimum follows.
_BY_KIND = {"table": _from_table, "power": _from_powers, "loss": _from_loss}
