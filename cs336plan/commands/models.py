"""`cs336kit models`: the names that plan, serve and optimal know."""

from cs336kit.command.arguments import Parser
from cs336kit.predict.accounting import active_parameters, parameters
from cs336kit.predict.grid import as_text
from cs336kit.predict.models import MODELS
from cs336kit.predict.names import known_as, names

PURPOSE = "the models that are known by name, with their parameters and contexts"
_EXAMPLES = """
    examples:
      which are known?
        cs336kit models
      those in whose name or hub id a word stands
        cs336kit models qwen3
        cs336kit models mistralai/
"""


def run(arguments: list[str]) -> int:
    """Print a row for each model."""
    command = Parser.of("models", "[PART]", purpose=PURPOSE, examples=_EXAMPLES)
    command.add_argument("part", nargs="?", default="", metavar="PART", help="of a name or a hub id; none means all")
    part = command.parse_args(arguments).part
    rows = [("name", "parameters", "active", "context"), *map(_row, names(part))]
    if len(rows) == 1 and part in MODELS:
        stored = MODELS[part].stored
        print(as_text([*rows, _row(part)], "<>>>", gap=3))
        print(f"counted as {known_as(part)}" + f", published in {stored}" * bool(stored))
        return 0
    if len(rows) == 1:
        raise ValueError(f"no known model has {part!r} in its name or hub id: leave it out to see all")
    print(as_text(rows, "<>>>", gap=3))
    return 0


def _row(name: str) -> tuple[str, str, str, str]:
    try:
        config = MODELS[name]
    except ValueError:  # what no configuration can say is known, too, and refused with the reason
        return name, "cannot be counted", "", ""
    active = f"{active_parameters(config).total:,}" if config.experts else ""
    return name, f"{parameters(config).total:,}", active, f"{config.context:,}"
