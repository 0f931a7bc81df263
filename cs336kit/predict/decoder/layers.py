"""Which layers of a model are alike, so that a program has each kind once, however often it is repeated."""

from collections.abc import Hashable, Sequence
from itertools import groupby
from typing import TypeVar

from cs336kit.predict.decoder.blocks import Block, blocks
from cs336kit.predict.layouts import Layout, check_layout
from cs336kit.predict.transformer import TransformerConfig, check_config

T = TypeVar("T", bound=Hashable)

#: The longest pattern of different layers that is searched for; published ones have up to 8 layers.
LONGEST = 12


def stage_blocks(layers: int, stages: int, stage: int) -> range:
    """The blocks of a pipeline stage, counted from 0, where no two stages differ by more than one block.

    Those in the middle have one more, as in the runs of Llama 3 405B: besides blocks, the first has the table, and the last
    the head. Source: Llama team 2024, section 3.3.2.
    """
    each, more = divmod(layers, stages)
    first = (stages - more) // 2
    start = stage * each + min(max(stage - first, 0), more)
    return range(start, start + each + (first <= stage < first + more))


def stage_kinds(config: TransformerConfig, layout: Layout, expert_tokens: object = None) -> list[int]:
    """For each pipeline stage, the first one that is like it. The two ends are unlike all others: they have a table or the head.

    With `expert_tokens` of each layer, as `predict.program` takes them, no two are alike.
    Errors: ValueError if there are fewer layers than stages.
    """
    if layout.pp == 1:
        return [0]
    check_config(config)
    check_layout(config, layout)
    if isinstance(expert_tokens, Sequence) and expert_tokens and isinstance(expert_tokens[0], Sequence):
        return list(range(layout.pp))
    kinds = blocks(config)
    first: dict[tuple[bool, bool, tuple[Block, ...]], int] = {}
    found = []
    for stage in range(layout.pp):
        own = tuple(kinds[layer] for layer in stage_blocks(config.layers, layout.pp, stage))
        found.append(first.setdefault((stage == 0, stage == layout.pp - 1, own), stage))
    return found


def stages(
    config: TransformerConfig, layout: Layout, stage: int | None = None, expert_tokens: object = None
) -> list[int]:
    """The stages that include the slowest and the fullest, or the one that is asked for.

    Of those that are alike, the first holds most, because it has the most micro-batches in flight.
    """
    return sorted(set(stage_kinds(config, layout, expert_tokens))) if stage is None else [stage]


def periods(kinds: Sequence[T], *, longest: int = LONGEST) -> list[tuple[int, list[tuple[int, T]]]]:
    """The sequence as (how often, [(how many in a row, kind), …]): neighbors that are alike, and patterns that repeat.

    `longest`: layers of a pattern.
    """
    if kinds and kinds.count(kinds[0]) == len(kinds):
        return [(1, [(len(kinds), kinds[0])])]
    found: list[tuple[int, list[tuple[int, T]]]] = []
    start = 0
    while start < len(kinds):
        length, times = max(
            ((length, _repeats(kinds, start, length)) for length in range(1, longest + 1)),
            # The pattern that covers the most, if it repeats at all; the shortest of these.
            key=lambda choice: (choice[0] * choice[1] if choice[1] > 1 else 1, -choice[0]),
        )
        if times == 1:
            length = 1
        pattern = kinds[start : start + length]
        rows = [(len(list(row)), kind) for kind, row in groupby(pattern)]
        found.append((times, rows) if length > 1 else (1, [(times, pattern[0])]))
        start += length * times
    return found


def _repeats(kinds: Sequence[T], start: int, length: int) -> int:
    pattern, times = kinds[start : start + length], 1
    while kinds[start + times * length : start + (times + 1) * length] == pattern:
        times += 1
    return times
