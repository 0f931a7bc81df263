"""`cs336kit optimal`: what a budget is best spent on, by published laws."""

import json

from cs336kit.command.arguments import Keys, Parser, number, tokens
from cs336kit.predict.accounting import active_parameters, parameters
from cs336kit.predict.scaling import OPTIMAL_KEYS, OPTIMAL_SCHEMA, compute_optimal
from cs336kit.predict.transformer import TransformerConfig
from cs336kit.predict.words import folded
from cs336plan.commands.model import model_of

PURPOSE = "compute-optimal parameters and tokens, by published laws, each with its spread"
_KEYS = {**OPTIMAL_KEYS, "notes": "sentences about what the laws or the counts leave out"}
_EXAMPLES = """
    examples:
      what to train with 1e24 FLOPs?
        cs336kit optimal --flops 1e24
      how many tokens for a model?
        cs336kit optimal --model llama-3-8b
      how large a model for 15T tokens?
        cs336kit optimal --tokens 15T

    --json-keys prints what every key of --json means.
"""


def run(arguments: list[str]) -> int:
    """Answer and print."""
    usage = "(--flops C | --model NAME | --tokens D) [options]"
    command = Parser.of("optimal", usage, purpose=PURPOSE, examples=_EXAMPLES)
    add = command.add_argument
    add("--flops", type=number, metavar="C", help="budget of training FLOPs, such as 1e24")
    add("--model", metavar="NAME", help="a name, a .json file, or a number of parameters such as 70B")
    add("--tokens", type=tokens, metavar="D", help="tokens to train on, such as 15T")
    add("--json", action="store_true", help="print JSON")
    add("--json-keys", action=Keys, keys=_KEYS, schema=OPTIMAL_SCHEMA, help="what each key of --json means")
    asked = command.parse_args(arguments)
    given = [name for name in ("flops", "model", "tokens") if getattr(asked, name) is not None]
    if len(given) != 1:
        got = " and ".join(f"--{name}" for name in given) or "none"
        raise ValueError(f"give one of --flops, --model and --tokens, and the laws say the others; got {got}")
    model = None if asked.model is None else model_of(asked.model)[1]
    answer = compute_optimal(flops=asked.flops, parameters=model, tokens=asked.tokens)
    notes = _notes(model) if isinstance(model, TransformerConfig) else []
    if asked.json:
        print(json.dumps({**answer.as_dict(), "notes": notes}, indent=2))
    else:
        print("\n".join([str(answer), *(line for note in notes for line in folded(note, indent="  ", first="note: "))]))
    return 0


def _notes(model: TransformerConfig) -> list[str]:
    notes = list(model.notes)
    if model.experts:
        active, together = active_parameters(model).total, parameters(model).total
        notes.append(
            f"the laws are for dense models, and here all {together:,} parameters of a mixture of experts are counted, of "
            f"which a token meets {active:,}: --model {active} asks about a dense model of as many"
        )
    return notes
