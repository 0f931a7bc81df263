"""What advice and notes about serving are called: facts in, sentences out."""

from collections.abc import Mapping
from typing import Any

#: Field of a question → its change, with the option of the command.
_CHANGES = {
    "weights": "weights in {0} (--weights {0})",
    "cache": "a cache in {0} (--cache {0})",
    "count": "{0} accelerators (--count {0}{1})",
    "chunk": "passes of {0:,} tokens of a prompt (--chunk {0})",
    "prompt": "prompts of {0:,} tokens (--prompt {0})",
    "output": "answers of {0:,} tokens (--output {0})",
}
#: Kind of note → its sentence (see `answers.sentences`).
NOTES = {
    "latents copied": "the latents, from which all heads make their keys and values, are whole on each of the {count} "
        "accelerators, and counted on each: of what all {count} hold together, {cache_bytes} GiB of a sequence's cache and "
        "{weight_bytes} GiB of weights are copies",
    "head copied": "the key/value head is on {each} of the {count} accelerators, and counted on each: of what all {count} hold "
        "together, {cache_bytes} GiB of a sequence's cache and {weight_bytes} GiB of weights are copies",
    "heads copied": "each of the {heads} key/value heads is on {each} of the {count} accelerators, and counted on each: of what "
        "all {count} hold together, {cache_bytes} GiB of a sequence's cache and {weight_bytes} GiB of weights are copies",
    "routing": "each token chooses {chosen} of a layer's {experts} experts by chance: a step of {every:,} reads {read:,.0f} of "
        "them on average. Tokens that shared them equally would read all {experts}; if all chose the same, {chosen}: a skewed "
        "router reads fewer, so that a step can be faster than both bounds",
    "one pass": "heads of {head_dim} have their scores written out, and a prompt is taken in one pass",
    "latents again": "each pass makes keys and values of what came before it from the latents again, in pieces of as many tokens",
}  # fmt: skip


def change(changes: Mapping[str, Any], between_nodes: bool) -> str:
    """All changes of an advice in words; links whose speed nobody knows make each accelerator a node of its own.

    changes: fields of the question and their new values; between_nodes: whether the rate between nodes is needed, too.
    """
    behind = " --node 1" * ("node" in changes)
    behind += ", and --between-nodes with the rate of their network" * between_nodes
    return " and ".join(_CHANGES[name].format(value, behind) for name, value in changes.items() if name in _CHANGES)
