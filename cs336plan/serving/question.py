"""A question about serving a model."""

from dataclasses import dataclass, replace

from cs336kit.predict.checks import shown
from cs336kit.predict.decoding.load import Load, settled_load
from cs336kit.predict.models import MODELS
from cs336kit.predict.names import unknown
from cs336kit.predict.transformer import TransformerConfig


@dataclass(frozen=True)
class ServingQuestion(Load):
    """Which model (a name of MODELS, or a configuration), on what, for prompts and answers of how many tokens, at what price."""

    name: str = "model"
    #: sequences that are decoded together; None: as many as the memory holds
    batch: int | None = None
    #: the most seconds that a token may take
    latency: float | None = None
    price_per_hour: float | None = None


def settled(q: ServingQuestion) -> ServingQuestion:
    """The question with every default filled in; ValueError for what is none, or cannot be."""
    if not isinstance(q, ServingQuestion):
        raise ValueError(
            f"serve takes a ServingQuestion, got {shown(q)}: give one, such as ServingQuestion('llama-3-8b')"
        )
    if isinstance(q.model, str):
        if q.model not in MODELS:
            unknown(q.model, otherwise="predict.from_hf reads a config.json")
        q = replace(q, model=MODELS[q.model], name=q.model if q.name == ServingQuestion.name else q.name)
    if not isinstance(q.model, TransformerConfig):
        raise ValueError(
            f"model must be a TransformerConfig or the name of a known model, got {shown(q.model)}: give one, such as "
            "'llama-3-8b'"
        )
    return settled_load(q)
