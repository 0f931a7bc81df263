"""What the API says of the fields of a question, said of the options of the command line that set them."""

import re

from cs336plan.commands import plan, serve
from cs336plan.serving.question import ServingQuestion
from cs336plan.training.question import Question

#: Fields of a question that no option sets under their name.
_OF_ADAPTERS = {"lora_rank": "--lora or --qlora", "base": "--qlora"}


def in_options(sentence: str) -> str:
    """What the API says of the fields of a question, said of the options that set them."""
    options = options_of_fields()
    short, long = ("|".join(field for field in options if ("_" in field) is several) for several in (False, True))
    sentence = sentence.replace(" (int)", "")
    # No one option takes the values of these fields.
    for field in options.keys() - {*_OF_ADAPTERS, "sharded"}:
        sentence = re.sub(rf"(?<![\w.]){field}=(?:'([^']*)'|([\w.+-]+))", rf"{options[field]} \1\2", sentence)
    # A word of plain English is the field only where something is said of it, or where it is asked for.
    for pattern in (
        rf"(?<![\w/'\"-])()({long})(?![\w/]|\.\w)",
        rf"^()({short})(?= must be| is about| needs? | with )",
        rf"(\b(?:give|leave) |\(or )({short})(?=[,;)]| out\b| \(|$)",
    ):
        sentence = re.sub(pattern, lambda found: found[1] + options[found[2]], sentence)
    return sentence


def options_of_fields() -> dict[str, str]:
    """Field of a question → the option that sets it, as the parsers of `plan` and `serve` have it."""
    fields = Question.__dataclass_fields__ | ServingQuestion.__dataclass_fields__
    actions = [*plan.parser()._actions, *serve.parser()._actions]
    named = {action.dest: action.option_strings[0] for action in actions if action.option_strings}
    return {field: option for field, option in named.items() if field in fields} | _OF_ADAPTERS
