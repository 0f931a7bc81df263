"""What to change if not even one sequence fits: every change here was tried."""

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from itertools import combinations
from typing import Any

from cs336kit.predict.accounting import CACHE_TYPES
from cs336kit.predict.decoding.bounds import token_bounds
from cs336kit.predict.decoding.load import chip_of
from cs336kit.predict.decoding.memory import weights
from cs336kit.predict.hardware import accelerator
from cs336kit.predict.layouts import divisors
from cs336kit.predict.training import first
from cs336plan.serving.answer import ServingAdvice, ServingAnswer, memory_fields
from cs336plan.serving.question import ServingQuestion, settled

#: Types that are tried, besides the published one; all others have about as many bits as one of these.
_WEIGHTS, _CACHES = ("bf16", "fp8", "int4"), ("bf16", "fp8")
#: Tokens of the shortest pass that is suggested: shorter ones read all weights for ever fewer tokens.
_LEAST_CHUNK = 512


def serving_advice(answer: ServingAnswer) -> tuple[ServingAdvice, ...]:
    """The smallest of each single change that makes a sequence fit; if there is none, of as few together as it takes."""
    options = {name: values for name, values in _options(answer).items() if values}
    for number, _ in enumerate(options, 1):
        tried = (_least(answer, options, names) for names in combinations(options, number))
        helps = [_advice(answer, changes) for changes in tried if changes]
        if helps and number == 1:
            fewer = [*_with_fewer(answer, options, helps)]
            near = [
                one for one in _in_a_node(answer, options, helps) if one.changes not in [two.changes for two in fewer]
            ]
            return (*fewer, *near, *helps)
        if helps:
            return (helps[0],)
    return ()


def _with_fewer(
    answer: ServingAnswer, options: dict[str, list[Any]], helps: list[ServingAdvice]
) -> Iterable[ServingAdvice]:
    """The fewest accelerators with another change, where no single change but more accelerators helps."""
    least = min((one.changes.get("count", 0) for one in helps), default=0)
    fewer = [count for count in options.get("count", []) if count < least]
    for other in (name for name in options if name != "count" and fewer):
        if changes := _least(answer, options | {"count": fewer}, ("count", other)):
            yield _advice(answer, changes)
            return


def _in_a_node(
    answer: ServingAnswer, options: dict[str, list[Any]], helps: list[ServingAdvice]
) -> Iterable[ServingAdvice]:
    """The least pair of changes with accelerators of one node, where no single change stays in one."""
    node = answer.question.per_node
    if any(one.changes.get("count", 0) <= node for one in helps):
        return
    near = options | {"count": [count for count in options["count"] if count <= node]}
    for other in (name for name in options if name != "count" and near["count"]):
        if changes := _least(answer, near, (other, "count")):
            yield _advice(answer, changes)
            return


def _options(answer: ServingAnswer) -> dict[str, list[Any]]:
    """Field of the question → its other values, the smallest change first."""
    q = answer.question
    return {
        "weights": _fewer_bytes(answer),
        "cache": [name for name in _CACHES if CACHE_TYPES[name] < CACHE_TYPES[q.cache]],
        "count": [
            count for count in divisors(q.config.heads, q.config.heads) if count > q.count and _node(q, count) != 0
        ],
        "chunk": [tokens for tokens in _halves(q.pass_tokens) if tokens >= _LEAST_CHUNK],
        "prompt": _halves(q.prompt_tokens),
        "output": _halves(q.output_tokens),
    }


def _fewer_bytes(answer: ServingAnswer) -> list[str]:
    """Types of weights that take less than the one asked for, the largest first: common ones, the published one, and mxfp4 if
    the chip has products in fp4.
    """
    q = answer.question
    fp4 = q.accelerator is not None and "fp4" in accelerator(q.accelerator).precisions
    names = dict.fromkeys((*_WEIGHTS, *(["mxfp4"] if fp4 else []), *([q.config.stored] if q.config.stored else [])))
    sizes = {name: weights(replace(q, weights=name)).total for name in names}
    return sorted((name for name in names if sizes[name] < answer.weights.total), key=lambda name: -sizes[name])


def _halves(length: int) -> list[int]:
    return [length >> i for i in range(1, length.bit_length())]


def _node(q: ServingQuestion, count: int) -> int | None:
    """The size of a node if the model can be divided: as given, or 1 if no source has the links inside one; 0 if it cannot.

    The rate between nodes may still be missing.
    """
    for node in (q.node, 1):
        try:
            changed = settled(replace(q, count=count, node=node, between_nodes=q.between_nodes or 1.0))
            token_bounds(changed, chip_of(changed)[0], 1)
            return node
        except ValueError:
            continue
    return 0


def _least(answer: ServingAnswer, options: dict[str, list[Any]], names: Iterable[str]) -> dict[str, Any] | None:
    """The smallest changes of these fields that suffice together, or None if even the largest do not."""
    changes = {name: options[name][-1] for name in names}

    def holds(name: str, value: object) -> bool:
        return _holds(answer, changes | {name: value}) > 0

    for name in changes:
        if (least := first(options[name], partial(holds, name))) is None:
            return None
        changes[name] = least
    return changes


def _holds(answer: ServingAnswer, changes: dict[str, Any]) -> int:
    """How many sequences fit after these changes."""
    q = replace(answer.question, **changes)
    fit: int = memory_fields(q, answer.chip)["largest_batch"]
    return fit


def _advice(answer: ServingAnswer, changes: dict[str, Any]) -> ServingAdvice:
    """These changes, with how many sequences fit after them."""
    q, fit = answer.question, _holds(answer, changes)
    if "count" not in changes:
        return ServingAdvice(changes, fit)
    alone: dict[str, Any] = {} if (node := _node(q, changes["count"])) == q.node else {"node": node}
    far = changes["count"] > replace(q, **changes, **alone).per_node and q.between_nodes is None
    return ServingAdvice(changes | alone, fit, between_nodes=far)
