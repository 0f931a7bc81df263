"""The ledger of claims about this subject that circulate in notes: what they say, and what is true."""

from dataclasses import dataclass
from functools import cache
from importlib import resources

VERDICTS = ("holds", "holds-with-condition", "imprecise", "typo", "wrong", "outdated")


@dataclass(frozen=True)
class Claim:
    """One checkable statement: who makes it (`source`), what it says, and the verdict with the truth beside it."""

    id: str
    topic: str
    source: str
    claim: str
    verdict: str
    truth: str


@cache
def claims(topic: str | None = None) -> tuple[Claim, ...]:
    """All claims, or those of one topic, in the order of the ledger's files (``teach/claims/<topic>.yml``).

    Raises ValueError for an unknown topic and lists the known ones.
    """
    import yaml

    files = {
        file.name.removesuffix(".yml"): file
        for file in resources.files(__name__).iterdir()
        if file.name.endswith(".yml")
    }
    if topic is not None and topic not in files:
        raise ValueError(f"no claims on the topic {topic!r}; the ledger has {', '.join(sorted(files))}")
    chosen = sorted(files) if topic is None else [topic]
    return tuple(
        Claim(topic=name, **entry)
        for name in chosen
        for entry in yaml.safe_load(files[name].read_text(encoding="utf-8"))
    )
