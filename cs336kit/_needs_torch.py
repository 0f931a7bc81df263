"""Imported first by the rooms that need torch: where it is missing, this says what to install."""

try:
    import torch as torch
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    sentence = (
        'This part of the kit needs torch: pip install "cs336kit[torch]", or "cs336kit[lab]" for the whole course.'
    )
    raise ModuleNotFoundError(sentence, name="torch") from None
