"""The planner: how long a training run takes and whether it fits, and what a served model takes and how fast it answers.

It needs the standard library alone. Names are imported on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cs336plan.serving.question import ServingQuestion as ServingQuestion
    from cs336plan.serving.serve import Served as Served
    from cs336plan.serving.serve import serve as serve
    from cs336plan.training.changes import Advice as Advice
    from cs336plan.training.plan import Plan as Plan
    from cs336plan.training.plan import plan as plan
    from cs336plan.training.question import Question as Question

_HOME = {
    "Advice": "training.changes",
    "Plan": "training.plan",
    "Question": "training.question",
    "Served": "serving.serve",
    "ServingQuestion": "serving.question",
    "plan": "training.plan",
    "serve": "serving.serve",
}
__all__ = [*_HOME]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"cs336plan has no {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
